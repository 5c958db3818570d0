"""Which roles a model can carry: one example goes through every part of the method.

A weak model gives valid JSON where a grammar forces it, and no judgement. So doctor looks at what
the method needs of each role's reply, in the trace of that rehearsal and in a few more calls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from promptcodebook.assemble import Assembled, Plan
from promptcodebook.calls import Role
from promptcodebook.config import Budget, Config
from promptcodebook.doctor.probe import Finding, Section
from promptcodebook.errors import PcoError
from promptcodebook.incidents import Counts, Incident
from promptcodebook.lm.stack import Supplies
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.train import Learner
from promptcodebook.method.update import Pending
from promptcodebook.optimizers.pco import build_learner, initialise, with_listed_codebook
from promptcodebook.text import words_of
from promptcodebook.types import Codebook, Example, Failure, Instinct, Trace, variable_name
from promptcodebook.units import plural

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

    @property
    def failed(self) -> bool:
        """The answer earned too little."""
        reward = self.trace.rollout.reward
        return reward is not None and reward < self.assembled.config.reward_range[1]

    def repeats(self, text: str, template: str) -> bool:
        """Whether half of what it says, three words at a time, is the template's own."""
        said = _threes(text)
        asked = set(_threes(self.assembled.plan.templates.sources[template]))
        return bool(said) and 2 * sum(three in asked for three in said) >= len(said)


async def weigh_roles(rehearsed: Rehearsed) -> tuple[Finding, ...]:
    """A finding for each role that is asked, weak ones as warnings, and what to do about them."""
    config, rollout = rehearsed.assembled.config, rehearsed.trace.rollout
    faults: dict[Role, str | None] = {}
    if config.has_encoder and rollout.route is not None:
        faults["encoder"] = await _encoder(rehearsed)
    if config.compose == "generator" and rollout.prompt:
        faults["generator"] = _generator(rehearsed)
    if rollout.reward is not None and config.update.text_updates:
        faults["critic"] = _critic(rehearsed)
        faults["attribution"] = _attribution(rehearsed)
        faults["updater"] = await _updater(rehearsed)
    findings = [
        Finding(f"role {role}", "warn" if fault else "ok", fault or "carries it")
        for role, fault in faults.items()
    ]
    weak = [role for role, fault in faults.items() if fault is not None]
    if not weak:
        return tuple(findings)
    teachers = [role for role in weak if role in _TEACHERS]
    models = " ".join(f"--set roles.{role}.model=SPEC" for role in teachers)
    step = "pco train --preset small (learned routes, instincts verbatim)"
    if len(teachers) == len(weak):
        step = f"name a stronger model: {models}; or pco train --preset small"
    elif teachers:
        step = f"pco train --preset small; with text updates if a stronger model teaches: {models}"
    return (*findings, Finding("roles", "warn", f"weak as {', '.join(weak)}", step))


async def _encoder(rehearsed: Rehearsed) -> str | None:
    """Valid, and right where the input names what belongs to it."""
    route = rehearsed.trace.rollout.route
    if route is not None and route.fallback:
        return f"weak: no valid route ({route.fault})"
    assembled, state = rehearsed.assembled, rehearsed.state
    composer = replace(assembled.composer(), select=1)
    book = Codebook(tuple(map(Instinct, _PLAIN)))
    plain, fresh = replace(state.parameters, codebook=book), RoutingStatistics.fresh(len(book))
    right = 0
    for index, asked in enumerate(_PLAIN.values()):
        draws = rehearsed.learner.config.randomness.at(0, f"doctor {index}")
        found, _, _ = await composer.route(plain, fresh, Example(f"doctor {index}", asked), draws)
        right += not found.fallback and found.indices == (index,)
    if right < _FOUND * len(_PLAIN):
        return f"weak: its routes are valid, and right for {right} of {len(_PLAIN)} plain inputs"
    return None


def _generator(rehearsed: Rehearsed) -> str | None:
    """The instincts' own words, as many as a paraphrase keeps, are in the prompt."""
    rollout = rehearsed.trace.rollout
    if rehearsed.counts.values[Incident.PROMPT_FALLBACKS]:
        return "weak: its prompt was cut or empty twice"
    assert rollout.route is not None, "a prompt was composed for a route"
    texts, said = rehearsed.state.parameters.codebook.texts, set(words_of(rollout.prompt))
    kept, count = 0, len(rollout.route.indices)
    for k in rollout.route.indices:
        long = {word for word in words_of(texts[k]) if len(word) >= _LONG}
        kept += len(long & said) >= _SHARED * len(long)
    return f"weak: its prompt keeps {kept} of {count} instincts" if kept < _KEPT * count else None


def _critic(rehearsed: Rehearsed) -> str | None:
    """A verdict that parses, says something of a bad answer, and is not the question again."""
    trace = rehearsed.trace
    if trace.verdict is None:
        return f"weak: {trace.failure.kind if trace.failure else 'no verdict'}"
    if rehearsed.repeats(trace.verdict.feedback, "critic"):
        return "weak: its critique repeats the words it was asked with"
    if rehearsed.failed and not trace.verdict.feedback.strip():
        return "weak: it finds nothing wrong with an answer that earned too little"
    return None


def _attribution(rehearsed: Rehearsed) -> str | None:
    trace, gradients = rehearsed.trace, rehearsed.trace.gradients
    if trace.verdict is None or trace.failure is not None:
        return f"weak: {trace.failure.kind if trace.failure else 'there was no verdict to split'}"
    said = [gradients.encoder, gradients.generator, *gradients.codebook.values()]
    if rehearsed.failed and not any(said):
        return "weak: it blames no part for an answer that earned too little"
    if any(rehearsed.repeats(text, "attribution") for text in said):
        return "weak: what it blames repeats the words it was asked with"
    return None


async def _updater(rehearsed: Rehearsed) -> str | None:
    """One instinct rewritten by made-up advice, held against the checks of a run."""
    first, *others = rehearsed.state.parameters.codebook.texts
    asked = Pending(0, first, (_ADVICE,), tuple(others))
    written = await rehearsed.learner.updater.write(asked, step=0)
    if not written.kept:
        return f"weak: its rewrite is refused: {written.reason.partition(':')[0]}"
    same = words_of(written.after) == words_of(written.before)
    return "weak: it gives an instinct back as it was" if same else None


def _threes(text: str) -> list[tuple[str, ...]]:
    words = words_of(text)
    return list(zip(words, words[1:], words[2:], strict=False))


_EXAMPLE = "one example, from route to gradients"
_ROLES = "which roles the models can carry"
_PARTS = {
    **{"route": "encoder", "compose": "generator", "prompt": "generator"},
    **{"execute": "executor", "reward": "reward"},
    **{"critique": "critic", "attribute": "attribution", "adversary": "critic"},
}
"""Which part it was, by the stage at which a chain broke."""


async def rehearse(plan: Plan) -> tuple[Section, ...]:
    """What each part made of the first training example, and which roles its model can carry;
    about twelve calls. Of a simulated model the latter says nothing, and is left out."""
    counts = Counts()
    config = with_listed_codebook(plan.config)
    # A solved example is critiqued too: there is only this one to see the critic at work.
    critic = config.critic.model_copy(update={"skip_solved": False})
    config = config.model_copy(update={"critic": critic, "cache": False, "budget": Budget()})
    assembled = replace(plan, config=config).connect(Supplies(tally=counts))
    try:
        learner = build_learner(assembled)
        state = await initialise(assembled)
        trace = await learner.trace(plan.dataset.train[0], state, epsilon=0.0)
        found = (*_forward(trace, config), *_backward(trace, config), *_reply_findings(counts))
        carried = tuple[Finding, ...]()
        if not assembled.models.simulated:
            carried = await weigh_roles(Rehearsed(assembled, learner, state, trace, counts))
    except PcoError as error:
        return (Section(_EXAMPLE, (Finding("example", "fail", str(error), error.hint),)),)
    finally:
        await assembled.models.close()
    return Section(_EXAMPLE, found), *([Section(_ROLES, carried)] if carried else [])


def _forward(trace: Trace, config: Config) -> list[Finding]:
    """Route, prompt, answer and reward, as far as they came."""
    rollout, findings = trace.rollout, list[Finding]()
    route = rollout.route
    if config.learns_routes:
        what = "its routes are learned from outcomes, and no model is asked for them"
        findings.append(Finding("router", "ok", what))
    elif route is not None and route.fallback:
        what = "no reply held a valid route; the best-rated instincts are taken instead"
        step = "try another model for it: roles.encoder.model"
        findings.append(Finding("encoder", "warn", what, step))
    elif route is not None:
        when = "after being asked again" if route.repaired else "at once"
        findings.append(Finding("encoder", "ok", f"routes {when}"))
    if rollout.failure is not None:
        return [*findings, _failure_finding(rollout.failure)]
    length = f"a prompt of {len(rollout.prompt.split())} words"
    asked = "" if config.compose == "generator" else ", the instincts as they are"
    findings.append(Finding("generator", "ok", length + asked))
    answer = f"an answer of {plural(len(rollout.output.split()), 'word')}"
    if rollout.truncated:
        step = "raise roles.executor.max_tokens"
        findings.append(Finding("executor", "warn", f"{answer}, cut at its length cap", step))
    else:
        findings.append(Finding("executor", "ok", answer))
    return [*findings, Finding("reward", "ok", f"{rollout.reward:g} for this answer")]


def _backward(trace: Trace, config: Config) -> list[Finding]:
    """Verdict and gradients; nothing where there was no answer to judge."""
    if trace.rollout.failure is not None:
        return []
    if config.learns_routes and not config.update.text_updates:
        return [Finding("critic", "ok", "not asked, since no text is rewritten")]
    if trace.failure is not None:
        return [_failure_finding(trace.failure)]
    verdict, gradients = trace.verdict, trace.gradients
    score = f"score {verdict.score:g}" if verdict is not None else "no verdict"
    blamed = [part for part in ("encoder", "generator") if getattr(gradients, part)]
    blamed += [variable_name(k) for k in gradients.codebook]
    return [
        Finding("critic", "ok", f"a verdict: {score}"),
        Finding("attribution", "ok", f"it blames {', '.join(blamed) or 'no part'}"),
    ]


def _reply_findings(counts: Counts) -> list[Finding]:
    findings: list[Finding] = []
    if count := counts.values[Incident.MALFORMED]:
        what = f"{count} were not the JSON asked for; they were repaired or asked for again"
        findings.append(Finding("replies", "warn", what, "a more capable model costs fewer calls"))
    if counts.values[Incident.PROMPT_FALLBACKS]:
        what = "its reply was cut or empty twice; the instincts stand in for the prompt verbatim"
        step = "raise roles.generator.max_tokens, or set compose = verbatim"
        findings.append(Finding("generator", "warn", what, step))
    return findings


def _failure_finding(failure: Failure) -> Finding:
    part = _PARTS.get(failure.stage, failure.stage)
    another = f"nothing is learned from such replies: try another model: roles.{part}.model"
    what = f"{failure.kind}: {failure.message}"
    return Finding(part, "fail", what, failure.hint or another)
