"""Every number of the simulated model, in one frozen value.

These are assumptions, not measurements: docs/simulated.md lists them.
`SimulatedSettings.from_params` reads what follows `simulated?` in a spec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from promptcodebook.errors import ConfigError, did_you_mean

__all__ = ["Faults", "Latency", "SimulatedSettings"]


@dataclass(frozen=True, slots=True)
class Faults:
    """Share of requests that meet each fault (docs/simulated.md); at most one strikes a request."""

    rate_limited: float = 0.0
    server_error: float = 0.0
    drop: float = 0.0
    json: float = 0.0
    truncate: float = 0.0
    routes: float = 0.0

    @property
    def any(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds before a reply: `fixed` a; `uniform` a..b; `lognormal` median a, log-sd b."""

    kind: str = "fixed"
    a: float = 0.0
    b: float = 0.0
    seed: int = 0
    """Another seed shuffles who answers first and changes nothing else."""


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """The simulated model's parameters; shares and probabilities lie in [0, 1]."""

    world: int = 1
    """Which world: draws what the executor lacks, and so what inputs need."""
    noise_seed: int = 1
    """Which draws; what inputs need stays as it is."""
    lacking: float = 0.6
    """Share of the skills that the executor of a world shows only when told."""
    able: float = 0.93
    """Chance that a demand is met that needs nothing, or whose order is given."""
    unable: float = 0.25
    """Chance that a demand is met whose order lacks."""
    load: float = 0.05
    """Taken off every chance for each hundred words of the prompt above `free_words`."""
    free_words: int = 60
    """Words of a system prompt that cost nothing."""
    shared: float = 0.5
    """Share of the draws that are the same under every prompt; the rest are keyed by the prompt."""
    floor: float = 0.03
    """No chance is lower."""
    ceiling: float = 0.97
    """No chance is higher."""
    encoder_noise: float = 0.15
    """Chance that the encoder or the generator overlooks a word of the input or a condition."""
    success_weight: float = 0.25
    """Weight of the success rate shown beside an instinct."""
    generator_drop: float = 0.1
    """Chance, times the temperature, that the generator loses a sentence."""
    generator_idle: float = 0.3
    """Chance that the generator keeps a sentence that does not bear on the input."""
    capacity: float = 0.8
    """Chance that advice is right, as far as the texts allow it; else it is wrong and does harm."""
    rubric_bonus: float = 0.5
    """How much a rubric that speaks of the matter sharpens the critic's eye."""
    verdict_noise: float = 0.0
    """Chance that a verdict is about nothing: its score and its advice are drawn at random."""
    attribution_error: float = 0.1
    """Chance that advice is laid at a part drawn at random, where its condition is lost."""
    updater_uptake: int = 1
    """New pieces of advice that one rewrite takes up at the most."""
    updater_loss: float = 0.1
    """Chance, times the temperature, that a rewrite loses a sentence."""
    judge_noise: float = 0.03
    """Chance that a judge of quality or leakage errs: a verdict turned, a count off by one."""
    prefix_cache: bool = False
    """Report prompt tokens of a prefix shared with an earlier request as cached."""
    cache_block: int = 16
    """Tokens in one block of the prefix cache."""
    retry_after: float = 0.0
    """Seconds named in the Retry-After header of a 429."""
    stream_chunks: int = 8
    """Pieces of a streamed reply."""
    stream_delay: float = 0.0
    """Seconds between two pieces of a streamed reply."""
    faults: Faults = Faults()
    latency: Latency = Latency()

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> SimulatedSettings:
        """The settings a spec such as `simulated?load=0.1&faults=429:0.1` asks for. ConfigError."""
        settings = cls()
        for name, value in params.items():
            if name == "faults":
                settings = replace(settings, faults=_faults(value))
            elif name == "latency":
                latency = replace(_latency(value), seed=settings.latency.seed)
                settings = replace(settings, latency=latency)
            elif name == "latency_seed":
                seed = int(_number(name, value, int))
                settings = replace(settings, latency=replace(settings.latency, seed=seed))
            else:
                settings = _with(settings, name, value)
        return settings


_FAULT_NAMES = {"429": "rate_limited", "500": "server_error"} | {
    name: name for name in ("drop", "json", "truncate", "routes")
}


def _with(settings: SimulatedSettings, name: str, value: str) -> SimulatedSettings:
    plain = [f.name for f in fields(settings) if f.name not in ("faults", "latency")]
    if name not in plain:
        known = [*plain, "faults", "latency", "latency_seed"]
        raise ConfigError(
            f"the simulated model has no parameter {name!r}{did_you_mean(name, known)}",
            hint=f"parameters: {', '.join(known)}",
        )
    old: object = getattr(settings, name)
    if isinstance(old, bool):
        return replace(settings, **{name: value.strip().lower() not in ("", "0", "false", "no")})
    kind = int if isinstance(old, int) else float
    return replace(settings, **{name: _number(name, value, kind)})


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


def _faults(text: str) -> Faults:
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, share = part.partition(":")
        if name not in _FAULT_NAMES:
            raise ConfigError(
                f"simulated: unknown fault {name!r}{did_you_mean(name, _FAULT_NAMES)}",
                hint=f"faults: {', '.join(_FAULT_NAMES)}, e.g. faults=429:0.1,json:0.05",
            )
        found[_FAULT_NAMES[name]] = _number(f"fault {name}", share, float)
    if sum(found.values()) > 1.0:
        raise ConfigError("simulated: the faults' shares add up to more than 1", hint="lower them")
    return Faults(**found)


def _latency(text: str) -> Latency:
    kind, _, rest = text.rpartition(":")
    kind = kind or "fixed"
    parts = rest.split("-" if kind == "uniform" else ",")
    if len(parts) != {"fixed": 1, "uniform": 2, "lognormal": 2}.get(kind):
        raise ConfigError(
            f"simulated: cannot read the latency {text!r}",
            hint="write latency=0.2, latency=uniform:0.05-0.3 or latency=lognormal:0.1,0.5",
        )
    numbers = [_number("latency", p, float) for p in parts]
    return Latency(kind, numbers[0], numbers[-1] if len(numbers) == 2 else 0.0)
