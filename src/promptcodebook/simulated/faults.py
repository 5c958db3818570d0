"""Faults on demand: which one strikes a request, and what it does to a reply.

At most one strikes an arrival; which one is decided by noise seed, content, and how often this very
request has arrived before, so that a retry can succeed whatever the order of arrival.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, cast, get_args

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.parameters import Faults, Latency
from promptcodebook.simulated.words import count_tokens, cut_tokens

__all__ = ["FAULTS", "Fault", "FaultPlan", "seconds", "spoiled"]

Fault = Literal["429", "500", "drop", "json", "truncate", "routes"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
_REMEMBERED = 200_000
"""Requests whose arrivals are remembered."""
_INDICES = re.compile(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]")


class FaultPlan:
    """Decides, arrival by arrival, whether and how a request fails."""

    def __init__(self, noise_seed: int, faults: Faults) -> None:
        self._seed = noise_seed
        self._faults = faults
        self._arrivals: OrderedDict[bytes, int] = OrderedDict()

    def strike(self, key: bytes, *, is_json: bool, is_route: bool) -> Fault | None:
        """The fault of this arrival, None in most cases. `key` identifies the request's body."""
        if not self._faults.any:
            return None
        arrival = self._arrivals.pop(key, 0)
        self._arrivals[key] = arrival + 1
        if len(self._arrivals) > _REMEMBERED:
            self._arrivals.popitem(last=False)
        shares: tuple[tuple[Fault, float], ...] = (
            ("429", self._faults.rate_limited),
            ("500", self._faults.server_error),
            ("drop", self._faults.drop),
            ("truncate", self._faults.truncate),
            ("json", self._faults.json if is_json else 0.0),
            ("routes", self._faults.routes if is_route else 0.0),
        )
        drawn = keyed_int("fault", self._seed, key, arrival) / 2**63
        for fault, share in shares:
            drawn -= share
            if drawn < 0:
                return fault
        return None


def spoiled(fault: Fault | None, text: str, key: bytes) -> tuple[str, bool]:
    """The reply's text under a fault, and whether it was cut at a length."""
    if fault == "truncate":
        return cut_tokens(text, max(1, count_tokens(text) // 2)), True
    if fault == "json":
        forms: tuple[Callable[[str], str], ...] = (_unclosed, _in_prose)
        return forms[keyed_int("form", key) % len(forms)](text), False
    if fault == "routes":
        return _INDICES.sub(_miscounted, text, count=1), False
    return text, False


def _unclosed(text: str) -> str:
    """JSON whose last brace is missing: repair can mend it."""
    return text.rstrip().rstrip("}")


def _in_prose(text: str) -> str:
    """Prose in place of the JSON: nothing can mend it."""
    words = re.sub(r"[{}\[\]\":,]+", " ", text).split()
    return "Here is what I think: " + " ".join(words[:40])


def _miscounted(match: re.Match[str]) -> str:
    indices = cast("list[int]", json.loads(match[0]))
    return json.dumps(indices[:-1] if len(indices) > 1 else [*indices, indices[-1] + 1])


def seconds(latency: Latency, key: bytes) -> float:
    """How long this request takes, drawn from the latency's distribution by its own seed."""
    if latency.kind == "fixed":
        return latency.a
    first = (keyed_int("latency", latency.seed, key) + 1) / (2**63 + 1)
    if latency.kind == "uniform":
        return latency.a + (latency.b - latency.a) * first
    from statistics import NormalDist

    return latency.a * pow(2.718281828459045, latency.b * NormalDist().inv_cdf(first))
