"""What a server sees and bills is what the budget knows of: each request of the whole stack."""

import asyncio
import resource
import shutil
import signal
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from promptcodebook import errors
from promptcodebook.base.paths import unfinished_folder
from promptcodebook.calls import ROLES, Message, Reply, Request, Sampling, Schema, Usage
from promptcodebook.config import load_config
from promptcodebook.lm.budget import Ledger, credible
from promptcodebook.lm.stack import Models, StackResources
from promptcodebook.store.header import Header
from promptcodebook.store.journal import until_done
from promptcodebook.store.run import RunStore
from tests.build.server import Server, Step, drops, fails, raw, refusing, says

HEADER = Header("run", "2026-01-01T00:00:00+00:00", "0")


def models(server: Server, supplies: StackResources | None = None, **settings) -> Models:
    fixed = {"lm": server.spec, "cache": False, "retries": 2, "timeout": 60.0, "concurrency": 4}
    return Models.build(load_config({**fixed, **settings}), supplies or StackResources())


def ask(n: int = 0, schema: Schema | None = None) -> Request:
    return Request("executor", (Message("user", f"question {n}"),), schema, sample=n)


async def answered(stack: Models, calls: int) -> list[object]:
    try:
        chains = (stack.lm(ask(n)) for n in range(calls))
        return await asyncio.wait_for(asyncio.gather(*chains, return_exceptions=True), 20)
    finally:
        await stack.close()


@pytest.mark.parametrize(("step", "timeout"), [
    (says(delay=60.0), 0.3), (drops(), 60.0), (raw(b"{\"choices\": ["), 60.0), (fails(500), 60.0)
])  # fmt: skip
async def test_every_try_is_checked_and_a_lost_one_is_booked_at_its_most(
    server: Server, step: Step, timeout: float
) -> None:
    server.default = step
    stack = models(server, budget={"calls": 7}, timeout=timeout)
    outcomes = await answered(stack, 5)
    assert server.calls == 7
    assert stack.ledger.lost_total.calls == 7
    assert stack.ledger.lost_total.completion_tokens == 7 * 4096
    assert not stack.ledger.usage
    assert all(isinstance(each, errors.LMError | errors.BudgetReached) for each in outcomes)


@pytest.mark.parametrize(("cap", "believed"), [(None, True), (512, False)])
def test_hidden_thoughts_are_believed_where_no_cap_bounds_them(cap: int | None, believed: bool):
    request, most = replace(ask(), sampling=Sampling(max_tokens=cap)), Usage(1, 200, cap or 0)
    assert credible(Usage(1, 12, 20_000), request, "4", most) is believed
    assert not credible(Usage(1, 12, 0), request, "4", most)


@pytest.mark.parametrize("status", [429, 503, 400, 401])
async def test_a_refusal_is_a_call_and_no_tokens(server: Server, status: int) -> None:
    server.default = fails(status)
    stack = models(server, budget={"calls": 7, "tokens": 10**6})
    await answered(stack, 9)
    assert server.calls == 7
    assert stack.ledger.total == Usage(calls=7)


async def test_refusals_that_come_with_a_200_cost_nothing(server: Server) -> None:
    """The first two are waited for; an account without credit is not asked again."""
    limited = raw(b'{"error": {"message": "slow down", "code": 429}}')
    server.script(limited, raw(b"<html><title>Busy</title>"))
    server.default = raw(b'data: {"error": {"message": "Insufficient balance"}}\n\n')
    prices = {server.spec: {"prompt": 1000.0, "completion": 1000.0}}
    stack = models(server, budget={"usd": 100.0}, prices=prices, concurrency=1)
    [outcome] = await answered(stack, 1)
    assert isinstance(outcome, errors.NoCredit) and server.calls == 3
    assert stack.ledger.total == Usage(calls=3, cost=0.0) and not stack.ledger.lost


async def test_requests_that_teach_what_is_refused_are_counted_too(server: Server) -> None:
    server.default = refusing("seed", "unsupported field: seed")
    stack = models(server, budget={"calls": 3}, roles={"executor": {"temperature": 0.5}})
    await answered(stack, 1)
    assert (server.calls, stack.ledger.total.calls) == (2, 2)
    assert stack.ledger.total.tokens == 10, "only the second was worked on"


async def test_a_budget_in_seconds_ends_waiting(server: Server) -> None:
    server.default = fails(429, headers={"Retry-After": "20"})
    stack = models(server, StackResources.of_one_budget(), budget={"seconds": 0.5})
    began = time.monotonic()
    outcomes = await answered(stack, 9)
    assert time.monotonic() - began < 15
    assert all(isinstance(each, errors.BudgetReached) for each in outcomes)


async def test_what_was_in_flight_at_a_kill_is_booked_once_when_the_run_is_opened(
    tmp_path: Path,
) -> None:
    store = RunStore.create(tmp_path, HEADER)
    most, log = Usage(1, 100, 2048, 0, 0.25), store.journal.attempts
    for _ in range(2_000):  # more than there are slots at first
        log.begin("critic", most)
    log.begin("judge", Usage(1, 9, 9, 0, None))
    done = log.begin("encoder", Usage(1, 7, 7, 0, None))
    log.end(done, "encoder", Usage(1, 5, 5, 0, None), False)
    store.flush()
    left = (store.path / "in-flight").read_bytes()
    store.close()
    (store.path / "in-flight").write_bytes(left)  # as the kill would have left it

    for recovered in (2_001, 0):
        again = RunStore.open(store.path, write=True)
        assert again.journal.attempts.recovered.calls == recovered
        assert again.usage() == {"encoder": Usage(1, 5, 5, 0, None)}
        assert again.lost() == {
            "critic": Usage(2_000, 200_000, 2_000 * 2048, 0, 500.0),
            "judge": Usage(1, 9, 9, 0, None),
        }
        ticket = again.journal.attempts.begin("critic", most)
        again.journal.attempts.end(ticket, "critic", Usage(), False)
        again.close()


async def test_a_closed_run_lets_no_attempt_leave(server: Server, tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, HEADER)
    stack = models(server, StackResources(ledger=Ledger(log=store.journal.attempts)))
    store.close()
    with pytest.raises(errors.PcoError, match="closed"):
        await stack.lm(ask())
    await stack.close()
    assert server.calls == 0


LARGE = 2**53 + 1
WRONG_SLOTS = [
    *((1, len(ROLES), 5, 5, 0.1), (LARGE, 0, 5, 5, 0.1), (1, 0, LARGE, 5, 0.1)),
    *((1, 0, 5, LARGE, 0.1), (1, 0, 5, 5, -0.1), (1, 0, 5, 5, float("inf"))),
]


@pytest.mark.parametrize(
    "garbage", [b"not a slot " * 300, *(struct.pack("<QQQQd", *each) for each in WRONG_SLOTS)]
)
def test_a_damaged_file_of_attempts_is_named_with_what_to_do(
    tmp_path: Path, garbage: bytes
) -> None:
    store = RunStore.create(tmp_path, HEADER)
    store.close()
    (store.path / "in-flight").write_bytes(garbage)
    with pytest.raises(errors.StoreError, match="in-flight") as caught:
        RunStore.open(store.path, write=True)
    assert "in-flight" in caught.value.hint
    (store.path / "in-flight").unlink()
    RunStore.open(store.path, write=True).close()


@pytest.mark.parametrize("short", [1, 39, 41])
def test_a_file_of_attempts_that_was_cut_short_is_written_out_again(
    tmp_path: Path, short: int
) -> None:
    store = RunStore.create(tmp_path, HEADER)
    whole = (path := store.path / "in-flight").read_bytes()
    store.close()
    path.write_bytes(whole[:-short])
    store = RunStore.open(store.path, write=True)
    assert path.read_bytes() == whole
    store.close()


def test_a_disk_without_room_for_further_attempts_lets_none_leave(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, HEADER)
    for _ in range(1024):
        store.journal.attempts.begin("critic", Usage(1, 1, 1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (store.path / "in-flight").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(errors.StoreError, match="in-flight"):
            store.journal.attempts.begin("critic", Usage(1, 1, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    store.close()


# Work that is not a run: what it pays for is kept until it is done.


async def evaluated(server: Server, *numbers: int) -> None:
    with until_done("a question") as supplies:
        stack = models(server, supplies)
        try:
            for number in numbers:
                if number < 0:
                    raise KeyError("on the way")
                await stack.lm(ask(number))
        finally:
            await stack.close()


async def test_what_unfinished_work_paid_for_is_found_again_until_it_is_done(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyError):
        await evaluated(server, 0, -1)
    with pytest.raises(KeyError):  # paid for nothing new
        await evaluated(server, 0, -1)
    assert server.calls == 1
    await evaluated(server, 0, 1)
    assert server.calls == 2
    assert list(unfinished_folder().iterdir()) == []
    with pytest.raises(KeyError):  # paid for nothing: it leaves nothing
        await evaluated(server, -1)
    assert list(unfinished_folder().iterdir()) == []
    with until_done("a question") as outer, until_done("a question") as inner:
        assert outer.fallback_log is not None and inner.fallback_log is not None
        assert outer.fallback_log() is not None
        assert inner.fallback_log() is None, "another is at it"
    assert "paid replies would be lost if this process were killed" in caplog.text
    unfinished_folder().rmdir()
    unfinished_folder().write_text("a file")
    with until_done("a question") as supplies:
        assert supplies.fallback_log is not None and supplies.fallback_log() is None
    assert f"{unfinished_folder().name}" in caplog.text and "File exists" in caplog.text


def test_work_whose_journal_was_taken_away_ends_well() -> None:
    with until_done("a question") as supplies:
        assert supplies.fallback_log is not None and supplies.fallback_log() is not None
        shutil.rmtree(unfinished_folder())


KILLED = """
import asyncio, os, signal, sys
from promptcodebook.lm.stack import Models
from promptcodebook.store.journal import until_done
from tests.lm.test_attempts import ask, load_config

async def main():
    with until_done("a question") as supplies:
        config = load_config({"lm": sys.argv[1], "cache": sys.argv[2] == "True"})
        await Models.build(config, supplies).lm(ask())
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("cache", [True, False])
async def test_a_reply_that_a_chain_has_seen_outlives_a_kill(
    cache: bool, finish: str, server: Server
) -> None:
    server.default = says("done", finish=finish)
    command = [sys.executable, "-c", KILLED, server.spec, str(cache)]
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(*command)
        assert await process.wait() == -signal.SIGKILL
    assert server.calls == 1


# What the stop signal does to calls that passed the budget but have not begun.


async def begun(stack: Models, server: Server, calls: int, seen: int) -> list[asyncio.Task[Reply]]:
    """That many calls, of which the server sees the first."""
    tasks = [asyncio.create_task(stack.lm(ask(n))) for n in range(calls)]
    await asyncio.wait_for(server.seen(seen), 20)
    return tasks


async def test_calls_that_wait_for_a_slot_do_not_start_after_an_interruption(server: Server):
    stack = models(server, concurrency=2)
    await stack.lm(ask(99))  # the first of a kind goes alone
    server.default = says(delay=0.2)
    calls = await begun(stack, server, 10, 3)
    stack.budget.stop(errors.Interrupted("by the user"))
    results = await asyncio.gather(*calls, return_exceptions=True)
    await stack.close()
    assert [type(r) for r in results] == [Reply] * 2 + [errors.Interrupted] * 8
    assert (server.calls, stack.ledger.total.calls) == (3, 3)


@pytest.mark.parametrize("reason", [errors.Interrupted, errors.BudgetReached])
async def test_a_known_reply_is_given_after_a_budget_is_reached_not_after_an_interruption(
    server: Server, tmp_path: Path, reason: type[errors.PcoError]
) -> None:
    """A run whose replies are all known would not end: it asks for nothing new."""
    server.default = says()
    store = RunStore.create(tmp_path, HEADER)
    stack = models(server, StackResources(log=store.journal.replies()))
    await stack.lm(ask())
    stack.budget.stop_signal.give(reason("enough"))
    again = await asyncio.gather(stack.lm(ask()), return_exceptions=True)
    await stack.close()
    store.close()
    assert [type(r) for r in again] == [
        Reply if reason is errors.BudgetReached else errors.Interrupted
    ]


async def test_a_call_between_two_tries_gives_up_at_once(server: Server):
    server.default = fails(429, headers={"Retry-After": "60"})
    stack = models(server, concurrency=2)
    calls = await begun(stack, server, 4, 2)
    await asyncio.sleep(0.05)
    began = time.monotonic()
    stack.budget.stop(errors.Interrupted("by the user"))
    results = await asyncio.gather(*calls, return_exceptions=True)
    await stack.close()
    assert [type(r) for r in results] == [errors.Interrupted] * 4
    stack.budget.stop_signal.give(errors.RateLimited("later"))
    with pytest.raises(errors.Interrupted, match="by the user"):
        await stack.budget.stop_signal.sleep(60)
    assert time.monotonic() - began < 30  # of the 60 s that it was to wait


class Full:
    """A journal on a disk that refuses its second reply and all later ones."""

    def __init__(self) -> None:
        self.kept = 0

    def get(self, key: bytes) -> Reply | None:
        return None

    async def put(self, key: bytes, request: Request, reply: Reply) -> None:
        if self.kept:
            raise errors.DiskFull("no space left", hint="free some")
        self.kept += 1


async def test_nothing_is_asked_for_that_could_not_be_kept(server: Server):
    stack = models(server, StackResources(log=Full()), concurrency=1)
    calls = (stack.lm(ask(n)) for n in range(6))
    results = await asyncio.gather(*calls, return_exceptions=True)
    with pytest.raises(errors.DiskFull, match="no space left") as caught:
        await stack.lm(ask(6))
    await stack.close()
    assert [type(r) for r in results] == [Reply] + [errors.DiskFull] * 5
    assert caught.value.hint == "free some"
    # One reply was kept, one refused; at most one more had begun meanwhile.
    assert server.calls <= 3
