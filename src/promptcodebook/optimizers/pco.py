"""Prompt Codebook Optimization: initialise, train (Algorithm 1), select; rows without training."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice

from promptcodebook.assemble import Assembled
from promptcodebook.base.incidents import Incident
from promptcodebook.base.randomness import Draws
from promptcodebook.base.text import shell
from promptcodebook.calls import Usage
from promptcodebook.config import Config
from promptcodebook.errors import ConfigError
from promptcodebook.method import rewrite_checks as checking
from promptcodebook.method.acceptance import Rescore
from promptcodebook.method.critic import Attribution, Critic
from promptcodebook.method.executor import answers_remark
from promptcodebook.method.init import Initialiser
from promptcodebook.method.policy import Composer, Deployed, FixedPrompt, join_prompts
from promptcodebook.method.safety import SafetyClause
from promptcodebook.method.state import Schedule, State
from promptcodebook.method.theta_guard import ThetaGuard
from promptcodebook.method.train import Credit, Learner, train
from promptcodebook.method.update import Updater
from promptcodebook.optimizers.base import Problem, Result, spending
from promptcodebook.optimizers.fixed import (
    best_fixed_row,
    best_prompt,
    best_single_row,
    concat_row,
    reference_rows,
    rows_without,
    untrained_row,
)
from promptcodebook.optimizers.reserve import train_to_reserve
from promptcodebook.optimizers.selection import Selection
from promptcodebook.policy.file import BEST_SINGLE, MEASURED, PolicyFile
from promptcodebook.policy.references import harm_in, policy_file, state_at
from promptcodebook.policy.scan import order_check, safety_check, trace_check
from promptcodebook.progress import Note, Phase, StepDone
from promptcodebook.routing.outcome_router import make_router
from promptcodebook.store.events import EndReason, Resumed, Started, Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.types import Check, Example, Parameters, Prompt, Rollout, Route

_ENOUGH = 20  # answers after which a note says what is wrong with most of them


class PCO:
    """Learns a codebook; every step is stored before the next begins. `build` makes the parts."""

    def __init__(self, build: Callable[[Assembled], Learner] | None = None) -> None:
        self._build = build or build_learner

    async def optimize(self, problem: Problem) -> Result:
        assembled, store = problem.assembled, problem.store
        learner = self._build(assembled)
        selection = Selection(problem, learner.composer)
        state = await first_or_stored(problem)
        training = _train(problem, learner, selection, state)
        ended, stop = await train_to_reserve(problem, training, selection.reserve)
        best, first = await selection.best(), state_at(store, -1)
        policy, harm = policy_file(assembled, best), harm_in(store, best.step - 1)
        rivals = [] if assembled.config.init.whole else [concat_row(policy)]
        if (fixed := await best_fixed_row(problem, policy, best, selection.reserve)) is not None:
            rivals.append(fixed)
        # A harmful first state is no rival, unless no state is better.
        if harm or not harm_in(store, -1):
            rivals.append(untrained_row(problem, first))
        if assembled.config.learns_routes:
            rivals.append(await best_single_row(problem, policy, selection.reserve))
        # The prompts of the rivals that only the run can find, which `fixed_prompt` then knows.
        for row in rivals:
            if row.name in MEASURED and isinstance(row.prompter, FixedPrompt):
                policy = policy.with_about(**{row.name: row.prompter.text})
        beware = (
            "Review the learned policy before you deploy it: every state of this run has a text "
            f"that the safety rules refuse ({harm})."
        )
        deployed = Deployed(learner.composer, best.parameters, best.statistics)
        shown = reference_rows(problem) if assembled.config.learns_routes else ()
        remarks = [_why_nothing_was_learned(store), beware if harm else ""]
        return Result(
            name="learned",
            title="the learned policy",
            prompter=deployed,
            ended=ended,
            policy=policy,
            rivals=rivals,
            references=(*shown, *rows_without(deployed)),
            remark=" ".join(filter(None, remarks)),
            stop=stop,
        )


def build_learner(assembled: Assembled) -> Learner:
    """Everything Algorithm 1 calls. Raises ConfigError for settings that exclude one another."""
    config, models = assembled.config, assembled.models
    blind = not config.learns_routes and config.encoder.mode == "none"
    if blind and config.explore.policy == "none":
        what = "encoder.mode = 'none' leaves only exploration, and explore.policy is 'none'"
        raise ConfigError(what, hint="change one of them")
    train, trial = assembled.dataset.train, assembled.trial()
    composer = assembled.composer(assembled.plan.prompt_stages)
    router = make_router(config, train, composer, models.lm)
    credit, updater = make_rewriting(assembled, config, [checking.NoLeakCheck(train)])
    return Learner(
        config=config,
        composer=composer,
        router=router,
        trial=trial,
        credit=credit,
        updater=updater,
        rescore=Rescore(config, composer, trial, router, train, credit.judge),
        guard=ThetaGuard(config, router, updater.tally, min(config.update.batch_size, len(train))),
    )


def make_rewriting(
    assembled: Assembled, config: Config, copies: Iterable[Check]
) -> tuple[Credit, Updater]:
    """Who blames texts, and who rewrites them; `copies` refuse what repeats data."""
    models, safe = assembled.models, config.critic.safety
    # What every rewrite must pass (method decision 11); hidden letters, markers, addresses and
    # secrets are refused even where `critic.safety` is off.
    checks: list[tuple[Check, Incident | None]] = [
        (checking.LengthCheck(config.update), Incident.REWRITES_LONG),
        (checking.near_copy, Incident.REWRITES_COPYING),
        (safety_check if safe else trace_check, Incident.REWRITES_UNSAFE),
        *((check, Incident.REWRITES_LEAKING) for check in copies),
        *((check, None) for check in assembled.task.checks),
    ]
    ask, templates, tally = models.ask, assembled.plan.templates, models.tally
    updater = Updater(ask, templates, config, checking.AllChecks(checks, tally), tally)
    # A critic that replies in one line has no place for the clause: the rules look alone.
    asked = "critic" if config.critic.stages == 2 else "critic_one"
    clause = SafetyClause.read() if safe and asked not in templates.one_line else None
    critic = Critic(ask, templates, tally, clause)
    attribution = Attribution(ask, templates, tally)
    return Credit(critic, attribution, config, order_check, tally), updater


async def first_or_stored(problem: Problem) -> State:
    """The state to train from: initialised now, or read back."""
    store, config = problem.store, problem.assembled.config
    outline = store.outline()
    if outline.parameters is not None:
        store.append(Resumed(outline.step, datetime.now(UTC).isoformat(timespec="seconds")))
        return state_at(store, outline.step)
    if config.init.written:
        problem.tell(Phase("writing the first codebook", 0, 1))
    state = await initialise(problem.assembled)
    store.append(Started(state.parameters, config.init.kind, state.statistics))
    return state


async def initialise(assembled: Assembled) -> State:
    """Θ and the routing statistics before the first step."""
    plan = assembled.plan
    config = plan.seeding
    tools = plan.tools if "tools" in config.learn else ()
    initialiser = Initialiser(assembled.models.ask, plan.templates, config, tools)
    return await initialiser.first(plan.task.seeds, plan.earlier)


def with_listed_codebook(config: Config) -> Config:
    """The same, but our general list replaces a first codebook that a model would write."""
    if not config.init.written:
        return config
    stand_in = config.init.model_copy(update={"kind": "expert", "instincts": ()})
    return config.model_copy(update={"init": stand_in})


async def _train(
    problem: Problem, learner: Learner, selection: Selection, state: State
) -> EndReason:
    assembled, store = problem.assembled, problem.store
    await learner.router.prepare()
    selection.tell_of_idle_patience()
    await selection.validate_if_due(state.step - 1)
    if (reason := selection.enough(state.step)) is not None:
        return reason
    config = assembled.config
    schedule = Schedule(assembled.dataset.train, config.update, config.randomness)
    if state.step:
        steps_then = islice(store.steps(traces=True), state.step)
        state = learner.router.recall(state, state_at(store, -1), steps_then)
    solved = {o.example_id for o in state.outcomes if not o.part and o.reward >= 1.0}
    # The stored steps, latest first, each with its traces, one at a time.
    before, earned, answers = range(state.step - 1, -1, -1), list[float](), list[Rollout]()
    cap = assembled.models.lm.sampling_of("executor").max_tokens
    past = (store.step_at(k, traces=True) for k in before)
    # Closed here: an abandoned generator would be left for the loop to clean up.
    async with aclosing(train(learner, schedule, state, past)) as steps:
        began = time.monotonic()
        async for step in steps:
            store.append(Stepped(step))
            problem.tell(spending(assembled.models))
            solved |= {t.rollout.example_id for t in step.traces if t.unit == 1.0}
            share = len(solved) / len(schedule.examples)
            problem.tell(StepDone(step, time.monotonic() - began, share))
            known = len(earned)
            earned += [r for t in step.traces if (r := t.rollout.reward) is not None]
            answers += [t.rollout for t in step.traces] if known < _ENOUGH else []
            if known < _ENOUGH <= len(earned):
                message = answers_remark(
                    len(answers),
                    cut=sum(answer.truncated for answer in answers),
                    empty=sum(answer.empty for answer in answers),
                    cap=cap,
                )
                if not message and len(set(earned)) == 1:
                    message = f"the first {len(earned)} answers all earned {earned[0]:g}, so "
                    message += "nothing can be learned; check that the reward reads them correctly"
                if message:
                    problem.tell(Note(message))
            if not selection.has_looked:
                selection.reserve.measure([t.rollout for t in step.traces])
            await selection.validate_if_due(step.index)
            if (reason := selection.enough(step.index + 1)) is not None:
                return reason
            began = time.monotonic()
    return "finished"


def _why_nothing_was_learned(store: RunStore) -> str:
    """Why a run left every text as it was; '' when one was rewritten, or nothing went wrong."""
    outline, faults = store.outline(), Counter[str]()
    if outline.step >= 0 and outline.parameters == store.parameters_at(-1):
        for step in store.steps(traces=True):
            failed = [t.failure for t in step.traces if t.failure is not None]
            faults.update(f"{failure.stage} failed with {failure.kind}" for failure in failed)
            # What a reason quotes comes after its colon.
            reasons = [r.reason.partition(":")[0] for r in step.rewrites if not r.kept]
            faults.update(f"a rewrite was refused: {reason}" for reason in reasons)
    if not faults:
        return ""
    most, times = faults.most_common(1)[0]
    return (
        f"Training rewrote no text at all: {most} ({times} of {faults.total()} faults); "
        f"pco runs show {shell(store.header.id)} quotes them."
    )


class ZeroShot:
    """The task's own zero-shot prompt, whatever the user's present prompt is."""

    async def optimize(self, problem: Problem) -> Result:
        plan = problem.assembled.plan
        text = join_prompts(plan.config.base_prompt, plan.task.zero_shot)
        return Result("zero_shot", "zero-shot", FixedPrompt(text))


class Concat:
    """All of the first instincts in one prompt."""

    async def optimize(self, problem: Problem) -> Result:
        _, policy = await _first(problem)
        return replace(concat_row(policy), title="all first instincts in one prompt", policy=policy)


class Untrained:
    """The first codebook, routed and composed as a learned one is."""

    async def optimize(self, problem: Problem) -> Result:
        state, policy = await _first(problem)
        return replace(untrained_row(problem, state), policy=policy)


class BestSingle:
    """One of the first instincts for every input: the best of all K on the validation split."""

    async def optimize(self, problem: Problem) -> Result:
        state, policy = await _first(problem)
        plan = problem.assembled.plan
        texts = state.parameters.codebook.texts
        texts = dict.fromkeys(join_prompts(plan.config.base_prompt, text) for text in texts)
        prompts = [Prompt(text) for text in texts]
        best = (await best_prompt(problem, BEST_SINGLE, prompts, plan.compared)).text
        title, policy = "the best single instinct, untrained", policy.with_about(best_single=best)
        return Result(BEST_SINGLE, title, FixedPrompt(best), policy=policy)


class RandomRoutes:
    """The first codebook with S of its K instincts drawn for each input, composed as ever."""

    async def optimize(self, problem: Problem) -> Result:
        state, policy = await _first(problem)
        plan, composer = problem.assembled.plan, problem.assembled.composer
        prompter = Drawn(composer(plan.prompt_stages), state.parameters, plan.config.select)
        return Result("random_routes", "random routes", prompter, policy=policy)


@dataclass(frozen=True)
class Drawn:
    """A prompt of S instincts that are drawn uniformly, by a draw of the input's own."""

    composer: Composer
    parameters: Parameters
    select: int

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        size = len(self.parameters.codebook)
        drawn = draws.generator("random route").sample(range(size), self.select)
        route = Route(tuple(sorted(drawn)), explored=True)
        prompt, usage = await self.composer.compose(self.parameters, route, example, draws)
        return route, prompt, usage


async def _first(problem: Problem) -> tuple[State, PolicyFile]:
    state = await first_or_stored(problem)
    return state, policy_file(problem.assembled, state)
