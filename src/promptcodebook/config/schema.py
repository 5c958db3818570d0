"""A whole run, as one frozen tree."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from promptcodebook.config.groups import (
    Budget,
    CriticSettings,
    DataSettings,
    EncoderSettings,
    Explore,
    Group,
    Init,
    Price,
    RoleSettings,
    Update,
    Validation,
)
from promptcodebook.config.presets import Preset, default_roles
from promptcodebook.errors import did_you_mean
from promptcodebook.types import ROLES

__all__ = ["Config"]


class Config(Group):
    """A whole run. `Config()` is the `default` preset."""

    preset: Preset = "default"
    task: str = ""
    """A ready-made task; '' = the user's own `data` and `reward`."""
    data_dir: str = ""
    """Folder of a ready-made task's data (or its parent)."""
    data: DataSettings = DataSettings()
    reward: str | dict[str, Any] = ""
    """'reward.py:reward', or a ready-made one such as {kind = 'exact'}."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    executor: str = ""
    """'agent.py:run' = the user's own agent; '' = one call to the executor role."""
    lm: str = ""
    """Spec of the model all roles share unless `roles` says otherwise."""
    roles: dict[str, RoleSettings] = Field(default_factory=default_roles)
    prices: dict[str, Price] = Field(default_factory=dict)
    """Price by model spec or name; extends the built-in table."""
    size: int = Field(default=16, ge=1)
    """K."""
    select: int = Field(default=4, ge=1)
    """S."""
    base_prompt: str = ""
    """Stands verbatim before every composed prompt and is never rewritten."""
    output_format: str = ""
    """The form an answer must have, told to the generator; '' = the task's own, if any."""
    compose: Literal["generator", "verbatim"] = "generator"
    compose_per_stage: bool = False
    templates: Literal["default", "paper"] = "default"
    explore: Explore = Explore()
    encoder: EncoderSettings = EncoderSettings()
    critic: CriticSettings = CriticSettings()
    update: Update = Update()
    validation: Validation = Validation()
    keep: Literal["best_val", "last"] = "best_val"
    init: Init = Init()
    budget: Budget = Budget()
    concurrency: int = Field(default=64, ge=1)
    """Calls in flight per endpoint at the most; the limit adapts below it."""
    timeout: float = Field(default=120.0, gt=0.0)
    """Seconds one call may take."""
    retries: int = Field(default=4, ge=0)
    cache: bool = True
    seed: int = 0

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.select > self.size:
            raise ValueError(f"select (S = {self.select}) is larger than size (K = {self.size})")
        explore = self.explore
        if explore.epsilon < explore.epsilon_min:
            raise ValueError(
                f"explore.epsilon {explore.epsilon:g} is below explore.epsilon_min "
                f"{explore.epsilon_min:g}; explore.policy = 'none' switches exploration off"
            )
        low, high = self.reward_range
        if not -math.inf < low < high < math.inf:
            raise ValueError(
                f"reward_range must rise from one number to another, not {low}..{high}"
            )
        for role in self.roles:
            if role not in ROLES:
                raise ValueError(f"unknown role {role!r} in roles{did_you_mean(role, ROLES)}")
        outside = [k for k in self.init.frozen if not 0 <= k < self.size]
        if outside:
            raise ValueError(f"init.frozen names {outside}, outside 0..{self.size - 1}")
        return self
