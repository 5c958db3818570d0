"""Kill -9 while a run is written: what was reported as written is there, whole and in order."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from promptcodebook.calls import Usage
from promptcodebook.randomness import keyed_random
from promptcodebook.sqlite import Reader
from promptcodebook.store.header import Header
from promptcodebook.store.run import LAYOUT, RunStore

KILLS = 5

WRITE = """
import asyncio, os, sys
from pathlib import Path
from promptcodebook.calls import Message, Reply, Request, Sampling, Usage, request_key
from promptcodebook.config.schema import Budget, Price
from promptcodebook.lm.budget import Attempted
from promptcodebook.lm.budget import BudgetGate
from promptcodebook.lm.cache import Journaled
from promptcodebook.lm.budget import Ledger
from promptcodebook.lm.budget import PriceTable
from promptcodebook.store.events import Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.types import Step
from promptcodebook.types import Codebook, Instinct, Parameters, Rollout, Trace

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

async def model(request):
    os.write(sent, b".")
    return Reply(request.messages[0].content * 200, usage=Usage(1, 10, 200, 0, None, 0.5))

async def call(lm, step, i):
    request = Request(
        "executor", (Message("user", f"{step}/{i} "),), model="m", sampling=Sampling(max_tokens=9)
    )
    await lm(request)
    say("reply", request_key(request).hex())

async def main(store):
    step = store.state().step
    ledger = Ledger(store.usage(), store.lost(), store.attempt_log)
    prices = PriceTable({"m": Price(prompt=1e6, completion=0.0)})
    gate = BudgetGate(Budget(), prices, ledger)
    lm = Journaled(Attempted(model, gate, store.count), store.reply_log, store.count)
    while True:
        step += 1
        await asyncio.gather(*(call(lm, step, i) for i in range(15)))
        traces = tuple(Trace(Rollout(f"x{i}", output=f"{step} " * 500)) for i in range(15))
        book = Codebook(tuple(Instinct(f"instinct {k} of {step}") for k in range(16)))
        store.append(Stepped(Step(step, step, 0.5, traces, (), Parameters("e", "g", book, "c"),
                                  (0.0,) * 16, (0.0,) * 16, (step,) * 16)))
        say("step", step)

sent = os.open(sys.argv[1] + ".sent", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
asyncio.run(main(RunStore.open(Path(sys.argv[1]), write=True)))
"""


def write_then_kill(path: Path, after_s: float) -> list[list[str]]:
    """Lets a process write to the run, kills it, and returns what it had said was written."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(path)], stdout=subprocess.PIPE, text=True
    )
    with writer:
        assert writer.stdout is not None
        first = ""
        while "step" not in first:
            line = writer.stdout.readline()
            assert line, "the writer ended before its first step"
            first += line
        time.sleep(after_s)
        writer.kill()
        rest = writer.stdout.read()
    lines = (first + rest).split("\n")[:-1]  # a line may have been cut by the kill
    return [line.split() for line in lines]


async def test_nothing_reported_as_written_is_lost(tmp_path: Path, header: Header) -> None:
    run = RunStore.create(tmp_path, header)
    run.close()
    chance = keyed_random("kill")
    said: list[list[str]] = []
    for _ in range(KILLS):
        said += write_then_kill(run.path, chance.uniform(0.0, 0.15))
        store = RunStore.open(run.path, write=True)
        assert_whole(store, said)
        assert_booked(store)
        store.close()
    assert sum(words[0] == "step" for words in said) >= KILLS


def assert_whole(store: RunStore, said: list[list[str]]) -> None:
    numbers = [number for number, _ in store.numbered_events()]
    assert numbers == list(range(1, len(numbers) + 1))
    steps = list(store.steps(traces=True))
    assert [step.index for step in steps] == list(range(len(steps)))
    assert all(len(step.traces) == 15 for step in steps)
    assert store.state().step == len(steps) - 1

    assert len(steps) >= sum(words[0] == "step" for words in said)
    for words in said:
        if words[0] == "reply":
            assert store.reply_log.get(bytes.fromhex(words[1])) is not None


def assert_booked(store: RunStore) -> None:
    """Every attempt that left is booked once: as paid, or as lost if the kill met it in flight."""
    reader = Reader(store.path / "run.sqlite", LAYOUT)
    rows = reader.row("SELECT COUNT(*) FROM journal")
    reader.close()
    paid, lost = store.usage()["executor"], store.lost().get("executor", Usage())
    n = paid.calls
    assert paid == Usage(n, 10 * n, 200 * n, 0, 10.0 * n, 0.5 * n)
    assert rows is not None and rows[0] <= n, "no reply is on disk that is not paid for"
    sent = len(store.path.with_name(f"{store.path.name}.sent").read_text())
    # A kill between the slot and the request books one that never left, at the most one each.
    assert sent <= n + lost.calls <= sent + KILLS
    assert lost.calls <= 15 * KILLS
