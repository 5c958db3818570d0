"""What a reward returned, as a Score inside its range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, cast

from promptcodebook.errors import PcoError, RewardError, message_of
from promptcodebook.protocols import Reward
from promptcodebook.tasks.user_calls import Escape, Overdue, UserCalls, place_of
from promptcodebook.tasks.user_code import annotated_as
from promptcodebook.types import Example, Output, Score

_SLACK = 1e-9  # sums of floats may miss the end of the range by a rounding error
_NUMBER_KEYS = ("score", "value")
_FORMS = (
    "return a float, a bool, (0.5, 'feedback'), {'score': 0.5, 'feedback': '...'} or "
    "pco.Score(0.5, 'feedback')"
)


async def apply_reward(
    reward: Reward,
    example: Example,
    output: Output,
    reward_range: tuple[float, float],
    calls: UserCalls | None = None,
) -> Score:
    """r(y, y*) as a Score inside `reward_range`; a reward that annotates its output as `Output`
    gets the whole, any other y's text. `calls` runs it (None: in a thread or loop of its own).

    Raises RewardError when the reward raises (with its file and line; the cause is chained), hangs,
    or returns no finite number in the range. Our own errors, a reached budget among them, pass.
    """
    try:
        given = output if annotated_as(reward, 1, Output) else output.text
        returned: Any = await (calls or UserCalls()).call(cast("Any", reward), example, given)
    except PcoError:
        raise
    except Overdue as error:
        raise RewardError(
            f"the reward did not return within {error.seconds:g} s (example {example.id})",
            hint="find out where it hangs; user_code.seconds is how long it may take",
        ) from None
    except Escape as error:
        raise _raised(error.error, example) from error.error
    except Exception as error:
        raise _raised(error, example) from error
    score = _score_of(returned, example)
    return Score(_inside(score.value, reward_range, example), score.feedback)


def _raised(error: BaseException, example: Example) -> RewardError:
    return RewardError(
        f"the reward raised {type(error).__name__}: {message_of(error)} "
        f"({place_of(error)}, example {example.id})",
        hint="correct the reward; a run records such rollouts as failed and goes on",
    )


def _score_of(returned: object, example: Example) -> Score:
    """A number, a Score, a pair of number and feedback, or a mapping that names them."""
    if isinstance(returned, Score):
        value, feedback = returned.value, returned.feedback
    elif isinstance(returned, tuple):
        pair = cast("tuple[object, ...]", returned)
        if len(pair) != 2 or not isinstance(pair[1], str | None):
            raise _no_score(f"a tuple of {_kinds(pair)}", example)
        value, feedback = pair
    elif isinstance(returned, Mapping):
        value, feedback = _named(cast("Mapping[object, object]", returned), example)
    else:
        value, feedback = returned, ""
    return Score(_number(value, example), "" if feedback is None else str(feedback))


def _named(tree: Mapping[object, object], example: Example) -> tuple[object, object]:
    """Number and feedback of a mapping with those keys and no others."""
    numbers = [key for key in _NUMBER_KEYS if key in tree]
    others = [key for key in tree if key not in (*_NUMBER_KEYS, "feedback")]
    if len(numbers) != 1 or others:
        keys = ", ".join(map(repr, tree)) or "none"
        raise _no_score(f"a mapping with the keys {keys}", example)
    return tree[numbers[0]], tree.get("feedback", "")


def _kinds(values: Sequence[object]) -> str:
    return ", ".join(type(value).__name__ for value in values) or "nothing"


def _no_score(what: str, example: Example) -> RewardError:
    return RewardError(
        f"the reward returned {what} for example {example.id}, which is no score", hint=_FORMS
    )


def _number(value: object, example: Example) -> float:
    unpack = getattr(value, "item", None)  # NumPy and torch scalars
    if callable(unpack) and getattr(value, "size", 1) == 1:
        value = unpack()
    if isinstance(value, Real):
        return float(value)
    raise RewardError(
        f"the reward returned {type(value).__name__!r} for example {example.id}, not a number",
        hint=_FORMS,
    )


def _inside(value: float, reward_range: tuple[float, float], example: Example) -> float:
    low, high = reward_range
    if not math.isfinite(value):
        raise RewardError(
            f"the reward returned {value} for example {example.id}",
            hint="return a finite number, e.g. 0.0 for an answer that cannot be scored",
        )
    if not low - _SLACK <= value <= high + _SLACK:
        raise RewardError(
            f"the reward returned {value:g} for example {example.id}, outside its range "
            f"{low:g}..{high:g}",
            hint=f"set reward_range = [{min(low, value):g}, {max(high, value):g}] or wider",
        )
    return min(max(value, low), high)
