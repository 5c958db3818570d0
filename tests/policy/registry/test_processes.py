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

from promptcodebook.policy.registry.registry import Registry
from tests.policy.registry.build import PRODUCTION, open_gate, policy, sqlite
from tests.policy.registry.promoter import done


class Crowd:
    """Processes that all move tickets@production; `place` is the registry's."""

    def __init__(self, folder: Path, place: str, size: int, count: int) -> None:
        self.names = [f"p{number}" for number in range(size)]
        self._folder, self._place, self._count = folder, place, count
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
        """Until all are through; meanwhile `kills` of them are killed, and the ref is read."""
        draws = random.Random(seed)
        for name in self.names:
            self._start(name)
        ends = time.monotonic() + 600
        while unfinished := [name for name in self.names if self.done(name) < self._count]:
            assert time.monotonic() < ends, [self.done(name) for name in self.names]
            if PRODUCTION in registry.refs():
                assert registry.policy(PRODUCTION).select == 1  # whole: its hash is checked
            at_work = [name for name in unfinished if self.done(name) > self._begun[name]]
            if at_work and self._is_due(kills):
                self._kill(draws.choice(at_work))
            for name in unfinished:
                if self._running[name].poll() is not None and self.done(name) < self._count:
                    assert self._running[name].returncode in (0, -9)
                    self._start(name)
            time.sleep(draws.uniform(0, 0.03))
        for process in self._running.values():
            process.wait(60)

    def _is_due(self, kills: int) -> bool:
        """The kills are spread over the first two thirds of the promotions."""
        killed, all_of_them = self.kills.total(), len(self.names) * self._count
        share = (killed + 1) / (kills + 1) * 2 / 3
        return killed < kills and sum(map(self.done, self.names)) >= share * all_of_them

    def done(self, name: str) -> int:
        return done(self._file(name))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.done"

    def _start(self, name: str) -> None:
        module = ("-m", "tests.policy.registry.promoter", self._place, name)
        command = (sys.executable, *module, str(self._count), str(self._file(name)))
        self._begun[name] = self.done(name)
        self._running[name] = subprocess.Popen(command, cwd=Path(__file__).parents[3])

    def _kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()
        self.kills[name] += 1


def hold_nothing_is_lost(registry: Registry, crowd: Crowd, count: int, skip: int = 0) -> None:
    """`skip` entries were there before."""
    entries = registry.history(PRODUCTION)[skip:]
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


def crowded(folder: Path, size: int, count: int, kills: int) -> None:
    crowd = Crowd(folder, str(folder / "registry.sqlite"), size, count)
    with sqlite(folder) as registry:
        crowd.prepare(registry)
        crowd.run(registry, kills, seed=7)
        assert crowd.kills.total() >= kills / 2
        hold_nothing_is_lost(registry, crowd, count)


def test_two_processes_promote_at_once_and_one_is_killed(tmp_path: Path) -> None:
    crowded(tmp_path, size=2, count=30, kills=1)


@pytest.mark.slow
def test_eight_processes_promote_two_hundred_times_each_with_kills(tmp_path: Path) -> None:
    crowded(tmp_path, size=8, count=200, kills=24)
