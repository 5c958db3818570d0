"""From an input to its prompt, Eqs. 3-4: E_θ routes an input to S instincts, G_φ composes them.

A policy without an encoder (`encoder.mode: none`) takes the S entries of highest r̄; one that has
learned a ranking routes without a call. In training some routes are drawn: see `exploration.py`.

Deviations: a reply that is no valid route is asked for once more, with its fault. Then its valid
picks are kept, and the entries of highest r̄ fill the rest (method decision 10). The reply's schema
holds S and K. `compose: verbatim` joins the instincts as they are (decision 12). A prompt that was
cut at its cap, or is empty, is asked for once more; then the instincts replace it verbatim."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, cast

from pydantic import Field

from promptcodebook.base.incidents import Incident, Tally, no_tally
from promptcodebook.base.randomness import Draws
from promptcodebook.base.text import fault_in_text, place_in, strip_wrapping
from promptcodebook.calls import Message, Request, Schema, Usage, schema_of
from promptcodebook.data.table import cell_text
from promptcodebook.errors import ConfigError, ParseError, TruncatedReply, did_you_mean
from promptcodebook.lm.structured import (
    Ask,
    LenientIndices,
    LenientText,
    LenientTexts,
    ReplyShape,
    bounded,
)
from promptcodebook.method.failures import gather_all
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.method.templates import TemplateSet, instinct_lines
from promptcodebook.types import Codebook, Example, Expected, Parameters, Prompt, Ranking, Route


def route_fault(
    indices: Sequence[int], size: int, select: int, least: int | None = None
) -> str | None:
    """What is wrong with a route, in words fit to quote; None for S distinct indices in range, or
    for `least` to S of them."""
    faults: list[str] = []
    valid = {i for i in indices if 0 <= i < size}
    outside = sorted(set(indices) - valid)
    if outside:
        more = " and more" if len(outside) > 8 else ""
        faults.append(f"{outside[:8]}{more} lie outside 0..{size - 1}")
    if len(set(indices)) < len(indices):
        faults.append("an index is named twice")
    least = select if least is None else least
    if not least <= len(valid) <= select:
        wanted = select if least == select else f"{least} to {select}"
        faults.append(f"{len(valid)} valid indices instead of {wanted}")
    return "selected_indices: " + "; ".join(faults) if faults else None


def repair_route(
    indices: Sequence[int], ema: Sequence[float], select: int, least: int | None = None
) -> tuple[int, ...]:
    """S valid distinct sorted indices: the valid picks in order, then the highest r̄. With `least`
    the valid picks are enough, if there are as many."""
    picks = list(dict.fromkeys(i for i in indices if 0 <= i < len(ema)))[:select]
    if least is not None and len(picks) >= least:
        return tuple(sorted(picks))
    by_rate = sorted((k for k in range(len(ema)) if k not in picks), key=lambda k: (-ema[k], k))
    return tuple(sorted([*picks, *by_rate[: select - len(picks)]]))


class RouteReply(ReplyShape):
    """S indices, the demands it saw, and why."""

    selected_indices: LenientIndices
    constraints: LenientTexts = Field(default_factory=list)
    analysis: LenientText = bounded(240)


@lru_cache(maxsize=64)
def route_schema(select: int, size: int, template: str = "", least: int | None = None) -> Schema:
    """S distinct indices out of K, or `least` to S, and short reasons, in the order of the
    template."""
    schema = schema_of(RouteReply)
    picks = {
        "type": "array",
        "minItems": select if least is None else least,
        "maxItems": select,
        "uniqueItems": True,
        "items": {"type": "integer", "enum": list(range(size))},
    }
    demands = {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 80}}
    fields = cast("dict[str, Any]", schema.body["properties"])
    fields = {**fields, "selected_indices": picks, "constraints": demands}
    # What the template does not name (-1) comes last.
    named = sorted(fields, key=lambda name: template.find(f'"{name}"') % (len(template) + 1))
    ordered = {name: fields[name] for name in named}
    return Schema(schema.name, {**schema.body, "properties": ordered})


def read_route(line: str) -> RouteReply:
    """The indices that one line names. Raises ValueError where it names none."""
    named = re.findall(r"\b\d{1,6}\b", line)
    if not named:
        raise ValueError("it names no index")
    return RouteReply(selected_indices=[int(index) for index in named])


def join_instincts(codebook: Codebook, route: Route) -> str:
    """The selected instincts as they are, one a line (method decision 12)."""
    return "\n".join(codebook[k].text for k in route.indices)


def join_prompts(base_prompt: str, composed: str) -> str:
    """The user's fixed prompt comes before the composed one, word for word."""
    return f"{base_prompt}\n\n{composed}" if base_prompt and composed else base_prompt or composed


class Prompter(Protocol):
    """Gives the prompt for an example: a learned policy, or a fixed text to compare with."""

    async def prompt(
        self, example: Example, draws: Draws
    ) -> tuple[Route | None, Prompt, Usage]: ...


@dataclass(frozen=True, slots=True)
class FixedPrompt:
    """The same prompt for every input; by its name also one for each of the `stages`."""

    text: str
    stages: Mapping[str, str] = field(default_factory=dict[str, str])

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        return None, Prompt(self.text, self.stages), Usage()


@dataclass(frozen=True, slots=True)
class PresentPrompt:
    """What the user has today: `base`, and a `text` in which columns in braces, `{question}`, are
    filled in for each input. `names` are the columns that may be, `input` those that make up the
    input; `{{question}}` is one too, and `{{other}}` means the braces themselves."""

    base: str
    text: str
    names: Set[str] = frozenset()
    input: Set[str] = frozenset()

    @property
    def template(self) -> str:
        """The whole of it, its columns not filled in."""
        return join_prompts(self.base, self.text)

    @property
    def named(self) -> list[str]:
        """The columns that it names, and every other name in single braces."""
        places = [(place[1] or place[2], bool(place[2])) for place in _PLACE.finditer(self.text)]
        return [name for name, single in places if single or name in self.names]

    def require_columns(self) -> None:
        """Raises ConfigError where it names a column that no row has, or that of the references, or
        does not close the brace before a column."""
        for name in self.names & {*_UNCLOSED.findall(self.text)}:
            hint = f"write {{{name}}}, or '{{ {name}' for a literal brace"
            raise ConfigError(f"the prompt does not close the brace of {{{name}", hint=hint)
        for name in self.named:
            if name not in self.names:
                known = sorted(self.names - {"input"})
                what = f"the prompt names {{{name}}}, which is not an input column"
                hint = f"write {{input}}, the whole input, or a column: {', '.join(known)}; "
                hint += f"{{{{{name}}}}} is for literal braces"
                raise ConfigError(f"{what}{did_you_mean(name, self.names)}", hint=hint)

    @property
    def bare(self) -> str:
        """The text as advice for any input: without the columns and what leads to them."""
        advice, whole = self.text, self.text
        for place in _PLACE.finditer(self.text):
            if (name := place[1] or place[2]) in self.names:
                mark, words = re.escape(place[0]), name.replace("_", " ")
                # A line that only labels it goes; so does a colon that leads to it.
                advice = re.sub(rf"(?m)^\W*(?:\w+\W+){{0,2}}{mark}\W*$\n?", "", advice)
                advice = re.sub(rf"(?m):[ \t\"'`]*{mark}[\"'`]*$", ".", advice)
                which = rf"(?i)(\b(?:the|this|following|given) ){mark}"
                advice = re.sub(which, rf"\1{words}", advice).replace(place[0], f"the {words}")
                whole = whole.replace(place[0], f"the {words}")
        return advice.strip() or whole

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        def fill(place: re.Match[str]) -> str:
            name = place[1] or place[2]
            if name not in self.names:
                return f"{{{name}}}" if name.isidentifier() else place[0]
            return cell_text(example.fields.get(name, example.input if name == "input" else ""))

        text = _PLACE.sub(fill, self.text) if self.names else self.text
        named = {*self.named} & self.names
        holds = bool(named) and ("input" in named or self.input <= named) and not example.messages
        return None, Prompt(join_prompts(self.base, text), holds_input=holds), Usage()


# A column in a prompt: not in "\\frac{a}", "${HOME}" or "f{x}".
_PLACE = re.compile(r"(?<![\\\w$}])(?:\{\{\s*([^{}\n]+?)\s*\}\}|\{([A-Za-z_][\w .-]*)\}(?!\}))")
# A brace before a word that no brace follows in its line, unless that word opens another.
_UNCLOSED = re.compile(r"(?<![\\\w$}{])\{(\w+)\b(?![^{}\n]*\})")


# Routes an input by a ranking, in place of E_θ; and what each instinct promises for it.
Ranks = Callable[[Codebook, Ranking, Example], Awaitable[tuple[Route, Expected, Usage]]]


@dataclass
class Composer:
    """E_θ and G_φ at work; Θ comes with each call. `ranks` routes where a ranking was learned;
    `stages` get a prompt of their own (() = one prompt for the whole program); `least`: E_θ may
    pick as few (None = exactly `select`)."""

    ask: Ask
    templates: TemplateSet
    select: int
    ranks: Ranks
    mode: Literal["generator", "verbatim"] = "generator"
    base_prompt: str = ""
    output_format: str = ""
    stages: Sequence[str] = ()
    tally: Tally = no_tally
    least: int | None = None

    async def route(
        self, parameters: Parameters, statistics: RoutingStatistics, example: Example, draws: Draws
    ) -> tuple[Route, Expected | None, Usage]:
        """z = E_θ(x, C), or by a ranking; an empty θ is no encoder. Raises LMError when the model
        cannot be reached."""
        if statistics.ranking is not None:
            return await self.ranks(parameters.codebook, statistics.ranking, example)
        best = Route(repair_route((), statistics.standing, self.select))
        if not parameters.encoder:
            return best, None, Usage()
        size = len(parameters.codebook)
        messages = self.messages(parameters, statistics, example.input)
        request = Request("encoder", messages, sample=draws.sample("route"))

        def fault_of(reply: RouteReply) -> str | None:
            return route_fault(reply.selected_indices, size, self.select, self.least)

        try:
            if "encoder" in self.templates.one_line:
                answer = await self.ask.line(request, read_route, fault_of)
            else:
                source = self.templates.sources["encoder"]
                schema = route_schema(self.select, size, source, self.least)
                request = replace(request, schema=schema)
                answer = await self.ask.typed(request, RouteReply, fault_of)
        except (ParseError, TruncatedReply) as error:
            cut = isinstance(error, TruncatedReply)
            fault = "it was cut at its length limit" if cut else "it was not of the form asked for"
            route = replace(best, repaired=True, fallback=True, fault=fault)
            usage = error.usage
        else:
            reply, usage = answer.value, answer.usage
            picked, rates = reply.selected_indices, statistics.standing
            route = Route(
                indices=repair_route(picked, rates, self.select, self.least),
                repaired=answer.reasked,
                fallback=answer.fault is not None,
                fault=answer.fault or "",
                constraints=tuple(reply.constraints),
                analysis=reply.analysis,
            )
        if route.repaired:
            self.tally(Incident.ROUTE_REPAIRS)
        if route.fallback:
            self.tally(Incident.ROUTE_FALLBACKS)
        return route, None, usage

    def messages(
        self, parameters: Parameters, statistics: RoutingStatistics, task: str
    ) -> tuple[Message, ...]:
        """The encoder's chat; with our templates all but the input is the same for every input."""
        size = len(parameters.codebook)
        lines = self.templates.lines.show(parameters.codebook, statistics)
        values = {"theta": parameters.encoder, "select": self.select, "size": size}
        exact = self.least is None or self.least == self.select
        values |= {"most": "exactly" if exact else "at most", "last": size - 1}
        values |= {"codebook": lines, "task": task}
        return self.templates["encoder"].fill(values)

    async def compose(
        self, parameters: Parameters, route: Route, example: Example, draws: Draws
    ) -> tuple[Prompt, Usage]:
        """p = G_φ(x, C[z]), or one for each stage. Raises LMError when the model cannot be
        reached."""
        if not self.stages:  # no task for the one: others would take their turn before it
            text, usage = await self._compose(parameters, route, example.input, draws)
            return Prompt(text), usage
        made = await gather_all(
            self._compose(parameters, route, example.input, draws, stage) for stage in self.stages
        )
        usage = sum((spent for _, spent in made), Usage())
        by_stage = {stage: text for stage, (text, _) in zip(self.stages, made, strict=True)}
        return Prompt.of_stages(by_stage), usage

    async def _compose(
        self, parameters: Parameters, route: Route, task: str, draws: Draws, stage: str = ""
    ) -> tuple[str, Usage]:
        book = parameters.codebook
        places = {k: place_in(book[k].text) for k in route.indices}
        if stage:  # what belongs to another one stays away
            away = {p for p in places.values() if p.startswith("stage:")} - {f"stage:{stage}: "}
            places = {k: place for k, place in places.items() if place not in away}
        verbatim = join_prompts(self.base_prompt, join_instincts(book, Route(tuple(places))))
        # What belongs to a tool or a stage goes there as it is.
        placed = tuple(k for k, place in places.items() if place)
        own = [k for k in places if k not in placed]
        if self.mode == "verbatim" or (placed and not own):
            return verbatim, Usage()
        values = {
            "phi": parameters.generator,
            "instincts": instinct_lines(book, own),
            "task": task,
            "format": self.output_format,
            "stage": f"The prompt is for this stage of the work: {stage}" if stage else "",
        }
        request = Request(
            "generator",
            self.templates["generator"].fill(values),
            sample=draws.sample(f"compose {stage}" if stage else "compose"),
        )
        empty = "it has no text, or only thoughts"
        answer = await self.ask.text(
            request, lambda reply: fault_in_text(strip_wrapping(reply)) if reply else empty
        )
        if answer.fault is not None:
            self.tally(Incident.PROMPT_FALLBACKS)
            return join_prompts(verbatim, self.output_format), answer.usage
        composed = join_prompts(strip_wrapping(answer.value), join_instincts(book, Route(placed)))
        return join_prompts(self.base_prompt, composed), answer.usage


@dataclass(frozen=True)
class Deployed:
    """A policy with its parameters fixed: x -> p; no prompt holds what is `silent`."""

    composer: Composer
    parameters: Parameters
    statistics: RoutingStatistics
    silent: Set[int] = frozenset()

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        route, _, routing = await self.route(example, draws)
        prompt, composing = await self.compose(route, example, draws)
        return route, prompt, routing + composing

    async def route(self, example: Example, draws: Draws) -> tuple[Route, Expected | None, Usage]:
        return await self.composer.route(self.parameters, self.statistics, example, draws)

    async def compose(self, route: Route, example: Example, draws: Draws) -> tuple[Prompt, Usage]:
        rest = replace(route, indices=tuple(k for k in route.indices if k not in self.silent))
        return await self.composer.compose(self.parameters, rest, example, draws)
