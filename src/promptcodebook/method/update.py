"""LLM_upd(v, g): rewrite one variable given its textual gradients (Eq. 9).

What a rewrite must pass before it is kept: each is a `Check` (method decision 11).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from promptcodebook.calls import Request
from promptcodebook.config import Config, Update
from promptcodebook.errors import LMError
from promptcodebook.incidents import Incident, Tally
from promptcodebook.lm.structured import Ask
from promptcodebook.method.failures import failure_of, gather_all
from promptcodebook.method.gradients import nearest_instinct, split_shared
from promptcodebook.method.templates import TemplateSet
from promptcodebook.randomness import Draws
from promptcodebook.safety import calls_harmful
from promptcodebook.text import cut_at_sentence, strip_wrapping, word_spans, words_of
from promptcodebook.types import (
    Check,
    Directive,
    Example,
    Origin,
    Parameters,
    Refused,
    Rewrite,
    Trace,
    Variable,
    variable_name,
)

RUN = 8
"""Words of a training input in a row that count as copied."""
NEAR_COPY = "a near-copy of another instinct"


def word_cap(update: Update, variable: Variable) -> int:
    """Length cap of a variable, in words."""
    return update.instinct_words if isinstance(variable, int) else update.directive_words


_LETTERS = 20
"""Characters a word, on the average: what has more is no text, and the checks after this one would
be long at it."""


class LengthCheck:
    """Not empty, and within the variable's cap in words."""

    def __init__(self, update: Update) -> None:
        self._update = update

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        words = len(text.split())
        if not words:
            return "the rewrite is empty"
        cap = word_cap(self._update, variable)
        if words > cap:
            return f"{words} words, over the cap of {cap}"
        if len(text) > cap * _LETTERS:
            return f"{len(text)} characters, over the cap of {cap * _LETTERS}"
        return None


class NearCopyCheck:
    """An instinct must not become a near-copy of another entry."""

    def __init__(self, alike: float = 0.9) -> None:
        self._alike = alike

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        words = words_of(text)
        for other in others:
            theirs = words_of(other)
            matcher = SequenceMatcher(None, words, theirs, autojunk=False)
            if matcher.quick_ratio() >= self._alike and matcher.ratio() >= self._alike:
                return NEAR_COPY
        return None


class NoLeakCheck:
    """No run of 8 normalised words of a training input and no whole training answer.

    What the text held before its rewrite is not held against it. Answers count from 3 words or 12
    characters on: shorter ones ('yes', '42') turn up by chance.
    """

    def __init__(self, examples: Iterable[Example]) -> None:
        # Hashes, not words: a large training split must not be held in memory eight times over.
        self._runs: set[int] = set()
        self._answers: dict[str, str] = {}
        for example in examples:
            self._runs.update(_runs(words_of(example.input)))
            answer = " ".join(words_of(example.target or ""))
            if len(answer.split()) >= 3 or len(answer) >= 12:
                self._answers[f" {answer} "] = example.id

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        held = set(_runs(words_of(before)))
        for run in _runs(words_of(text)):
            if run in self._runs and run not in held:
                return "it copies eight words in a row from a training input"
        padded = f" {' '.join(words_of(text))} "
        earlier = f" {' '.join(words_of(before))} "
        for answer, example in self._answers.items():
            if answer in padded and answer not in earlier:
                return f"it gives away the answer of a training example: {example}"
        return None

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Each piece of the text that is copied: start, end, and from what."""
        words = word_spans(text)
        plain = [word for word, _, _ in words]
        copied = [i for i, run in enumerate(_runs(plain)) if run in self._runs]
        for first, last in _stretches(copied):
            yield words[first][1], words[last + RUN - 1][2], "a training input"
        padded = f" {' '.join(plain)} "
        for answer, example in self._answers.items():
            if (at := padded.find(answer)) >= 0:
                first = padded[: at + 1].count(" ") - 1
                last = first + answer.count(" ") - 2
                yield (
                    words[first][1],
                    words[last][2],
                    f"the answer of the training example {example}",
                )


def _stretches(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each row of neighbours."""
    first = -1
    for i, place in enumerate(places):
        if i == 0 or places[i - 1] + 1 != place:
            first = place
        if i + 1 == len(places) or places[i + 1] != place + 1:
            yield first, place


def _runs(words: Sequence[str]) -> Iterable[int]:
    return (hash(tuple(words[i : i + RUN])) for i in range(len(words) - RUN + 1))


class CountedCheck:
    """A check whose refusals are counted apart."""

    def __init__(self, check: Check, incident: Incident, tally: Tally) -> None:
        self._check = check
        self._incident = incident
        self._tally = tally

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        reason = self._check(variable, text, before, others)
        if reason is not None:
            self._tally(self._incident)
        return reason


class AllChecks:
    """The first refusal of several checks, in order."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._checks = tuple(checks)

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        for check in self._checks:
            reason = check(variable, text, before, others)
            if reason is not None:
                return reason
        return None


_OTHERS = "Other instincts, whose advice is not to be repeated here:"
_WHOLE, _TITLE = 25, 12
"""Another instinct is shown whole up to so many words, else by so many of its first ones."""

_DESCRIBED: Mapping[Directive, str] = {
    "encoder": "the directive of the encoder, which chooses instincts for an input",
    "generator": "the directive of the generator, which composes instincts into a prompt",
    "critic": "the rubric of the critic, which judges how well a prompt worked",
}


def _describe(variable: Variable) -> str:
    if isinstance(variable, int):
        return "one instinct, a short directive about one thing"
    return _DESCRIBED[variable]


@dataclass(frozen=True, slots=True)
class Pending:
    """One variable with the gradients gathered for it, in batch order."""

    variable: Variable
    text: str
    gradients: tuple[str, ...]
    others: tuple[str, ...] = ()
    origin: Origin = "gradient"


def collect_gradients(
    parameters: Parameters, traces: Sequence[Trace], config: Config
) -> list[Pending]:
    """Each variable that some trace blames, θ first, then φ, the active c_k, and ψ.

    θ and φ are blamed for what `update.shared_by` examples share; a lone complaint goes to the
    instinct of its route that is nearest in words (decision 28).
    """
    if not config.update.text_updates:
        return []
    least = config.update.shared_by if config.update.mode == "minibatch" else 1
    explored_too = config.update.encoder_on_explored
    theta = [
        t.gradients.encoder
        if t.rollout.route is not None and (explored_too or not t.rollout.route.explored)
        else ""
        for t in traces
    ]
    phi = [t.gradients.generator for t in traces]
    pending: list[Pending] = []
    lone: list[tuple[Trace, str]] = []
    if config.has_encoder and config.encoder.mode == "learned":
        split = split_shared(theta, least)
        pending.append(Pending("encoder", parameters.encoder, _said(split)))
        # What is wrong with the form of a route is no matter for an instinct.
        lone += [
            (t, s)
            for t, s in _lone(traces, split)
            if t.rollout.route and not t.rollout.route.fallback
        ]
    if config.compose == "generator":
        split = split_shared(phi, least)
        pending.append(_mending(Pending("generator", parameters.generator, _said(split)), traces))
        lone += [(t, s) for t, s in _lone(traces, split) if not calls_harmful(t, "generator")]
    pending.extend(_instincts(parameters, traces, lone))
    if config.critic.trainable:
        psi = tuple(t.gradients.critic for t in traces if t.gradients.critic)
        pending.append(Pending("critic", parameters.critic, psi))
    return [p for p in pending if p.gradients]


def _said(split: Sequence[tuple[str, list[str]]]) -> tuple[str, ...]:
    return tuple(shared for shared, _ in split if shared)


def _lone(
    traces: Sequence[Trace], split: Sequence[tuple[str, list[str]]]
) -> Iterator[tuple[Trace, str]]:
    for trace, (_, complaints) in zip(traces, split, strict=True):
        yield from ((trace, complaint) for complaint in complaints)


def _instincts(
    parameters: Parameters, traces: Sequence[Trace], lone: Sequence[tuple[Trace, str]]
) -> list[Pending]:
    """What each instinct is blamed for: its own gradients, then the lone complaints that are
    nearest to it among those of their routes."""
    book, texts = parameters.codebook, parameters.codebook.texts
    more: dict[int, list[str]] = {}
    for trace, complaint in lone:
        route = trace.rollout.route
        if route is not None and route.indices:
            k = nearest_instinct(complaint, book, route.indices)
            more.setdefault(k, []).append(complaint)
    pending: list[Pending] = []
    for k, instinct in enumerate(book.instincts):
        if instinct.frozen:
            continue
        blamed = [t.gradients.codebook[k] for t in traces if t.gradients.codebook.get(k)]
        others = (*texts[:k], *texts[k + 1 :])
        gradients = (*blamed, *more.get(k, ()))
        pending.append(_mending(Pending(k, instinct.text, gradients, others), traces))
    return pending


def _mending(pending: Pending, traces: Sequence[Trace]) -> Pending:
    """Where a trace calls the text harmful, that alone is what its rewrite is about."""
    k = pending.variable
    calling = [t.gradients for t in traces if calls_harmful(t, k)]
    found = [g.codebook.get(k, "") if isinstance(k, int) else g.generator for g in calling]
    told = tuple(dict.fromkeys(filter(None, found)))
    return replace(pending, gradients=told, origin="safety") if told else pending


def apply_rewrites(parameters: Parameters, rewrites: Sequence[Rewrite]) -> Parameters:
    """Θ with every kept rewrite in place."""
    for rewrite in rewrites:
        if not rewrite.kept:
            continue
        match rewrite.variable:
            case "encoder":
                parameters = replace(parameters, encoder=rewrite.after)
            case "generator":
                parameters = replace(parameters, generator=rewrite.after)
            case "critic":
                parameters = replace(parameters, critic=rewrite.after)
            case k:
                book = parameters.codebook.reword(k, rewrite.after)
                parameters = replace(parameters, codebook=book)
    return parameters


@dataclass(frozen=True, slots=True)
class _Task:
    """A pending rewrite with its request, and the rewrite as long as there is no text."""

    pending: Pending
    request: Request
    blank: Rewrite

    def again(self, reason: str, sample: int) -> Request:
        """The request once more with the reason; what a reason quotes after a colon is left out."""
        told = (
            f"\n\nAn earlier reply was refused: {reason.partition(':')[0].strip()}. "
            "Write the text anew so that this is not true of it."
        )
        *before, last = self.request.messages
        turns = (*before, replace(last, content=last.content + told))
        return replace(self.request, messages=turns, sample=sample)


class Updater:
    """Rewrites variables concurrently. A reply that is only too long is cut at a sentence's end.
    What is refused is asked for once more with the reason, unless it is a near-copy: the request
    has shown the other instincts already. What is refused for good stays as it was."""

    def __init__(
        self, ask: Ask, templates: TemplateSet, config: Config, check: Check, tally: Tally
    ) -> None:
        self._ask = ask
        self._templates = templates
        self._update = config.update
        self._randomness = config.randomness
        self._check = check
        self._tally = tally

    async def rewrite_all(self, pending: Sequence[Pending], step: int) -> tuple[Rewrite, ...]:
        """Every variable's rewrite, in the order of `pending`. Of two instincts that become alike
        at once the later one keeps its old text."""
        rewrites = await gather_all(self.write(p, step) for p in pending)
        kept: list[str] = []
        out: list[Rewrite] = []
        for rewrite in rewrites:
            if rewrite.kept and isinstance(rewrite.variable, int):
                reason = self._check(rewrite.variable, rewrite.after, rewrite.before, kept)
                if reason is not None:
                    rewrite = self.refuse(rewrite, reason)
                else:
                    kept.append(rewrite.after)
            out.append(rewrite)
        return tuple(out)

    async def write(self, pending: Pending, step: int) -> Rewrite:
        """One rewrite by itself. After a second try it remembers the first."""
        task = self._task(pending, step)
        rewrite = await self._try(task, task.request)
        if self._helps_to_ask_again(rewrite):
            self._tally(Incident.REWRITES_REASKED)
            draws = self._randomness.at(step, variable_name(pending.variable))
            sample = draws.sample(f"{_purpose(pending.origin)} again")
            second = await self._try(task, task.again(rewrite.reason, sample))
            # The longer request may not fit where the first did: the first refusal stands then.
            if second.failure is None:
                rewrite = replace(second, earlier=Refused(rewrite.after, rewrite.reason))
        if not rewrite.kept:
            self._tally(Incident.REWRITES_REFUSED)
        return rewrite

    def _helps_to_ask_again(self, rewrite: Rewrite) -> bool:
        """Not where the model cannot be asked, nor after a near-copy: the other instincts stood in
        the request. A harmful text must go, so that there every chance is taken."""
        if rewrite.kept or rewrite.failure is not None:
            return False
        return rewrite.reason != NEAR_COPY or rewrite.origin == "safety"

    def refuse(self, rewrite: Rewrite, reason: str) -> Rewrite:
        """The rewrite refused, and counted."""
        self._tally(Incident.REWRITES_REFUSED)
        return replace(rewrite, kept=False, reason=reason)

    def _task(self, pending: Pending, step: int) -> _Task:
        draws = self._randomness.at(step, variable_name(pending.variable))
        chosen = self._choose(pending.gradients, draws)
        gradient = "\n".join(f"- {' '.join(g.split())}" for g in chosen)
        values = {
            "variable": _describe(pending.variable),
            "text": pending.text,
            "gradient": gradient,
            "others": _others(pending.others),
            "cap": word_cap(self._update, pending.variable),
        }
        request = Request(
            role="updater",
            messages=self._templates[_template(pending.origin)].fill(values),
            sample=draws.sample(_purpose(pending.origin)),
        )
        blank = Rewrite(
            pending.variable, pending.text, "", gradient, kept=False, origin=pending.origin
        )
        return _Task(pending, request, blank)

    async def _try(self, task: _Task, request: Request) -> Rewrite:
        """One reply, stripped of what is chat, cut to its cap and checked."""
        try:
            answer = await self._ask.text(request)
        except LMError as error:
            failure = failure_of("update", error)
            return replace(task.blank, failure=failure, reason=f"{failure.kind}: {failure.message}")
        rewrite = replace(task.blank, after=strip_wrapping(answer.text))
        if answer.truncated:
            return replace(rewrite, reason="the rewrite was cut at its length cap")
        words, cap = len(rewrite.after.split()), word_cap(self._update, rewrite.variable)
        cut = ""
        if words > cap and (shorter := cut_at_sentence(rewrite.after, cap)):
            self._tally(Incident.REWRITES_CUT)
            rewrite = replace(rewrite, after=shorter)
            cut = f"cut at a sentence's end, from {words} words"
        others = task.pending.others
        reason = self._check(rewrite.variable, rewrite.after, rewrite.before, others)
        return replace(rewrite, kept=reason is None, reason=reason or cut)

    def _choose(self, gradients: tuple[str, ...], draws: Draws) -> list[str]:
        """At most `max_gradients`, a seeded choice in batch order, so that 8k context suffices."""
        most = self._update.max_gradients
        if len(gradients) <= most:
            return list(gradients)
        draw = draws.generator("gradients")
        order = sorted(range(len(gradients)), key=lambda _: draw.random())
        return [gradients[i] for i in sorted(order[:most])]


def _template(origin: Origin) -> str:
    return "updater" if origin in ("gradient", "safety") else origin


def _purpose(origin: Origin) -> str:
    return "update" if origin in ("gradient", "safety") else origin


def _others(texts: Sequence[str]) -> str:
    """The other instincts by their titles; '' where the variable has none beside it."""
    if not texts:
        return ""
    return "\n".join((_OTHERS, *(f"- {_title(text)}" for text in texts), ""))


def _title(text: str) -> str:
    words = text.split()
    return " ".join(words) if len(words) <= _WHOLE else f"{' '.join(words[:_TITLE])} …"
