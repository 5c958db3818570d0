"""Every number of the simulated model, in one frozen value.

These are assumptions, not measurements: docs/simulated.md lists them with their reasons and dates
each later change. `SimulatedSettings.from_params` reads what follows `simulated?` in a spec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from promptcodebook.errors import ConfigError, did_you_mean

__all__ = ["Faults", "Latency", "SimulatedSettings"]

_DISTRIBUTIONS = ("fixed", "uniform", "lognormal")


@dataclass(frozen=True, slots=True)
class Faults:
    """Share of requests that meet each fault; at most one strikes a request."""

    rate_limited: float = 0.0
    """`429`: refused with status 429 and a Retry-After header."""
    server_error: float = 0.0
    """`500`: refused with status 500."""
    drop: float = 0.0
    """`drop`: the connection breaks before the reply is whole."""
    json: float = 0.0
    """`json`: a reply that should be JSON is not (JSON replies only)."""
    truncate: float = 0.0
    """`truncate`: the reply is cut and finishes with reason `length`."""
    routes: float = 0.0
    """`routes`: a routing reply holds the wrong number of indices (routing replies only)."""

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

    world_seed: int = 1
    """Which simulated model: keys every draw."""
    homogeneous: bool = False
    """Every input needs the same skills, so that nothing is gained by routing (a control)."""
    base: float = 0.47
    """Chance that a demand of the input is met when its skill is not cued."""
    gain: float = 0.40
    """Added to that chance when the system prompt cues the skill."""
    stage_base: float = 0.55
    """As `base`, for a stage of a program with several: search, notes, answer, verification."""
    stage_gain: float = 0.35
    """As `gain`, for such a stage."""
    second_look: float = 0.3
    """Share of its chance with which a revision mends a constraint that the draft breaks."""
    judge_noise: float = 0.03
    """Chance that a judge of quality or leakage errs: a verdict turned, a count off by one."""
    care: float = 0.12
    """Added when every general skill that the input needs is cued; in proportion below that."""
    dilution: float = 0.02
    """Taken off for each unit of load: directives that do not bear on the input, and length."""
    dilution_most: float = 0.45
    """However long a prompt is, load takes off no more: cap * (1 - exp(-dilution * load / cap))."""
    free_words: int = 80
    """Words of a system prompt that cost nothing."""
    words_per_load: float = 40.0
    """Words above `free_words` that weigh as much as one directive that does not bear."""
    floor: float = 0.03
    """No chance of meeting a demand is lower."""
    ceiling: float = 0.97
    """No chance of meeting a demand is higher."""
    encoder_noise: float = 0.15
    """Chance that the encoder overlooks a word of the input."""
    encoder_jitter: float = 0.08
    """Width of the uniform noise on each instinct's relevance."""
    success_weight: float = 0.25
    """Weight of the success rate shown beside an instinct."""
    index_preference: float = 0.004
    """What each place further down the list costs an instinct."""
    criteria_weight: float = 0.6
    """Added to an instinct that the encoder's criteria speak of and the input calls for."""
    generator_sentences: int = 4
    """Sentences of a composed prompt when the request names no number."""
    generator_words: int = 110
    """Words past which the generator leaves clauses out."""
    generator_drop: float = 0.15
    """Chance, times the temperature, that the generator loses a clause."""
    generator_idle: float = 0.6
    """Chance that the first clause of a strategy stays though it shares no word with the input;
    0.4 of that for its further clauses."""
    capacity: float = 0.8
    """Chance that the critic recognises which advice was missing."""
    rubric_bonus: float = 0.5
    """Share of the remaining misses that a rubric mending on the very skill removes."""
    critic_slip: float = 0.5
    """When the critic misses: chance that it names other, wrong advice instead of none."""
    critic_guess: float = 0.0
    """Chance that the critic guesses which of several demands failed when no report tells."""
    attribution_error: float = 0.1
    """Chance that a complaint is laid at the wrong part."""
    updater_uptake: int = 2
    """New pieces of advice that one rewrite takes up at the most."""
    updater_loss: float = 0.1
    """Chance, times the temperature, that a rewrite loses one of its clauses."""
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
        """The settings a spec such as `simulated?dilution=0.02&faults=429:0.1` asks for."""
        settings = cls()
        latency_seed = 0
        for name, value in params.items():
            if name == "faults":
                settings = replace(settings, faults=_faults(value))
            elif name == "latency":
                settings = replace(settings, latency=_latency(value))
            elif name == "latency_seed":
                latency_seed = int(_number(name, value, int))
            else:
                settings = _with(settings, name, value)
        return replace(settings, latency=replace(settings.latency, seed=latency_seed))


_FAULT_NAMES = {
    "429": "rate_limited",
    "500": "server_error",
    "drop": "drop",
    "json": "json",
    "truncate": "truncate",
    "routes": "routes",
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
        new: object = value.strip().lower() not in ("", "0", "false", "no", "off")
    else:
        new = _number(name, value, int if isinstance(old, int) else float)
    return replace(settings, **{name: new})


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
    wanted = 1 if kind == "fixed" else 2
    if kind not in _DISTRIBUTIONS or len(parts) != wanted:
        raise ConfigError(
            f"simulated: cannot read the latency {text!r}",
            hint="write latency=0.2, latency=uniform:0.05-0.3 or latency=lognormal:0.1,0.5",
        )
    numbers = [_number("latency", p, float) for p in parts]
    return Latency(kind, numbers[0], numbers[-1] if wanted == 2 else 0.0)
