"""Everything a run can be told, as one frozen tree; presets `default`, `paper`, `quick`.

`paper` is Table 6 to the letter. `default` departs from it in these places, each with its reason:

| key | paper | default | why |
|---|---|---|---|
| roles.critic.temperature | 0.3 | 0.0 | the paper's own sweep: noise in the verdict breaks credit |
| roles.generator.temperature | 0.7 | 0.6 | the paper's sweep peaks at 0.6 |
| templates | paper | default | prefix-cacheable order, per-index gradients, the task's format |
| update.accept | always | always | measured both on the simulated model; see docs/method.md |
| update.encoder_on_explored | true | false | θ did not choose the explored routes |
| explore.gamma | 0.96 | derived | ε reaches ε_min at 90 % of the planned steps |
| keep | last | best_val | the last step is a sample, not the best |
| validation.every | 0 | 10 | keep and early stop need it |
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from promptcodebook.errors import ConfigError, did_you_mean
from promptcodebook.types import ROLES

__all__ = [
    "Budget",
    "Config",
    "CriticSettings",
    "DataSettings",
    "EncoderSettings",
    "Explore",
    "Init",
    "Preset",
    "Price",
    "RoleSettings",
    "Update",
    "Validation",
    "load_config",
    "merge",
    "parse_budget",
    "preset",
    "read_toml",
]

Preset = Literal["default", "paper", "quick"]
Unit = Annotated[float, Field(ge=0.0, le=1.0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class RoleSettings(_Frozen):
    """One role's model and sampling; None = the run's `lm`, or the server's own default."""

    model: str | None = None
    """Spec of this role's model; None = the run's `lm`."""
    temperature: float | None = Field(default=None, ge=0.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    max_tokens: int | None = Field(default=2048, ge=1)
    """Length cap of one reply in tokens; also what the budget reserves before a call."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further request body fields, e.g. {top_k = 20}."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Further HTTP headers of this role's endpoint. Never keys: those come from the environment."""


class Explore(_Frozen):
    """ε-greedy, success-weighted exploration (Algorithm 1, Table 6)."""

    policy: Literal["success", "uniform", "none"] = "success"
    epsilon: Unit = 1.0
    epsilon_min: Unit = 0.15
    gamma: Unit | None = None
    """Decay per epoch; None = derived so that ε reaches ε_min at 90 % of the planned epochs."""
    tau: float = Field(default=0.5, gt=0.0)
    alpha: Unit = 0.3
    """EMA step size of r̄ and of success."""


class EncoderSettings(_Frozen):
    mode: Literal["learned", "static", "none"] = "learned"
    """learned = θ is rewritten; static = θ₀ throughout; none = explore only, no encoder call."""


class CriticSettings(_Frozen):
    stages: Literal[1, 2] = 2
    """2 = verdict, then attribution (App. C.2); 1 = one call for both (Eq. 8)."""
    trainable: bool = True
    skip_solved: bool = True
    """No critic call for a full reward: its critique is empty by definition."""
    penalty_weight: float = Field(default=1.0, ge=0.0)


class Update(_Frozen):
    """How textual gradients become rewrites."""

    mode: Literal["minibatch", "online"] = "minibatch"
    batch_size: int = Field(default=15, ge=1)
    steps_per_epoch: int | Literal["all"] = 1
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


class Validation(_Frozen):
    every: int = Field(default=10, ge=0)
    """Validate every so many steps; 0 = never."""
    subset: int = Field(default=60, ge=1)
    finalists: int = Field(default=3, ge=1)
    """How many of the best are judged on the whole validation split at the end."""
    patience: int = Field(default=5, ge=1)
    """Early stop after so many validations without gain."""
    target_score: float | None = None
    """Early stop once validation reaches this (in the task's reward range)."""


class Init(_Frozen):
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


class DataSettings(_Frozen):
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


class Budget(_Frozen):
    """Limits for all roles together; None = no limit."""

    calls: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    usd: float | None = Field(default=None, ge=0.0)
    seconds: float | None = Field(default=None, ge=0.0)


class Price(_Frozen):
    """USD per million tokens."""

    prompt: float = Field(ge=0.0)
    completion: float = Field(ge=0.0)
    cached: float | None = Field(default=None, ge=0.0)


_SAMPLING: dict[str, dict[str, Any]] = {
    "encoder": {"temperature": 0.0, "top_p": 1.0, "max_tokens": 1024},
    "generator": {"temperature": 0.7, "top_p": 0.9, "max_tokens": 512},
    "executor": {"temperature": 0.6, "top_p": 0.95, "max_tokens": 4096},
    "critic": {"temperature": 0.3, "top_p": 1.0, "max_tokens": 1024},
    "attribution": {"temperature": 0.0, "top_p": 1.0, "max_tokens": 1024},
    "updater": {"temperature": 0.7, "top_p": 0.9, "max_tokens": 1024},
    "judge": {"temperature": 0.0, "top_p": 1.0, "max_tokens": 512},
    "untrusted": {"temperature": 0.6, "top_p": 0.95, "max_tokens": 4096},
}


def _paper_roles() -> dict[str, RoleSettings]:
    return {role: RoleSettings(**fields) for role, fields in _SAMPLING.items()}


def _default_roles() -> dict[str, RoleSettings]:
    roles = _paper_roles()
    roles["critic"] = roles["critic"].model_copy(update={"temperature": 0.0})
    roles["generator"] = roles["generator"].model_copy(update={"temperature": 0.6})
    return roles


class Config(_Frozen):
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
    roles: dict[str, RoleSettings] = Field(default_factory=_default_roles)
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
        low, high = self.reward_range
        if not low < high:
            raise ValueError(f"reward_range must rise, not {low}..{high}")
        for role in self.roles:
            if role not in ROLES:
                raise ValueError(f"unknown role {role!r} in roles{did_you_mean(role, ROLES)}")
        outside = [k for k in self.init.frozen if not 0 <= k < self.size]
        if outside:
            raise ValueError(f"init.frozen names {outside}, outside 0..{self.size - 1}")
        return self


_PRESETS: dict[str, dict[str, Any]] = {
    "default": {"preset": "default"},
    "paper": {
        "preset": "paper",
        "roles": _SAMPLING,
        "templates": "paper",
        "explore": {"gamma": 0.96},
        "update": {"accept": "always", "encoder_on_explored": True, "steps_per_epoch": 1},
        "validation": {"every": 0},
        "keep": "last",
    },
    "quick": {
        "preset": "quick",
        "update": {"epochs": 8, "batch_size": 12},
        "validation": {"every": 4, "subset": 24, "finalists": 2},
    },
}


def preset(name: str) -> dict[str, Any]:
    """The named preset as a plain tree to merge over the defaults."""
    if name not in _PRESETS:
        raise ConfigError(
            f"unknown preset {name!r}{did_you_mean(name, _PRESETS)}",
            hint=f"choose one of: {', '.join(_PRESETS)}",
        )
    return dict(_PRESETS[name])


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Trees laid over each other, later ones winning key by key."""
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            old = out.get(key)
            if isinstance(old, dict) and isinstance(value, Mapping):
                out[key] = merge(old, value)  # type: ignore[arg-type]
            else:
                out[key] = merge(value) if isinstance(value, Mapping) else value  # type: ignore[arg-type]
    return out


def load_config(*layers: Mapping[str, Any], where: str = "the configuration") -> Config:
    """Defaults < preset < layers, checked. Raises ConfigError naming key, place and next step."""
    merged = merge(*layers)
    defaults = {"roles": {r: s.model_dump() for r, s in _default_roles().items()}}
    tree = merge(defaults, preset(str(merged.get("preset", "default"))), merged)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise _readable(error, where) from None


def read_toml(path: Path) -> dict[str, Any]:
    """A pco.toml as a plain tree."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration at {path}", hint="pco init") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", hint=f"edit {path}") from None


def _readable(error: ValidationError, where: str) -> ConfigError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _known_keys(first["loc"][:-1])
        word = str(first["loc"][-1])
        return ConfigError(
            f"unknown key {key!r} in {where}{did_you_mean(word, known)}",
            hint=f"known here: {', '.join(sorted(known))}",
        )
    said = first["msg"].removeprefix("Value error, ")
    return ConfigError(f"{where}: {key + ': ' if key else ''}{said}", hint="correct that key")


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Config
    for part in loc:
        if part == "roles":
            model = RoleSettings
            continue
        found = model.model_fields.get(str(part))
        kind = found.annotation if found is not None else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            model = kind
    return list(model.model_fields)


_BUDGET = re.compile(
    r"^\s*([0-9]*\.?[0-9]+)\s*(usd|\$|calls?|k?tok|mtok|tokens?|s|min|h)\s*$", re.I
)


def parse_budget(text: str) -> Budget:
    """'5usd', '2Mtok', '300ktok', '1000calls', '30min'; several joined by '+' or ','."""
    fields: dict[str, Any] = {}
    for part in re.split(r"[+,]", text):
        match = _BUDGET.match(part)
        if match is None:
            raise ConfigError(
                f"cannot read the budget {part.strip()!r}",
                hint="write e.g. 5usd, 2Mtok, 1000calls, 30min, or several joined by '+'",
            )
        number, unit = float(match[1]), match[2].lower()
        fields.update(_budget_field(number, unit))
    return Budget(**fields)


def _budget_field(number: float, unit: str) -> dict[str, Any]:
    if unit in ("usd", "$"):
        return {"usd": number}
    if unit.startswith("call"):
        return {"calls": int(number)}
    if unit in ("s", "min", "h"):
        return {"seconds": number * {"s": 1, "min": 60, "h": 3600}[unit]}
    scale = {"mtok": 1_000_000, "ktok": 1_000}.get(unit, 1)
    return {"tokens": int(number * scale)}
