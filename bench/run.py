"""Runs the benches one after the other; `make bench` is this without a name.

    python -m bench.run [NAME ...] [--json FOLDER]

Each prints its figures beside their goals. The exit code is 1 if a goal is missed, and 2 if a bench
that was named needs an extra that is not installed; without a name such a bench is passed over.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench.figures import LACKING

ROOT = Path(__file__).resolve().parents[1]
BENCHES = (
    "startup",
    "overhead",
    "step",
    "scale",
    "kill",
    "budget",
    "controls",
    "agent_controls",
    "verdict_null",
    "canary",
    "local_server",
    "proxy",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--json", type=Path, help="a folder for each bench's figures as JSON")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in BENCHES]
    if unknown:
        parser.error(f"no bench {unknown[0]!r}; there are {', '.join(BENCHES)}")
    if given.json is not None:
        given.json.mkdir(parents=True, exist_ok=True)
    codes: dict[str, int] = {}
    for name in given.names or BENCHES:
        begun = time.monotonic()
        codes[name] = _one(name, given.json)
        print(f"  ({name}: {time.monotonic() - begun:.0f} s)\n", flush=True)
    text, code = outcome(codes, named=bool(given.names))
    print(text)
    return code


def outcome(codes: Mapping[str, int], *, named: bool) -> tuple[str, int]:
    """The last lines, and the exit code, of benches that ended with these."""
    lacking = [name for name, code in codes.items() if code == LACKING]
    short = [name for name, code in codes.items() if code not in (0, LACKING)]
    goals = "every goal of those that ran is met" if lacking else "every goal is met"
    lines = [f"SHORT: {', '.join(short)}" if short else goals]
    if lacking:
        lines.append(f"NOT RUN, for what is not installed: {', '.join(lacking)}")
    return "\n".join(lines), 1 if short else LACKING if lacking and named else 0


def _one(name: str, folder: Path | None) -> int:
    """The exit code of one bench, run in a process of its own."""
    command = [sys.executable, "-m", f"bench.{name}"]
    command += ["--json", str(folder.resolve() / f"{name}.json")] if folder is not None else []
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    raise SystemExit(main())
