"""Several processes at one registry, some of them killed: no entry is lost, none is half there.

As a script it promotes: python -m tests.policy.registry.test_processes PLACE NAME COUNT DONE [AND]

Moves tickets@production until COUNT times in all, between two versions of its own. DONE is a file
with a line for each promotion that came back; one that was killed goes on behind its last line.
AND is `wait` for one that is to be killed: it stays when it is through, however late the kill is.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from promptcodebook.registry.registry import Registry, open_registry
from tests.policy.registry.build import PRODUCTION, open_gate, policy, sqlite


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


class Crowd:
    """Processes that all move tickets@production of the registry in a folder."""

    def __init__(self, folder: Path, size: int, count: int) -> None:
        self.names = [f"p{number}" for number in range(size)]
        self._folder, self._count = folder, count
        self.kills: Counter[str] = Counter()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._begun: dict[str, int] = {}

    def prepare(self, registry: Registry) -> None:
        """Two versions for each, under refs of its own."""
        for name in self.names:
            for word in "ab":
                registry.freeze(policy(f"{name} {word}"), name)
                registry.promote(f"{name}@latest", f"{name}@{word}", gate=open_gate)

    def run(self, registry: Registry, kills: int, seed: int) -> None:
        """Until all are through; each is killed `kills` times, and the ref is read meanwhile.

        The kills part a process's promotions into equal shares; each falls once its share has
        begun, after a random moment, and a process that was faster than that waits for it.
        """
        draws = random.Random(seed)
        for name in self.names:
            self._start(name, kills)
        ends = time.monotonic() + 600
        while any(self.done(name) < self._count for name in self.names):
            assert time.monotonic() < ends, [self.done(name) for name in self.names]
            if PRODUCTION in registry.refs():
                assert registry.policy(PRODUCTION).select == 1  # whole: its hash is checked
            for name in self.names:
                if self.kills[name] < kills and self.done(name) > self._begun[name]:
                    self._kill(name)
                    self._start(name, kills)
            time.sleep(draws.uniform(0, 0.03))
        for process in self._running.values():
            assert process.wait(60) == 0

    def done(self, name: str) -> int:
        return done(self._file(name))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.done"

    def _start(self, name: str, kills: int) -> None:
        self._begun[name] = self.done(name)
        share = self.kills[name] + 1
        until, last = self._count * share // (kills + 1), share > kills
        module = (
            "-m",
            "tests.policy.registry.test_processes",
            str(self._folder / "registry.sqlite"),
            name,
        )
        command = (sys.executable, *module, str(until), str(self._file(name)))
        more = () if last else ("wait",)
        self._running[name] = subprocess.Popen((*command, *more), cwd=Path(__file__).parents[3])

    def _kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()
        self.kills[name] += 1


def hold_nothing_is_lost(registry: Registry, crowd: Crowd, count: int) -> None:
    entries = registry.history(PRODUCTION)
    found = registry.verify()
    assert found.passes, found.faults[:3]
    times = Counter(entry.why for entry in entries)
    for name in crowd.names:
        mine = [f"{name} {number}" for number in range(count)]
        assert all(times.pop(why) >= 1 for why in mine)
        # One that a kill kept from telling was made again.
        again = sum(entry.who == name for entry in entries) - count
        assert 0 <= again <= crowd.kills[name]
    assert not times
    assert all(one.after == next_one.before for one, next_one in pairwise(entries))
    assert registry.refs()[PRODUCTION] == entries[-1].after


@pytest.mark.parametrize(
    ("size", "count", "kills"), [(2, 30, 1), pytest.param(8, 200, 2, marks=pytest.mark.slow)]
)
def test_processes_promote_at_once_and_are_killed(
    tmp_path: Path, size: int, count: int, kills: int
) -> None:
    crowd = Crowd(tmp_path, size, count)
    with sqlite(tmp_path) as registry:
        crowd.prepare(registry)
        crowd.run(registry, kills, seed=7)
        assert crowd.kills == Counter(dict.fromkeys(crowd.names, kills))
        hold_nothing_is_lost(registry, crowd, count)


if __name__ == "__main__":
    _promote(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    if sys.argv[5:] == ["wait"]:
        time.sleep(3600)
