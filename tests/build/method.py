"""The parts of the method put together for a test; only the language model is scripted."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptcodebook import types
from promptcodebook.calls import LM, Reply, Request
from promptcodebook.config import Config, load_config
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.lm.structured import Ask
from promptcodebook.method.acceptance import Rescore
from promptcodebook.method.critic import Attribution, Critic
from promptcodebook.method.executor import Scorer, Trial
from promptcodebook.method.exploration import Router
from promptcodebook.method.policy import Composer
from promptcodebook.method.state import Schedule, State
from promptcodebook.method.templates import load_templates
from promptcodebook.method.theta_guard import ThetaGuard
from promptcodebook.method.train import Credit, Learner, train
from promptcodebook.method.update import Updater
from promptcodebook.routing.outcome_router import make_router
from promptcodebook.routing.ranking import RankedRoutes
from promptcodebook.tasks.program import SingleCall, make_program


class Counts(Counter[str]):
    """A Tally that can be read."""

    def __call__(self, name: str, count: int = 1) -> None:
        self[name] += count


def config(**tree: Any) -> Config:
    """A small configuration of the whole method: K = 4, S = 2, one example an update, and θ and φ
    not guarded, unless said otherwise."""
    small = {
        "preset": "full", "size": 4, "select": 2,
        "encoder": {"max_fallback": 1.0}, "update": {"shared_by": 1},
    }  # fmt: skip
    return load_config(small, tree)


# Settings of `explore` under which the encoder routes every example.
ENCODED = {"policy": "none"}


def one_batch(**tree: Any) -> Config:
    """A configuration of a single update over five examples."""
    update = {"batch_size": 5, "epochs": 1, **tree.pop("update", {})}
    return config(update=update, **tree)


def examples(count: int, start: int = 0) -> list[types.Example]:
    return [
        types.Example(f"x{i}", f"input {i}", f"target {i}") for i in range(start, start + count)
    ]


def book(*texts: str, frozen: Sequence[int] = ()) -> types.Codebook:
    given = texts or ("rule zero", "rule one", "rule two", "rule three")
    return types.Codebook(tuple(types.Instinct(text, k in frozen) for k, text in enumerate(given)))


def parameters(
    codebook: types.Codebook | None = None, encoder: str = "theta 0"
) -> types.Parameters:
    return types.Parameters(encoder, "phi 0", codebook or book(), "psi 0")


async def number_scorer(example: types.Example, output: types.Output) -> types.Score:
    """The reward is the number that the executor answered."""
    return types.Score(float(output.text))


def routed(*indices: int) -> str:
    return json.dumps({"constraints": ["c"], "selected_indices": list(indices), "analysis": "a"})


def verdict(score: float, feedback: str = "could be better") -> str:
    return json.dumps({"score": score, "feedback": feedback})


def attributed(
    rendering: str = "", instincts: Mapping[int, str] | str = "", routing: str = ""
) -> str:
    errors = instincts if isinstance(instincts, str) else {str(k): v for k, v in instincts.items()}
    return json.dumps(
        {"rendering_errors": rendering, "instinct_errors": errors or {}, "routing_errors": routing}
    )


def sent(request: Request) -> str:
    """All that a request says, system and user turns together."""
    return "\n".join(m.content for m in request.messages)


def is_adversary(request: Request) -> bool:
    """The adversarial call has the role critic too; only it examines a rubric."""
    return (
        request.role == "critic"
        and request.schema is not None
        and (request.schema.name == "RubricReply")
    )


def never(variable: types.Variable, text: str, before: str, others: Sequence[str]) -> str | None:
    """A Check that refuses nothing."""
    return None


def saying(role: str, reply: Scripted, about: str = "") -> ScriptedLM:
    """The talkative model, but for its replies in one role (about one input)."""

    def answer(request: Request) -> Scripted:
        mine = request.role == role and about in sent(request) and not is_adversary(request)
        return reply if mine else talkative(request)

    return ScriptedLM().reply_with(answer)


def answering(**by_role: Callable[[Request], Scripted | None]) -> ScriptedLM:
    """The talkative model, but for what these say of a request in their roles (None = nothing)."""

    def answer(request: Request) -> Scripted:
        reply_of = by_role.get(request.role)
        made = reply_of(request) if reply_of and not is_adversary(request) else None
        return talkative(request) if made is None else made

    return ScriptedLM().reply_with(answer)


def talkative(request: Request) -> Scripted:
    """A model that routes to (0, 1), always errs, and blames every part."""
    match request.role:
        case "encoder":
            return routed(0, 1)
        case "generator":
            return "Follow the rules."
        case "executor":
            return "0.5"
        case "critic" if is_adversary(request):
            return json.dumps({"feedback": "look at units"})
        case "critic":
            return verdict(0.6)
        case "attribution":
            return attributed("say it plainly", {k: f"sharpen {k}" for k in range(4)}, "read x")
        case _:
            return f"rewritten {len(sent(request)) % 97} {request.sample % 10_000}"


class Shuffled:
    """An LM whose replies come after random pauses, so that their order is another each time."""

    def __init__(self, inner: LM, seed: int) -> None:
        self._inner = inner
        self._random = random.Random(seed)

    async def __call__(self, request: Request) -> Reply:
        await asyncio.sleep(self._random.random() * 0.004)
        reply = await self._inner(request)
        await asyncio.sleep(self._random.random() * 0.004)
        return reply


@dataclass
class World:
    """A Learner with its scripted model, and the run it makes."""

    config: Config
    lm: ScriptedLM = field(default_factory=lambda: ScriptedLM().reply_with(talkative))
    scorer: Scorer = number_scorer
    executor: types.Executor | types.Program = field(default_factory=SingleCall)
    check: types.Check = never
    stages: tuple[str, ...] = ()
    wrap: Callable[[LM], LM] = lambda lm: lm
    output_format: str = ""
    pool: Sequence[types.Example] = ()
    tally: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        config = self.config
        model = self.wrap(self.lm)
        self.ask = Ask(model, self.tally)
        self.templates = load_templates(config.templates)
        self.critic = Critic(self.ask, self.templates, self.tally)
        self.attribution = Attribution(self.ask, self.templates, self.tally)
        parts = self.ask, self.templates, config.select, RankedRoutes(config.select).rank
        form = config.compose, config.base_prompt, self.output_format
        least = 1 if config.encoder.fewer else None
        self.composer = Composer(*parts, *form, self.stages, self.tally, least)
        self.program = make_program(self.executor, Path())
        self.trial = Trial(self.program, self.scorer, model)
        self.credit = Credit(self.critic, self.attribution, config)
        self.updater = Updater(self.ask, self.templates, config, self.check, self.tally)

    @property
    def router(self) -> Router:
        """ε-greedy, or one that learns from the outcomes of the pool's examples."""
        config = self.config
        return make_router(config, self.pool, self.composer, self.lm)

    @property
    def learner(self) -> Learner:
        config = self.config
        router = self.router
        rescore = Rescore(config, self.composer, self.trial, router, self.pool, self.credit.judge)
        return Learner(
            config=config,
            composer=self.composer,
            router=router,
            trial=self.trial,
            credit=self.credit,
            updater=self.updater,
            rescore=rescore,
            guard=ThetaGuard(config, router, self.tally, config.update.batch_size),
        )

    async def run(
        self,
        data: Sequence[types.Example],
        start: types.Parameters | None = None,
        state: State | None = None,
        past: Sequence[types.Step] = (),
    ) -> list[types.Step]:
        """All steps of a training run."""
        theta = "theta 0" if self.config.has_encoder else ""
        state = state or State.first(start or parameters(encoder=theta))
        schedule = Schedule(data, self.config.update, self.config.randomness)
        return [step async for step in train(self.learner, schedule, state, past)]

    async def step(self, start: types.Parameters | None = None) -> types.Step:
        """The only step of a run over five examples."""
        (step,) = await self.run(examples(5), start)
        return step

    def asked(self, role: str) -> list[Request]:
        """The requests of one role, the adversary's calls left out."""
        return [r for r in self.lm.history if r.role == role and not is_adversary(r)]

    @property
    def adversary_calls(self) -> list[Request]:
        return [r for r in self.lm.history if is_adversary(r)]
