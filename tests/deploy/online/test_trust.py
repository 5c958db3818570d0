"""What one key can do to another, to a canary and to what is learned, over HTTP."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.calls import Usage
from promptcodebook.config import Budget
from promptcodebook.deploy.http.admission import caller_of
from promptcodebook.deploy.http.completions import Refusal
from promptcodebook.deploy.serve.spending import Spending
from promptcodebook.lm.budget import PriceTable
from tests.build.proxied import CHAT, Setup, Up, up

HOSTILE, *HONEST = tuple(f"key-of-caller-{n:02}" for n in range(13))


async def test_no_key_learns_what_another_sent() -> None:
    async with up(None, Setup(keys=(HOSTILE, *HONEST))) as served:

        async def cached(key: str, path: str, body: Any) -> str:
            headers = {"Authorization": f"Bearer {key}"}
            _, _, answer = await served.ask(path, json=body, headers=headers)
            return answer["x-pco-cache"]

        for path, body in (
            ("/v1/chat/completions", {"messages": CHAT}),
            ("/v1/prompt", {"input": "x"}),
        ):
            first = await cached(HONEST[0], path, body)
            again = await cached(HONEST[0], path, body)
            other = await cached(HOSTILE, path, body)
            assert (first, again, other) == ("no", "input", "no"), path


@pytest.mark.parametrize(
    "field",
    [{"n": "5"}, {"n": 5.0}, {"n": True}, {"n": 0}, {"n": 10**30}, {"n": [5]}, {"best_of": "5"},
     {"best_of": 0}, {"max_tokens": "5"}, {"max_tokens": 5.5}, {"max_completion_tokens": True}],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_number_that_decides_the_cost_is_read_strictly(
    tmp_path: Path, field: dict[str, Any], path: str
) -> None:
    async with budgeted(tmp_path) as (served, spending):
        body = {"messages": CHAT, **field} if "chat" in path else {"input": "Hi.", **field}
        status, answer, _ = await served.ask(path, json=body, headers=AUTH)
        assert (status, answer["error"]["param"]) == (400, *field)
        assert not served.upstream.bodies and not spending._spent


async def test_choices_that_are_made_and_thrown_away_are_reserved(tmp_path: Path) -> None:
    async with budgeted(tmp_path) as (served, _):
        for more, status in (
            ({"n": 2, "best_of": 19}, 200),
            ({"best_of": 40}, 429),
            ({"n": 40}, 429),
        ):
            body = {"messages": CHAT, "max_tokens": 50, **more}
            assert (await served.ask(json=body, headers=AUTH))[0] == status, more


AUTH = {"Authorization": f"Bearer {HOSTILE}"}


@asynccontextmanager
async def budgeted(folder: Path) -> AsyncGenerator[tuple[Up, Spending]]:
    allowed = {caller_of(HOSTILE): Budget(tokens=1500)}
    spending = Spending(folder / "spent.sqlite", allowed, PriceTable({}), ["m"], 100)
    async with up(None, Setup(keys=(HOSTILE,), spending=spending)) as served:
        yield served, spending


async def test_a_clock_that_jumps_gives_no_budget_twice(tmp_path: Path) -> None:
    """A day ahead and an hour back over midnight, in one process and over restarts."""
    clock, who = [""], caller_of(HOSTILE)

    def opened() -> Spending:
        allowed = {who: Budget(calls=2)}
        now = lambda: datetime.fromisoformat(f"{clock[0]}+00:00")  # noqa: E731
        return Spending(tmp_path / "spent.sqlite", allowed, PriceTable({}), ["m"], 100, now)

    def calls(spending: Spending) -> int:
        done = 0
        with suppress(Refusal):
            while True:
                ticket = spending.begin("executor", Usage(calls=1))
                spending.end(ticket, "executor", Usage(calls=1), lost=False)
                done += 1
        return done

    clock[0], done = "2026-03-01T23:50", list[int]()
    spending = opened()
    spending.paying(who)
    moments = ("2026-03-01T23:50", "2026-03-02T00:10", "2026-03-01T23:10", "2099-01-01T12:00")
    for clock[0] in (*moments, *moments[1:]):
        done.append(calls(spending))
    spending.close()
    for clock[0] in (moments[3], *moments):
        spending = opened()
        done.append(calls(spending))
        spending.close()
    assert done == [2, 2, 0, 2, *[0] * 8]
