"""Any reward made uniform: awaited, checked, and turned into a Score."""

from __future__ import annotations

import inspect
import math
import traceback
from numbers import Real

from promptcodebook.errors import PcoError, RewardError
from promptcodebook.types import Example, Reward, Score

__all__ = ["apply_reward"]

_SLACK = 1e-9  # sums of floats may miss the end of the range by a rounding error


async def apply_reward(
    reward: Reward, example: Example, output: str, reward_range: tuple[float, float]
) -> Score:
    """r(y, y*) as a Score inside `reward_range`.

    Raises RewardError when the reward raises (with its file and line; the cause is chained), or
    returns no finite number in the range. Our own errors, a reached budget among them, pass.
    """
    try:
        said = reward(example, output)
        if inspect.isawaitable(said):
            said = await said
    except PcoError:
        raise
    except (Exception, SystemExit) as error:
        raise RewardError(
            f"the reward raised {type(error).__name__}: {error} ({_place(error)}, "
            f"example {example.id})",
            hint="correct the reward; a run records such rollouts as failed and goes on",
        ) from error
    score = said if isinstance(said, Score) else Score(_number(said, example))
    value = _number(score.value, example)
    return Score(_inside(value, reward_range, example), str(score.feedback))


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown place"


def _number(value: object, example: Example) -> float:
    unpack = getattr(value, "item", None)  # NumPy and torch scalars
    if callable(unpack) and getattr(value, "size", 1) == 1:
        value = unpack()
    if isinstance(value, Real):
        return float(value)
    raise RewardError(
        f"the reward returned {type(value).__name__!r} for example {example.id}, not a number",
        hint="return a float, a bool or pco.Score(value, feedback)",
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
