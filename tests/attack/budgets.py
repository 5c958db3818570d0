"""Budgets against servers that break, are late, lie or ask for patience: one run for each mode."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptcodebook.calls import Usage
from promptcodebook.errors import PcoError
from promptcodebook.store.run import RunStore
from tests.attack.proxy import Spoiler, proxied
from tests.proof.runs import run
from tests.proof.served import Served

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
        limits = self.mode.budget
        cost, shown = self.billed.cost or 0.0, self.shown.cost or 0.0
        return [
            name
            for name, wrong in (
                ("calls", self.made > limits.get("calls", self.made)),
                ("tokens", self.billed.tokens > limits.get("tokens", self.billed.tokens)),
                ("usd", cost > limits.get("usd", cost) + 1e-9),
                ("seconds", self.seconds > limits.get("seconds", self.seconds) + 3 * _TIMEOUT_S),
                ("calls shown", self.shown.calls < self.made),
                ("tokens shown", self.shown.tokens < self.billed.tokens),
                ("cost shown", shown < cost - 1e-9),
            )
            if wrong
        ]


def attack(mode: Mode, server: Served, folder: Path) -> Bill:
    """A whole run under this mode, and its bill."""
    with proxied(server.base_url, mode.spoiler, mode.prices) as proxy:
        price = dict(zip(("prompt", "completion"), mode.prices, strict=True))
        settings = {**SETTINGS, **mode.settings, "budget": dict(mode.budget)}
        begun = time.monotonic()
        try:
            ended = run(folder, proxy.spec, settings, prices={proxy.spec: price}).ended
        except PcoError as error:
            ended = type(error).__name__
        seconds = time.monotonic() - begun
        time.sleep(_LATE_S - _TIMEOUT_S if mode.spoiler.late else 0.0)  # what is still worked on
        made, billed = proxy.made, proxy.billed
    (path,) = folder.iterdir()
    store = RunStore.open(path)
    paid, lost = (sum(book.values(), Usage()) for book in (store.usage(), store.lost()))
    store.close()
    return Bill(mode, made, billed, paid, lost, seconds, ended)
