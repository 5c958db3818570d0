"""One training example from route to gradients, as `pco train` would take it: for `pco doctor`.

A probe tells what an endpoint accepts; only a rehearsal tells whether its model can play the roles.
"""

from __future__ import annotations

from pathlib import Path

from promptcodebook.config import Budget, Config
from promptcodebook.errors import PcoError
from promptcodebook.lm.probe import Finding
from promptcodebook.method.state import State
from promptcodebook.session.foresee import first_parameters, planned
from promptcodebook.session.models import Counts, Models, Supplies
from promptcodebook.session.parts import build_learner
from promptcodebook.session.simulation import simulated_factory
from promptcodebook.types import Failure, Trace

__all__ = ["rehearsal"]


async def rehearsal(config: Config, base: Path) -> tuple[Finding, ...]:
    """What each part made of the first training example; about six calls."""
    counts = Counts()
    dataset = planned(config, base).task.dataset
    critic = config.critic.model_copy(update={"skip_solved": False})
    config = config.model_copy(update={"critic": critic, "cache": False, "budget": Budget()})
    models = Models.build(
        config, Supplies(simulated=simulated_factory(config.task, dataset), tally=counts)
    )
    try:
        plan = planned(config, base, models.ask)
        learner = build_learner(plan.config, plan.task, models)
        state = State.first(await first_parameters(plan))
        trace = await learner.trace(plan.split("train")[0], state, epsilon=0.0)
    except PcoError as error:
        return (Finding("example", "fail", str(error), error.hint),)
    finally:
        await models.close()
    return (*_forward(trace), *_backward(trace), *_replies(counts))


def _forward(trace: Trace) -> list[Finding]:
    rollout = trace.rollout
    found: list[Finding] = []
    route = rollout.route
    if route is not None and route.fallback:
        step = "try another model for it: roles.encoder.model"
        said = "no reply held a valid route; the best-rated instincts are taken instead"
        found.append(Finding("encoder", "warn", said, step))
    elif route is not None:
        said = "after being asked again" if route.repaired else "at once"
        found.append(Finding("encoder", "ok", f"routes {said}"))
    if rollout.failure is not None:
        return [*found, _broken(rollout.failure)]
    found.append(Finding("generator", "ok", f"a prompt of {len(rollout.prompt.split())} words"))
    words = f"an answer of {len(rollout.output.split())} words"
    if rollout.truncated:
        step = "raise roles.executor.max_tokens"
        found.append(Finding("executor", "warn", f"{words}, cut at its length cap", step))
    else:
        found.append(Finding("executor", "ok", words))
    return [*found, Finding("reward", "ok", f"{rollout.reward:g} for it")]


def _backward(trace: Trace) -> list[Finding]:
    if trace.rollout.failure is not None:
        return []
    if trace.failure is not None:
        return [_broken(trace.failure)]
    verdict, gradients = trace.verdict, trace.gradients
    score = f"score {verdict.score:g}" if verdict is not None else "no verdict"
    blamed = [name for name in ("encoder", "generator") if getattr(gradients, name)]
    blamed += [f"c{k}" for k in gradients.codebook]
    parts = ", ".join(blamed) or "no part"
    return [
        Finding("critic", "ok", f"a verdict: {score}"),
        Finding("attribution", "ok", f"the verdict is laid at {parts}"),
    ]


def _replies(counts: Counts) -> list[Finding]:
    bad = counts.values["malformed"]
    if not bad:
        return []
    said = f"{bad} were not the JSON asked for; they were repaired or asked for again"
    return [Finding("replies", "warn", said, "a more capable model costs fewer calls")]


_PARTS = {"prompt": "generator", "execute": "executor", "critique": "critic"}
_UNLEARNED = "nothing is learned from such replies: try another model for it"


def _broken(failure: Failure) -> Finding:
    part = _PARTS.get(failure.stage, "attribution" if failure.stage == "attribute" else "reward")
    said = f"{failure.kind}: {failure.message}"
    return Finding(part, "fail", said, failure.hint or f"{_UNLEARNED}: roles.{part}.model")
