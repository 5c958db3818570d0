"""Kill -9 at random moments of a simulated run over HTTP, and what resuming each comes to.

A `pco train` process in minibatch mode, against the simulated server in another process with
latency. The table shows for each kill: when, how much of the run was on disk, the step it resumed
from, how many requests were in flight (answered, and not yet on disk), how many were answered a
second time, and whether policy file and events equal the uninterrupted run's.

    python -m bench.kill
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.randomness import keyed_random
from tests.proof.runs import Finished
from tests.proof.served import Served, served
from tests.proof.test_kill import (
    LATENCY,
    Kill,
    after,
    assert_nothing_was_paid_twice,
    killed_and_resumed,
    left_by,
    progress_of,
    uninterrupted,
)

KILLS = int(os.environ.get("PCO_KILLS", "25"))
"""PCO_KILLS=100 for the long proof."""
_HEAD = (
    f"  {'kill':>4} {'at, s':>7} {'events':>7} {'journal':>8} {'step':>5} {'in flight':>10} "
    f"{'asked again':>12} {'bytes equal':>12} {'events equal':>13}"
)


def measure() -> list[Figure]:
    with served(f"simulated?latency={LATENCY}") as server, tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        whole, seconds = uninterrupted(server, base / "whole")
        calls = progress_of(base / "whole").journal
        print(f"  uninterrupted: {seconds:.1f} s, {calls} calls (simulated)\n{_HEAD}", flush=True)
        draw = keyed_random("bench kill")
        moments = sorted(draw.uniform(0.1, seconds) for _ in range(KILLS))
        found = [
            _one(server, whole, base / f"{n}", moment, n) for n, moment in enumerate(moments, 1)
        ]
    return [
        Figure("kills", sum(f[0] for f in found), goal=float(KILLS), at_least=True),
        Figure("policy files or events that differ", sum(not f[1] for f in found), goal=0.0),
        Figure(
            "runs with a reply paid for again, or an attempt misbooked",
            sum(f[2] for f in found),
            goal=0,
        ),
    ]


def _one(
    server: Served, whole: Finished, folder: Path, moment: float, number: int
) -> tuple[int, bool, bool]:
    """How many kills happened, whether all is equal, whether something was paid for twice."""
    kills = killed_and_resumed(server, folder, [after(moment)])
    if not kills:  # this run was faster than the uninterrupted one, and over before the moment
        return _one(server, whole, folder.with_name(f"{folder.name}-again"), 0.9 * moment, number)
    left = left_by(folder)
    bytes_equal, events_equal = left.policy == whole.policy, left.events() == whole.events()
    for kill in kills:
        print(_row(kill, moment, number, bytes_equal, events_equal), flush=True)
    twice = False
    try:
        assert_nothing_was_paid_twice(server, folder, kills)
    except AssertionError as error:
        twice = True
        print(f"       {error}")
    return len(kills), bytes_equal and events_equal, twice


def _row(kill: Kill, moment: float, number: int, bytes_equal: bool, events_equal: bool) -> str:
    progress = kill.progress
    events, step = sum(progress.events.values()), progress.events.get("stepped", 0)
    return (
        f"  {number:>4} {moment:>7.2f} {events:>7} {progress.journal:>8} "
        f"{step:>5} {kill.pending:>10} {kill.again:>12} "
        f"{'yes' if bytes_equal else 'NO':>12} {'yes' if events_equal else 'NO':>13}"
    )


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
