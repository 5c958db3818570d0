"""`real-roles`: which roles of the method a small real model can carry, one at a time and together,
with the templates `few-shot` and with ours for larger models. The world is `control` of
`what-learns`: a codebook of sentences that order nothing. Rules (teacher.py) play the other roles.
real_roles.toml has the arms, and docs/experiments.md what was expected of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal, cast

from promptcodebook.assemble import Assembled, Sources
from promptcodebook.config import merge
from promptcodebook.data import Dataset
from promptcodebook.method.executor import Scorer
from promptcodebook.method.templates import TemplateSet, load_templates
from promptcodebook.optimizers.pco import build_learner
from promptcodebook.paper.experiments import experiment as shared
from promptcodebook.paper.experiments import what_learns
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab, Runs
from promptcodebook.paper.experiments.operators import OPERATORS
from promptcodebook.paper.experiments.page import Block, Page, PageTable, read_table
from promptcodebook.paper.experiments.teacher import Teacher, TeacherBehaviour
from promptcodebook.paper.tasks.constraints.checks import sentences
from promptcodebook.paper.tasks.houserules import task as houserules
from promptcodebook.paper.tasks.ifbench import score as ifbench
from promptcodebook.types import Example, Output, Score

# The arms in which the teacher plays every role, by task.
RULES, POOL_RULES = "rules", "pool-rules"
_TITLE = re.compile(r"messages about (.+?) broken:")
_UNSTATED = re.compile(r"^House rule .+?; it ", re.S)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One line of the ladder.

    Attributes:
        shots: Templates of the set `few-shot` in the place of ours; the model answers them.
        plain: Our templates that the model answers, and not the teacher.
        operator: A broken operator (operators.py); '' = none.
        feedback: stated: the checker names the rule; `unstated`: it names what the reply is;
            `false`: it names the rule of another topic; `foreign`: a form that no topic wants.
        start: The first codebook: general sentences, those of the firm's present prompt, or what
            the model writes at random.
        task: houserules, or the messages of pool.toml with IFEval's checks.
        share: Of the seeds, how many are run: less than 1 where a row decides little.
    """

    name: str
    title: str = ""
    shots: Sequence[str] = ()
    plain: Sequence[str] = ()
    operator: str = ""
    feedback: Literal["stated", "unstated", "false", "foreign"] = "stated"
    manner: Mapping[str, Any] = field(default_factory=dict[str, Any])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    start: Literal["general", "present", "random"] = "general"
    task: Literal["houserules", "pool"] = "houserules"
    share: float = 1.0


def arms() -> list[Arm]:
    return [Arm(**each) for each in read_table("real_roles")["arms"]]


def mixed(shots: Sequence[str]) -> TemplateSet:
    """Our templates, with some of the set `few-shot`."""
    ours, theirs = load_templates("default"), load_templates("few-shot")
    sources = {**ours.sources, **{name: theirs.sources[name] for name in shots}}
    lines = tuple(name for name in theirs.one_line if name in shots)
    return replace(ours, sources=sources, one_line=lines)


def pool_messages() -> Dataset:
    """The messages of pool.toml, topic after topic: half for training, half for the test."""
    train, test = list[Example](), list[Example]()
    for rule in read_table("pool")["rules"]:
        numbered = enumerate(rule["messages"])
        own = [Example(f"{rule['topic']} {n}", x, fields={"rule": rule}) for n, x in numbered]
        train += own[: len(own) // 2]
        test += own[len(own) // 2 :]
    return Dataset(tuple(train), (), tuple(test), "pool")


def pool_reward(example: Example, output: str) -> Score:
    """1 where IFEval's check is met, else 0; the feedback says what was asked for."""
    rule = cast("Mapping[str, Any]", example.fields["rule"])
    if ifbench.check(rule["id"], rule["kwargs"], example.input, output):
        return Score(1.0)
    told = f"House rule for messages about {rule['topic']} broken: The reply must be"
    return Score(0.0, f"{told} {rule['asked']}; it is not.")


@dataclass(frozen=True)
class Retold:
    """A reward whose feedback says less than the rule, or another rule."""

    inner: Scorer
    how: Literal["unstated", "false", "foreign"]

    async def __call__(self, example: Example, output: Output) -> Score:
        score = await self.inner(example, output)
        own = _TITLE.findall(score.feedback)
        if not own:  # nothing was wrong
            return score
        if self.how == "unstated":
            said = _UNSTATED.sub("The reply is not what is wanted. It ", score.feedback)
            return replace(score, feedback=said)
        (topic,) = houserules.topics_of(example)
        place = houserules.SIX.index(topic)
        if self.how == "foreign":
            form = read_table("real_roles")["foreign"][place]
            rule = f"House rule for messages about {own[0]} broken: The reply must be {form}"
            return replace(score, feedback=f"{rule}; it is none.")
        other = houserules.SIX[(place + 1) % len(houserules.SIX)]
        told = houserules.reward(Example("", "", fields={"topics": [other]}), output.text).feedback
        theirs = _TITLE.findall(told)
        return replace(score, feedback=told.replace(theirs[0], own[0]) if theirs else "")


def cell(arm: Arm, seed: int, spec: str, preset: str = "default") -> Cell:
    """One arm's run; its rewards are those of the last state."""
    table = read_table("real_roles")
    starts: Mapping[str, Mapping[str, Any]] = {
        "general": {"instincts": read_table("teacher")["general"]},
        "present": {"instincts": sentences(houserules.present_prompt(houserules.SIX))},
        "random": {"kind": "random"},
    }
    pool = arm.task == "pool"
    world: dict[str, Any] = {"init": starts[arm.start], "lm": spec, "seed": seed}
    world |= {"task": ""} if pool else {}
    settings = merge(table["settings"], world, arm.settings, table["scale"][preset])
    manner = {**table["manner"], **arm.manner}
    data = pool_messages() if pool else what_learns.one_topic(*table["messages"])

    def measure(lab: Lab) -> CellResult:
        assert lab.replies is not None, "this experiment needs a model"
        teacher = Teacher(TeacherBehaviour(**manner))
        lm = what_learns.Taught(lab.replies.counted, teacher, frozenset(arm.plain))
        sources = Sources(data=data, lm=lm, templates=mixed(arm.shots))
        if pool:
            program = houserules.PromptLast()
            sources = replace(sources, reward=pool_reward, executor=program)

        async def run(assembled: Assembled) -> CellResult:
            learner = build_learner(assembled)
            if arm.feedback != "stated":
                assert learner.trial.scorer is not None
                retold = Retold(learner.trial.scorer, arm.feedback)
                learner = replace(learner, trial=replace(learner.trial, scorer=retold))
            if arm.operator:
                learner = OPERATORS[arm.operator](learner)
            return await what_learns.learned(assembled, learner, judged_before=True)

        return lab.work(settings, run, sources)

    messages = read_table("pool") if pool else table["messages"]
    known = {"arm": repr(arm), "manner": manner, "data": messages}
    return Cell(f"{arm.name}/{seed}", {**settings, **known}, measure)


def _cells(order: shared.ExperimentRequest, spec: str) -> Sequence[Cell]:
    """All seeds of an arm before the next arm: those that decide come first."""
    return [
        cell(arm, seed, spec, order.preset)
        for arm in arms()
        for seed in range(math.ceil(arm.share * order.seeds))
    ]


# The page.


def gained(runs: Runs) -> list[float]:
    """The reward of a run's last state minus that of its first, by seed."""
    return [fmean(run["rewards"]) - fmean(run["first"]) for run in runs]


def _gain(runs: Runs) -> str:
    if len(runs) < 2:
        return f"{gained(runs)[0]:+.3f} (one run)" if runs else "none ran"
    return what_learns.with_reach(what_learns.over_seeds(gained(runs)))


def _line(arm: Arm, runs: Runs, rules: Runs) -> list[str]:
    gains = gained(runs)
    of_rules = fmean(gained(rules[: len(runs)])) if rules else math.nan
    calls, tokens, seconds = (
        fmean(
            sum(own[k] for role, own in run["usage"].items() if role != "executor") for run in runs
        )
        for k in range(3)
    )
    kept, written = (sum(run["kept"][k] for run in runs) for k in range(2))
    return [
        arm.title,
        _gain(runs),
        f"{fmean(gains) / of_rules:.2f}" if of_rules > 0 else "",
        f"{kept}/{written}" if written else "none",
        f"{calls:,.0f}",
        f"{tokens:,.0f}",
        f"{seconds:,.0f}",
        str(len(runs)),
    ]


def _page(measured: shared.Results) -> Page:
    listed = arms()
    runs = {arm.name: shared.runs_of(measured.results, arm.name) for arm in listed}
    table = read_table("real_roles")
    train, _, test = table["messages"]
    words = shared.lab_words(measured, None, "messages") | {"train": train, "test": test}
    head = shared.text("real-roles", "head", **words)
    blocks: list[Block] = []
    columns = ["arm", "gain (95 %)", "of the rules' gain", "rewrites kept/made"]
    columns += ["calls", "tokens", "seconds", "runs"]
    for section in table["sections"]:
        mine = [arm for arm in listed if arm.name in section["arms"] and runs[arm.name]]
        rules = runs[POOL_RULES if section["name"] == "pool" else RULES]
        rows = [_line(arm, runs[arm.name], rules) for arm in mine]
        blocks += [f"## {section['title']}", section["text"]]
        blocks += [PageTable(section["name"], columns, rows)] * bool(rows)
        if roles := section.get("controls"):
            ends: Mapping[str, str] = table["controls"]
            beside = [[role, *(_gain(runs[role + end]) for end in ends)] for role in roles]
            blocks.append(PageTable("controls", ["role", *ends.values()], beside))
    return shared.framed(measured, "", blocks, [head, *_goal(runs)])


def _goal(runs: Mapping[str, Runs]) -> list[Block]:
    """Whether what was set before is met, by each arm that it names."""
    goal = read_table("real_roles")["goal"]
    gains = {name: what_learns.over_seeds(gained(found)) for name, found in runs.items() if found}
    blocks: list[Block] = []
    for name, controls in goal["arms"].items():
        if not {name, RULES, *controls} <= gains.keys() or gains[RULES].mean <= 0:
            continue  # where the rules gain nothing, there is no share of it
        share = gains[name].mean / gains[RULES].mean
        idle = all(gains[c].low <= 0 for c in controls)
        met = gains[name].low > 0 and idle and share >= goal["share"]
        title = next(arm.title for arm in arms() if arm.name == name)
        words = {"title": title, "gain": what_learns.with_reach(gains[name]), "share": share}
        words |= {"least": goal["share"], "met": "met" if met else "not met"}
        beside = ", ".join(f"`{c}` {what_learns.with_reach(gains[c])}" for c in controls)
        blocks.append(shared.text("real-roles", "goal", controls=beside, **words))
    return blocks


EXPERIMENT = shared.Experiment(
    "real-roles", "", _cells, _page, seeds=10, real=True,
    presets=("quick", "default"), folder="real-roles",
)  # fmt: skip
