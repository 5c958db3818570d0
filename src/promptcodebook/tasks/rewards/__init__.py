"""Ready-made rewards, and the user's own made uniform."""

from __future__ import annotations

from promptcodebook.tasks.rewards.make import (
    STAND_IN,
    Judge,
    Part,
    WeightedSum,
    apply_reward,
    describe_reward,
    make_reward,
    reward_factory,
    reward_kinds,
)
from promptcodebook.tasks.rewards.ready import (
    Contains,
    Exact,
    JsonSchema,
    Normalised,
    Numeric,
    Regex,
    TokenF1,
    ValidJson,
)

__all__ = [
    "STAND_IN",
    "Contains",
    "Exact",
    "JsonSchema",
    "Judge",
    "Normalised",
    "Numeric",
    "Part",
    "Regex",
    "TokenF1",
    "ValidJson",
    "WeightedSum",
    "apply_reward",
    "describe_reward",
    "make_reward",
    "reward_factory",
    "reward_kinds",
]
