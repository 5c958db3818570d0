"""Every number of the simulated model, and its faults and delays.

The numbers are assumptions, not measurements: docs/simulated.md lists them.

At most one fault strikes an arrival. Noise seed, content, and the number of earlier arrivals of the
same request decide which, so a retry can succeed whatever the order of arrival.
"""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, cast, get_args

from promptcodebook.errors import ConfigError, did_you_mean
from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.orders import count_tokens, cut_tokens

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


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """The simulated model's parameters; shares and probabilities lie in [0, 1]."""

    world: int = 1  # draws what the executor lacks, and so what inputs need
    noise_seed: int = 1  # which draws; what inputs need stays as it is
    # The executor.
    lacking: float = 0.6  # share of the skills that it shows only when told
    able: float = 0.93  # chance that a demand is met that needs nothing, or whose order is given
    unable: float = 0.25  # chance that a demand is met whose order lacks
    load: float = 0.05  # taken off every chance for each hundred words above `free_words`
    free_words: int = 60  # words of a system prompt that cost nothing
    shared: float = 0.5  # share of the draws that are the same under every prompt
    floor: float = 0.03  # no chance is lower
    ceiling: float = 0.97  # no chance is higher
    # Encoder and generator.
    encoder_noise: float = 0.15  # chance that a word of the input or a condition is overlooked
    success_weight: float = 0.25  # weight of the success rate shown beside an instinct
    generator_drop: float = 0.1  # chance, times the temperature, that a sentence is lost
    generator_idle: float = 0.3  # chance that one which does not bear on the input is kept
    # Critic, attribution, updater and judges.
    capacity: float = 0.8  # chance that advice is right; else it is wrong and does harm
    rubric_bonus: float = 0.5  # how much a rubric that speaks of the matter sharpens the eye
    verdict_noise: float = 0.0  # chance that a verdict is drawn at random
    attribution_error: float = 0.1  # chance that advice is laid at a part drawn at random
    updater_uptake: int = 1  # new pieces of advice that one rewrite takes up at the most
    updater_loss: float = 0.1  # chance, times the temperature, that a rewrite loses a sentence
    judge_noise: float = 0.03  # chance that a verdict on quality is turned, a count off by one
    # The wire.
    prefix_cache: bool = False  # report tokens of a prefix shared with an earlier request as cached
    cache_block: int = 16  # tokens in one block of the prefix cache
    retry_after: float = 0.0  # seconds named in the Retry-After header of a 429
    stream_chunks: int = 8  # pieces of a streamed reply
    stream_delay: float = 0.0  # seconds between two pieces of a streamed reply
    faults: Mapping[str, float] = field(default_factory=dict[str, float])  # share of the requests
    latency: Latency = Latency()

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> SimulatedSettings:
        """The settings a spec such as `simulated?load=0.1&faults=429:0.1` asks for. ConfigError."""
        plain = [f.name for f in fields(cls) if f.name not in ("faults", "latency")]
        known = [*plain, "faults", "latency", "latency_seed"]
        for name in params:
            if name not in known:
                raise ConfigError(
                    f"the simulated model has no parameter {name!r}{did_you_mean(name, known)}",
                    hint=f"parameters: {', '.join(known)}",
                )
        settings = replace(
            cls(),
            faults=_faults(params.get("faults", "")),
            latency=_latency(params.get("latency", "0"), params.get("latency_seed", "0")),
        )
        values = {name: settings._read(name, params[name]) for name in plain if name in params}
        return replace(settings, **values)

    def _read(self, name: str, value: str) -> float:
        old: object = getattr(self, name)
        if isinstance(old, bool):
            return value.strip().lower() not in ("", "0", "false", "no")
        return _number(name, value, int if isinstance(old, int) else float)


def _number(name: str, value: str, kind: Callable[[str], float]) -> float:
    try:
        number = kind(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ConfigError(
            f"simulated: {name} must be a number of at least 0, not {value!r}",
            hint=f"write e.g. simulated?{name}=1",
        )
    return number


def _faults(text: str) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, share = part.partition(":")
        if name not in FAULTS:
            raise ConfigError(
                f"simulated: unknown fault {name!r}{did_you_mean(name, FAULTS)}",
                hint=f"faults: {', '.join(FAULTS)}, e.g. faults=429:0.1,json:0.05",
            )
        found[name] = _number(f"fault {name}", share, float)
    if sum(found.values()) > 1.0:
        raise ConfigError("simulated: the faults' shares add up to more than 1", hint="lower them")
    return found


def _latency(text: str, seed: str) -> Latency:
    kind, _, rest = text.rpartition(":")
    kind = kind or "fixed"
    parts = rest.split("-" if kind == "uniform" else ",")
    if len(parts) != {"fixed": 1, "uniform": 2, "lognormal": 2}.get(kind):
        raise ConfigError(
            f"simulated: cannot read the latency {text!r}",
            hint="write latency=0.2, latency=uniform:0.05-0.3 or latency=lognormal:0.1,0.5",
        )
    numbers = [_number("latency", p, float) for p in parts]
    spread = numbers[1] if len(numbers) == 2 else 0.0
    return Latency(kind, numbers[0], spread, int(_number("latency_seed", seed, int)))
