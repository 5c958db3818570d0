"""What the locks install: a bill of materials (CycloneDX), and whether advisories concern it.

python -m bench.provenance [--bill FILE] [--locks DIR] [--service URL]

The scan asks one service once, for all packages. Where it cannot be reached the scan says so and
passes: a machine without a network must not fail, and what was not checked must not look checked.
A finding fails it, unless DIR/advisories.accepted has a line `ID why it does not concern us`.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).parents[1]
SERVICE = "https://api.osv.dev/v1/querybatch"
_ACCEPTED = "advisories.accepted"
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_WANTS = re.compile(r"^    #\s+(?:via\s+)?(-r \S+|[A-Za-z0-9._-]+)$")
_AT_ONCE = 1000
"""Packages of one question, the most that the service takes."""
_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned release: the SHA-256 of its files, and the locks that have it. `wanted_by` are the
    packages for which a lock has it, each with that lock; '' = the project itself."""

    name: str
    version: str
    hashes: tuple[str, ...] = ()
    locks: tuple[str, ...] = ()
    wanted_by: frozenset[tuple[str, str]] = frozenset()

    @property
    def url(self) -> str:
        """Its package URL, which identifies it everywhere."""
        return f"pkg:pypi/{self.name}@{quote(self.version, safe='.')}"

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({', '.join(self.locks)})"


def read_locks(folder: Path) -> tuple[Package, ...]:
    """The packages of all locks in a folder, each release once, by name."""
    found: dict[tuple[str, str], Package] = {}
    for path in sorted(folder.glob("*.lock")):
        release: tuple[str, str] | None = None
        for line in path.read_text("utf-8").splitlines():
            if pinned := _PINNED.match(line):
                release = (pinned[1], pinned[2])
                known = found.get(release, Package(*release))
                found[release] = Package(
                    *release, known.hashes, (*known.locks, path.name), known.wanted_by
                )
            elif release is not None:
                known, wants = found[release], _WANTS.match(line)
                hashes = (*known.hashes, *_HASH.findall(line))
                by = known.wanted_by
                if wants is not None and wants[1] != "via":
                    by |= {(path.name, "" if wants[1].startswith("-r ") else wants[1])}
                found[release] = Package(*release, tuple(dict.fromkeys(hashes)), known.locks, by)
    return tuple(found[release] for release in sorted(found))


def bill_of_materials(packages: Sequence[Package], root: Path) -> Mapping[str, Any]:
    """CycloneDX 1.6. The same packages make the same bill: it bears no date.

    What `core.lock` has is required, everything else optional.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    ours = f"pkg:pypi/{project['name']}@{project['version']}"
    components = list(map(_component, packages))
    wants = {ours: set[str](), **{package.url: set[str]() for package in packages}}
    within = {(lock, ""): [ours] for package in packages for lock in package.locks}
    for package in packages:
        for lock in package.locks:  # which may have two releases of it, for two Pythons
            within.setdefault((lock, package.name), []).append(package.url)
    for package in packages:
        for wanting in package.wanted_by:
            for url in within.get(wanting, []):
                wants[url].add(package.url)
    told = json.dumps([ours, components], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, told)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": ours,
                "name": project["name"],
                "version": project["version"],
                "purl": ours,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components,
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(wants.items())
        ],
    }


def _component(package: Package) -> dict[str, Any]:
    hashes = [{"alg": "SHA-256", "content": each} for each in package.hashes]
    files = {"type": "distribution", "url": package.url, "comment": "any of these files"}
    return {
        "type": "library",
        "bom-ref": package.url,
        "name": package.name,
        "version": package.version,
        "purl": package.url,
        "scope": "required" if "core.lock" in package.locks else "optional",
        "externalReferences": [{**files, "hashes": hashes}],
        "properties": [{"name": "lock", "value": lock} for lock in package.locks],
    }


class _NotChecked(Exception):
    """Why no service answered."""


def _advisories(packages: Sequence[Package], service: str) -> dict[Package, list[str]]:
    """The advisories of those that have any. Raises _NotChecked."""
    found: dict[Package, list[str]] = {}
    for start in range(0, len(packages), _AT_ONCE):
        asked = packages[start : start + _AT_ONCE]
        for package, result in zip(asked, _ask(asked, service), strict=True):
            if listed := result.get("vulns"):
                found[package] = sorted(str(each["id"]) for each in listed)
            elif result:
                raise _NotChecked(f"{service} gave no answer of such a service")
    return found


def _ask(packages: Sequence[Package], service: str) -> list[dict[str, Any]]:
    queries = [
        {
            "package": {"name": package.name, "ecosystem": "PyPI"},
            "version": package.version.partition("+")[0],
        }
        for package in packages
    ]
    body = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(service, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            results = json.load(answer)["results"]
    except urllib.error.HTTPError as error:
        error.close()
        raise _NotChecked(f"{service} answered {error.code}") from None
    except OSError as error:
        raise _NotChecked(f"{service}: {getattr(error, 'reason', error)}") from None
    except (ValueError, KeyError, TypeError):
        results = None
    if not isinstance(results, list) or len(results) != len(packages):
        raise _NotChecked(f"{service} gave no answer of such a service")
    return results


def _scan(packages: Sequence[Package], folder: Path, service: str) -> int:
    try:
        found = _advisories(packages, service)
    except _NotChecked as why:
        print(f"advisories not checked: no advisory service reachable ({why})")
        return 0
    path = folder / _ACCEPTED
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    accepted = {line.split()[0] for line in lines if line.strip() and line[0] != "#"}
    open_ones = {p: [i for i in ids if i not in accepted] for p, ids in found.items()}
    for package, ids in found.items():
        if left := open_ones[package]:
            print(f"{package}: {', '.join(left)}")
        if passed := [i for i in ids if i in accepted]:
            print(f"accepted: {package}: {', '.join(passed)}")
    if any(open_ones.values()):
        print(f"next: take a release without them, or say in {path} why they do not concern us")
        return 1
    if not found:
        print(f"no known advisory concerns the {len(packages)} packages of the locks ({service})")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the bill where it was asked for, and scans; 1 for a finding that is not accepted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bill", type=Path, help="write the bill of materials to this file")
    parser.add_argument("--locks", type=Path, default=ROOT / "requirements")
    parser.add_argument("--service", default=SERVICE)
    asked = parser.parse_args(argv)
    packages = read_locks(asked.locks)
    if asked.bill is not None:
        asked.bill.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(bill_of_materials(packages, ROOT), indent=1)
        asked.bill.write_text(f"{text}\n", "utf-8")
        print(f"{asked.bill}: {len(packages)} packages")
    return _scan(packages, asked.locks, asked.service)


if __name__ == "__main__":
    raise SystemExit(main())
