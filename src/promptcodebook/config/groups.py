"""The groups of settings, each field with its line of explanation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

__all__ = [
    "Budget",
    "CriticSettings",
    "DataSettings",
    "EncoderSettings",
    "Explore",
    "Group",
    "Init",
    "Price",
    "RoleSettings",
    "Update",
    "Validation",
]

_OURS = frozenset(
    {
        *("model", "messages", "response_format", "seed", "stream", "n"),
        *("temperature", "top_p", "max_tokens", "max_completion_tokens"),
    }
)
"""Body fields that have a setting of their own, or that the method relies on."""
_KEY_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie"}
)

Unit = Annotated[float, Field(ge=0.0, le=1.0)]


class Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class RoleSettings(Group):
    """One role's model and sampling; None = the run's `lm`, or the server's own default."""

    model: str | None = None
    """Spec of this role's model; None = the run's `lm`."""
    temperature: float | None = Field(default=None, ge=0.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    max_tokens: int | None = Field(default=2048, ge=1)
    """Length cap of one reply in tokens; also what the budget reserves before a call."""
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """Further request body fields, e.g. {top_k = 20}."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Further HTTP headers of this role's endpoint. Never keys: those come from the environment,
    for a header of its own by name: {"api-key" = "$MY_KEY"}."""

    @field_validator("extra")
    @classmethod
    def _no_setting_of_ours(cls, extra: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        ours = sorted(_OURS & extra.keys())
        if ours:
            # A second length cap, say, would be asked for but not reserved by the budget.
            raise ValueError(f"{ours[0]!r} is decided by the settings or the run, not by extra")
        return extra

    @field_validator("headers")
    @classmethod
    def _no_keys(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        keys = sorted(
            name
            for name, value in headers.items()
            if name.lower() in _KEY_HEADERS and not value.startswith("$")
        )
        if keys:
            # Settings are kept with the run; what the header holds is not repeated here.
            raise ValueError(
                f"{keys[0]!r} holds a key: set the variable PCO_API_KEY instead, or name a "
                f'variable: "{keys[0]}" = "$MY_KEY"'
            )
        return headers


class Explore(Group):
    """ε-greedy, success-weighted exploration (Algorithm 1, Table 6)."""

    policy: Literal["success", "uniform", "none"] = "success"
    epsilon: Unit = 1.0
    epsilon_min: Unit = 0.15
    gamma: Unit | None = None
    """Decay per epoch; None = derived so that ε reaches ε_min at 90 % of the planned epochs."""
    tau: float = Field(default=0.5, gt=0.0)
    alpha: Unit = 0.3
    """EMA step size of r̄ and of success."""


class EncoderSettings(Group):
    mode: Literal["learned", "static", "none"] = "learned"
    """learned = θ is rewritten; static = θ₀ throughout; none = explore only, no encoder call."""


class CriticSettings(Group):
    stages: Literal[1, 2] = 2
    """2 = verdict, then attribution (App. C.2); 1 = one call for both (Eq. 8)."""
    trainable: bool = True
    skip_solved: bool = True
    """No critic call for a full reward: its critique is empty by definition."""
    penalty_weight: float = Field(default=1.0, ge=0.0)


class Update(Group):
    """How textual gradients become rewrites."""

    mode: Literal["minibatch", "online"] = "minibatch"
    batch_size: int = Field(default=15, ge=1)
    steps_per_epoch: Annotated[int, Field(ge=1)] | Literal["all"] = 1
    """Batches an epoch; 'all' = a full pass over the training split (Algorithm 1)."""
    epochs: int = Field(default=50, ge=1)
    max_gradients: int = Field(default=8, ge=1)
    """Gradients gathered for one rewrite at the most (seeded choice)."""
    accept: Literal["always", "improve"] = "always"
    encoder_on_explored: bool = False
    text_updates: bool = True
    instinct_words: int = Field(default=60, ge=1)
    """Cap of one instinct, in words."""
    directive_words: int = Field(default=300, ge=1)
    """Cap of θ, φ and ψ, in words."""


class Validation(Group):
    every: int = Field(default=10, ge=0)
    """Validate every so many steps; 0 = never."""
    subset: int = Field(default=60, ge=1)
    finalists: int = Field(default=3, ge=1)
    """How many of the best are judged on the whole validation split at the end."""
    patience: int = Field(default=5, ge=1)
    """Early stop after so many validations without gain."""
    target_score: float | None = None
    """Early stop once validation reaches this (in the task's reward range)."""


class Init(Group):
    """Where the first codebook comes from."""

    kind: Literal["expert", "random", "from_prompt", "file"] = "expert"
    path: str = ""
    """A policy or codebook JSON, for kind = 'file'."""
    instincts: tuple[str, ...] = ()
    """The user's own seeds for kind = 'expert' (else the task's)."""
    frozen: tuple[int, ...] = ()
    """Indices that are never rewritten."""
    prompt: str = ""
    """The user's present prompt, for kind = 'from_prompt' and as the verdict's first row."""


class DataSettings(Group):
    """The user's own data (a task brings its own)."""

    path: str = ""
    train: str = ""
    val: str = ""
    test: str = ""
    input: str = "input"
    """A column, or a template over several such as '{title}\\n{body}'."""
    target: str | None = "target"
    """The reference column; '' or none = the task has no references."""
    messages: str = ""
    """A column that holds chat messages, instead of `input`."""
    id: str = ""
    split: str = ""
    """A column that names each row's split."""
    fractions: tuple[float, float, float] = (0.5, 0.25, 0.25)
    split_seed: int = 0


class Budget(Group):
    """Limits for all roles together; None = no limit."""

    calls: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    usd: float | None = Field(default=None, ge=0.0)
    seconds: float | None = Field(default=None, ge=0.0)


class Price(Group):
    """USD per million tokens."""

    prompt: float = Field(ge=0.0)
    completion: float = Field(ge=0.0)
    cached: float | None = Field(default=None, ge=0.0)
