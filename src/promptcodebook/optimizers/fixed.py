"""One prompt for every input: what a learned policy is measured against.

`best_fixed` has four candidates: three prompts that the policy composed on validation, with its
most chosen instincts (ties: best earners), and its S most chosen instincts word for word. With
`compose_per_stage` each stage gets its own part. A prompt that copies eight words in a row from its
input, or reveals its answer, is no candidate. On private data only the last is one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from promptcodebook.base.randomness import Draws
from promptcodebook.calls import Usage
from promptcodebook.config import Config
from promptcodebook.data import sample
from promptcodebook.method.failures import gather_all
from promptcodebook.method.policy import Deployed, FixedPrompt, join_prompts
from promptcodebook.method.rewrite_checks import NoLeakCheck
from promptcodebook.method.state import State
from promptcodebook.optimizers.base import Optimizer, Problem, Result, evaluate
from promptcodebook.optimizers.reserve import VerdictReserve
from promptcodebook.policy.file import BEST_FIXED, BEST_SINGLE, CONCAT, NONE, PRESENT, PolicyFile
from promptcodebook.tasks.program import AgentProgram
from promptcodebook.types import Example, Prompt, Rollout, Route

UNTRAINED = "untrained"  # name of the row that a result is set beside to see what training did
VERBATIM = "verbatim"  # name of the row with the instincts put in as they are
ORACLE = "oracle"  # name of the row with the right instructions for each input
# Instincts, and prompts, that are measured on validation to find the best one; and training
# examples by which instincts are ranked before.
SHORTLIST, _RANKED = 3, 1000


class Present:
    """What the user has today: their present prompt, or the task's zero-shot prompt."""

    async def optimize(self, problem: Problem) -> Result:
        prompt = problem.assembled.plan.present_prompt
        own = isinstance(problem.assembled.task.program, AgentProgram)
        bare = "your program as it is" if own else "zero-shot (no prompt)"
        title = "the present prompt" if prompt else bare
        return Result(PRESENT, title, problem.assembled.plan.present)


def baselines() -> Sequence[Optimizer]:
    """The rows before every result; the first is what gains are measured against."""
    return (Present(),)


def concat_row(policy: PolicyFile) -> Result:
    """All of a policy's instincts in one prompt."""
    return Result(CONCAT, "one prompt with all its instincts (concat)", FixedPrompt(policy.concat))


def has_best_fixed(config: Config) -> bool:
    """Whether a learned prompt can be more than the single instincts that are measured anyway."""
    singles = config.learns_routes and config.compose == "verbatim"
    return not singles or config.select > 1


async def best_fixed_row(
    problem: Problem, policy: PolicyFile, state: State, reserve: VerdictReserve
) -> Result | None:
    """The best of the policy's own prompts for every input, by the validation split: its most
    chosen instincts, verbatim, and the prompts made of them. None where it gave no prompt yet."""
    config, store = problem.assembled.config, problem.store
    if not has_best_fixed(config):
        return None
    made: Sequence[Rollout] = ()
    if (validated := store.validation_at(state.step - 1)) is not None:
        made = validated.evaluation.rollouts
    elif state.step:
        made = [trace.rollout for trace in store.traces(state.step - 1)]
    rollouts = [r for r in made if r.route is not None]
    uses = Counter(k for r in rollouts if r.route is not None for k in r.route.indices)
    if not uses:
        return None
    most = sorted(uses, key=lambda k: (-uses[k], k))[: policy.select]
    prompts = [policy.verbatim(Route(tuple(sorted(most))))]
    prompts += islice(_typical(problem, policy, rollouts, uses), SHORTLIST)
    unique = [Prompt.read(text, policy.stages) for text in dict.fromkeys(prompts)]
    compared = problem.assembled.plan.compared
    best = await _best_payable(problem, BEST_FIXED, unique, compared, reserve)
    title = "the best of its prompts, used for all inputs (best_fixed)"
    return Result(BEST_FIXED, title, FixedPrompt(best.text, best.stages))


def _typical(
    problem: Problem, policy: PolicyFile, rollouts: Sequence[Rollout], uses: Counter[int]
) -> Iterator[str]:
    """The prompts of most chosen instincts first; none that leaks, none of a private task."""
    plan = problem.assembled.plan
    if plan.task.private:
        return

    def standing(rollout: Rollout) -> tuple[int, float]:
        indices = rollout.route.indices if rollout.route is not None else ()
        return sum(uses[k] for k in indices), rollout.reward or 0.0

    inputs = {e.id: e for e in (*plan.dataset.val, *plan.dataset.train)}
    for rollout in sorted(rollouts, key=standing, reverse=True):
        leaks = NoLeakCheck([inputs[rollout.example_id]])
        if rollout.prompt and leaks(0, rollout.prompt, policy.concat, ()) is None:
            yield rollout.prompt


def untrained_row(problem: Problem, state: State) -> Result:
    """The first codebook, routed and composed as the learned one is."""
    composer = problem.assembled.composer(problem.assembled.plan.prompt_stages)
    prompter = Deployed(composer, state.parameters, state.statistics)
    return Result(UNTRAINED, "the untrained codebook", prompter)


async def best_single_row(problem: Problem, policy: PolicyFile, reserve: VerdictReserve) -> Result:
    """The one instinct that is best on the validation split, of those that promise most."""
    assembled, book = problem.assembled, policy.parameters.codebook
    ranking, promise = policy.statistics.ranking, list(policy.statistics.standing)
    if ranking is not None:
        inputs = sample(assembled.dataset.train, _RANKED)
        read = await gather_all(assembled.ranks.rank(book, ranking, each) for each in inputs)
        columns = zip(*(expected.marginal for _, expected, _ in read), strict=True)
        promise = [math.fsum(column) for column in columns]
    listed = sorted(range(len(book)), key=lambda k: (-promise[k], k))[:SHORTLIST]
    prompts = [Prompt(join_prompts(policy.base_prompt, book.texts[k])) for k in listed]
    val = sample(assembled.plan.validated, assembled.config.validation.subset)
    best = await _best_payable(problem, BEST_SINGLE, prompts, val, reserve)
    return Result(BEST_SINGLE, "the best single instinct", FixedPrompt(best.text))


async def _best_payable(
    problem: Problem,
    row: str,
    prompts: Sequence[Prompt],
    examples: Sequence[Example],
    reserve: VerdictReserve,
) -> Prompt:
    """The best one where the budget allows to measure that, else the first, as is expected."""
    if not reserve.affords(len(prompts) * len(examples), 0):
        return prompts[0]
    return await reserve.within(best_prompt(problem, row, prompts, examples), prompts[0])


async def best_prompt(
    problem: Problem, row: str, prompts: Sequence[Prompt], examples: Sequence[Example]
) -> Prompt:
    """The one that earns most on the examples; the first where there is nothing to measure."""
    if not examples or len(prompts) == 1:
        return prompts[0]
    scores: list[float] = []
    for number, prompt in enumerate(prompts, start=1):
        fixed = FixedPrompt(prompt.text, prompt.stages)
        phase = f"validating prompt {number} of {len(prompts)}"
        scores.append((await evaluate(problem, row, fixed, examples, phase)).score or 0.0)
    return prompts[scores.index(max(scores))]


def reference_rows(problem: Problem) -> Sequence[Result]:
    """No instruction, unless the user has none, and the right ones where the task knows them."""
    plan, rows = problem.assembled.plan, list[Result]()
    if plan.present_prompt != plan.config.base_prompt:
        rows.append(Result(NONE, "no instruction", FixedPrompt(plan.config.base_prompt)))
    if plan.task.oracle is not None:
        oracle = OraclePrompt(plan.task.oracle, plan.config.base_prompt)
        rows.append(Result(ORACLE, "the right instructions", oracle))
    return rows


def rows_without(learned: Deployed) -> Sequence[Result]:
    """The learned policy without its tool descriptions, where it has some."""
    texts = learned.parameters.codebook.texts
    silent = {k for k, text in enumerate(texts) if text.startswith("tool:")}
    title = "the learned policy without its tool descriptions"
    return [Result("without_tools", title, replace(learned, silent=silent))] if silent else []


def verbatim_rows(learned: Deployed) -> Sequence[Result]:
    """The learned policy without its generator, where it has one: a call less a query."""
    composer, title = learned.composer, "the learned policy without its generator"
    plain = replace(learned, composer=replace(composer, mode="verbatim"))
    return [Result(VERBATIM, title, plain)] if composer.mode == "generator" else []


@dataclass(frozen=True, slots=True)
class OraclePrompt:
    right: Callable[[Example], str]
    base_prompt: str

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        return None, Prompt(join_prompts(self.base_prompt, self.right(example))), Usage()
