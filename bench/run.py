"""Runs the benches one after the other; `make bench` is this without a name.

    python bench/run.py [NAME ...] [--json FOLDER]

Each prints its figures beside their goals. The exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCHES = (
    "startup",
    "overhead",
    "step",
    "prefix",
    "writes",
    "memory",
    "demo",
    "kill",
    "budget",
    "accept",
    "controls",
    "retrieval",
    "ifbench",
    "verdict_null",
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
    short: list[str] = []
    for name in given.names or BENCHES:
        begun = time.monotonic()
        if _one(name, given.json):
            short.append(name)
        print(f"  ({name}: {time.monotonic() - begun:.0f} s)\n", flush=True)
    print(f"SHORT: {', '.join(short)}" if short else "every goal is met")
    return 1 if short else 0


def _one(name: str, folder: Path | None) -> int:
    """The exit code of one bench, run in a process of its own."""
    command = [sys.executable, "-m", f"bench.{name}"]
    command += ["--json", str(folder.resolve() / f"{name}.json")] if folder is not None else []
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    raise SystemExit(main())
