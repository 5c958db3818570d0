"""A simulated world: what its executor cannot do without an order, and so what each input needs.
Its numbers are assumptions, not measurements: docs/simulated.md lists them.

A world is built from a task's data, gold answers included. Its skills (constraints.toml,
general.toml) are written apart from the seed instincts. A skill has a condition and orders in words
(`when`, `do`) and the skills that it works against (`breaks`); patterns recognise orders about it
(`order`) and its demand in an input or report (`sign`). An input needs those of its visible demands
that the executor lacks, 0 to 8; no file says which."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Literal, TypeVar, cast, get_args, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from promptcodebook.base.randomness import keyed_int
from promptcodebook.errors import ConfigError, did_you_mean
from promptcodebook.paper.simulated.orders import content_stems, read_skills, read_table
from promptcodebook.paper.tasks.constraints.task import constraints_of
from promptcodebook.types import Example

_MOST = 8  # skills that one input needs at most
_STAGED = ("hotpotqa", "hover", "ifbench", "pupa")  # tasks that are programs of several stages
SimulatedFault = Literal["429", "500", "drop", "json", "truncate", "routes"]
FAULTS: tuple[SimulatedFault, ...] = get_args(SimulatedFault)


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds before a reply: `fixed` a; `uniform` a..b.

    Attributes:
        seed: Another seed shuffles who answers first and changes nothing else.
    """

    kind: str = "fixed"
    a: Amount = 0.0
    b: Amount = 0.0
    seed: Count = 0

    def seconds(self, key: bytes) -> float:
        """How long the request with this key takes."""
        if self.kind == "fixed":
            return self.a
        first = (keyed_int("latency", self.seed, key) + 1) / (2**63 + 1)
        return self.a + (self.b - self.a) * first


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """The simulated model's parameters; shares and probabilities lie in [0, 1].

    Args:
        world: Which world: draws what the executor lacks, and so what inputs need.
        noise_seed: Which draws are made; what inputs need stays.
        lacking: Share of the skills that the executor of a world shows only when asked.
        able: Chance that a demand is met that needs nothing, or whose order is given.
        unable: Chance that a demand is met whose order is missing.
        load: Taken off every chance for each hundred words of the prompt above `free_words`.
        free_words: Words of a system prompt that cost nothing.
        shared: Share of the draws that are the same under every prompt; the prompt keys the rest.
        floor: No chance is lower.
        ceiling: No chance is higher.
        encoder_noise: Chance that encoder or generator overlooks a word of the input or a
            condition.
        success_weight: Weight of the success rate shown beside an instinct.
        generator_drop: Chance, times the temperature, that the generator loses a sentence.
        generator_idle: Chance that the generator keeps a sentence that does not concern the input.
        capacity: Chance that advice is right, as far as the texts allow it; else it does harm.
        rubric_bonus: How much a rubric that speaks of the matter sharpens the critic's eye.
        verdict_noise: Chance that a verdict's score and advice are drawn at random.
        attribution_error: Chance that advice is assigned to a random part, where its condition is
            lost.
        updater_uptake: New pieces of advice that one rewrite adopts at most.
        updater_loss: Chance, times the temperature, that a rewrite loses a sentence.
        judge_noise: Chance that a judge errs: a verdict turned, a count off by one.
        obedient: Whether a rewrite obeys its feedback even where that is wrong: advice takes the
            place of the text's orders, and a complaint of harm strikes them all.
        anonymous: Whether the critic does not say which active instinct works against an input.
        unsaid: Share of the skills of which the critic hears nothing, unless its rubric speaks of
            them.
        misled: Share of the skills whose instincts the encoder avoids where they are needed, unless
            its directive names them.
        bare: Chance that the generator states an order without its condition where that does not
            hold, unless its directive keeps conditions.
        heeds_tools: Whether it obeys the description of a request's first tool alone, and answers
            by its call.
        retry_after: Seconds named in the Retry-After header of a 429.
        stream_chunks: Pieces of a streamed reply.
        stream_delay: Seconds between two pieces of a streamed reply.
        faults: Share of the requests that each fault strikes.
        latency: Time from a request to its reply.
    """

    world: Count = 1
    noise_seed: Count = 1
    # The executor.
    lacking: Amount = 0.6
    able: Amount = 0.93
    unable: Amount = 0.25
    load: Amount = 0.05
    free_words: Count = 60
    shared: Amount = 0.5
    floor: Amount = 0.03
    ceiling: Amount = 0.97
    # Encoder and generator.
    encoder_noise: Amount = 0.15
    success_weight: Amount = 0.25
    generator_drop: Amount = 0.1
    generator_idle: Amount = 0.3
    # Critic, attribution, updater and judges.
    capacity: Amount = 0.8
    rubric_bonus: Amount = 0.5
    verdict_noise: Amount = 0.0
    attribution_error: Amount = 0.1
    updater_uptake: Count = 1
    updater_loss: Amount = 0.1
    judge_noise: Amount = 0.03
    # Worlds in which one part of an optimizer's loop could matter; all are off.
    obedient: bool = False
    anonymous: bool = False
    unsaid: Amount = 0.0
    misled: Amount = 0.0
    bare: Amount = 0.0
    heeds_tools: bool = False
    # The wire.
    retry_after: Amount = 0.0
    stream_chunks: Count = 8
    stream_delay: Amount = 0.0
    faults: Mapping[str, Amount] = field(default_factory=dict[str, float])
    latency: Latency = Latency()

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> SimulatedSettings:
        """The settings of a spec such as `simulated?load=0.1&faults=429:0.1`. Raises ConfigError
        when a parameter is wrong."""
        values: dict[str, object] = dict(params)
        latency = _latency(params.get("latency", "0"))
        values["latency"] = {**latency, "seed": values.pop("latency_seed", "0")}
        faults = params.get("faults", "").split(",")
        values["faults"] = dict(map(_fault, filter(None, faults)))
        found = read_params(cls, values, "the simulated model")
        if sum(found.faults.values()) > 1.0:
            message = "simulated: the faults' shares add up to more than 1"
            raise ConfigError(message, hint="lower them")
        return found


DEFAULTS = SimulatedSettings()
T = TypeVar("T")


def read_params(kind: type[T], params: Mapping[str, object], what: str) -> T:
    """The dataclass of a spec's parameters, which are texts. Raises ConfigError when a name or a
    value is wrong; `what` takes the parameters."""
    known = list(get_type_hints(kind))
    for name in params.keys() - {*known}:
        message = f"{what} has no parameter {name!r}{did_you_mean(name, known)}"
        raise ConfigError(message, hint=f"parameters: {', '.join(known)}")
    try:
        return TypeAdapter(kind).validate_python(params)
    except ValidationError as error:
        wrong = error.errors()[0]
        name, why = ".".join(map(str, wrong["loc"])), wrong["msg"]
        message = f"{what}: {name} = {wrong['input']!r}: {why}"
        raise ConfigError(message, hint=f"write e.g. {name}=1 if it is a number") from None


def _fault(part: str) -> tuple[str, str]:
    name, _, share = part.partition(":")
    if name not in FAULTS:
        message = f"simulated: unknown fault {name!r}{did_you_mean(name, FAULTS)}"
        hint = f"faults: {', '.join(FAULTS)}, e.g. faults=429:0.1,json:0.05"
        raise ConfigError(message, hint=hint)
    return name, share


def _latency(text: str) -> Mapping[str, str]:
    kind, _, rest = text.rpartition(":")
    kind = kind or "fixed"
    parts = rest.split("-")
    if len(parts) != {"fixed": 1, "uniform": 2}.get(kind):
        message = f"simulated: cannot read the latency {text!r}"
        raise ConfigError(message, hint="write latency=0.2 or latency=uniform:0.05-0.3")
    return {"kind": kind, **dict(zip("ab", parts, strict=False))}


@dataclass(frozen=True, slots=True)
class Demand:
    """A constraint of the input, and the skill it is about (None = one that no skill covers)."""

    key: str
    skill: int | None
    constraint: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class KnownInput:
    """An input: skills whose demand is `shown`, those that the executor `needs` an order for, its
    content stems; `gold` and `fields` where the world knows it."""

    input: str
    shown: frozenset[int]
    needs: frozenset[int]
    words: frozenset[str]
    demands: tuple[Demand, ...]
    gold: str | None
    fields: Mapping[str, object]


class World:
    """Skills, which of them are lacking, and the inputs known by heart."""

    def __init__(
        self, task: str, examples: Sequence[Example], settings: SimulatedSettings = DEFAULTS
    ) -> None:
        """The world of a task's data, or of anybody's: `task` is a benchmark's name or ''."""
        self.constrained = any("constraints" in e.fields for e in examples) or task == "ifbench"
        self.name = task or "general"
        self.staged = task in _STAGED
        self.skills = read_skills("constraints" if self.constrained else "general")
        self.lacking = self._drawn("lack", settings.lacking, settings.world)
        # Skills of which no report speaks to the critic.
        self.unsaid = self._drawn("unsaid", settings.unsaid, settings.world)
        # Skills whose demand the encoder does not see in an input.
        self.misled = self._drawn("misled", settings.misled, settings.world)
        self._world = settings.world
        self._known = {e.input.strip(): e for e in examples}
        self._openings: dict[str, list[str]] = {}
        for text in sorted(self._known, key=len, reverse=True):
            self._openings.setdefault(text.split("\n", 1)[0].strip(), []).append(text)
        self._problem = lru_cache(maxsize=4096)(self._read)

    def _drawn(self, purpose: str, share: float, world: int) -> frozenset[int]:
        drawn = sorted(range(len(self.skills)), key=lambda k: keyed_int(purpose, world, k))
        return frozenset(drawn[: round(share * len(drawn))])

    def problem(self, text: str) -> KnownInput:
        """The input as a problem: known by heart, or judged by its visible features."""
        return self._problem(text.strip())

    def locate(self, text: str) -> str:
        """The known input that a text is, or else the first that it contains; '' if none does."""
        if text.strip() in self._known:
            return text.strip()
        for line in text.split("\n"):
            line = line.strip()
            tail = line.split(": ", 1)[-1]
            bare = re.sub(r"^\W*[\w ]{1,40}:\**\s*", "", line)
            for opening in dict.fromkeys((line, tail, tail.strip("\"'`"), bare)):
                for known in self._openings.get(opening, ()):
                    if known in text:
                        return known
        return ""

    def _read(self, text: str) -> KnownInput:
        example, shown = self._known.get(text), self.skills.shown_in(text)
        constraints: Iterable[Mapping[str, object]] = ()
        gold, held = None, dict[str, object]()
        if example is not None:
            constraints = constraints_of(example) or _instructions(example)
            gold, held = example.target, dict(example.fields)
        demands = tuple(
            Demand(f"{n}:{c['kind']}", self.skills.place(str(c["kind"])), c)
            for n, c in enumerate(constraints)
        )
        about = {d.skill for d in demands if d.skill is not None} or shown
        drawn = sorted(about & self.lacking, key=lambda k: keyed_int("needs", self._world, k, text))
        needs = frozenset(drawn[:_MOST])
        return KnownInput(text, shown, needs, content_stems(text), demands, gold, held)


def _instructions(example: Example) -> Iterable[Mapping[str, object]]:
    """An ifbench example's constraints in our terms; one that no skill covers keeps its id."""
    same = read_table("wording")["ifeval"]
    names = cast("Sequence[str]", example.fields.get("instruction_id_list") or ())
    given = cast("Sequence[Mapping[str, object]]", example.fields.get("kwargs") or ())
    for name, values in zip(names, given, strict=True):
        ours = {"kind": name, **same.get(name, {})}
        renamed = {to: values.get(of) for to, of in ours.items() if to != "kind"}
        yield {"kind": ours["kind"], **renamed}
