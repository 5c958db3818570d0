"""`pco train --preset lean` over HTTP: SmolLM2 answers behind `pco lm serve`, rules do all else.

`pco train` with one-topic messages of `houserules` (3 training, 2 validation and 3 test messages of
each of six topics), eight instincts that order nothing, 12 epochs and seed 0. It is killed with
kill -9 and resumed. Then a copy of the killed run gets the replies of the finished one and is
resumed, which must ask nothing and end at the same policy file. The teacher is rules, and no
language model: what is measured is the wire, the journal and the meter, not the method.

Fixed before a figure was seen: the meter's executor calls and tokens are the server's; no call is
answered twice; the learned codebook keeps at least 0.2 more messages than the untrained one (in
process, results/lean.md, the least gain of ten seeds is 0.306 with twice the messages).

    python -m bench.lean_http
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import fmean

from bench.figures import Figure, shown
from bench.trained import Counts, journal, journaled, seen_by, train, with_journal_of
from promptcodebook.paper.experiments.page import read_table
from promptcodebook.paper.experiments.what_learns import one_topic
from promptcodebook.store.lock import FILE
from promptcodebook.store.run import RunStore
from tests.build.local_server import Ours, served_by_us

MESSAGES = (3, 2, 3)
KILL_AT = 200
SETTLE_S = 2.0
PROJECT = """
preset = "lean"
lm = "rules"
reward = "reward.py:reward"
executor = "reward.py:executor"
seed = 0
size = 8
select = 1
cache = false
timeout = 600
data = {{ path = "rows.jsonl", input = "message", target = "", split = "split" }}
init.instincts = {instincts}
critic.safety = false
update = {{ epochs = 12, batch_size = 12 }}
validation = {{ every = 4, subset = 12 }}
[roles.executor]
model = "{spec}"
temperature = 0.0
max_tokens = 32
"""
CODE = """
from promptcodebook.paper.tasks.houserules.task import PromptLast, reward

__all__ = ["executor", "reward"]
executor = PromptLast()
"""


def write_project(folder: Path, spec: str) -> None:
    folder.mkdir()
    rows = [
        json.dumps({"message": e.input, "topics": e.fields["topics"], "split": split})
        for split, examples in one_topic(*MESSAGES).items()
        for e in examples
    ]
    (folder / "rows.jsonl").write_text("\n".join(rows), "utf-8")
    (folder / "reward.py").write_text(CODE, "utf-8")
    instincts = json.dumps(read_table("teacher")["general"])
    (folder / "pco.toml").write_text(PROJECT.format(instincts=instincts, spec=spec), "utf-8")


def metered(run: Path) -> Counts:
    """The executor's line of the run's meter."""
    with closing(RunStore.open(run)) as store:
        used = store.usage()["executor"]
    return Counts(used.calls, used.prompt_tokens, used.completion_tokens)


def asked(run: Path) -> int:
    """Replies of the executor on disk."""
    return sum(role == "executor" for role, _ in journal(run / FILE))


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with served_by_us("smollm2", folder) as server:
            return measure_at(server, folder)


def measure_at(server: Ours, folder: Path) -> list[Figure]:
    first, copy = folder / "first", folder / "copy"
    write_project(first, server.spec)
    killed = train(first, "rules", kill_at=KILL_AT)
    time.sleep(SETTLE_S)
    before, unbooked = journaled(first), seen_by(server) - metered(killed)
    shutil.copytree(first, copy)
    run = train(first, "rules")
    served = seen_by(server)
    with_journal_of(run, copy)
    again = train(copy, "rules")
    over = [abs(a - b) for a, b in zip(served - unbooked, metered(run), strict=True)]
    with closing(RunStore.open(run)) as store:
        rows = {e.name: fmean(e.rewards) for e in store.test_evaluations()}
        every = store.usage()
    roles = ", ".join(f"{role} {usage.calls}" for role, usage in every.items())
    kept = f"{before} replies on disk at the kill, {journaled(first)} at the end"
    gain = rows["learned"] - rows["untrained"]
    beside = ", ".join(f"{name} {value:.3f}" for name, value in rows.items())
    differ = (run / "policy.json").read_bytes() != (again / "policy.json").read_bytes()
    return [
        Figure("executor's calls, meter against server", over[0], "", 0, beside=roles),
        Figure("executor's tokens, meter against server", sum(over[1:]), "", 0, beside=str(served)),
        Figure("calls answered twice", (served - unbooked).calls - asked(run), "", 0, beside=kept),
        Figure("answered as the kill fell, and never read", unbooked.calls),
        Figure("calls when the copy is resumed", seen_by(server).calls - served.calls, "", 0),
        Figure("policy files that differ", int(differ), "", 0),
        Figure("learned minus untrained, 18 messages", gain, "", 0.2, True, beside),
    ]


if __name__ == "__main__":
    raise SystemExit(shown(measure, __doc__ or ""))
