"""A process that promotes: python -m tests.policy.registry.promoter PLACE NAME COUNT DONE [AND]

Moves tickets@production until COUNT times in all, between two versions of its own. DONE is a file
with a line for each promotion that came back; one that was killed goes on behind its last line.
AND is `wait` for one that is to be killed: it stays when it is through, however late the kill is.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from promptcodebook.registry.registry import open_registry
from tests.policy.registry.build import open_gate


def done(file: Path) -> int:
    """How many promotions came back."""
    return file.read_text().count("\n") if file.exists() else 0


def _promote(place: str, name: str, count: int, file: Path) -> None:
    with open_registry(place, who=name) as registry, file.open("a") as told:
        for number in range(done(file), count):
            version = registry.resolve(f"{name}@{'ab'[number % 2]}")
            registry.promote(version, "tickets@production", f"{name} {number}", gate=open_gate)
            told.write(f"{number}\n")
            told.flush()


if __name__ == "__main__":
    _promote(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    if sys.argv[5:] == ["wait"]:
        time.sleep(3600)
