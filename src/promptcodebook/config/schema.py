"""Every setting of a run: its groups, its roles' models, the Config that holds all, and presets.

The docstring below a key is its line in `describe` and docs/config.md. A run stores its
configuration and compares it key by key when it resumes, so keys are never renamed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import astuple
from typing import Annotated, Any, ClassVar, Literal, Self, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from promptcodebook.base.randomness import Randomness
from promptcodebook.base.text import shipped_table
from promptcodebook.calls import ROLES, Limits, Role, is_model, schema_of
from promptcodebook.config.secrets import body_fault, header_fault, refuse_password
from promptcodebook.errors import ConfigError, did_you_mean

Unit = Annotated[float, Field(ge=0.0, le=1.0)]
ModelSpec = Annotated[str, AfterValidator(refuse_password)]


class Group(BaseModel):
    """Settings that belong together: frozen, and an unknown key is an error."""

    # What was given is never repeated by a fault: it may be a header with a key in it.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        str_strip_whitespace=True,
        hide_input_in_errors=True,
        coerce_numbers_to_str=True,
    )

    gone: ClassVar[Mapping[str, Any]] = {}
    """Keys of earlier versions that stored runs may have, each with the value that did nothing."""

    @model_validator(mode="before")
    @classmethod
    def _none_in_words(cls, given: Any) -> Any:
        """TOML has no null, so "none" means none where a number or none is expected. No number is
        true or false."""
        if not isinstance(given, dict):
            return given
        tree = {**cast("dict[str, Any]", given)}
        for name, nothing in cls.gone.items():
            if tree.pop(name, nothing) != nothing:
                raise ValueError(f"{name}: this version no longer has that key")
        for name, field in cls.model_fields.items():
            value, kind, wanted = tree.get(name), str(field.annotation), get_args(field.annotation)
            if value == "none" and type(None) in wanted and {*wanted} <= {int, float, type(None)}:
                tree[name] = None
            elif isinstance(value, bool) and re.search(r"^(?!.*bool).*\b(int|float)\b", kind):
                tree[name] = str(value).lower()  # else true would be read as 1
        return tree


class OptimizerSettings(Group):
    """An optimizer's settings, a separate table in pco.toml. The optimizer's class names this
    model: `settings = MySettings`. A command's settings are an entry point of
    `promptcodebook.tables`. None of them affects what a trained policy answers."""

    table: ClassVar[str]
    longer: ClassVar[str] = ""
    """The key that extends a finished run when raised; "" = a finished run cannot continue."""

    def __init_subclass__(cls, **facts: Any) -> None:
        super().__init_subclass__(**facts)
        if not getattr(cls, "table", ""):
            raise TypeError(f'{cls.__name__} needs a line table = "its name in pco.toml"')

    @classmethod
    def of(cls, config: Config) -> Self:
        """These settings in a run."""
        found = getattr(config, cls.table, None)
        return found if isinstance(found, cls) else cls()


class Explore(Group):
    """Epsilon-greedy, success-weighted exploration in training (Algorithm 1, Table 6)."""

    policy: Literal["success", "uniform", "none"] = "success"
    """How explored routes are drawn: by softmax(r̄/τ), uniformly, or not at all."""
    epsilon: Unit = 1.0
    """Initial ε: the chance that a training input's route is explored."""
    epsilon_min: Unit = 0.15
    """Lower limit of ε."""
    gamma: Unit | None = None
    """γ, the decay of ε per epoch; none = ε reaches epsilon_min after 90 % of the epochs."""
    tau: float = Field(default=0.5, gt=0.0)
    """τ, the temperature of the softmax over r̄; smaller = more weight on successful instincts."""
    alpha: Unit = 0.3
    """α, the step size of the moving averages of r̄ and of success."""


class EncoderSettings(Group):
    """The encoder E_θ, which picks the instincts for an input."""

    mode: Literal["learned", "static", "none"] = "learned"
    """learned = θ is rewritten; static = θ stays unchanged; none = no encoder is called."""
    max_fallback: Unit = 0.2
    """A rewritten θ is dropped if more than this share of its first routes (and at least two) fall
    back; 1 = never."""
    fewer: bool = True
    """Whether E_θ may pick 1 to `select` instincts; false = exactly `select`, as in the paper."""


class RouterSettings(Group):
    """What picks the instincts for an input: a model, or a router learned from outcomes."""

    kind: Literal["encoder", "outcomes", "distilled"] = "encoder"
    """The encoder, a router learned from rewards (extra [router]), or a router from `pco
    distill`."""
    features: Literal["words", "embeddings", "both"] = "words"
    """Features of an input: words, the encoder model's embeddings (one call each), or both."""
    images: bool = False
    """Whether inputs are embedded with their images; some models on vLLM support this."""
    scale: float | None = Field(default=None, ge=0.0)
    """Amount of randomness when training picks routes, in standard deviations of an instinct's
    estimate; none = 1, or 0.2 without repeats."""
    floor: Unit = 0.05
    """Share of training routes drawn uniformly, so that every route has a known probability."""
    repeats: Literal["auto", "yes", "no"] = "auto"
    """Whether training may reuse an input's route and repeat solved inputs; auto = yes, unless the
    executor is greedy."""
    least: int = Field(default=0, ge=0)
    """Minimum number of instincts in a route; `select` is the maximum. Further instincts are added
    only for an expected gain."""


class CriticSettings(Group):
    """The critic D_ψ, which says what went wrong."""

    stages: Literal[1, 2] = 2
    """2 = a verdict, then its attribution (App. C.2); 1 = one call for both (Eq. 8)."""
    sees_reward: bool = True
    """Whether our templates show the critic the reward r; the paper's templates do not."""
    trainable: bool = True
    """Whether the critic's own rubric ψ is rewritten."""
    skip_solved: bool = True
    """Whether the critic is skipped after a full reward; its critique is empty by definition."""
    penalty_weight: float = Field(default=1.0, ge=0.0)
    """Weight of the critic's penalty ρ; 0 = only rewards matter."""
    safety: bool = True
    """Two safeguards: the critic must report harmful instincts, which are penalised and rewritten;
    a rule-based scan rejects harmful rewrites."""


class Update(Group):
    """How textual gradients become rewrites."""

    gone = {"maintain_every": 0, "pool": ""}

    mode: Literal["minibatch", "online"] = "minibatch"
    """Rewrite after each batch, or after each example, as in the printed Algorithm 1."""
    batch_size: int = Field(default=15, ge=1)
    """Training examples per batch."""
    steps_per_epoch: Annotated[int, Field(ge=1)] | Literal["all"] = 1
    """Batches per epoch; all = a full pass over the training split (Algorithm 1)."""
    epochs: int = Field(default=50, ge=1)
    """Number of training epochs."""
    stop_when_flat: int | None = Field(default=None, ge=1)
    """Stop after this many batches that solve no new input and have no higher mean reward than an
    equally long earlier stretch; none = never."""
    max_gradients: int = Field(default=8, ge=1)
    """Maximum gradients for one rewrite, chosen by a seeded draw."""
    accept: str = "always"
    """Rule for keeping rewrites: always, improve (all or none), improve_each (each by its own
    effect), or an installed package's rule."""
    accept_on: Literal["batch", "others"] = "batch"
    """Examples answered with and without a rewrite to test it: the batch, or the same number of
    other training examples."""
    encoder_on_explored: bool = False
    """Whether θ also learns from explored routes, which it did not choose."""
    shared_by: int = Field(default=2, ge=1)
    """How many batch examples must share a complaint before θ or φ is rewritten; 1 if online."""
    text_updates: bool = True
    """Whether instincts and directives are rewritten (Table 3)."""
    instinct_words: int = Field(default=25, ge=1)
    """Length limit of one instinct in words; an initial instinct may be longer until rewritten."""
    directive_words: int = Field(default=300, ge=1)
    """Length limit in words for each of θ, φ and ψ."""


class Validation(Group):
    """How the best state is found on the validation split, and when training stops early."""

    every: int = Field(default=10, ge=0)
    """Batches (online: examples) between validations; 0 = never. Each validation tests the state
    with the highest training reward."""
    subset: int = Field(default=60, ge=1)
    """Number of examples in each validation, always the same ones."""
    finalists: int = Field(default=3, ge=1)
    """How many of the best states are measured on all validation examples at the end."""
    examples: int | None = Field(default=None, ge=1)
    """How many examples of the validation split to use, chosen by id; none = all."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many validations without a gain; none = 3/5 of the planned validations, but
    at least 2 and at most 5."""
    target_score: float | None = None
    """Stop early once a validation reaches this reward, in the task's range."""


class Init(Group):
    """Where the first codebook comes from."""

    OWN: ClassVar = ("expert", "random", "from_prompt", "file")
    kind: str = "expert"
    """Source of instincts: expert (the task's seeds), random (model-written), from_prompt (your
    prompt), file or a package's reader, such as gepa."""
    path: str = ""
    """For kind = "file": a policy, with everything it learned, or a JSON list of instincts. For a
    package's reader: its input."""
    instincts: tuple[str, ...] = ()
    """Your own seeds for kind = "expert", instead of the task's."""
    frozen: tuple[Annotated[int, Field(strict=True)], ...] = ()
    """Indices of initial instincts that are never rewritten."""
    prompt: str = ""
    """Your current prompt, for kind = "from_prompt" and for the verdict's first row."""
    split: Literal["model", "sentences"] = "model"
    """How kind = "from_prompt" splits the prompt: with a model, or by sentences and lines."""

    @property
    def whole(self) -> bool:
        """Whether every instinct is a whole prompt, read by a package."""
        return self.kind not in self.OWN

    @property
    def written(self) -> bool:
        """Whether a model writes the first codebook."""
        return self.kind == "random" or (self.kind == "from_prompt" and self.split == "model")


class DataSettings(Group):
    """Your own data; not needed for a ready-made task."""

    path: str = ""
    """A file to draw the splits from (.jsonl, .csv, .parquet and others), or a folder of files."""
    train: str = ""
    """A separate file for the training split."""
    val: str = ""
    """A separate file for the validation split."""
    test: str = ""
    """A separate file for the test split."""
    input: str = "input"
    """A column, or a template of several columns such as "{title}\\n{body}"."""
    target: str | None = "target"
    """The reference column; "" or none = the task has no references."""
    messages: str = ""
    """A column that holds chat messages, or their JSON, instead of `input`."""
    id: str = ""
    """A column of row ids; "" = ids are derived from the content."""
    split: str = ""
    """A column that names each row's split."""
    group: str | tuple[str, ...] = ""
    """Columns that group dependent rows, such as a chat id; each group stays in one split."""
    slices: tuple[str, ...] = ()
    """The verdict is also shown for each value of these columns, e.g. "language" or "channel"."""
    fractions: tuple[float, ...] = (0.5, 0.25, 0.25)
    """Shares of train, val and test if splits are drawn; must sum to 1."""
    stratify: bool = False
    """Whether every drawn split has the same proportion of each reference; recommended if
    references are labels."""
    split_seed: int = 0
    """Seed for drawing splits, separate from the run's `seed`."""
    form: str = ""
    """A published format, such as squad; it sets the column names that you leave out."""
    header: bool = True
    """Whether the first line of a CSV file or spreadsheet names the columns."""


class VerdictSettings(Group):
    """Limits on what the verdict may recommend."""

    max_cost: str = ""
    """Limit on a query's cost: "3x" (three times the current prompt's), "0.01usd" or "2000tok";
    "" = no limit."""

    no_worse_in: tuple[str, ...] = ()
    """Slices, or columns of `data.slices`, in which the policy must not be clearly worse."""

    @field_validator("max_cost")
    @classmethod
    def _amount(cls, text: str) -> str:
        if text and not COST_LIMIT.fullmatch(text):
            raise ValueError(f"cannot read {text!r}: write e.g. 3x, 0.01usd, 2000tok or 2calls")
        return text


COST_LIMIT = re.compile(r"(\d{1,12}(?:\.\d{1,12})?) ?(x|usd|tok|calls)")


class UserCode(Group):
    """How your own reward and agent are run."""

    threads: int = Field(default=32, ge=1)
    """Maximum concurrent calls to a function that is not async; set 1 if it is not thread-safe."""
    seconds: float = Field(default=600.0, gt=0.0)
    """Seconds before a call times out and its rollout fails, not counting waits for models."""
    trial: bool = True
    """Whether the reward is tried on one example before any call is paid for."""


class Budget(Group):
    """Limits for all roles together, checked before every attempt."""

    calls: int | None = Field(default=None, ge=0)
    """Maximum calls; none = no limit."""
    tokens: int | None = Field(default=None, ge=0)
    """Maximum tokens, prompts and replies together; none = no limit."""
    usd: float | None = Field(default=None, ge=0.0)
    """Maximum US dollars; none = no limit."""
    seconds: float | None = Field(default=None, ge=0.0)
    """Maximum wall-clock seconds; none = no limit."""
    reserve_for_verdict: Unit | None = None
    """Share of each limit reserved for the final choice and verdict; none = the minimum that a
    verdict needs, plus at most a fifth of the limit."""

    @property
    def limits(self) -> Limits:
        """What may be spent in total, except time."""
        return Limits(self.calls, self.tokens, self.usd)

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return any(value is not None for value in (*astuple(self.limits), self.seconds))


class Price(Group):
    """A model's price in US dollars per million tokens, by spec or name. It replaces the built-in
    price."""

    prompt: float = Field(ge=0.0)
    """Price of prompt tokens."""
    completion: float = Field(ge=0.0)
    """Price of reply tokens."""
    cached: float | None = Field(default=None, ge=0.0)
    """Price of prompt tokens that the server has cached; none = same as `prompt`."""
    cache_write: float | None = Field(default=None, ge=0.0)
    """Price of prompt tokens that the server writes to its cache; none = same as `prompt`."""


_OURS = {
    *("model", "messages", "seed", "stream", "n"),
    *("temperature", "top_p", "max_tokens", "max_completion_tokens"),
}
"""Body fields that have their own setting, or that the method relies on."""
Preset = Literal["default", "full", "lean", "paper", "quick", "small"]


class RoleSettings(Group):
    """One role's model and sampling."""

    model: ModelSpec | None = None
    """Spec of this role's model; none = the run's `lm`."""
    temperature: float | None = Field(default=None, ge=0.0)
    """Sampling temperature; none = the server's default."""
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Nucleus sampling: the probability mass to draw from; none = the server's default."""
    max_tokens: int | None = Field(default=2048, ge=1)
    """Length limit of one reply, in tokens; the budget reserves this many before a call."""
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """Extra request body fields, such as {top_k = 20}. For a value that may be secret, name
    an environment variable: {api_key = "$PCO_MY_KEY"}."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Extra HTTP headers. Values must name environment variables, {"api-key" = "$PCO_MY_KEY"},
    except in harmless headers such as User-Agent."""

    @field_validator("extra", mode="before")
    @classmethod
    def _form_of_model(cls, extra: Any) -> Any:
        """In Python `response_format` may be a pydantic model."""
        form = cast("dict[str, Any]", extra).get("response_format") if extra else None
        return {**extra, "response_format": schema_of(form).wire} if is_model(form) else extra

    @field_validator("extra")
    @classmethod
    def _no_setting_of_ours(cls, extra: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        fault = body_fault(extra)
        if ours := sorted(_OURS & extra.keys()):
            # A second length cap, say, would be asked for but not reserved by the budget.
            fault = f"{ours[0]!r} is controlled by the settings or the run, not by extra"
        if fault:
            raise ValueError(fault)
        # none is none, as --set reads it, in a field where a null would be sent.
        absent = {"response_format": "none"} if None is extra.get("response_format", ...) else {}
        return {**extra, **absent}

    @field_validator("headers")
    @classmethod
    def _no_secrets(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        for fault in filter(None, map(header_fault, headers, headers.values())):
            raise ValueError(fault)
        return headers


def _presets() -> dict[str, dict[str, Any]]:
    return shipped_table(__file__, "presets.toml")


def preset(name: str) -> dict[str, Any]:
    """The named preset as a plain tree to merge over the defaults. Raises ConfigError."""
    presets = _presets()
    if name not in presets:
        what = f"unknown preset {name!r}{did_you_mean(name, presets)}"
        raise ConfigError(what, hint=f"choose one of: {', '.join(presets)}")
    return deepcopy(presets[name])


def default_roles() -> dict[str, RoleSettings]:
    """The roles of the `full` preset, which the others share."""
    roles: dict[str, dict[str, Any]] = _presets()["full"]["roles"]
    return {role: RoleSettings(**fields) for role, fields in roles.items()}


TRAINING = (
    *("critic", "explore", "init", "keep", "learn", "optimizer", "preset", "reward"),
    *("reward_name", "reward_range", "samples", "update", "validation", "verdict"),
    "verdict_examples",
)
"""Keys and groups of `Config` that do not affect what a trained policy answers."""


class Config(Group):
    """A whole run; `Config()` is the `full` preset. `load_config` adds a field for each table of
    the installed optimizers (`OptimizerSettings`)."""

    gone = {"instinct": {"kind": "text"}}
    preset: Preset = "full"
    """Starting values for all other keys; full = the whole method, paper = the paper's Table 6."""
    task: str = ""
    """Name of a ready-made task; "" = your own `data` and `reward`."""
    data_dir: str = ""
    """Folder of a ready-made task's data, or its parent."""
    data: DataSettings = DataSettings()
    reward: str | dict[str, Any] = ""
    """Your own reward as "reward.py:reward", or a ready-made one such as {kind = "exact"}."""
    reward_name: str = ""
    """What the verdict calls your reward, such as "politeness"; "" = the reward's own name."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """The lowest and highest reward; a reward outside this range is a failure."""
    executor: str | dict[str, Any] = ""
    """Your own agent as "agent.py:run", or { command = "python agent.py", present = ... }; "" = the
    task's program, or one call to the executor."""
    lm: ModelSpec = ""
    """Spec of the model that all roles share unless `roles` says otherwise."""
    roles: dict[str, RoleSettings] = Field(default_factory=default_roles)
    prices: dict[str, Price] = Field(default_factory=dict)
    size: int = Field(default=16, ge=1)
    """K, the number of instincts in the codebook."""
    select: int = Field(default_factory=lambda known: min(4, known.get("size", 4)), ge=1)
    """S, the number of instincts picked for an input; all if the codebook has fewer than 4."""
    optimizer: str = "pco"
    """The optimizer: "pco", one from docs/baselines.md such as "gepa", or a plug-in."""
    base_prompt: str = ""
    """Text placed before every composed prompt; it is never rewritten."""
    output_format: str = ""
    """The format that answers must have, shown to the generator; "" = the task's own, if any."""
    compose: Literal["generator", "verbatim"] = "generator"
    """How instincts become a prompt: written by the generator G_φ, or used unchanged."""
    compose_per_stage: bool = False
    """Whether each stage of a multi-stage program has its own prompt; false = all stages share
    one."""
    learn: tuple[Literal["prompt", "tools"], ...] = ("prompt",)
    """What is learned: instincts for the prompt, and for the tool descriptions of a `pco.Agent`."""
    templates: str = Field(default="default", min_length=1)
    """Prompt templates around the learned texts: "default", "few-shot" for a small model, "paper",
    or a folder such as "./my-prompts"."""
    explore: Explore = Explore()
    router: RouterSettings = RouterSettings()
    encoder: EncoderSettings = EncoderSettings()
    critic: CriticSettings = CriticSettings()
    update: Update = Update()
    validation: Validation = Validation()
    keep: Literal["best_val", "last"] = "best_val"
    """Which state is deployed: the best on validation, or the last."""
    verdict_examples: int | None = Field(default=None, ge=1)
    """How many test examples the verdict uses, the same for every row; none = all."""
    samples: int = Field(default=1, ge=1)
    """Answers per example; acceptance, validation and verdict use their mean. 1 = one greedy
    answer; use more if the executor's answers vary."""
    init: Init = Init()
    verdict: VerdictSettings = VerdictSettings()
    budget: Budget = Budget()
    user_code: UserCode = UserCode()
    concurrency: int = Field(default=64, ge=1)
    """Maximum calls in flight to an endpoint; the actual limit adapts."""
    timeout: float = Field(default=120.0, gt=0.0)
    """Maximum seconds for one call."""
    retries: int = Field(default=4, ge=0)
    """Maximum retries of a call after a temporary failure."""
    max_reply_mb: float = Field(default=8.0, gt=0.0, le=1000.0)
    """Maximum size of a decompressed reply in MB; a larger reply fails the call."""
    cache: bool = True
    """Whether replies are shared between runs on this machine."""
    telemetry: tuple[Literal["otel", "mlflow"], ...] = ()
    """Where to send spans of calls (otel) or a run's metrics (mlflow); empty = nowhere."""
    seed: int = 0
    """Seed for every random draw of the run: batches, exploration and sampling seeds."""

    def model_of(self, role: Role) -> str:
        """The spec of the role's model; '' = none is set."""
        settings = self.roles.get(role)
        return (settings.model if settings is not None else None) or self.lm

    @property
    def has_encoder(self) -> bool:
        """Whether a model is asked for routes."""
        return self.router.kind == "encoder" and self.encoder.mode != "none"

    @property
    def learns_routes(self) -> bool:
        """Whether training learns what each instinct earns, instead of θ."""
        return self.router.kind == "outcomes"

    @property
    def randomness(self) -> Randomness:
        """All draws of the run, keyed by what they are for."""
        return Randomness(self.seed)

    @field_validator("reward", mode="before")
    @classmethod
    def _schema_of_model(cls, reward: Any) -> Any:
        """In Python the schema of a reward may be a pydantic model."""
        if not isinstance(reward, dict):
            return reward
        table = cast("dict[str, Any]", reward)
        model = table.get("schema")
        return {**table, "schema": model.model_json_schema()} if is_model(model) else table

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.select > self.size:
            most = f"is larger than size (K = {self.size}); set select to {self.size} or less"
            raise ValueError(f"select (S = {self.select}) {most}")
        if self.router.least > self.select:
            most = f"larger than select (S = {self.select}); set it to {self.select} or less"
            raise ValueError(f"router.least ({self.router.least}) is {most}")
        if self.router.images and self.router.features == "words":
            raise ValueError("router.images needs router.features = both; pco config router")
        explore = self.explore
        if explore.epsilon < explore.epsilon_min:
            below = f"{explore.epsilon:g} is below explore.epsilon_min {explore.epsilon_min:g}"
            raise ValueError(f"explore.epsilon {below}; explore.policy = 'none' switches it off")
        low, high = self.reward_range
        if not -math.inf < low < high < math.inf:
            order = "must go from a lower to a higher number; write e.g. reward_range = [0, 1]"
            raise ValueError(f"reward_range = [{low:g}, {high:g}] {order}")
        for role, settings in self.roles.items():
            if role not in ROLES:
                raise ValueError(f"no role {role!r}{did_you_mean(role, ROLES)}; pco config roles")
            if role != "executor" and settings.extra.get("response_format", "none") != "none":
                key = f"remove response_format from roles.{role}.extra"
                raise ValueError(f"the run decides the format of the {role}'s replies; {key}")
        outside = [k for k in self.init.frozen if not 0 <= k < self.size]
        if outside:
            known = f"instincts are 0..{self.size - 1}; leave the others out"
            raise ValueError(f"init.frozen names {outside}, but {known}")
        return self
