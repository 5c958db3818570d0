"""Faults and delays on demand: which fault strikes a request, what it does, how long a reply takes.

At most one strikes an arrival; which one is decided by noise seed, content, and how often this very
request has arrived before, so that a retry can succeed whatever the order of arrival.
"""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.words import count_tokens, cut_tokens

Fault = Literal["429", "500", "drop", "json", "truncate", "routes"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
_DRAWN: tuple[Fault, ...] = ("429", "500", "drop", "truncate", "json", "routes")
"""In this order the shares lie on the line that is drawn from."""
_REMEMBERED = 200_000  # requests whose arrivals are remembered
_INDICES = re.compile(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]")


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds before a reply: `fixed` a; `uniform` a..b; `lognormal` median a, log-sd b."""

    kind: str = "fixed"
    a: float = 0.0
    b: float = 0.0
    seed: int = 0
    """Another seed shuffles who answers first and changes nothing else."""

    def seconds(self, key: bytes) -> float:
        """How long the request with this key takes."""
        if self.kind == "fixed":
            return self.a
        first = (keyed_int("latency", self.seed, key) + 1) / (2**63 + 1)
        if self.kind == "uniform":
            return self.a + (self.b - self.a) * first
        from statistics import NormalDist

        return self.a * math.exp(self.b * NormalDist().inv_cdf(first))


class FaultPlan:
    """Decides, arrival by arrival, whether and how a request fails; `shares` of the requests."""

    def __init__(self, noise_seed: int, shares: Mapping[str, float]) -> None:
        self._seed = noise_seed
        self._shares = shares
        self._arrivals: OrderedDict[bytes, int] = OrderedDict()

    def strike(self, key: bytes, *, is_json: bool, is_route: bool) -> Fault | None:
        """The fault of this arrival, None in most cases. `key` identifies the request's body."""
        if not self._shares:
            return None
        arrival = self._arrivals.pop(key, 0)
        self._arrivals[key] = arrival + 1
        if len(self._arrivals) > _REMEMBERED:
            self._arrivals.popitem(last=False)
        fits = {"json": is_json, "routes": is_route}
        drawn = keyed_int("fault", self._seed, key, arrival) / 2**63
        for fault in _DRAWN:
            drawn -= self._shares.get(fault, 0.0) if fits.get(fault, True) else 0.0
            if drawn < 0:
                return fault
        return None


def spoiled(fault: Fault | None, text: str, key: bytes) -> tuple[str, bool]:
    """The reply's text under a fault, and whether it was cut at a length."""
    if fault == "truncate":
        return cut_tokens(text, max(1, count_tokens(text) // 2)), True
    if fault == "json" and keyed_int("form", key) % 2 == 0:
        return text.rstrip().rstrip("}"), False  # repair can mend it
    if fault == "json":
        words = re.sub(r"[{}\[\]\":,]+", " ", text).split()
        return "Here is what I think: " + " ".join(words[:40]), False  # nothing can mend it
    if fault == "routes":
        return _INDICES.sub(_miscounted, text, count=1), False
    return text, False


def _miscounted(match: re.Match[str]) -> str:
    indices = cast("list[int]", json.loads(match[0]))
    return json.dumps(indices[:-1] if len(indices) > 1 else [*indices, indices[-1] + 1])
