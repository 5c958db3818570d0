"""The reward, tried on one example before anything is paid for.

It scores the reference and an answer that makes no sense. The executor is not tried: an agent has
effects, and made-up replies would break agents that work. Its parameters are checked when it is
named (tasks/user_code.py), and a batch of failures stops the run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from promptcodebook.assemble import Plan
from promptcodebook.calls import Reply, Request
from promptcodebook.config import Budget
from promptcodebook.errors import ConfigError, LMError, PcoError
from promptcodebook.lm.stack import Supplies
from promptcodebook.method.executor import Scorer
from promptcodebook.tasks.program import SingleCall
from promptcodebook.tasks.user_code import annotated_as, is_ours
from promptcodebook.text import quote
from promptcodebook.types import Example, Output, Score

NONSENSE = "Seventeen umbrellas, mostly on Thursdays."
_SWITCH = "user_code.trial = false leaves this try out"
_BROKEN = (NameError, ImportError)
"""What no answer can be the cause of."""


@dataclass(frozen=True, slots=True)
class RewardTrial:
    """`scores` by the kind of answer that was scored (None: it raised), and what deserves a look.

    No scores: it was not tried, since it asks a model, or reads more of an agent's output than can
    be made up.
    """

    scores: tuple[tuple[str, Score | None], ...] = ()
    warnings: tuple[str, ...] = ()


async def try_reward(plan: Plan) -> RewardTrial:
    """What the reward makes of the first training example's reference and of nonsense.

    No model is asked. ConfigError for one that cannot be used: that returns no number, or one
    outside its range, hangs, or raises whatever the answer; where the answers are an agent's own,
    which may have a form that neither has, that is a warning only.
    """
    own_agent = not isinstance(plan.task.program, SingleCall)
    try:
        reward = plan.task.reward(None)
    except ConfigError:  # it cannot be made without a model
        return RewardTrial()
    if own_agent and annotated_as(reward, 1, Output):
        return RewardTrial()
    scorer, asked = _scorer(plan)
    example = plan.dataset.train[0]
    answers = {"nonsense": NONSENSE}
    if example.target is not None:
        answers = {"the reference": example.target, **answers}
    scores, errors = list[tuple[str, Score | None]](), list[PcoError]()
    for kind, answer in answers.items():
        score = await _score(scorer, example, answer, errors)
        if asked:
            return RewardTrial()
        scores.append((kind, score))
    broken = any(isinstance(error.__cause__, _BROKEN) for error in errors)
    if (len(errors) == len(answers) and not own_agent) or broken:
        raise _refusal(errors[0])
    warnings = [_raised(error) for error in errors[:1]]
    if not is_ours(reward):
        warnings += _constant([score for _, score in scores])
    return RewardTrial(tuple(scores), tuple(warnings))


def _scorer(plan: Plan) -> tuple[Scorer, list[str]]:
    """The reward without models, and the roles that it asked nevertheless."""
    asked = list[str]()

    async def refuse(request: Request) -> Reply:
        asked.append(request.role)
        raise LMError("no model is asked here")

    free = plan.config.model_copy(update={"lm": "own", "roles": {}, "budget": Budget()})
    return replace(plan, config=free).connect(Supplies(own=refuse)).scorer, asked


async def _score(
    scorer: Scorer, example: Example, answer: str, errors: list[PcoError]
) -> Score | None:
    """ConfigError for what is wrong whatever the answer was: no cause lies in the user's code."""
    try:
        return await scorer(example, Output(answer))
    except PcoError as error:
        if error.__cause__ is None and not isinstance(error, LMError):
            raise _refusal(error) from None
        errors.append(error)
        return None


def _refusal(error: PcoError) -> ConfigError:
    return ConfigError(
        f"the reward was tried before anything is paid for: {error}",
        hint=f"{error.hint.partition(';')[0]}, and return 0.0 for an answer that it cannot read; "
        + _SWITCH,
    )


def _raised(error: PcoError) -> str:
    return (
        f"{error}: it was tried with an answer that makes no sense. Such rollouts count as failed "
        "and teach nothing: let it return 0.0 for an answer that it cannot read"
    )


def _constant(scores: list[Score | None]) -> list[str]:
    values = {score.value for score in scores if score is not None}
    if len(scores) < 2 or None in scores or len(values) > 1:
        return []
    return [
        f"the reward gives {values.pop():g} to the reference as well as to "
        f"{quote(NONSENSE)}: look whether it tells good answers from bad ones"
    ]
