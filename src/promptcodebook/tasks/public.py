"""A benchmark taken from its public home, kept in a folder of the cache, and recognised again."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, cast

from promptcodebook.data import SPLITS
from promptcodebook.data.sources import read_source
from promptcodebook.data.table import Table
from promptcodebook.errors import DataError, TaskError

__all__ = ["Fetched", "Remote", "Rows", "Source", "checked_copy", "public_rows", "url_of"]

Rows = list[dict[str, object]]

_RECORD = "origin.json"
_TIMEOUT_S = 60.0
_BASES = {
    "hub": ("HF_ENDPOINT", "https://huggingface.co"),
    "github": ("PCO_GITHUB_RAW", "https://raw.githubusercontent.com"),
}
_PATHS = {
    "hub": "{base}/datasets/{repo}/resolve/{revision}/{path}",
    "github": "{base}/{repo}/{revision}/{path}",
}


@dataclass(frozen=True, slots=True)
class Remote:
    """One file: of a data set on the Hugging Face hub, or of a repository on GitHub.

    `unpack` names the folder that an archive's content goes to, for what is not rows.
    """

    host: Literal["hub", "github"]
    repo: str
    path: str
    revision: str = "main"
    unpack: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A benchmark's public home; `arrange` makes its files' rows into train, val, test (, corpus).

    `note` says how the result differs from the paper's data, for whoever fetches it.
    """

    name: str
    files: tuple[Remote, ...]
    arrange: Callable[[Sequence[Rows]], Mapping[str, Rows]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where the copy lies, how many rows each of its files has, and which files were downloaded."""

    folder: Path
    counts: Mapping[str, int]
    files: Mapping[str, str]


def url_of(remote: Remote) -> str:
    """The file's address; HF_ENDPOINT and PCO_GITHUB_RAW name other hosts (mirrors)."""
    variable, default = _BASES[remote.host]
    return _PATHS[remote.host].format(
        base=(os.environ.get(variable) or default).rstrip("/"),
        repo=remote.repo,
        revision=remote.revision,
        path=remote.path,
    )


def public_rows(source: Source, cache_dir: Path, *, accept: bool = False) -> Fetched:
    """Downloads the source, splits it by its protocol, and writes the splits into `cache_dir`.

    Each file's SHA-256 is recorded at the first download; TaskError when a later one differs (the
    old copy stays; `accept` takes the new one), and when a file cannot be had.
    """
    folder = cache_dir / source.name
    bodies = [_download(remote, source.name) for remote in source.files]
    digests = {
        _named(remote): hashlib.sha256(body).hexdigest()
        for remote, body in zip(source.files, bodies, strict=True)
    }
    known = _record(folder).get("remote", {})
    changed = [name for name, digest in digests.items() if known.get(name, digest) != digest]
    if changed and not accept:
        raise TaskError(
            f"{source.name}: changed at its public home since it was first fetched: "
            f"{', '.join(changed)}; the copy in {folder} stays as it is",
            hint=f"pco data fetch {source.name} --accept takes the new files",
        )
    tables = [
        _rows(remote, body)
        for remote, body in zip(source.files, bodies, strict=True)
        if not remote.unpack
    ]
    try:
        arranged = source.arrange(tables)
    except (KeyError, TypeError, ValueError) as error:
        raise TaskError(
            f"{source.name}: its public files are not in the form expected ({error!r})",
            hint=_elsewhere(source.name),
        ) from None
    _write(folder, arranged, source, bodies, digests)
    return Fetched(folder, {name: len(rows) for name, rows in arranged.items()}, digests)


def checked_copy(name: str, cache_dir: Path) -> Path | None:
    """The folder of a fetched copy, None without one; TaskError when its files were altered."""
    folder = cache_dir / name
    kept = _record(folder).get("local", {})
    if not kept:
        return None
    for file, digest in kept.items():
        path = folder / file
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise TaskError(
                f"{path} is not as it was fetched",
                hint=f"pco data fetch {name}, or give --data DIR",
            )
    return folder


def _elsewhere(name: str) -> str:
    return f"--data DIR with the benchmark's files (docs/tasks/{name}.md says which fields)"


def _download(remote: Remote, name: str) -> bytes:
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    url = url_of(remote)
    try:
        with urlopen(
            Request(url, headers={"User-Agent": "promptcodebook"}), timeout=_TIMEOUT_S
        ) as r:
            return cast(bytes, r.read())
    except HTTPError as error:
        said = f"the server answered {error.code}"
        error.close()
    except (URLError, OSError, ValueError) as error:
        said = f"it cannot be reached ({getattr(error, 'reason', error)})"
    variable = _BASES[remote.host][0]
    raise TaskError(
        f"{name}: {url}: {said}",
        hint=f"offline? {_elsewhere(name)}; a mirror? set {variable}",
    )


def _rows(remote: Remote, body: bytes) -> Rows:
    """The rows of a downloaded file; its format is told by its name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PurePosixPath(remote.path).name
        path.write_bytes(body)
        try:
            table = read_source(path)
        except DataError as error:
            # The temporary place says nothing to anybody; the address does.
            said = str(error).replace(str(path), url_of(remote))
            raise TaskError(said, hint="the public file is not as expected: --data DIR") from None
    return [dict(row.values) for row in cast(Table, table).rows]


def _write(
    folder: Path,
    arranged: Mapping[str, Rows],
    source: Source,
    bodies: Sequence[bytes],
    digests: Mapping[str, str],
) -> None:
    """The copy, made beside its place and moved there whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{source.name}-", dir=folder.parent))
    try:
        local = dict[str, str]()
        for name, rows in arranged.items():
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
            body = "".join(lines).encode("utf-8", "surrogatepass")
            (fresh / f"{name}.jsonl").write_bytes(body)
            local[f"{name}.jsonl"] = hashlib.sha256(body).hexdigest()
        for remote, body in zip(source.files, bodies, strict=True):
            if remote.unpack:
                _unpack(body, fresh / remote.unpack)
        record = {"remote": digests, "local": local}
        (fresh / _RECORD).write_text(json.dumps(record, indent=1), "utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        fresh.replace(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _unpack(body: bytes, folder: Path) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            archive.extractall(folder)  # drops absolute names and '..' itself
    except zipfile.BadZipFile:
        raise TaskError(
            f"the archive for {folder.name} is no zip file", hint="fetch again, or give --data DIR"
        ) from None


def _record(folder: Path) -> dict[str, dict[str, str]]:
    """What was fetched, or nothing; a copy without all its splits counts as none."""
    path = folder / _RECORD
    if not path.is_file():
        return {}
    try:
        tree = cast("dict[str, dict[str, str]]", json.loads(path.read_text("utf-8")))
        complete = {f"{split}.jsonl" for split in SPLITS} <= set(tree["local"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return tree if complete else {}


def _named(remote: Remote) -> str:
    return f"{remote.host}:{remote.repo}@{remote.revision}/{remote.path}"
