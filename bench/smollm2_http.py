"""All roles on SmolLM2 over HTTP: routes valid by grammar, counts on both sides, and a kill.

`pco train` on a few messages of `houserules` against `pco lm serve smollm2`, killed with kill -9
and resumed; then a copy of the killed run is given the replies of the finished one and resumed,
which must ask nothing and end at the same policy file. Then a smaller training that is killed and
resumed must get the same replies, one call at a time, as one that was never killed.

    python -m bench.smollm2_http
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

from bench.figures import Figure, shown
from bench.trained import Size, journal, killed_and_resumed, train, write_project
from promptcodebook.lm.cache import unpack_reply
from promptcodebook.store.lock import FILE
from tests.build.local_server import Ours, served_by_us

STEPS = int(os.environ.get("PCO_STEPS", "2"))
"""PCO_STEPS=8 for more routes."""
SIZE = Size(train=4, test=2, steps=STEPS, batch=4, concurrency=16)
KILL_AT = 14
ALONE = Size(train=2, test=1, steps=2, batch=2, concurrency=1)
KILL_ALONE_AT = 10


def in_one_go(server: Ours, folder: Path, size: Size) -> Path:
    """The same training, never killed, in a folder that must not be there yet; its run."""
    write_project(folder, size)
    return train(folder, server.spec)


def told_apart(one: Path, other: Path) -> int:
    """Texts that only one of two runs was answered, by role; how often counts too."""
    answered = [
        Counter((role, unpack_reply(reply).text) for role, reply in journal(run / FILE))
        for run in (one, other)
    ]
    return ((answered[0] - answered[1]) + (answered[1] - answered[0])).total()


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with served_by_us("smollm2", folder) as server:
            run = killed_and_resumed(server, folder, SIZE, KILL_AT)
        alone = measure_alone(folder)
    asked = ", ".join(f"{role} {calls}" for role, calls in run.roles.items())
    routes = f"{run.routes.valid} of {run.routes.asked}"
    served = run.served - run.unbooked
    calls = abs(run.reported.calls - served.calls)
    tokens = abs(run.reported.prompt_tokens - served.prompt_tokens)
    tokens += abs(run.reported.completion_tokens - served.completion_tokens)
    share = run.routes.valid / run.routes.asked
    twice = served.calls - run.after
    kept = f"{run.before} on disk at the kill, {run.after} at the end"
    return [
        Figure("routes valid by grammar", share, "", 0.95, True, routes),
        Figure("calls, report against server", calls, "", 0, beside=asked),
        Figure("tokens, report against server", tokens, "", 0, beside=str(served)),
        Figure("calls answered twice", twice, "", 0, beside=kept),
        Figure("answered as the kill fell, and never read", run.unbooked.calls),
        Figure("texts rewritten", run.rewritten),
        Figure("calls when gone through again", run.again, "", 0),
        Figure("policy files that differ", int(not run.equal), "", 0),
        *alone,
    ]


def measure_alone(folder: Path) -> list[Figure]:
    with served_by_us("smollm2", folder) as server:
        killed = killed_and_resumed(server, folder / "alone", ALONE, KILL_ALONE_AT)
        whole = in_one_go(server, folder / "whole", ALONE)
    files = [(run / "policy.json").read_bytes() for run in (killed.run, whole)]
    replies = told_apart(killed.run, whole)
    return [
        Figure("one at a time, never killed: replies that differ", replies, "", 0),
        Figure(
            "one at a time, never killed: policy files that differ", files[0] != files[1], "", 0
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(shown(measure, __doc__ or ""))
