"""The groups of a run's settings, apart from its roles' models; each key with its line.

`schema.py::Config` holds one of each.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from promptcodebook.calls import Limits

Unit = Annotated[float, Field(ge=0.0, le=1.0)]


class Group(BaseModel):
    """Settings that belong together: frozen, and an unknown key is an error."""

    # What was given is never repeated by a fault: it may be a header with a key in it.
    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=True, hide_input_in_errors=True
    )


class Explore(Group):
    """Epsilon-greedy, success-weighted exploration in training (Algorithm 1, Table 6)."""

    policy: Literal["success", "uniform", "none"] = "success"
    """How explored routes are drawn: by softmax(r̄/τ), uniformly, or not at all."""
    epsilon: Unit = 1.0
    """ε at the start: the chance that a training input's route is explored."""
    epsilon_min: Unit = 0.15
    """ε never falls below this."""
    gamma: Unit | None = None
    """γ, the decay of ε per epoch; none = ε reaches epsilon_min at 90 % of the epochs."""
    tau: float = Field(default=0.5, gt=0.0)
    """τ, the temperature of the softmax over r̄; smaller = keener on what has worked."""
    alpha: Unit = 0.3
    """α, the step size of the moving averages of r̄ and of success."""


class EncoderSettings(Group):
    """The encoder E_θ, which picks the instincts for an input."""

    mode: Literal["learned", "static", "none"] = "learned"
    """learned = θ is rewritten; static = θ stays as it began; none = no encoder is asked."""
    max_fallback: Unit = 0.2
    """A rewritten θ is taken back if more than this share of its first routes fall back, at least
    two; 1 = never."""


class RouterSettings(Group):
    """Who picks the instincts for an input: a model, or what was learned from outcomes."""

    kind: Literal["encoder", "outcomes", "distilled"] = "encoder"
    """encoder = E_θ; outcomes = learned from what each instinct earns (extra [router]); distilled =
    what `pco distill` makes of E_θ."""
    features: Literal["words", "embeddings", "both"] = "words"
    """What inputs are told apart by: their words, embeddings by the encoder's model (a call
    each), or both."""
    explore: Literal["thompson", "upper"] = "thompson"
    """How training routes are drawn: by draws from what is known of each instinct, or by bounds."""
    scale: float | None = Field(default=None, ge=0.0)
    """Spread of these draws, or height of the bounds, in standard deviations; none = 1, or 0.2
    without repeats."""
    floor: Unit = 0.05
    """Share of training routes that are drawn uniformly, so that every route has a known chance."""
    repeats: Literal["auto", "yes", "no"] = "auto"
    """Whether a route is tried twice on an input, and a solved input visited again; auto = unless
    the executor's temperature is 0."""
    least: int = Field(default=0, ge=0)
    """Fewest instincts in a route; `select` is the most, and in between as many as promise to
    add."""


class CriticSettings(Group):
    """The critic D_ψ, which says what went wrong."""

    stages: Literal[1, 2] = 2
    """2 = a verdict, then its attribution (App. C.2); 1 = one call for both (Eq. 8)."""
    sees_reward: bool = True
    """Whether our templates show the critic the reward r itself; the paper's critic is not shown
    it."""
    trainable: bool = True
    """Whether the critic's own rubric ψ is rewritten."""
    skip_solved: bool = True
    """No critic call for a full reward: its critique is empty by definition."""
    penalty_weight: float = Field(default=1.0, ge=0.0)
    """Weight of the critic's penalty ρ; 0 = rewards alone count."""
    safety: bool = True
    """Whether a fixed clause has harmful instincts penalised and rewritten, and rewrites that the
    rule scan finds harmful are refused."""


class Update(Group):
    """How textual gradients become rewrites."""

    mode: Literal["minibatch", "online"] = "minibatch"
    """Rewrite after each batch, or after each example as Algorithm 1 is printed."""
    batch_size: int = Field(default=15, ge=1)
    """Training examples in a batch."""
    steps_per_epoch: Annotated[int, Field(ge=1)] | Literal["all"] = 1
    """Batches in an epoch; all = a full pass over the training split (Algorithm 1)."""
    epochs: int = Field(default=50, ge=1)
    """Length of the training in epochs."""
    max_gradients: int = Field(default=8, ge=1)
    """Gradients that go into one rewrite at the most (a seeded choice)."""
    accept: Literal["always", "improve", "improve_each"] = "always"
    """Which rewrites are kept: all; all or none, by whether the mean reward falls; or each by the
    examples that it touches."""
    accept_on: Literal["batch", "others"] = "batch"
    """Which examples judge: the batch that the rewrites come from, or as many others, run without
    the rewrites and with them."""
    maintain_every: int = Field(default=0, ge=0)
    """Tidy the codebook every so many batches: split grab-bags, merge twins, replace dead ones; 0 =
    never."""
    encoder_on_explored: bool = False
    """Whether θ also learns from explored routes, which it did not choose."""
    shared_by: int = Field(default=2, ge=1)
    """Examples of a batch that must complain alike before θ or φ is rewritten; in online mode 1
    will do, as in the paper."""
    text_updates: bool = True
    """Whether texts are rewritten at all (Table 3); in the preset small only where stronger models
    are named for it."""
    instinct_words: int = Field(default=25, ge=1)
    """Length cap of one instinct in words; a first instinct over it may stay as it is."""
    directive_words: int = Field(default=300, ge=1)
    """Length cap of θ, φ and ψ in words, each."""


class Validation(Group):
    """How the best state is found on the validation split, and when training stops early."""

    every: int = Field(default=10, ge=0)
    """Validate a state every so many batches, the one whose training examples earned most (in
    online mode, after as many examples); 0 = never."""
    subset: int = Field(default=60, ge=1)
    """Validation examples for each such look, the same ones each time."""
    finalists: int = Field(default=3, ge=1)
    """How many of the best are measured on the whole validation split at the end."""
    patience: int | None = Field(default=None, ge=1)
    """Stop early after so many validations without gain; none = three fifths of those planned, at
    least 2 and at most 5."""
    target_score: float | None = None
    """Stop early once validation reaches this, in the task's range of rewards."""


class Init(Group):
    """Where the first codebook comes from."""

    kind: Literal["expert", "random", "from_prompt", "file"] = "expert"
    """The task's seeds, generic ones that a model writes, your prompt taken apart, or a file."""
    path: str = ""
    """For kind = "file": a policy, which goes on with its directives, frozen marks and statistics,
    or a JSON list of instincts."""
    instincts: tuple[str, ...] = ()
    """Your own seeds for kind = "expert", in place of the task's."""
    frozen: tuple[int, ...] = ()
    """Indices of instincts that are never rewritten, counted in the list as it is given."""
    prompt: str = ""
    """Your present prompt: for kind = "from_prompt", and as the verdict's first row."""
    split: Literal["model", "sentences"] = "model"
    """For kind = "from_prompt": who takes it apart, a model, or we at its sentences and lines."""


class DataSettings(Group):
    """Your own data; a ready-made task brings its own."""

    path: str = ""
    """A file (.jsonl, .json, .csv, .tsv, .parquet) to draw the splits from, or a folder of them."""
    train: str = ""
    """A file of its own for the training split."""
    val: str = ""
    """A file of its own for the validation split."""
    test: str = ""
    """A file of its own for the test split."""
    input: str = "input"
    """A column, or a template over several such as "{title}\\n{body}"."""
    target: str | None = "target"
    """The reference column; "" or none = the task has no references."""
    messages: str = ""
    """A column that holds chat messages, in place of `input`."""
    id: str = ""
    """A column that names each row; "" = rows are named by their content."""
    split: str = ""
    """A column that names each row's split."""
    fractions: tuple[float, float, float] = (0.5, 0.25, 0.25)
    """Shares of train, val and test where splits are drawn; they sum to 1."""
    split_seed: int = 0
    """Seed of that draw, apart from the run's `seed`."""


class GepaSettings(Group):
    """GEPA through the `gepa` package, for optimizer = "gepa" or "gepa-merge"."""

    rollouts: int | None = Field(default=None, ge=1)
    """Rollouts after which it ends; none = as many as our training makes, ten times that under a
    budget, which then ends it."""
    minibatch: int = Field(default=3, ge=1)
    """Training examples that each reflection looks at (the GEPA paper's)."""
    merges: int = Field(default=5, ge=0)
    """Merges at the most, for "gepa-merge" (the GEPA paper's)."""


class MiproSettings(Group):
    """MIPROv2 through the `dspy` package, for optimizer = "mipro"."""

    auto: Literal["light", "medium", "heavy"] = "light"
    """How much it tries, by its own presets."""
    demos: int = Field(default=4, ge=0)
    """Examples of each kind, run and labelled, that a prompt may show; 0 = instructions alone."""


class GrpoSettings(Group):
    """GRPO through the `trl` package, for optimizer = "grpo"."""

    steps: int = Field(default=200, ge=1)
    """Steps of its optimizer; more of them let a finished run go on."""
    group: int = Field(default=8, ge=2)
    """Replies to one training example, whose rewards are compared with each other."""
    batch: int = Field(default=4, ge=1)
    """Training examples of a step: `batch` x `group` replies are written for each."""
    learning_rate: float = Field(default=1e-5, gt=0.0)
    """Of AdamW, the same in every step."""
    rank: int = Field(default=16, ge=1)
    """Rank of the LoRA adapter."""
    beta: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence from the model before training; 0 = none, as in `trl`."""
    four_bit: bool | None = None
    """Whether the model itself is held in 4 bits (NF4) while its adapter is trained; none = where a
    GPU is at hand."""


class UserCode(Group):
    """Your own reward and your own agent at work."""

    threads: int = Field(default=32, ge=1)
    """Calls at once of a function that is not async; 1 where it is not thread-safe."""
    seconds: float = Field(default=600.0, gt=0.0)
    """Seconds that one call may take, waiting for models not counted; more is a failed rollout."""
    trial: bool = True
    """Whether the reward is tried on one example before anything is paid for."""


class Budget(Group):
    """Limits for all roles together, checked before every attempt."""

    calls: int | None = Field(default=None, ge=0)
    """Calls; none = no limit."""
    tokens: int | None = Field(default=None, ge=0)
    """Tokens, prompts and replies together; none = no limit."""
    usd: float | None = Field(default=None, ge=0.0)
    """US dollars; none = no limit."""
    seconds: float | None = Field(default=None, ge=0.0)
    """Seconds of wall-clock time; none = no limit."""
    reserve_for_verdict: Unit | None = None
    """Share of each limit that training leaves for choosing and judging; none = what these are
    measured to take, a fifth at the most."""

    @property
    def limits(self) -> Limits:
        """What may be spent in all, time left out."""
        return Limits(self.calls, self.tokens, self.usd)


class Price(Group):
    """What a model costs, by its spec or name, in US dollars per million tokens; comes before the
    built-in table."""

    prompt: float = Field(ge=0.0)
    """For tokens of prompts."""
    completion: float = Field(ge=0.0)
    """For tokens of replies."""
    cached: float | None = Field(default=None, ge=0.0)
    """For prompt tokens that the server had cached; none = as `prompt`."""
