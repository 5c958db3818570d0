"""Every setting of a run: its roles' models, the Config that holds all groups; and presets.

A key's line stands below it as a docstring and is what `describe` and docs/config.md show. A run
keeps its configuration and compares it key by key when it resumes, so keys keep their names.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from promptcodebook.calls import ROLES, Role
from promptcodebook.config.groups import (
    Budget,
    CriticSettings,
    DataSettings,
    EncoderSettings,
    Explore,
    GepaSettings,
    Group,
    GrpoSettings,
    Init,
    MiproSettings,
    Price,
    RouterSettings,
    Update,
    UserCode,
    Validation,
)
from promptcodebook.config.secrets import body_fault, header_fault, refuse_password
from promptcodebook.errors import ConfigError, did_you_mean
from promptcodebook.randomness import Randomness

_OURS = frozenset(
    {
        *("model", "messages", "response_format", "seed", "stream", "n"),
        *("temperature", "top_p", "max_tokens", "max_completion_tokens"),
    }
)
"""Body fields that have a setting of their own, or that the method relies on."""
Preset = Literal["default", "paper", "quick", "small"]


class RoleSettings(Group):
    """One role's model and sampling."""

    model: str | None = None
    """Spec of this role's model; none = the run's `lm`."""
    temperature: float | None = Field(default=None, ge=0.0)
    """Sampling temperature; none = the server's own."""
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Nucleus sampling: the probability mass to draw from; none = the server's own."""
    max_tokens: int | None = Field(default=2048, ge=1)
    """Length cap of one reply in tokens; also what the budget reserves before a call."""
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """Further request body fields, such as {top_k = 20}; what may be a secret only by the name of a
    variable: {api_key = "$PCO_MY_KEY"}."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Further HTTP headers of this role; all but harmless ones (User-Agent, X-Title) only by
    the name of a variable: {"api-key" = "$PCO_MY_KEY"}."""

    @field_validator("extra")
    @classmethod
    def _no_setting_of_ours(cls, extra: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        ours = sorted(_OURS & extra.keys())
        if ours:
            # A second length cap, say, would be asked for but not reserved by the budget.
            raise ValueError(f"{ours[0]!r} is decided by the settings or the run, not by extra")
        if fault := body_fault(extra):
            raise ValueError(fault)
        return extra

    @field_validator("model")
    @classmethod
    def _no_password(cls, spec: str | None) -> str | None:
        return spec if spec is None else refuse_password(spec)

    @field_validator("headers")
    @classmethod
    def _no_secrets(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        for name, value in headers.items():
            fault = header_fault(name, value)
            if fault:
                raise ValueError(fault)
        return headers


@cache
def _presets() -> dict[str, dict[str, Any]]:
    file = resources.files("promptcodebook.config").joinpath("presets.toml")
    return tomllib.loads(file.read_text("utf-8"))


def preset(name: str) -> dict[str, Any]:
    """The named preset as a plain tree to merge over the defaults. Raises ConfigError."""
    presets = _presets()
    if name not in presets:
        raise ConfigError(
            f"unknown preset {name!r}{did_you_mean(name, presets)}",
            hint=f"choose one of: {', '.join(presets)}",
        )
    return deepcopy(presets[name])


def default_roles() -> dict[str, RoleSettings]:
    """The roles of the `default` preset."""
    roles: dict[str, dict[str, Any]] = _presets()["default"]["roles"]
    return {role: RoleSettings(**fields) for role, fields in roles.items()}


class Config(Group):
    """A whole run; `Config()` is the `default` preset."""

    preset: Preset = "default"
    """What all other keys begin with: ours, the paper's Table 6, or fewer and smaller steps."""
    task: str = ""
    """Name of a ready-made task; "" = your own `data` and `reward`."""
    data_dir: str = ""
    """Folder of a ready-made task's data, or its parent."""
    data: DataSettings = DataSettings()
    reward: str | dict[str, Any] = ""
    """Your own as "reward.py:reward", or a ready-made one such as {kind = "exact"}."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """The least and the greatest reward; outside it a reward counts as failed."""
    executor: str = ""
    """Your own agent as "agent.py:run"; "" = the task's program, or one call to the executor."""
    lm: str = ""
    """Spec of the model that all roles share unless `roles` says otherwise."""
    roles: dict[str, RoleSettings] = Field(default_factory=default_roles)
    prices: dict[str, Price] = Field(default_factory=dict)
    size: int = Field(default=16, ge=1)
    """K, the number of instincts in the codebook."""
    select: int = Field(default=4, ge=1)
    """S, the number of instincts picked for an input."""
    optimizer: str = "pco"
    """Which optimizer learns: "pco", another of docs/baselines.md such as "gepa", or one that is
    installed."""
    base_prompt: str = ""
    """Stands word for word before every composed prompt and is never rewritten."""
    output_format: str = ""
    """The form an answer must have, told to the generator; "" = the task's own, if any."""
    compose: Literal["generator", "verbatim"] = "generator"
    """How instincts become a prompt: written by the generator G_φ, or put in as they are."""
    compose_per_stage: bool = False
    """One prompt for each stage of a program of several; else one before every stage."""
    templates: str = Field(default="default", min_length=1)
    """The prompts around what is learned: "default", "paper", or a folder, "./my-prompts"."""
    explore: Explore = Explore()
    router: RouterSettings = RouterSettings()
    encoder: EncoderSettings = EncoderSettings()
    critic: CriticSettings = CriticSettings()
    update: Update = Update()
    validation: Validation = Validation()
    keep: Literal["best_val", "last"] = "best_val"
    """Which state is deployed: the best on validation, or the last."""
    verdict_examples: int | None = Field(default=None, ge=1)
    """Test examples that the verdict is made on, the same for every row; none = all."""
    init: Init = Init()
    gepa: GepaSettings = GepaSettings()
    mipro: MiproSettings = MiproSettings()
    grpo: GrpoSettings = GrpoSettings()
    budget: Budget = Budget()
    user_code: UserCode = UserCode()
    concurrency: int = Field(default=64, ge=1)
    """Calls in flight at an endpoint at the most; the limit adapts below it."""
    timeout: float = Field(default=120.0, gt=0.0)
    """Seconds that one call may take."""
    retries: int = Field(default=4, ge=0)
    """How often a call that failed for a while is tried again."""
    max_reply_mb: float = Field(default=8.0, gt=0.0, le=1000.0)
    """Megabytes that a reply may have, unpacked; a larger one is a failed call."""
    cache: bool = True
    """Whether replies are shared between runs on this machine."""
    seed: int = 0
    """Keys every draw of the run: batches, exploration, sample seeds."""

    def model_of(self, role: Role) -> str:
        """The spec of the role's model; '' = none is set."""
        settings = self.roles.get(role)
        return (settings.model if settings is not None else None) or self.lm

    @field_validator("lm")
    @classmethod
    def _no_password(cls, spec: str) -> str:
        return refuse_password(spec)

    @property
    def has_encoder(self) -> bool:
        """Whether a model is asked for routes."""
        return self.router.kind == "encoder" and self.encoder.mode != "none"

    @property
    def randomness(self) -> Randomness:
        """All draws of the run, keyed by what they are for."""
        return Randomness(self.seed)

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.select > self.size:
            raise ValueError(f"select (S = {self.select}) is larger than size (K = {self.size})")
        if self.router.least > self.select:
            raise ValueError(
                f"router.least ({self.router.least}) is larger than select (S = {self.select})"
            )
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
