"""Several processes at one registry, some of them killed: no entry is lost, none is half there.

Run as a module, it is one of them: it moves tickets@production until COUNT times in all, between
two versions of its own. One that is to be killed has no end of its own. FILE has a line for each
promotion that came back; one that was killed resumes after its last line.
"""

import random
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from promptcodebook.deploy.registry.registry import open_registry
from tests.build.registry import PRODUCTION, policy, sqlite

ENDLESS = 1_000_000


def done(file: Path) -> int:
    """How many promotions came back."""
    return file.read_text().count("\n") if file.exists() else 0


def promote(place: str, name: str, count: str, file: Path) -> None:
    with open_registry(place, who=name) as registry, file.open("a") as told:
        for number in range(done(file), int(count)):
            version = registry.resolve(f"{name}@{'ab'[number % 2]}")
            registry.promote(version, PRODUCTION, f"{name} {number}", override="a test")
            told.write(f"{number}\n")
            told.flush()


def start(folder: Path, name: str, count: int) -> subprocess.Popen[bytes]:
    words = str(folder / "registry.sqlite"), name, str(count), str(folder / name)
    command = sys.executable, "-m", "tests.deploy.registry.test_processes", *words
    return subprocess.Popen(command, cwd=Path(__file__).parents[3])


@pytest.mark.slow
def test_processes_promote_at_once_and_are_killed(tmp_path: Path) -> None:
    """Each is killed once, at a random moment after it came back; the ref is read meanwhile."""
    size, count, kills = 2, 8, 1
    draws, killed = random.Random(7), Counter[str]()
    names = [f"p{number}" for number in range(size)]
    with sqlite(tmp_path) as registry:
        for name in names:
            for word in "ab":
                registry.freeze(policy(f"{name} {word}"), name)
                registry.promote(f"{name}@latest", f"{name}@{word}", override="a test")
        running = {name: start(tmp_path, name, ENDLESS) for name in names}
        begun, counts = dict.fromkeys(names, 0), dict.fromkeys(names, ENDLESS)
        ends = time.monotonic() + 600
        while any(done(tmp_path / name) < counts[name] for name in names):
            assert time.monotonic() < ends, [done(tmp_path / name) for name in names]
            if PRODUCTION in registry.refs():
                assert registry.policy(PRODUCTION).select == 1  # whole: its hash is checked
            for name in names:
                if killed[name] < kills and begun[name] < done(tmp_path / name):
                    running[name].kill()
                    running[name].wait()
                    killed[name] += 1
                    begun[name] = done(tmp_path / name)
                    if killed[name] == kills:
                        counts[name] = begun[name] + count
                    running[name] = start(tmp_path, name, counts[name])
            time.sleep(draws.uniform(0, 0.03))
        assert [process.wait(60) for process in running.values()] == [0] * size
        entries, found = registry.history(PRODUCTION), registry.verify()
        assert found.passes, found.faults[:3]
        times = Counter(entry.why for entry in entries)
        for name in names:
            assert all(times.pop(f"{name} {number}") >= 1 for number in range(counts[name]))
            # One that a kill kept from telling was made again.
            again = sum(entry.who == name for entry in entries) - counts[name]
            assert 0 <= again <= killed[name]
        assert not times
        assert all(one.after == later.before for one, later in pairwise(entries))
        assert registry.refs()[PRODUCTION] == entries[-1].after


if __name__ == "__main__":
    promote(*sys.argv[1:4], Path(sys.argv[4]))
