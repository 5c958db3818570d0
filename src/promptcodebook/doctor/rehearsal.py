"""One example taken through every part of the method, before a run does so with all of them."""

from __future__ import annotations

from dataclasses import replace

from promptcodebook.assemble import Plan
from promptcodebook.config import Budget, Config
from promptcodebook.doctor.finding import Finding, Section
from promptcodebook.doctor.roles import Rehearsed, weigh_roles
from promptcodebook.errors import PcoError
from promptcodebook.incidents import Counts, Incident
from promptcodebook.lm.stack import Supplies
from promptcodebook.optimizers.pco import build_learner, initialise, with_listed_codebook
from promptcodebook.types import Failure, Trace, variable_name
from promptcodebook.units import plural

_EXAMPLE = "one example, from route to gradients"
_ROLES = "which roles the models can carry"
_PARTS = {
    "route": "encoder",
    "compose": "generator",
    "prompt": "generator",
    "execute": "executor",
    "reward": "reward",
    "critique": "critic",
    "attribute": "attribution",
    "adversary": "critic",
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
        told = (*_forward(trace, config), *_backward(trace, config), *_reply_findings(counts))
        carried = tuple[Finding, ...]()
        if not assembled.models.simulated:
            carried = await weigh_roles(Rehearsed(assembled, learner, state, trace, counts))
    except PcoError as error:
        return (Section(_EXAMPLE, (Finding("example", "fail", str(error), error.hint),)),)
    finally:
        await assembled.models.close()
    return Section(_EXAMPLE, told), *([Section(_ROLES, carried)] if carried else [])


def _forward(trace: Trace, config: Config) -> list[Finding]:
    """Route, prompt, answer and reward, as far as they came."""
    rollout, findings = trace.rollout, list[Finding]()
    route = rollout.route
    if config.router.kind == "outcomes":
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
    if config.router.kind == "outcomes" and not config.update.text_updates:
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
