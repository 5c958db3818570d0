"""Which roles a model can carry, found out by asking it and not by its name.

A weak model gives valid JSON where a grammar makes it, and no judgement; so what is looked at is
what the method needs of each role's reply, in the trace of the rehearsal and in a few calls more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from promptcodebook.assemble import Assembled
from promptcodebook.calls import Role
from promptcodebook.doctor.finding import Finding
from promptcodebook.incidents import Counts, Incident
from promptcodebook.method.encoder import Encoder
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.train import Learner
from promptcodebook.method.update import Pending
from promptcodebook.text import words_of
from promptcodebook.types import Codebook, Instinct, Trace

_PLAIN = {
    "Where a poem is asked for, write in rhyme.": "Write me a poem about the sea.",
    "Where a sum is asked for, show each step of the arithmetic.": "What is the sum of 17 and 25?",
    "Where a translation is asked for, keep names as they are.": "Translate into French: I am Tom.",
    "Where a recipe is asked for, list the ingredients first.": "Give me a recipe for soup.",
}
"""Instincts that say where they belong, each with an input that belongs there."""
_FOUND, _KEPT = 0.75, 0.75
"""Least share of such inputs that are routed right, and of the instincts that a prompt keeps."""
_SHARED, _LONG = 1 / 3, 5
"""Least share of an instinct's long words that its prompt has, and the letters of a long word."""
_ADVICE = "It does not say what to do where the input asks for two things; say that both are done."
_TEACHERS: tuple[Role, ...] = ("critic", "attribution", "updater")


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What the rehearsal leaves: the parts, the state it began from, its trace and its counts."""

    assembled: Assembled
    learner: Learner
    state: State
    trace: Trace
    counts: Counts


async def weigh_roles(rehearsed: Rehearsed) -> tuple[Finding, ...]:
    """A finding for each role that is asked, weak ones as warnings, and what to do about them."""
    config, trace = rehearsed.assembled.config, rehearsed.trace
    weak: dict[Role, str | None] = {}
    if config.has_encoder and trace.rollout.route is not None:
        weak["encoder"] = await _encoder(rehearsed)
    if config.compose == "generator" and trace.rollout.prompt:
        weak["generator"] = _generator(rehearsed)
    if trace.rollout.reward is not None and config.update.text_updates:
        weak["critic"] = _critic(rehearsed)
        weak["attribution"] = _attribution(rehearsed)
        weak["updater"] = await _updater(rehearsed)
    findings = [
        Finding(f"role {role}", "ok" if fault is None else "warn", fault or "carries it")
        for role, fault in weak.items()
    ]
    return (*findings, *_advice([role for role, fault in weak.items() if fault is not None]))


def _advice(weak: Sequence[Role]) -> tuple[Finding, ...]:
    if not weak:
        return ()
    what = f"weak as {', '.join(weak)}"
    teachers = [role for role in weak if role in _TEACHERS]
    models = " ".join(f"--set roles.{role}.model=SPEC" for role in teachers)
    if not teachers:
        step = "pco train --preset small (learned routes, instincts verbatim)"
    elif len(teachers) == len(weak):
        step = f"name a stronger model: {models}; or pco train --preset small"
    else:
        step = f"pco train --preset small; with text updates if a stronger model teaches: {models}"
    return (Finding("roles", "warn", what, step),)


async def _encoder(rehearsed: Rehearsed) -> str | None:
    """Valid, and right where the input names what belongs to it."""
    route = rehearsed.trace.rollout.route
    if route is not None and route.fallback:
        return f"weak: no valid route ({route.fault})"
    assembled, state = rehearsed.assembled, rehearsed.state
    encoder = Encoder(assembled.models.ask, assembled.plan.templates, 1, assembled.models.tally)
    book = Codebook(tuple(map(Instinct, _PLAIN)))
    fresh = RoutingStatistics.fresh(len(book))
    right = 0
    for index, asked in enumerate(_PLAIN.values()):
        draws = rehearsed.learner.randomness.at(0, f"doctor {index}")
        found, _ = await encoder.route(state.parameters.encoder, book, fresh, asked, draws)
        right += not found.fallback and found.indices == (index,)
    if right < _FOUND * len(_PLAIN):
        return f"weak: its routes are valid, and right for {right} of {len(_PLAIN)} plain inputs"
    return None


def _generator(rehearsed: Rehearsed) -> str | None:
    """The instincts' own words, as many as a paraphrase keeps, stand in the prompt."""
    rollout = rehearsed.trace.rollout
    if rehearsed.counts.values[Incident.PROMPT_FALLBACKS]:
        return "weak: its prompt was cut or empty twice"
    assert rollout.route is not None, "a prompt was composed for a route"
    book, said = rehearsed.state.parameters.codebook, set(words_of(rollout.prompt))
    kept = sum(_keeps(book.texts[k], said) for k in rollout.route.indices)
    count = len(rollout.route.indices)
    if kept < _KEPT * count:
        return f"weak: its prompt keeps {kept} of {count} instincts"
    return None


def _keeps(instinct: str, said: set[str]) -> bool:
    long = {word for word in words_of(instinct) if len(word) >= _LONG}
    return len(long & said) >= _SHARED * len(long)


def _critic(rehearsed: Rehearsed) -> str | None:
    """A verdict that parses, says something of a bad answer, and is not the question again."""
    trace = rehearsed.trace
    if trace.verdict is None:
        return f"weak: {trace.failure.kind if trace.failure else 'no verdict'}"
    if _repeats(trace.verdict.feedback, rehearsed, "critic"):
        return "weak: its critique repeats the words it was asked with"
    if _failed(rehearsed) and not trace.verdict.feedback.strip():
        return "weak: it finds nothing wrong with an answer that earned too little"
    return None


def _attribution(rehearsed: Rehearsed) -> str | None:
    trace, gradients = rehearsed.trace, rehearsed.trace.gradients
    if trace.verdict is None or trace.failure is not None:
        return f"weak: {trace.failure.kind if trace.failure else 'there was no verdict to split'}"
    said = [gradients.encoder, gradients.generator, *gradients.codebook.values()]
    if _failed(rehearsed) and not any(said):
        return "weak: it blames no part for an answer that earned too little"
    if any(_repeats(text, rehearsed, "attribution") for text in said):
        return "weak: what it blames repeats the words it was asked with"
    return None


async def _updater(rehearsed: Rehearsed) -> str | None:
    """One instinct rewritten by made-up advice, held against the checks of a run."""
    first, *others = rehearsed.state.parameters.codebook.texts
    written = await rehearsed.learner.updater.write(
        Pending(0, first, (_ADVICE,), tuple(others)), step=0
    )
    if not written.kept:
        return f"weak: its rewrite is refused: {written.reason.partition(':')[0]}"
    if words_of(written.after) == words_of(written.before):
        return "weak: it gives an instinct back as it was"
    return None


def _failed(rehearsed: Rehearsed) -> bool:
    reward = rehearsed.trace.rollout.reward
    return reward is not None and reward < rehearsed.assembled.config.reward_range[1]


def _repeats(text: str, rehearsed: Rehearsed, template: str) -> bool:
    """Whether half of what it says, three words at a time, is the template's own."""
    said = _threes(text)
    asked = set(_threes(rehearsed.assembled.plan.templates.sources[template]))
    return bool(said) and 2 * sum(three in asked for three in said) >= len(said)


def _threes(text: str) -> list[tuple[str, ...]]:
    words = words_of(text)
    return list(zip(words, words[1:], words[2:], strict=False))
