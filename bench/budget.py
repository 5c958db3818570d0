"""Budgets against a counting proxy: what is allowed, made, billed by the server, and shown.

One run for each way in which a server can break answers, be late, lie about usage or ask for
patience. Between the run and the server a proxy counts what is asked and what would be billed: the
work that the server really did, whatever becomes of the answer. Shown is paid and lost: a lost
attempt is booked at the most it can have cost, so what is shown is never below the bill.

    python -m bench.budget
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from bench.figures import Figure, shown
from promptcodebook.base.randomness import keyed_random
from promptcodebook.base.units import count_text, money
from promptcodebook.calls import Usage
from promptcodebook.errors import PcoError
from promptcodebook.store.run import RunStore
from tests.build.cli import served as answering
from tests.build.proof_server import Served, served
from tests.build.runs import run
from tests.build.server import Server, fails


@dataclass(frozen=True)
class Spoiler:
    """What becomes of the server's answers; shares of all calls, drawn by the call's number."""

    broken: float = 0.0
    late: float = 0.0
    late_s: float = 2.0
    put_off: float = 0.0
    retry_after: str = "20"
    usage: Callable[[dict[str, Any]], Any] = lambda told: told


@dataclass
class CountingProxy:
    """A step of `Server`. `billed` holds calls that were worked on; `made` all that were asked;
    `prices` are USD per million tokens in and out."""

    upstream: str
    spoiler: Spoiler
    prices: tuple[float, float]
    made: int = 0
    billed: Usage = field(default_factory=Usage)

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.made += 1
        number, spoiler = self.made, self.spoiler
        draw = keyed_random("proxy", number).random()
        if draw < spoiler.put_off:
            return await fails(429, "later", headers={"Retry-After": spoiler.retry_after})(
                request, body
            )
        # Shielded: a caller that gives up does not stop the work, nor the bill.
        tree = await asyncio.shield(asyncio.ensure_future(self._work(body)))
        if draw < spoiler.broken:
            whole = json.dumps(tree)
            cut = whole[: len(whole) // 2] if number % 2 else "<html>busy</html>"
            return web.Response(text=cut, content_type="application/json")
        if draw < spoiler.late:
            await asyncio.sleep(spoiler.late_s)
        usage = spoiler.usage(tree["usage"])
        return web.json_response({**{k: tree[k] for k in tree if k != "usage"}, **usage})

    async def _work(self, body: dict[str, Any]) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.upstream}/chat/completions", json=body) as answer,
        ):
            tree = await answer.json()
        prompt, reply = (tree["usage"][name] for name in ("prompt_tokens", "completion_tokens"))
        cost = (prompt * self.prices[0] + reply * self.prices[1]) / 1e6
        self.billed += Usage(1, prompt, reply, 0, cost)
        return tree


_LATE_S, _TIMEOUT_S = 2.0, 1.0
SETTINGS: dict[str, Any] = {
    "task": "constraints",
    "cache": False,
    "concurrency": 16,
    "timeout": _TIMEOUT_S,
    "update": {"epochs": 30, "batch_size": 8},
    "validation": {"every": 5, "subset": 8},
}


@dataclass(frozen=True)
class Mode:
    """One way to spoil answers, and the budget of the run; `prices` per million in and out."""

    name: str
    spoiler: Spoiler
    budget: Mapping[str, float]
    prices: tuple[float, float] = (0.0, 0.0)
    settings: Mapping[str, Any] = field(default_factory=dict)


def _tell(prompt: int | None, reply: int | None) -> Any:
    counts = {"prompt_tokens": prompt, "completion_tokens": reply}
    return lambda usage: {"usage": counts}


PRICED = (20.0, 60.0)
MODES = (
    Mode("bodies broken 30 %", Spoiler(broken=0.3), {"calls": 200}),
    Mode("answers late 20 %", Spoiler(late=0.2, late_s=_LATE_S), {"calls": 200}),
    Mode("broken 90 %, priced", Spoiler(broken=0.9), {"usd": 4.0}, PRICED),
    Mode("broken 30 %, priced", Spoiler(broken=0.3), {"usd": 4.0}, PRICED),
    Mode("usage zero", Spoiler(usage=_tell(0, 0)), {"tokens": 100_000}),
    Mode("usage zero, priced", Spoiler(usage=_tell(0, 0)), {"usd": 4.0}, PRICED),
    Mode("usage missing", Spoiler(usage=lambda usage: {}), {"tokens": 100_000}),
    Mode("usage negative", Spoiler(usage=_tell(-7, -7)), {"tokens": 100_000}),
    Mode("usage of one token", Spoiler(usage=_tell(1, 1)), {"tokens": 100_000}),
    Mode("usage huge", Spoiler(usage=_tell(10**8, 10**8)), {"tokens": 100_000}),
    Mode("Retry-After 20 under 5 s", Spoiler(put_off=0.3), {"seconds": 5.0}),
)


@dataclass(frozen=True)
class Bill:
    """What was allowed, asked for at the proxy, billed by the server, and shown by the run."""

    mode: Mode
    made: int
    billed: Usage
    paid: Usage
    lost: Usage
    seconds: float
    ended: str

    @property
    def shown(self) -> Usage:
        return self.paid + self.lost

    @property
    def over(self) -> list[str]:
        """The limits that were passed, and what is shown below the bill."""
        cost, shown = self.billed.cost or 0.0, self.shown.cost or 0.0
        took = {"calls": self.made, "tokens": self.billed.tokens, "usd": cost - 1e-9}
        took["seconds"] = self.seconds - 3 * _TIMEOUT_S
        passed = [name for name, most in self.mode.budget.items() if took[name] > most]
        passed += ["calls shown"] if self.shown.calls < self.made else []
        passed += ["tokens shown"] if self.shown.tokens < self.billed.tokens else []
        return [*passed, *(["cost shown"] if shown < cost - 1e-9 else [])]


def attack(mode: Mode, server: Served, folder: Path) -> Bill:
    """A whole run under this mode, and its bill."""
    proxy, front = CountingProxy(server.base_url, mode.spoiler, mode.prices), Server()
    front.default = proxy
    with answering(front):
        spec = f"{front.url}#simulated"
        price = dict(zip(("prompt", "completion"), mode.prices, strict=True))
        settings = {**SETTINGS, **mode.settings, "budget": dict(mode.budget)}
        begun = time.monotonic()
        try:
            ended = run(folder, spec, settings, prices={spec: price}).ended
        except PcoError as error:
            ended = type(error).__name__
        seconds = time.monotonic() - begun
        time.sleep(_LATE_S - _TIMEOUT_S if mode.spoiler.late else 0.0)  # what is still worked on
        made, billed = proxy.made, proxy.billed
    (path,) = folder.iterdir()
    with closing(RunStore.open(path)) as store:
        paid, lost = (sum(book.values(), Usage()) for book in (store.usage(), store.lost()))
    return Bill(mode, made, billed, paid, lost, seconds, ended)


_HEAD = (
    f"  {'mode':<25} {'allowed':>10} {'made':>5} {'billed':>16} {'shown':>16} "
    f"{'of it lost':>18} {'ended':>16}"
)


def measure() -> list[Figure]:
    bills: list[Bill] = []
    with served() as server, tempfile.TemporaryDirectory() as folder:
        print(_HEAD, flush=True)
        for number, mode in enumerate(MODES):
            bills.append(attack(mode, server, Path(folder) / str(number)))
            print(_line(bills[-1]), flush=True)
    passed = [bill for bill in bills if bill.over]
    return [
        Figure("modes", float(len(bills)), goal=float(len(MODES)), at_least=True),
        Figure("modes that passed a cap, or showed less than the bill", len(passed), goal=0.0),
    ]


def _line(bill: Bill) -> str:
    mode = bill.mode
    allowed = ", ".join(f"{amount:g} {unit}" for unit, amount in mode.budget.items())
    took = f"{bill.seconds:.1f} s" if "seconds" in mode.budget else ""
    amounts = [
        f"{count_text(u.tokens)} tok {money(u.cost) if mode.prices[0] else took}".rstrip()
        for u in (bill.billed, bill.shown)
    ]
    lost = f"{bill.lost.calls} calls {count_text(bill.lost.tokens)}"
    over = f"  PASSED: {', '.join(bill.over)}" if bill.over else ""
    return (
        f"  {mode.name:<25} {allowed:>14} {bill.made:>5} {amounts[0]:>16} {amounts[1]:>16} "
        f"{lost:>18} {bill.ended:>16}{over}"
    )


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
