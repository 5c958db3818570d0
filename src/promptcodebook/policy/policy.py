"""A learned policy at work: x -> route, prompt, answer, and why that prompt. What is in the prompt
word for word is found as it is; every other clause goes to the instinct that shares most of its
words, or is the generator's own. `Span.exact` tells this likeness apart."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from promptcodebook.assemble import NO_DATA, Assembled, Sources, assemble
from promptcodebook.base.randomness import Draws
from promptcodebook.base.sync import LoopThread, run_sync
from promptcodebook.base.text import long_words, shown_table, shown_text, words_of
from promptcodebook.calls import Message, Reply, Request, Usage
from promptcodebook.config import Config, role_layers
from promptcodebook.data.table import Columns, SourceRow, Table, plain, read_examples
from promptcodebook.errors import DataError, PcoError, PolicyError
from promptcodebook.lm.spec import no_model
from promptcodebook.lm.stack import StackResources, simulated_here, specs_of
from promptcodebook.lm.structured import strip_think
from promptcodebook.lm.wire import sampling_fields
from promptcodebook.method.executor import EVALUATION, roll_out
from promptcodebook.method.policy import repair_route
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.references import deployed_of, read_policy
from promptcodebook.tasks.program import SINGLE_CALL
from promptcodebook.types import (
    Codebook,
    Example,
    Executor,
    Expected,
    Prompt,
    Rollout,
    Route,
    Stage,
    variable_name,
)

_T = TypeVar("_T")
Input = str | Mapping[str, object] | Example


class Policy:
    """A learned policy at work: it routes an input, composes its prompt, and answers.

    `load_policy` and `run.policy` make one. An input `x` is a text, a mapping of the columns that
    the data had, or an Example. Methods whose names begin with `a` are for code that runs in an
    event loop. Within `with` (or `async with`) connections stay open; else a synchronous call has
    its own, and `aclose` ends those of asynchronous ones.

    Each method that takes an input raises DataError when it cannot be read, LMError when a model
    gives no usable reply, and BudgetReached when a budget ends."""

    def __init__(self, file: PolicyFile, assembled: Assembled) -> None:
        self.file = file
        self.assembled = assembled
        self._loop: LoopThread | None = None
        self._trial = assembled.trial(greedy=file.samples == 1, scored=False)
        self._deployed = deployed_of(file, assembled)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Policy cannot be pickled, as it holds connections and your functions: pass the path "
            "of its file, and call pco.load_policy(path) there"
        )

    @property
    def program(self) -> str:
        """The name of the program that answers."""
        return self.assembled.task.program.name

    @property
    def codebook(self) -> Codebook:
        return self._deployed.parameters.codebook

    @property
    def answer_fields(self) -> dict[str, Any]:
        """The fields of a chat completion that its answers are asked with, as for its verdict:
        temperature, max_tokens and the like. A value '$NAME' is the one of a variable."""
        models = self.assembled.models
        return sampling_fields(models.lm.sampling_of("executor", self.file.samples == 1))

    @property
    def config(self) -> Config:
        """What it works under."""
        return self.assembled.config

    @property
    def sources(self) -> Sources:
        """The data, reward, agent and model that it was made with; None for what it has not."""
        sources = self.assembled.plan.sources
        data = None if sources.data is NO_DATA else sources.data
        reward = None if sources.reward is _refuse_to_score else sources.reward
        return replace(sources, data=data, reward=reward)

    async def arun(self, x: Input) -> Rollout:
        """Answer one input, and return the whole rollout: a failure is recorded in it, not raised.
        It has no reward. `x`: the input."""
        example = self.example_of(x)
        draws = self._draws(example.id)
        return await roll_out(self._deployed, self._trial, example, draws)

    async def aprompt(self, x: Input) -> str:
        """Compose the prompt for an input (Eq. 10).

        - `x`: a text, a mapping of columns, or an Example.

        Raises DataError when `x` cannot be read, and LMError when a model gives no usable reply."""
        return (await self.acompose(x))[1].text

    async def acompose(self, x: Input) -> tuple[Route, Prompt]:
        """Route an input and compose its prompt, with one for each stage where it was trained so.

        - `x`: a text, a mapping of columns, or an Example.

        Returns the route, its indices sorted, and the Prompt. Raises what `prompt` raises."""
        route = await self.aroute(x)
        return route, (await self.acompose_route(x, route))[0]

    async def aroute(self, x: Input) -> Route:
        """Route an input (`x`): the first half of `acompose`. Raises what `prompt` raises."""
        return (await self.aexpected(x))[0]

    async def aexpected(self, x: Input) -> tuple[Route, Expected | None, Usage]:
        """The route of an input (`x`), a learned router's scores (None where routes are not
        learned), and what that took."""
        example = self.example_of(x)
        return await self._deployed.route(example, self._draws(example.id))

    async def acompose_route(self, x: Input, route: Route) -> tuple[Prompt, Usage]:
        """The prompt for an input (`x`) on a given `route`: the second half of `acompose`."""
        example = self.example_of(x)
        return await self._deployed.compose(route, example, self._draws(example.id))

    def fallback_route(self) -> Route:
        """What an input is given that no model routes: the S instincts of highest r̄."""
        standing = self._deployed.statistics.standing
        return Route(repair_route((), standing, self.file.select), fallback=True)

    def verbatim(self, route: Route) -> str:
        """The prompt of a route that no model composes: its instincts as they are."""
        return self.file.verbatim(route)

    async def areply(self, messages: Sequence[Message]) -> Reply:
        """Ask the executor's model, without a prompt of the policy's.

        - `messages`: the chat, as pco.Message.

        Raises LMError when the model gives no usable reply."""
        text = json.dumps([(m.role, m.content) for m in messages])
        sample = self._draws(_id_of(text)).sample("execute reply")
        greedy = self.file.samples == 1
        request = Request("executor", tuple(messages), sample=sample, greedy=greedy)
        reply = await self.assembled.models.lm(request)
        return replace(reply, text=strip_think(reply.text))

    async def arespond(self, x: Input) -> Response:
        """Answer one input, and return the answer with its prompt, route and usage.

        - `x`: a text, a mapping of columns, or an Example.

        Raises PolicyError when the pass failed, or when the policy was judged with a program that
        is not here, and DataError when `x` cannot be read."""
        self.require_program()
        rollout = await self.arun(x)
        if (failure := rollout.failure) is not None:
            message = f"no answer: {failure.kind} at {failure.stage}: {failure.message}"
            raise PolicyError(message, hint="pco doctor")
        assert rollout.route is not None, "a learned policy always routes"
        return Response(
            rollout.output,
            rollout.prompt,
            rollout.route,
            rollout.usage,
            truncated=rollout.truncated,
            stages=rollout.stages,
            fields=rollout.fields,
        )

    async def aanswer(self, x: Input) -> str:
        """Answer one input (`x`): the text of `arespond` alone. Raises what that raises."""
        return (await self.arespond(x)).text

    async def aexplain(self, x: Input) -> Explanation:
        """Say why an input gets its prompt: the route, its instincts, the encoder's reasons or the
        learned router's scores, and where each piece of the prompt comes from.

        - `x`: a text, a mapping of columns, or an Example.

        Raises what `prompt` raises."""
        example = self.example_of(x)
        route, scores, _ = await self._deployed.route(example, self._draws(example.id))
        prompt = (await self.acompose_route(example, route))[0].text
        chosen = tuple((k, self.codebook[k].text) for k in route.indices)
        router = self.file.router
        if router is not None and router.kind == "distilled":
            scores = None  # they are shares of the encoder's choices
        spans = prompt_spans(prompt, chosen, self.file.base_prompt, self.file.output_format)
        return Explanation(example.input, route, chosen, prompt, scores, spans)

    def __repr__(self) -> str:
        lm = self.assembled.config.lm
        return f"Policy(K={len(self.codebook)}, S={self.file.select}, lm={lm!r})"

    def prompt(self, x: Input) -> str:
        """`aprompt` for ordinary code: the same argument, result and errors."""
        return self._run(self.aprompt(x))

    def compose(self, x: Input) -> tuple[Route, Prompt]:
        """`acompose` for ordinary code: the same argument, result and errors."""
        return self._run(self.acompose(x))

    def reply(self, messages: Sequence[Message]) -> Reply:
        """`areply` for ordinary code: the same argument, result and errors."""
        return self._run(self.areply(messages))

    def respond(self, x: Input) -> Response:
        """`arespond` for ordinary code: the same argument, result and errors."""
        return self._run(self.arespond(x))

    def answer(self, x: Input) -> str:
        """`aanswer` for ordinary code: the same argument, result and errors."""
        return self._run(self.aanswer(x))

    def explain(self, x: Input) -> Explanation:
        """`aexplain` for ordinary code: the same argument, result and errors."""
        return self._run(self.aexplain(x))

    def row(self, name: str) -> Prompt:
        """The prompt of a row of the verdict that has one for every input.

        - `name`: 'present', 'none', 'concat', 'best_fixed' or 'best_single'.

        Raises PolicyError for any other row, and when the policy does not record that one."""
        return self.file.fixed_prompt(name)

    def save(self, path: str | Path) -> None:
        """Write the policy file, whole or not at all.

        - `path`: where; plain JSON, by custom NAME.pco.json.

        Raises PolicyError when it cannot be written."""
        self.file.save(Path(path))

    def require_program(self) -> None:
        """Raises PolicyError when the policy was judged with a program that is not here."""
        at_hand, judged_with = self.assembled.task.program.name, self.file.program
        if judged_with and at_hand == SINGLE_CALL and judged_with != SINGLE_CALL:
            message = f"this policy was judged with the program {judged_with!r}, which is missing"
            hint = "add --agent COMMAND --prompt FILE, or --config pco.toml; in Python "
            hint += "load_policy(path, executor=YOUR_AGENT), or run it with policy.prompt(x)"
            raise PolicyError(message, hint=hint)

    def stop(self, reason: PcoError) -> None:
        """No new call starts from now on: each raises `reason`. Calls in flight finish."""
        self.assembled.models.budget.stop_signal.give(reason)

    @property
    def simulated(self) -> bool:
        """Whether any of its models is simulated: figures must say so."""
        return self.assembled.models.simulated

    async def aclose(self) -> None:
        """Closes the connections; the policy opens new ones when it is used again."""
        await self.assembled.models.close()

    async def __aenter__(self) -> Policy:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Policy:
        if self._loop is None:
            self._loop = LoopThread()
        return self

    def __exit__(self, *_: object) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.run(self.aclose())
            finally:
                loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        async def closing() -> _T:
            """Connections belong to the loop that opened them, which ends with this call."""
            try:
                return await coroutine
            finally:
                await self.aclose()

        return run_sync(closing()) if self._loop is None else self._loop.run(coroutine)

    def _draws(self, name: str) -> Draws:
        return self.assembled.config.randomness.at(EVALUATION, name)

    def example_of(self, x: Input) -> Example:
        """The Example, read as the training data was. Raises DataError."""
        if isinstance(x, Example):
            return x
        if isinstance(x, str):
            return Example(_id_of(x), x)
        if not isinstance(x, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            message = (
                f"an input is a string, a mapping of columns or an Example, not {type(x).__name__}"
            )
            raise DataError(
                message, hint="policy.prompt('...') or policy.prompt({'column': '...'})"
            )
        cells = {k: str(p) if isinstance(p := plain(v), int | float) else p for k, v in x.items()}
        table = Table("the input", tuple(cells), (SourceRow("the input", cells),))
        try:
            [example] = read_examples(table, Columns(self.file.input, None), {})
        except DataError as error:
            what = str(error).replace(" (did you mean ", ", but has ").replace("?)", "")
            raise DataError(what, hint=f"the policy reads {self.file.input!r}") from None
        return replace(example, id=_id_of(example.cache_text), fields=dict(x))


def _id_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def load_policy(
    path: str | Path,
    lm: str | None = None,
    roles: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    *,
    trust: bool = False,
) -> Policy:
    """Load a saved policy, ready to answer.

    - `path`: a policy file, or a version in the registry such as 'tickets@production'.
    - `lm`: the model's spec. None: PCO_LM of the environment. Where a prompt takes no call, only an
      answer needs a model.
    - `roles`: another model or settings for single roles. None: `lm` plays all of them.
    - `executor`: the agent that the policy was trained with; one of another name than the file's is
      warned of. None: one call of the model answers.
    - `trust`: whether a policy may set more of a request than how replies are drawn (False).

    Raises PolicyError when the file cannot be read, RefNotFound when the registry has no such ref,
    ConfigError when a model is needed and none is named, and RunNotTrusted without `trust`."""
    file, spec = read_policy(path), lm or os.environ.get("PCO_LM", "")

    def refuse(request: Request | None = None) -> NoReturn:
        raise no_model("a policy file names no model, and none was given")

    if not spec and file.asks:
        refuse()
    above = {"lm": spec, "roles": role_layers(roles), "cache": False}
    settings = file.settings(above=above, where="load_policy()", name=str(path), trusted=trust)
    policy = deploy(file, settings, Sources(executor=executor, lm=None if spec else refuse))
    # The command names a program by its file, Python by its function.
    _, of_a_file, function = file.program.rpartition(":")
    given = policy.program.rpartition(".")[2] if of_a_file else policy.program
    if executor is not None and file.program and function != given:
        before = f"the policy was judged with the program {file.program!r} and now runs with"
        text = f"{before} {policy.program!r}: its answers may be better or worse"
        warnings.warn(text, stacklevel=2)
    return policy


def deploy(
    file: PolicyFile, config: Config, sources: Sources, supplies: StackResources | None = None
) -> Policy:
    """The policy ready to answer under a configuration of its own; it needs no data, and what data
    are named make the world of a simulated model. `supplies` may bring a journal and a ledger."""
    if not config.task:
        world = (config.data.path or config.data.train) and simulated_here(specs_of(config))
        data = sources.data if world or sources.data is not None else NO_DATA
        sources = replace(sources, data=data, reward=_refuse_to_score)
    return Policy(file, assemble(config, sources, supplies))


def _refuse_to_score(example: Example, output: str) -> float:
    """No answer of a deployed policy is scored."""
    raise PolicyError("a deployed policy has no reward")


# --- what it says of an input

_MARKS = ".!?;:,\n—。！？；：，、"
_CLAUSE = re.compile(rf"[^{_MARKS}]+[{_MARKS}]*\s*|[{_MARKS}]+\s*")
_SHARE = 0.4  # of a clause's words, so much must be an instinct's
_LONG = 4  # letters of a word that says something; shorter ones are in every sentence
_STEM = 5  # letters by which two words are the same: 'count', 'counts', 'counting'


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a prompt and its source; `instinct` = k; `exact` = word for word."""

    text: str
    source: Literal["base", "format", "instinct", "generator"]
    instinct: int | None = None
    exact: bool = False

    @property
    def label(self) -> str:
        """'base', 'format', 'generator', or 'c<k>' for an instinct, with '~' before a likeness."""
        if self.instinct is None:
            return self.source
        return f"{'' if self.exact else '~'}{variable_name(self.instinct)}"


def prompt_spans(
    prompt: str, instincts: Sequence[tuple[int, str]], base_prompt: str = "", form: str = ""
) -> tuple[Span, ...]:
    """The prompt in pieces by their sources; joined they are the prompt again, to the letter."""
    known = [Span(base_prompt, "base", exact=True), Span(form, "format", exact=True)]
    known += [Span(text, "instinct", k, exact=True) for k, text in instincts]
    words = {k: _words(text) for k, text in instincts}
    shared = Counter(word for own in words.values() for word in own)
    cut = [Span(prompt, "generator")]
    # Of texts that are there word for word, the longest first: none is found within another.
    for span in sorted(known, key=lambda span: -len(span.text)):
        if wanted := span.text.strip():
            cut = [part for piece in cut for part in _cut(piece, replace(span, text=wanted))]
    pieces: list[Span] = []
    for piece in cut:
        for clause in [] if piece.exact else _CLAUSE.findall(piece.text):
            k = _nearest(clause, words, shared)
            pieces.append(Span(clause, "generator" if k is None else "instinct", k))
        pieces += [piece] if piece.exact else []
    return tuple(_joined(pieces))


def _cut(piece: Span, found: Span) -> Iterator[Span]:
    """The piece with every place where the found text is, as a span of its own."""
    parts = [piece.text] if piece.exact else piece.text.split(found.text)
    for place, between in enumerate(parts):
        if place:
            yield found
        if between:
            yield replace(piece, text=between)


def _nearest(clause: str, words: Mapping[int, set[str]], shared: Counter[str]) -> int | None:
    """The instinct that alone has the largest share of the clause's words, if large enough."""
    own = _words(clause)
    shares = {
        k: sum(1 / shared[word] for word in own & theirs)
        for k, theirs in words.items()
        if len(own & theirs) > 1 or own <= theirs
    }
    most = max(shares.values(), default=0.0)
    best = [k for k, share in shares.items() if share == most]
    return best[0] if len(best) == 1 and own and most >= _SHARE * len(own) else None


def _words(text: str) -> set[str]:
    """The beginnings of its long words, and its numbers."""
    numbers = {word for word in words_of(text) if word.isdigit()}
    return {word[:_STEM] for word in long_words(text, _LONG) | numbers}


def _joined(pieces: Sequence[Span]) -> Iterator[Span]:
    """Neighbours of one source as one span; blanks and marks go with what comes before them."""
    last: Span | None = None
    for piece in pieces:
        mere = not piece.exact and not words_of(piece.text)
        if last is None:
            last = piece
        elif mere or replace(piece, text="") == replace(last, text=""):
            last = replace(last, text=last.text + piece.text)
        else:
            yield last
            last = piece
    if last is not None:
        yield last


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one input.

    - `text`: the answer.
    - `prompt`: what the executor was prompted with.
    - `route`: the instincts in it, and who chose them.
    - `usage`: what all calls took.
    - `truncated`: whether the answer was cut at its length cap (False).
    - `stages`, `fields`: those of a program of several steps (none)."""

    text: str
    prompt: str
    route: Route
    usage: Usage = Usage()
    truncated: bool = False
    stages: tuple[Stage, ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict[str, object])

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        route = ", ".join(map(str, self.route.indices)) or "none"
        cut = " (cut at its length cap)" if self.truncated else ""
        shown = shown_text(f"answer{cut}", self.text)
        return f"<div>{shown}{shown_text(f'prompt, from the instincts {route}', self.prompt)}</div>"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why this input got this prompt.

    - `input`: the input as the encoder read it.
    - `route`: the instincts that were picked, and why.
    - `instincts`: index and wording of each that is in the prompt.
    - `prompt`: the composed prompt.
    - `scores`: what a learned router ranks by, with each instinct (None). They are in shares of
      the reward's range, but no rewards: nothing calibrates them, and they may lie outside it.
    - `spans`: which pieces of the prompt come from which instinct (none)."""

    input: str
    route: Route
    instincts: tuple[tuple[int, str], ...]
    prompt: str
    scores: Expected | None = None
    spans: tuple[Span, ...] = ()

    def _repr_html_(self) -> str:
        route = "route: " + ", ".join(map(str, self.route.indices))
        doubt = f" (fallback: {self.route.fault})" if self.route.fault else ""
        doubt = doubt or " (by fallback)" * self.route.fallback
        promises = [("none" if k is None else k, f"{value:.3f}") for k, value in self.ranked]
        sources = [(span.label, span.text.strip()) for span in self.spans]
        title = "where the prompt comes from (~ by shared words)"
        parts = [
            shown_text("input", self.input),
            shown_table(route + doubt, ("k", "instinct"), self.instincts),
            shown_table("router's scores", ("k", "alone"), promises) if promises else "",
            shown_text("why", self.route.analysis) if self.route.analysis else "",
            shown_text("prompt", self.prompt),
            shown_table(title, ("source", "piece"), sources) if sources else "",
        ]
        return f"<div>{''.join(parts)}</div>"

    @property
    def ranked(self) -> tuple[tuple[int | None, float], ...]:
        """Every instinct (None = none) with its router's score alone, best first."""
        if self.scores is None:
            return ()
        alone = [(k, self.scores.alone(k)) for k in range(len(self.scores.marginal))]
        return tuple(sorted([(None, self.scores.nothing), *alone], key=lambda each: -each[1]))
