"""Several processes at one registry, some of them killed: no entry is lost, none is half there."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from promptcodebook.registry.registry import Registry
from tests.policy.registry.build import PRODUCTION, open_gate, policy, sqlite
from tests.policy.registry.promoter import done


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
            "tests.policy.registry.promoter",
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
