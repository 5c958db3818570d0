"""The first codebook and the first θ, φ, ψ. `expert` takes the user's instincts or the task's own;
`random` has the model write them; `from_prompt` splits the present prompt, by the model or at its
sentences; `file` reads a codebook or a whole policy, but for ψ, which no policy holds; any other
kind is a package's reader of whole prompts. The requests of random and from_prompt, which the paper
does not print, are ours. A short list is filled up from the set's general instincts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field

from promptcodebook.base.paths import read_text
from promptcodebook.base.text import (
    count_words,
    fault_in_text,
    parse_json,
    parts_of,
    place_in,
    strip_wrapping,
    words_of,
)
from promptcodebook.calls import Request, Schema, schema_of
from promptcodebook.config import Config
from promptcodebook.config.schema import Init
from promptcodebook.errors import ConfigError, plug_in
from promptcodebook.lm.structured import Ask, LenientTexts, ReplyShape
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.templates import TemplateSet
from promptcodebook.types import Codebook, Instinct, Parameters


class InstinctsReply(ReplyShape):
    """A list of instincts."""

    instincts: LenientTexts


def texts_of(reply: InstinctsReply) -> list[str]:
    """The instincts of a reply, each on one line, without what is no instinct."""
    bare = [_on_one_line(strip_wrapping(text)) for text in reply.instincts]
    return [text for text in bare if text and not fault_in_text(text)]


READERS = "promptcodebook.inits"  # entry points: from the path to whole prompts, the best first
# Characters asked for: of all instincts together (the updater's cap), and for each word of one.
_ROOM, _PER_WORD = 2600, 8


@lru_cache(maxsize=64)
def instincts_schema(count: int, cap: int) -> Schema:
    """At most `count` instincts of `cap` words, in fewer characters each where they are many."""
    schema = schema_of(InstinctsReply)
    text = {"type": "string", "maxLength": max(1, min(cap * _PER_WORD, _ROOM // count - 4))}
    listed = {"instincts": {"type": "array", "maxItems": count, "items": text}}
    return Schema(schema.name, {**schema.body, "properties": listed})


class InstinctEntry(BaseModel):
    """An instinct in a file, with what is known of it; policy files keep this order."""

    text: str = Field(min_length=1)
    frozen: bool = False
    success: float = 0.0
    ema: float = 0.0
    selected: int = Field(default=0, ge=0)
    evidence: float | None = None


def statistics_of(entries: Sequence[InstinctEntry]) -> RoutingStatistics:
    """What is known of the entries; of their evidence nothing, where a file does not tell it of
    all of them."""
    evidence = tuple(e.evidence for e in entries if e.evidence is not None)
    return RoutingStatistics(
        tuple(e.ema for e in entries),
        tuple(e.success for e in entries),
        tuple(e.selected for e in entries),
        evidence if len(evidence) == len(entries) else (),
    )


class _Book(BaseModel):
    codebook: list[str | InstinctEntry] = Field(
        min_length=1, validation_alias=AliasChoices("codebook", "instincts")
    )
    encoder: str = ""
    generator: str = ""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a file holds: instincts, and of a policy θ, φ ('' = none) and statistics of each."""

    instincts: tuple[Instinct, ...] = ()
    encoder: str = ""
    generator: str = ""
    statistics: RoutingStatistics | None = None

    @staticmethod
    def read(init: Init, base: Path) -> Earlier:
        """Read a policy file, a list of texts, or what a package reads at `init.path`. Raises
        ConfigError when it holds no codebook."""
        path = base / init.path
        if init.whole:
            read = plug_in(READERS, init.kind, "init.kind", init.OWN)
            return Earlier(tuple(Instinct(text) for text in read(path)))
        if init.kind != "file":
            return Earlier()
        try:
            tree = parse_json(read_text(path))
            book = _Book.model_validate({"codebook": tree} if isinstance(tree, list) else tree)
        except (OSError, ValueError) as error:
            what = f"cannot read a codebook from {path}: {str(error).splitlines()[0]}"
            hint = 'name a policy file, or write a JSON list: ["instinct", "instinct", ...]'
            raise ConfigError(f"init.path: {what}", hint=hint) from None
        entries = [InstinctEntry(text=e) if isinstance(e, str) else e for e in book.codebook]
        instincts = tuple(Instinct(e.text, e.frozen) for e in entries)
        return Earlier(instincts, book.encoder, book.generator, statistics_of(entries))


@dataclass(frozen=True)
class Initialiser:
    """Builds Θ and the routing statistics before the first step. `tools` are first instincts of
    tools, for those that have none."""

    ask: Ask
    templates: TemplateSet
    config: Config
    tools: Sequence[str] = ()

    async def first(self, seeds: Sequence[str], earlier: Earlier = Earlier()) -> State:
        """The state to begin with; `seeds` are the task's own. Raises ConfigError when no codebook
        of K can be made of them."""
        config, init, text = self.config, self.config.init, self.templates.text
        given = await self._write() if init.written else listed_instincts(config, seeds, earlier)
        told = {place_in(instinct.text) for instinct in given}
        tools = [text for text in self.tools if place_in(text) not in told]
        if tools and (size := len(given) + len(tools)) > config.size:
            what = f"size = {config.size} cannot hold {len(given)} instincts and {len(tools)} tools"
            raise ConfigError(what, hint=f"set size = {size}")
        instincts, origins = _fill(given, self.templates, config, tools)
        statistics = earlier.statistics or RoutingStatistics.fresh(len(given))
        theta = (earlier.encoder or text("theta")) if config.has_encoder else ""
        phi = earlier.generator or text("phi")
        parameters = Parameters(theta, phi, Codebook(instincts), text("psi"))
        return State.first(parameters, statistics.pick(origins))

    async def _write(self) -> list[Instinct]:
        """What the model makes of the present prompt, or (kind random) writes without one."""
        kind, prompt = self.config.init.kind, self.config.init.prompt
        if kind == "from_prompt" and not prompt.strip():
            what = "init.kind = 'from_prompt' needs your current prompt"
            raise ConfigError(what, hint="set init.prompt to it")
        size, cap = self.config.size, self.config.update.instinct_words
        request = Request(
            "updater",
            self.templates[kind].fill({"size": size, "cap": cap, "text": prompt}),
            instincts_schema(size, cap),
            self.config.randomness.at(-1, "codebook").sample(kind),
        )

        def fault(reply: InstinctsReply) -> str | None:
            """What one more try may mend; an instinct that stays too long is taken as it is."""
            if not (texts := texts_of(reply)):
                return "instincts: none of the list is one"
            longest = max(map(count_words, texts))
            over = f"instincts: one has {longest} words, over the cap of {cap}"
            return over if longest > cap else None

        reply = (await self.ask.typed(request, InstinctsReply, fault)).value
        return [Instinct(text) for text in texts_of(reply)]


def _on_one_line(text: str) -> str:
    """The text, unless a block in it would lose its meaning so."""
    return text if any("\n" in part for part in parts_of(text)) else " ".join(text.split())


def check_seeds(
    seeds: Sequence[str], earlier: Earlier, templates: TemplateSet, config: Config
) -> None:
    """Raises ConfigError unless a codebook of K can be made of the lists that are at hand."""
    if not config.init.written:
        _fill(listed_instincts(config, seeds, earlier), templates, config)


def likely_instincts(
    config: Config, seeds: Sequence[str], earlier: Earlier, templates: TemplateSet
) -> list[str]:
    """The first codebook as far as no model writes it: in its place the sentences of the present
    prompt and the general instincts. A codebook that they do not fill is shorter."""
    init, general = config.init, [] if config.init.whole else _general(templates)
    own = parts_of(init.prompt)
    if init.kind not in ("random", "from_prompt"):
        own = [instinct.text for instinct in listed_instincts(config, seeds, earlier)]
    return list(dict.fromkeys((*own, *general)))[: max(len(own), config.size)]


def _general(templates: TemplateSet) -> list[str]:
    return templates.text("instincts").splitlines()


def listed_instincts(config: Config, seeds: Sequence[str], earlier: Earlier) -> Sequence[Instinct]:
    """The first instincts where no model writes them: those in a file, the settings or the task, or
    the sentences of the present prompt. Raises ConfigError when that prompt has more than K
    sentences, or none."""
    init = config.init
    if init.whole or init.kind == "file":
        return earlier.instincts
    if init.kind == "expert":
        return [Instinct(text) for text in init.instincts or seeds]
    found = parts_of(init.prompt)
    if not found:
        raise ConfigError("init.prompt contains no sentence", hint="set init.prompt to your prompt")
    if len(found) > config.size:
        raise ConfigError(
            f"init.prompt has {len(found)} sentences, but the codebook has {config.size} instincts",
            hint=f"set size = {len(found)}, or init.split = 'model' to let a model condense it",
        )
    return [Instinct(sentence) for sentence in found]


def _fill(
    given: Sequence[Instinct], templates: TemplateSet, config: Config, tools: Sequence[str] = ()
) -> tuple[tuple[Instinct, ...], list[int | None]]:
    """K different instincts, and the place in `given` of each (None = a general one). A repetition
    that is dropped leaves its `init.frozen` to the text that stays."""
    general = [] if config.init.whole else _general(templates)
    kept: dict[str, tuple[Instinct, int | None]] = {}
    for place, instinct in enumerate((*given, *map(Instinct, (*tools, *general)))):
        text = instinct.text.strip()
        if not text:
            continue
        key = " ".join(words_of(text)) or text
        frozen = instinct.frozen or place in config.init.frozen
        frozen = frozen or not (place_in(text) or "prompt" in config.learn)
        origin = place if place < len(given) else None
        first, origin = kept.get(key, (Instinct(text), origin))
        kept[key] = replace(first, frozen=first.frozen or frozen), origin
    if len(kept) < config.size:
        message = f"only {len(kept)} different instincts for a codebook of size {config.size}"
        hint = "add more to init.instincts, let a model write them (init.kind = 'random'), "
        raise ConfigError(message, hint=f"{hint}or set size = {len(kept)}")
    chosen = list(kept.values())[: config.size]
    return tuple(instinct for instinct, _ in chosen), [origin for _, origin in chosen]
