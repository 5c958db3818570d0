"""The values that flow through the house, and the Protocols it is handed.

All are frozen. Shapes: K = codebook size, S = instincts selected per input; indices are 0..K-1.
Rewards are in the task's `reward_range` where a field says `reward`, rescaled to [0, 1] where it
says `unit` (method decision 5).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, get_args

if TYPE_CHECKING:
    from promptcodebook.lm.base import Chat

__all__ = [
    "ROLES",
    "Check",
    "Codebook",
    "Evaluation",
    "Example",
    "Executor",
    "Failure",
    "Gradients",
    "Instinct",
    "Message",
    "Output",
    "Parameters",
    "Reward",
    "Rewrite",
    "Role",
    "Rollout",
    "Route",
    "Score",
    "Stage",
    "Step",
    "Tally",
    "Trace",
    "Usage",
    "Verdict",
]

Role = Literal[
    "encoder",
    "generator",
    "executor",
    "critic",
    "attribution",
    "updater",
    "judge",
    "untrusted",
]
ROLES: tuple[Role, ...] = get_args(Role)


def _no_fields() -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Example:
    """One row of data: x as text (`input`), y* as text (`target`, None = no reference).

    `messages` holds the chat when the input is one (`input` is then its readable rendering);
    `fields` are the row's own columns, for rewards and executors that need more than x and y*.
    """

    id: str
    input: str
    target: str | None = None
    messages: tuple[Message, ...] = ()
    fields: Mapping[str, object] = field(default_factory=_no_fields)


@dataclass(frozen=True, slots=True)
class Instinct:
    """c_k: one short natural-language directive. A `frozen` one is never rewritten."""

    text: str
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Codebook:
    """C = {c_0..c_{K-1}}; its order never changes."""

    instincts: tuple[Instinct, ...]

    def __len__(self) -> int:
        return len(self.instincts)

    def __getitem__(self, index: int) -> Instinct:
        return self.instincts[index]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(c.text for c in self.instincts)

    def replaced(self, index: int, text: str) -> Codebook:
        """The codebook with c_index reworded, everything else as it was."""
        new = replace(self.instincts[index], text=text)
        return Codebook((*self.instincts[:index], new, *self.instincts[index + 1 :]))


@dataclass(frozen=True, slots=True)
class Parameters:
    """Θ = {θ, φ, C, ψ}: everything that training rewrites."""

    encoder: str
    generator: str
    codebook: Codebook
    critic: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls cost. Tokens as the server reports them; `cost` in USD, None = unknown price."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    cost: float | None = 0.0
    latency_s: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        known = self.cost is not None and other.cost is not None
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_prompt_tokens + other.cached_prompt_tokens,
            (self.cost or 0.0) + (other.cost or 0.0) if known else None,
            self.latency_s + other.latency_s,
        )


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward says: a number in the task's range, and feedback for the critic."""

    value: float
    feedback: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a compound executor, kept so that the critic and the report can show it."""

    name: str
    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Output:
    """What an executor returns: y, the stages on the way, and whether y was cut at its cap."""

    text: str
    trace: tuple[Stage, ...] = ()
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """z: S distinct sorted indices (Eq. 3), who chose them, and why."""

    indices: tuple[int, ...]
    explored: bool = False
    repaired: bool = False
    fallback: bool = False
    constraints: tuple[str, ...] = ()
    analysis: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a chain broke: the stage (prompt, execute, reward, critique, attribute).

    `hint` is what to type next, where the error said so.
    """

    stage: str
    kind: str
    message: str
    traceback: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One forward pass (Eqs. 3-5) and its reward. `reward` is None when the rollout failed."""

    example_id: str
    route: Route | None = None
    prompt: str = ""
    output: str = ""
    stages: tuple[Stage, ...] = ()
    reward: float | None = None
    feedback: str = ""
    truncated: bool = False
    failure: Failure | None = None
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One policy over one set of examples, rollouts in the examples' order.

    `score` counts a failed rollout as the bottom of the range (`floor`); `answered` leaves it out
    (method decision 15). Both are None over no examples.
    """

    name: str
    split: str
    rollouts: tuple[Rollout, ...]
    floor: float = 0.0

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(self.floor if r.reward is None else r.reward for r in self.rollouts)

    @property
    def score(self) -> float | None:
        return sum(self.rewards) / len(self.rollouts) if self.rollouts else None

    @property
    def answered(self) -> float | None:
        known = [r.reward for r in self.rollouts if r.reward is not None]
        return sum(known) / len(known) if known else None

    @property
    def failed(self) -> int:
        return sum(r.reward is None for r in self.rollouts)

    @property
    def usage(self) -> Usage:
        return sum((r.usage for r in self.rollouts), Usage())


@dataclass(frozen=True, slots=True)
class Verdict:
    """ℓ_text: the critic's score in [0, 1] and its prose."""

    score: float
    feedback: str


@dataclass(frozen=True, slots=True)
class Gradients:
    """g_θ, g_φ, {g_ck}, g_ψ. An empty string or an absent index means: not to blame.

    `severity` is ρ per channel (method decision 20), keyed like the variables, where it was given.
    """

    encoder: str = ""
    generator: str = ""
    codebook: Mapping[int, str] = field(default_factory=lambda: dict[int, str]())
    critic: str = ""
    severity: Mapping[str, float] = field(default_factory=lambda: dict[str, float]())


@dataclass(frozen=True, slots=True)
class Trace:
    """H with what was said of it: rollout, unit reward, verdict, penalty ρ and gradients."""

    rollout: Rollout
    unit: float | None = None
    verdict: Verdict | None = None
    penalty: float = 0.0
    gradients: Gradients = Gradients()
    failure: Failure | None = None
    residual: float | None = None


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One LLM_upd(v, g): `variable` is 'encoder', 'generator', 'critic' or 'c<k>'."""

    variable: str
    before: str
    after: str
    gradient: str
    kept: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One update of Algorithm 1: what was tried, what was rewritten, and the state after it.

    `ema` is r̄ (of r - ρ), `success` the EMA of r, `selected` the cumulative selection counts;
    all have length K.
    """

    index: int
    epoch: int
    epsilon: float
    traces: tuple[Trace, ...]
    rewrites: tuple[Rewrite, ...]
    parameters: Parameters
    ema: tuple[float, ...]
    success: tuple[float, ...]
    selected: tuple[int, ...]
    reverted: bool = False


class Executor(Protocol):
    """y = M(p, x): the frozen model, or the user's own agent around it."""

    async def __call__(self, prompt: str, example: Example, lm: Chat) -> str | Output: ...


class Reward(Protocol):
    """r(y, y*): a number in the task's range, or a Score that carries feedback. May be async."""

    def __call__(
        self, example: Example, output: str
    ) -> float | bool | Score | Awaitable[float | bool | Score]: ...


class Check(Protocol):
    """Looks at a rewrite before it is kept: None = fine, else the reason for refusing it."""

    def __call__(
        self, variable: str, text: str, before: str, others: Sequence[str]
    ) -> str | None: ...


class Tally(Protocol):
    """Counts an incident by name ('rate_limited', 'malformed', 'route_repairs', ...)."""

    def __call__(self, name: str, count: int = 1) -> None: ...
