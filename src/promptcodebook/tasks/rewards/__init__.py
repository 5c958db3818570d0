"""Ready-made rewards, and the user's own made uniform."""

from __future__ import annotations

from promptcodebook.tasks.rewards.apply import apply_reward
from promptcodebook.tasks.rewards.contains import Contains
from promptcodebook.tasks.rewards.exact import Exact
from promptcodebook.tasks.rewards.f1 import TokenF1
from promptcodebook.tasks.rewards.judge import Judge
from promptcodebook.tasks.rewards.make import make_reward, reward_kinds
from promptcodebook.tasks.rewards.normalised import Normalised
from promptcodebook.tasks.rewards.numeric import Numeric
from promptcodebook.tasks.rewards.regex import Regex
from promptcodebook.tasks.rewards.schema import JsonSchema
from promptcodebook.tasks.rewards.valid_json import ValidJson
from promptcodebook.tasks.rewards.weighted import Part, WeightedSum

__all__ = [
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
    "make_reward",
    "reward_kinds",
]
