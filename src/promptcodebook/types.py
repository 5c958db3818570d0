"""The values that flow through the house, all frozen, and the Protocols that it is handed. Shapes:
K = codebook size, S = instincts selected per input; indices are 0..K-1. A `reward` is in the task's
`reward_range`, a `unit` in [0, 1] (method decision 5)."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from promptcodebook.base.text import shown_table
from promptcodebook.calls import Chat, Message, Role, Tree, Usage, in_words

Channel = Literal["encoder", "generator", "codebook"]
"""What a verdict is assigned to: routing, composition, or the instincts."""
Component = Channel | Literal["critic"]
"""What Theorem 5 sums over: the channels, and the critic's own rubric."""
Directive = Literal["encoder", "generator", "critic"]
# Runs of an earlier version also hold what was split, merged and revived.
Origin = Literal["gradient", "safety", "trial", "split", "merge", "revive"]
"""What asks for a rewrite: a gradient, a harmful text, maintenance, or a trial of θ."""
Variable = Directive | int
"""A text that training rewrites: θ, φ, ψ, or the index k of an instinct c_k."""


def variable_name(variable: Variable) -> str:
    """'encoder', 'generator', 'critic' or 'c<k>': in logs, reports and keys of randomness."""
    return variable if isinstance(variable, str) else f"c{variable}"


@dataclass(frozen=True, slots=True)
class Example:
    """One row of data: x (`input`) and y* (`target`, None = no reference). `messages` hold a chat
    whose rendering is `input`; `fields` are the row's columns, for rewards and executors. `digest`
    is of what the messages hold beside their texts ('' = nothing). Rows of one `group`, such as a
    conversation, depend on one another ('' = it depends on none). `where` is the row's place, such
    as 'tickets.jsonl:12', unless a column of the data gave the id."""

    id: str
    input: str
    target: str | None = None
    messages: tuple[Message, ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict[str, object])
    digest: str = ""
    where: str = field(default="", compare=False, repr=False)
    group: str = ""

    @property
    def media(self) -> tuple[Tree, ...]:
        """Its parts that are not text, as OpenAI's wire has them."""
        return tuple(part for message in self.messages for part in message.media)

    @property
    def cache_text(self) -> str:
        """The input and the digest: what tells one input from another."""
        return f"{self.input} {self.digest}" if self.digest else self.input


@dataclass(frozen=True, slots=True)
class Instinct:
    """c_k: one short natural-language directive.

    - `text`: its wording, at most `update.instinct_words` words once it is rewritten.
    - `frozen`: whether training leaves it as it is (False)."""

    text: str
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Codebook:
    """C = {c_0..c_{K-1}}; its order never changes.

    - `instincts`: the K instincts; an index k into them is an instinct's name everywhere."""

    instincts: tuple[Instinct, ...]

    def __len__(self) -> int:
        return len(self.instincts)

    def __getitem__(self, index: int) -> Instinct:
        return self.instincts[index]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(c.text for c in self.instincts)

    def _repr_html_(self) -> str:
        rows = ((k, c.text, "frozen" if c.frozen else "") for k, c in enumerate(self.instincts))
        return shown_table(f"{len(self)} instincts", ("k", "instinct", ""), rows)

    def reword(self, index: int, text: str) -> Codebook:
        """The codebook with c_index reworded, everything else as it was."""
        new = replace(self.instincts[index], text=text)
        return Codebook((*self.instincts[:index], new, *self.instincts[index + 1 :]))


@dataclass(frozen=True, slots=True)
class Parameters:
    """Θ = {θ, φ, C, ψ}: everything that training rewrites.

    - `encoder`: θ, the directive by which instincts are picked for an input.
    - `generator`: φ, the directive by which they become a prompt.
    - `codebook`: C, the K instincts.
    - `critic`: ψ, the critic's rubric."""

    encoder: str
    generator: str
    codebook: Codebook
    critic: str

    @property
    def texts(self) -> dict[Variable, str]:
        """Each by its variable: θ, φ, every c_k, ψ."""
        texts: dict[Variable, str] = {"encoder": self.encoder, "generator": self.generator}
        texts.update(enumerate(self.codebook.texts))
        return {**texts, "critic": self.critic}


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward returns.

    - `value`: a number in the task's `reward_range`.
    - `feedback`: what was wrong, in words, for the critic ('')."""

    value: float
    feedback: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a 'user', an 'assistant' or another said, a 'tool call' with its arguments, a 'tool
    result', or an 'image' as a data URL. `name` is the tool's, or says what the image is."""

    kind: str
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a compound executor, kept so that the critic and the report can show it.

    - `name`: the step's name, the same for every example.
    - `input`, `output`: its texts.
    - `turns`: what people are shown of it: what was new to the model, and its reply (none)."""

    name: str
    input: str
    output: str
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """p: the composed system prompt.

    - `text`: the prompt; with `stages` all of them, each behind its name.
    - `stages`: with `compose_per_stage` the prompt of each stage by its name ({}).
    - `holds_input`: whether the input is in it already, and is not sent after it (False)."""

    text: str
    stages: Mapping[str, str] = field(default_factory=dict[str, str])
    holds_input: bool = False

    @classmethod
    def of_stages(cls, stages: Mapping[str, str]) -> Prompt:
        """One for each stage; the whole has every one under its name."""
        return cls("\n\n".join(f"{stage}: {text}" for stage, text in stages.items()), stages)

    @classmethod
    def read(cls, text: str, stages: Sequence[str]) -> Prompt:
        """What `of_stages` made of prompts for these stages; any other text is for all of them."""
        heads = [re.escape(f"{stage}: ") for stage in stages]
        found = re.fullmatch("\n\n".join(f"{head}(.*?)" for head in heads), text, re.DOTALL)
        return cls(text, dict(zip(stages, found.groups(), strict=True)) if found else {})

    def of(self, stage: str) -> str:
        """The prompt for one stage of a compound executor; the whole where it has none."""
        return self.stages.get(stage, self.text)


@dataclass(frozen=True, slots=True)
class PromptLength:
    """Tokens of the prompts that the executor was sent in a rollout (method decision 17)."""

    longest: int = 0
    total: int = 0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What an executor returns.

    - `text`: y, the answer.
    - `trace`: the stages of a compound executor (none).
    - `truncated`: whether y was cut at a length cap (False).
    - `fields`: what a reward may read beside the text, as JSON ({}).
    - `usage`: calls of its own, past `lm`; without a `cost` above 0 their price is unknown (None).
    """

    text: str
    trace: tuple[Stage, ...] = ()
    truncated: bool = False
    fields: Mapping[str, object] = field(default_factory=dict[str, object])
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """z: S distinct sorted indices (Eq. 3), who chose them, and why.

    - `indices`: the instincts, rising.
    - `explored`: whether training drew them (False).
    - `repaired`: whether its first reply was no valid route (False).
    - `fallback`: whether θ made no valid route, and its picks were filled up (False).
    - `fault`: why, or why a learned router could not read the input ("").
    - `constraints`, `analysis`: what the encoder read in the input, and its reasons."""

    indices: tuple[int, ...]
    explored: bool = False
    repaired: bool = False
    fallback: bool = False
    constraints: tuple[str, ...] = ()
    analysis: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What was learned of routing from outcomes, as numbers that `routing/ranking.py` reads.
    `weights` has K + 1 rows of whole numbers, a column a hashed feature, in units of `unit`: of the
    reward without instincts, then of what each adds; `bias` has as many. `likeness` is the worth of
    a text being like the input, `more` that of each further instinct. `rarity` weighs the features;
    a route has at least `least` instincts. Where embeddings count,
    `center` and `spread` are their mean and deviation over the training inputs, each row has a
    column more a dimension, and `words` is the hashed features' share of the squared length;
    `images`: they are embeddings of an input with its images."""

    rarity: tuple[float, ...]
    unit: float
    weights: tuple[tuple[int, ...], ...]
    bias: tuple[float, ...]
    likeness: float = 0.0
    more: float = 0.0
    least: int = 0
    outcomes: int = 0
    kind: Literal["outcomes", "distilled"] = "outcomes"
    center: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    words: float = 1.0
    images: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """A learned router's scores of one input: without instincts, what each adds, and any further
    one (`more`). They rank routes. In shares of the reward's range, they are not calibrated and may
    lie outside it. `features` are what was read of the input, by their numbers, and `vector` its
    embedding, packed."""

    nothing: float
    marginal: tuple[float, ...]
    more: float = 0.0
    features: tuple[int, ...] = field(default=(), compare=False, repr=False)
    vector: str = field(default="", compare=False, repr=False)

    def alone(self, k: int) -> float:
        return self.nothing + self.marginal[k]

    def of(self, indices: Sequence[int]) -> float:
        """The score with these instincts."""
        crowd = self.more * max(0, len(indices) - 1)
        return self.nothing + math.fsum(self.marginal[k] for k in indices) + crowd


@dataclass(frozen=True, slots=True)
class Outcome:
    """One rollout as the model sees it: the reward in [0, 1] with these instincts, each in its
    version (how often it had been rewritten) and as like the input as it then was. `part` = an
    observation of one instinct's own part."""

    example_id: str
    indices: tuple[int, ...]
    versions: tuple[int, ...]
    likeness: tuple[float, ...]
    reward: float
    weight: float = 1.0
    part: bool = False

    def reads_as(self, versions: Sequence[int]) -> bool:
        return all(versions[k] == v for k, v in zip(self.indices, self.versions, strict=True))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a chain broke.

    - `stage`: route, compose, prompt (neither), execute, reward, critique, attribute, adversary or
      update.
    - `kind`, `message`, `hint`, `traceback`: the error's class and words, what to type, and where.
    - `unreachable`: whether a model could not be asked; `lasting`: nor by waiting (False)."""

    stage: str
    kind: str
    message: str
    traceback: str = ""
    hint: str = ""
    unreachable: bool = False
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Rollout:
    """One forward pass (Eqs. 3-5).

    - `example_id`, `route`, `prompt`: the example x, z and p.
    - `output`, `fields`, `stages`: y, as the executor returned it.
    - `reward`: r in the task's `reward_range`; None: the rollout failed, as `failure` says.
    - `feedback`: what the reward returned beside r ('').
    - `truncated`: whether y was cut at its length cap (False).
    - `usage`: what its calls took.
    - `prompt_length`: tokens of the prompts that the executor was sent; None: not known.
    - `metered`: False: its program asked models past `lm` and reported nothing (True)."""

    example_id: str
    route: Route | None = None
    prompt: str = ""
    output: str = ""
    fields: Mapping[str, object] = field(default_factory=dict[str, object])
    stages: tuple[Stage, ...] = ()
    reward: float | None = None
    feedback: str = ""
    truncated: bool = False
    failure: Failure | None = None
    usage: Usage = Usage()
    prompt_length: PromptLength | None = None
    metered: bool = True

    @property
    def said(self) -> str:
        """The output with its tool calls, in words."""
        return in_words(self.output, self.fields.get("tool_calls"))

    @property
    def empty(self) -> bool:
        """Whether the program answered with nothing, and earned nothing with that."""
        answered = self.failure is None or self.failure.stage == "reward"
        return answered and not (self.output.strip() or self.fields or self.reward)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One policy over examples, in their order.

    - `name`, `split`: which policy, and where the examples are from.
    - `rollouts`: one for each example.
    - `floor`: the least reward (0).
    - `groups`: the group of each rollout; rows of one group count as one (() = each by itself).

    `score` counts a failed rollout as the `floor`, `answered` leaves it out (method decision 15);
    both are None over no examples."""

    name: str
    split: str
    rollouts: tuple[Rollout, ...]
    floor: float = 0.0
    groups: tuple[str, ...] = ()

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

    @property
    def prompt_length(self) -> PromptLength | None:
        """The longest over all rollouts; None where none was recorded."""
        known = [r.prompt_length for r in self.rollouts if r.prompt_length is not None]
        if not known:
            return None
        longest, total = max(p.longest for p in known), max(p.total for p in known)
        return PromptLength(longest, total, any(p.estimated for p in known))

    @property
    def fallbacks(self) -> float | None:
        """Share of the routes that the encoder did not give; None where nothing was routed."""
        routes = [r.route for r in self.rollouts if r.route is not None]
        return sum(route.fallback for route in routes) / len(routes) if routes else None


@dataclass(frozen=True, slots=True)
class Critique:
    """ℓ_text: what the critic says of one rollout.

    - `score`: in [0, 1].
    - `feedback`: its prose.
    - `harmful`: reasons why a text is harmful, by the variable's name ({}).
    - `notes`: the other texts of its reply by their fields' names; reports show them all ({})."""

    score: float
    feedback: str
    harmful: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Gradients:
    """Textual gradients; empty or absent = not to blame.

    - `encoder`, `generator`, `codebook`, `critic`: g_θ, g_φ, {g_ck} by k, g_ψ.
    - `severity`: each part's fault in [0, 1] (method decision 20), in a Trace as ρ(g_v). The
      codebook has one number for all active instincts; the paper's is a mean over them (Eq. 33)."""

    encoder: str = ""
    generator: str = ""
    codebook: Mapping[int, str] = field(default_factory=dict[int, str])
    critic: str = ""
    severity: Mapping[Component, float] = field(default_factory=dict[Component, float])

    @property
    def blamed(self) -> dict[Variable, str]:
        """Each text that is to blame, with its gradient."""
        texts: dict[Variable, str] = {"encoder": self.encoder, "generator": self.generator}
        texts |= {**self.codebook, "critic": self.critic}
        return {variable: text for variable, text in texts.items() if text}


@dataclass(frozen=True, slots=True)
class Trace:
    """H: a rollout with what the critic made of it.

    - `rollout`: the forward pass.
    - `unit`: its reward scaled to [0, 1]; None: it failed.
    - `verdict`: the critic's; None: it was not asked.
    - `penalty`: ρ, times `critic.penalty_weight` (0).
    - `gradients`: g of each text that is to blame (none).
    - `failure`: why the critic or its attribution failed (None).
    - `residual`: the δ of Theorem 5, of what was rated (None)."""

    rollout: Rollout
    unit: float | None = None
    verdict: Critique | None = None
    penalty: float = 0.0
    gradients: Gradients = Gradients()
    failure: Failure | None = None
    residual: float | None = None


@dataclass(frozen=True, slots=True)
class RefusedReply:
    """A reply that was no rewrite, and why; another was asked for."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One LLM_upd(v, g).

    - `variable`: which text: "encoder", "generator", "critic", or the index of an instinct.
    - `before`, `after`, `gradient`: the texts.
    - `kept`, `reason`: whether `after` took the place of `before`, and why not. Maintenance and
      trials give a reason for what is kept, too.
    - `failure`: why there was no text (None); `earlier`: a refused reply before `after` (None).
    - `origin`: what asked for it ("gradient")."""

    variable: Variable
    before: str
    after: str
    gradient: str
    kept: bool
    reason: str = ""
    failure: Failure | None = None
    earlier: RefusedReply | None = None
    origin: Origin = "gradient"


@dataclass(frozen=True, slots=True)
class ThetaTrial:
    """A rewritten θ on trial: the last that passed, with its share of routes that fell back, and
    the routes that the new one has made, with how many fell back."""

    before: str
    share_before: float = 0.0
    routed: int = 0
    fell: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One update of Algorithm 1: what was tried, what was rewritten, and the state after it.

    - `index`, `epoch`: counted from 0.
    - `epsilon`: ε, the chance that a route of it was explored.
    - `traces`: one for each example of the batch.
    - `rewrites`: what the updater wrote, kept or refused.
    - `parameters`: Θ after it.
    - `ema`, `success`, `selected`, `evidence`: RoutingStatistics after it, a number for each of the
      K instincts.
    - `reverted`: the variables whose rewrite passed every check and was taken back by
      `update.accept`.
    - `ranking`: what was learned of routing, if it is (None).
    - `harmful`: the texts called so by now.
    - `trial`: of a rewritten θ that is on trial (None)."""

    index: int
    epoch: int
    epsilon: float
    traces: tuple[Trace, ...]
    rewrites: tuple[Rewrite, ...]
    parameters: Parameters
    ema: tuple[float, ...]
    success: tuple[float, ...]
    selected: tuple[int, ...]
    reverted: tuple[Variable, ...] = ()
    evidence: tuple[float, ...] = ()
    ranking: Ranking | None = None
    harmful: tuple[str, ...] = ()
    trial: ThetaTrial | None = None


class Program(Protocol):
    """y = M(p, x): the frozen model, or a pipeline of calls. A policy file remembers its `name`;
    `stages` may each have a prompt; `roles` are those it asks beside the executor."""

    @property
    def name(self) -> str: ...

    @property
    def stages(self) -> Sequence[str]: ...

    @property
    def roles(self) -> Set[Role]: ...

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output: ...


class Executor(Protocol):
    """The user's own agent, sync or async; its prompt is a text, or a `Prompt` if annotated so."""

    async def __call__(self, prompt: Any, example: Example, lm: Chat) -> str | Output: ...


Scored = float | bool | Score | tuple[float, str] | Mapping[str, float | str]
"""What a reward may return: a number, one with feedback, or {"score": number, "feedback": text}."""


class TextReward(Protocol):
    """r(y, y*) of y's text: a number in the task's range, alone or with feedback; may be async."""

    def __call__(self, example: Example, output: str) -> Scored | Awaitable[Scored]: ...


class OutputReward(Protocol):
    """r(y, y*) of the whole Output: its parameter is annotated as `Output`."""

    def __call__(self, example: Example, output: Output) -> Scored | Awaitable[Scored]: ...


Reward = TextReward | OutputReward


class Check(Protocol):
    """Looks at a rewrite before it is kept: None = fine, else the reason for refusing it."""

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None: ...
