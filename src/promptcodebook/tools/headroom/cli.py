"""`pco headroom`: a few hundred rollouts that say what there is to win, before any training. The
test split is left alone. The prompts tried are today's and the single instincts of the first
codebook, or those in a folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import typer

from promptcodebook.assemble import Assembled, Plan, Sources, plan_run
from promptcodebook.base.intervals import ENOUGH
from promptcodebook.base.paths import read_text
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import shell
from promptcodebook.base.units import plural
from promptcodebook.cli import command
from promptcodebook.cli.command import columns, note, options, show, wrap_text
from promptcodebook.config import Budget
from promptcodebook.data import sample
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.method.critic import unit_reward
from promptcodebook.method.executor import EVALUATION, roll_out
from promptcodebook.method.failures import gather_all, too_many_failures
from promptcodebook.method.init import likely_instincts
from promptcodebook.method.policy import FixedPrompt, join_prompts
from promptcodebook.progress import counting
from promptcodebook.store.journal import until_done
from promptcodebook.tasks.program import AgentProgram
from promptcodebook.tools.headroom.split import Headroom, TriedPrompts, split
from promptcodebook.types import Example, Rollout, Trace

_CAVEAT = (
    "This covers only the prompts tried: training may write better ones, and no route of several "
    "instincts was tried."
)


@dataclass(frozen=True)
class Design:
    """Which inputs are answered under which prompts."""

    prompts: Sequence[str]
    examples: Sequence[Example]
    split: str

    @classmethod
    def of(cls, plan: Plan, prompts: Sequence[str], rollouts: int, of: str) -> Design:
        """Every prompt for which the rollouts suffice on twenty inputs. Raises ConfigError when
        they suffice for fewer than two prompts, DataError when the split has too few inputs."""
        prompts = list(dict.fromkeys(prompts))
        examples = plan.dataset.split(of)
        if len(examples) < ENOUGH:
            has = f"the split {of!r} of {plan.task.name} has {plural(len(examples), 'example')}"
            hint = f"choose a split with at least {ENOUGH}: --split train, val or test"
            raise DataError(has, hint=hint)
        most = rollouts // ENOUGH
        if len(prompts) < 2 or most < 2:
            fault = f"{plural(rollouts, 'rollout')} for {plural(len(prompts), 'prompt')}"
            needs = f"this needs two prompts, yours and another, with {ENOUGH} inputs each"
            hint = f"--rollouts {ENOUGH * len(prompts)}" if prompts[1:] else "--prompts FOLDER"
            raise ConfigError(f"{fault}: {needs}", hint=hint)
        chosen = sample(examples, rollouts // len(prompts[:most]))
        return cls(prompts[:most], chosen, of)


@dataclass(frozen=True)
class HeadroomResult:
    """What it came to; an input of which any answer failed is left out."""

    headroom: Headroom
    split: str
    inputs: int
    rollouts: int
    failed: int
    simulated: bool

    @property
    def sentence(self) -> str:
        model = "On the simulated model: " if self.simulated else ""
        prompts = plural(self.headroom.prompts, "prompt")
        on = f"From {self.rollouts} rollouts ({plural(self.inputs, 'input')}, {prompts})."
        return f"{model}{self.headroom.sentence} {on}"


@options
def headroom(
    wanted: command.TrainOptions,
    rollouts: int = typer.Option(300, min=1, help="Maximum number of answers."),
    prompts: Path | None = typer.Option(
        None, help="A folder with a .txt or .md file for each prompt, to use instead of instincts."
    ),
    split_name: command.SplitName = "train",
    as_json: command.Json = False,
) -> None:
    """Measure how much one better prompt, or a router, could gain on held-out inputs.

    Each input is answered with the current prompt and with each single instinct of the initial
    codebook. --budget limits all calls. Without it, --rollouts limits them if their number per
    answer is known. To resume, rerun the command; finished calls are not repeated."""
    settings, base = wanted.gather()
    plan = plan_run(settings, Sources(base))
    plan.task.require()
    arms = [plan.present_prompt, *_others(plan, prompts)]
    design = Design.of(plan, arms, rollouts, split_name)
    if (left := len(set(arms)) - len(design.prompts)) > 0:
        note(f"{plural(left, 'prompt')} not tried; for all: --rollouts {ENOUGH * len(set(arms))}")
    limits = settings.budget if wanted.budget else _limits(plan, rollouts)
    ready = replace(plan, config=plan.config.model_copy(update={"budget": limits}))
    asked = plan.config.model_copy(update={"budget": Budget()}).model_dump(), arms, split_name
    with until_done("pco headroom", *asked) as supplies:
        assembled = ready.connect(supplies)
        stop = command.announced(assembled.models.interrupt)
        made = run_sync(measure(assembled, design), stop)
    tree = {**asdict(made), "sentence": made.sentence, "tried": list(design.prompts)}
    typed = " ".join(["pco estimate", *([shell(str(wanted.config))] if wanted.config else [])])
    show(lambda: tree, lambda: f"{_text(made)}\n\nnext: {typed}", as_json=as_json)


async def measure(assembled: Assembled, design: Design) -> HeadroomResult:
    """Answers, and splits the rewards. Closes the connections. Raises TooManyFailures, where fewer
    than half of the inputs have all answers. Raises BudgetReached, Interrupted or MissingExtra."""
    config, models = assembled.config, assembled.models
    executor = config.roles.get("executor")
    greedy = executor is not None and executor.temperature == 0.0
    trial, present = assembled.trial(greedy=greedy), assembled.plan.present

    async def one(example: Example, prompt: str) -> Rollout:
        draws = config.randomness.at(EVALUATION, example.id)
        prompter = present if prompt == present.template else FixedPrompt(prompt)
        made = await roll_out(prompter, trial, example, draws)
        count(made)
        return made

    cells = [(example, prompt) for example in design.examples for prompt in design.prompts]
    more, simulated = "rerun it with a larger --budget", models.simulated
    async with models.at_work(more, f"{more}: everything paid for so far is kept"):
        with counting("measuring headroom", len(cells), sys.stderr, simulated=simulated) as count:
            rollouts = await gather_all(one(*cell) for cell in cells)
    failures = [r.failure for r in rollouts if r.failure is not None]
    lost = {rollout.example_id for rollout in rollouts if rollout.reward is None}
    kept = [example for example in design.examples if example.id not in lost]
    if len(kept) * 2 < len(design.examples):
        raise too_many_failures(failures, tuple(map(Trace, rollouts)), "measuring headroom: ")
    rows: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            unit = unit_reward(rollout.reward, config.reward_range)
            rows.setdefault(rollout.example_id, []).append(unit)
    tried = TriedPrompts(
        {example.id: example.input for example in kept},
        design.prompts,
        [rows[example.id] for example in kept],
        groups=[e.group or e.id for e in kept],
    )
    width = config.reward_range[1] - config.reward_range[0]
    found = split(tried, width)
    return HeadroomResult(
        found, design.split, len(kept), len(cells), len(failures), models.simulated
    )


def _others(plan: Plan, folder: Path | None) -> list[str]:
    texts, settings = list[str](), plan.seeding
    if folder is not None:
        files = sorted(f for f in folder.glob("*") if f.suffix in (".txt", ".md"))
        texts = [text for file in files if (text := read_text(file).strip())]
        if not texts:
            what = f"no prompt in {folder}" if folder.is_dir() else f"no folder {str(folder)!r}"
            raise ConfigError(what, hint="--prompts FOLDER with a .txt or .md file for each prompt")
    else:
        texts = likely_instincts(settings, plan.task.seeds, plan.earlier, plan.templates)
    return [join_prompts(plan.config.base_prompt, text) for text in texts if text]


def _limits(plan: Plan, rollouts: int) -> Budget:
    program = plan.task.program
    try:
        plan.task.reward(None)
    except ConfigError:  # a judge
        return Budget()
    if isinstance(program, AgentProgram) or program.roles:
        return Budget()
    return Budget(calls=rollouts * max(1, len(program.stages)))


def _text(made: HeadroomResult) -> str:
    found, model = made.headroom, "simulated model, " if made.simulated else ""
    failed = f"{made.failed} of {plural(made.rollouts, 'rollout')} failed"
    counts = f"{plural(made.inputs, 'input')} x {plural(found.prompts, 'prompt')}; {failed}"
    gains = {"one prompt over today's": found.prompt, "a word-based router over that": found.router}
    rows = [
        {"gain": name, "reward": f"{of.mean:+.3f}", "95 %": of.ends(signed=True, between="..")}
        for name, of in gains.items()
    ]
    text = [f"{model}{made.split} split, {counts}", columns(rows)]
    text += [wrap_text(made.sentence, ""), wrap_text(_CAVEAT, "- ")]
    return "\n\n".join(text)
