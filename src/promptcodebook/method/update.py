"""LLM_upd(v, g): rewrite one variable given its textual gradients (Eq. 9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from promptcodebook.calls import Request
from promptcodebook.config import Config, Update
from promptcodebook.errors import LMError
from promptcodebook.incidents import Incident, Tally
from promptcodebook.lm.structured import Ask
from promptcodebook.method.failures import failure_of, gather_all
from promptcodebook.method.templates import TemplateSet
from promptcodebook.randomness import Draws
from promptcodebook.text import words_of
from promptcodebook.types import (
    Check,
    Directive,
    Example,
    Parameters,
    Rewrite,
    Trace,
    Variable,
    variable_name,
)

__all__ = [
    "AllChecks",
    "LengthCheck",
    "NearCopyCheck",
    "NoLeakCheck",
    "Pending",
    "Updater",
    "apply_rewrites",
    "collect_gradients",
    "word_cap",
]

_DESCRIBED: Mapping[Directive, str] = {
    "encoder": "the directive of the encoder, which chooses instincts for an input",
    "generator": "the directive of the generator, which composes instincts into a prompt",
    "critic": "the rubric of the critic, which judges how well a prompt worked",
}


def _describe(variable: Variable) -> str:
    if isinstance(variable, int):
        return "one instinct, a short directive"
    return _DESCRIBED[variable]


@dataclass(frozen=True, slots=True)
class Pending:
    """One variable with the gradients gathered for it, in batch order."""

    variable: Variable
    text: str
    gradients: tuple[str, ...]
    others: tuple[str, ...] = ()


def collect_gradients(
    parameters: Parameters, traces: Sequence[Trace], config: Config
) -> list[Pending]:
    """Each variable that some trace blames, θ first, then φ, the active c_k, and ψ."""
    if not config.update.text_updates:
        return []
    explored_too = config.update.encoder_on_explored
    theta = [
        t.gradients.encoder
        for t in traces
        if t.rollout.route is not None and (explored_too or not t.rollout.route.explored)
    ]
    pending: list[Pending] = []
    if config.encoder.mode == "learned":
        pending.append(Pending("encoder", parameters.encoder, tuple(filter(None, theta))))
    if config.compose == "generator":
        phi = tuple(t.gradients.generator for t in traces if t.gradients.generator)
        pending.append(Pending("generator", parameters.generator, phi))
    pending.extend(_instincts(parameters, traces))
    if config.critic.trainable:
        psi = tuple(t.gradients.critic for t in traces if t.gradients.critic)
        pending.append(Pending("critic", parameters.critic, psi))
    return [p for p in pending if p.gradients]


def _instincts(parameters: Parameters, traces: Sequence[Trace]) -> list[Pending]:
    texts = parameters.codebook.texts
    pending: list[Pending] = []
    for k, instinct in enumerate(parameters.codebook.instincts):
        if instinct.frozen:
            continue
        blamed = tuple(t.gradients.codebook[k] for t in traces if t.gradients.codebook.get(k))
        pending.append(Pending(k, instinct.text, blamed, (*texts[:k], *texts[k + 1 :])))
    return pending


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


class Updater:
    """Rewrites variables concurrently; what a check refuses stays as it was, with the reason."""

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
        """Every variable's rewrite, in the order of `pending`; then twins are told apart."""
        rewrites = await gather_all(self._rewrite(p, step) for p in pending)
        return self._without_twins(rewrites)

    def _without_twins(self, rewrites: Sequence[Rewrite]) -> tuple[Rewrite, ...]:
        """Two instincts rewritten at once may grow alike: the later one keeps its old text."""
        kept: list[str] = []
        out: list[Rewrite] = []
        for rewrite in rewrites:
            if rewrite.kept and isinstance(rewrite.variable, int):
                reason = self._check(rewrite.variable, rewrite.after, rewrite.before, kept)
                if reason is None:
                    kept.append(rewrite.after)
                else:
                    rewrite = self._refuse(rewrite, reason)
            out.append(rewrite)
        return tuple(out)

    def _refuse(self, rewrite: Rewrite, reason: str) -> Rewrite:
        self._tally(Incident.REWRITES_REFUSED)
        return replace(rewrite, kept=False, reason=reason)

    async def _rewrite(self, pending: Pending, step: int) -> Rewrite:
        draws = self._randomness.at(step, variable_name(pending.variable))
        chosen = self._choose(pending.gradients, draws)
        gradient = "\n".join(f"- {' '.join(g.split())}" for g in chosen)
        rewrite = Rewrite(pending.variable, pending.text, "", gradient, kept=False)
        values = {
            "variable": _describe(pending.variable),
            "text": pending.text,
            "gradient": gradient,
            "cap": word_cap(self._update, pending.variable),
        }
        request = Request(
            role="updater",
            messages=self._templates["updater"].fill(values),
            sample=draws.sample("update"),
        )
        try:
            answer = await self._ask.text(request)
        except LMError as error:
            failure = failure_of("update", error)
            refused = replace(rewrite, failure=failure)
            return self._refuse(refused, f"{failure.kind}: {failure.message}")
        rewrite = replace(rewrite, after=answer.text.strip())
        if answer.truncated:
            return self._refuse(rewrite, "the rewrite was cut at its length cap")
        reason = self._check(pending.variable, rewrite.after, pending.text, pending.others)
        return self._refuse(rewrite, reason) if reason else replace(rewrite, kept=True)

    def _choose(self, gradients: tuple[str, ...], draws: Draws) -> list[str]:
        """At most `max_gradients`, a seeded choice in batch order, so that 8k context suffices."""
        most = self._update.max_gradients
        if len(gradients) <= most:
            return list(gradients)
        draw = draws.generator("gradients")
        order = sorted(range(len(gradients)), key=lambda _: draw.random())
        return [gradients[i] for i in sorted(order[:most])]


RUN = 8
"""Words of a training input in a row that count as copied."""


def word_cap(update: Update, variable: Variable) -> int:
    """Length cap of a variable, in words."""
    return update.instinct_words if isinstance(variable, int) else update.directive_words


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
        return f"{words} words, over the cap of {cap}" if words > cap else None


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
                return "a near-copy of another instinct"
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
                return f"it gives away the answer of training example {example}"
        return None


def _runs(words: Sequence[str]) -> Iterable[int]:
    return (hash(tuple(words[i : i + RUN])) for i in range(len(words) - RUN + 1))


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
