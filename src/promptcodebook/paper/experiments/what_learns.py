"""`what-learns`: which part of the method earns its calls, in worlds made so that it should, and in
worlds made so that it should not (what_learns.toml). The executor is SmolLM2 on `houserules`; all
other roles are the rules of teacher.py. A run is judged by its last state, on unseen messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean, stdev
from typing import Any, Literal

from promptcodebook.assemble import Assembled, Sources
from promptcodebook.base.intervals import SIDE, Interval, student_quantile
from promptcodebook.base.randomness import keyed_int, keyed_random
from promptcodebook.base.text import sentences_of
from promptcodebook.calls import LM, Reply, Request
from promptcodebook.config import load_config, merge
from promptcodebook.data import Dataset
from promptcodebook.method.executor import Scorer
from promptcodebook.method.policy import Deployed
from promptcodebook.method.state import Schedule, State
from promptcodebook.method.train import Learner, train
from promptcodebook.optimizers.pco import build_learner, initialise
from promptcodebook.paper.experiments.experiment import (
    Experiment,
    ExperimentRequest,
    Results,
    missing,
    said,
)
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab
from promptcodebook.paper.experiments.operators import OPERATORS
from promptcodebook.paper.experiments.page import Block, Page, PageTable, read_table
from promptcodebook.paper.experiments.teacher import (
    HouseRule,
    Teacher,
    TeacherBehaviour,
    broken_rules,
)
from promptcodebook.paper.tasks.houserules import task as houserules
from promptcodebook.types import Example, Output, Score

SOUND = "sound"
# Training and test messages of each topic.
WorldSizes = tuple[int, int]


@dataclass(frozen=True)
class RuleWorld:
    """A pair's half: what a run is like in it, which `arms` are compared with the sound one, and
    what is `expected` of the part, by which `argument`.

    Attributes:
        flips: Share of the training rewards that are turned round.
    """

    name: str
    part: str
    expected: Literal["matters", "idle", "control"]
    argument: str
    arms: Sequence[str]
    start: Literal["general", "right", "bare", "harmed"] = "general"
    topics: Sequence[str] = houserules.SIX
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    manner: Mapping[str, Any] = field(default_factory=dict[str, Any])
    flips: float = 0.0


def _listed() -> Mapping[str, Any]:
    return read_table("what_learns")["real"]


def worlds(preset: str = "default") -> list[RuleWorld]:
    found = [RuleWorld(**each) for each in _listed()["worlds"]]
    named = _listed().get(preset, {}).get("worlds")
    return [world for world in found if named is None or world.name in named]


def one_topic(train: int, val: int, test: int, topics: Sequence[str] = houserules.SIX) -> Dataset:
    """One-topic messages of `houserules_six`, as many of each; larger draws hold smaller ones."""
    whole = _messages()

    def drawn(split: Sequence[Example], most: int) -> tuple[Example, ...]:
        order = sorted(split, key=lambda e: keyed_int("one topic", e.id))
        of = {topic: [e for e in order if houserules.topics_of(e) == (topic,)] for topic in topics}
        return tuple(e for topic in topics for e in of[topic][:most])

    parts = drawn(whole.train, train), drawn(whole.val, val), drawn(whole.test, test)
    return replace(whole, train=parts[0], val=parts[1], test=parts[2])


@cache
def _messages() -> Dataset:
    return houserules.load_houserules_six().dataset


def first_instincts(world: RuleWorld) -> list[str]:
    """The codebook that a world begins with, before the templates' own list fills it up."""
    general: list[str] = read_table("teacher")["general"]
    if world.start == "general":
        return general
    topics = _listed()["topics"] if world.start == "bare" else world.topics
    asked = (Example("", "", fields={"topics": [topic]}) for topic in topics)
    rules = [rule for e in asked for rule in broken_rules(houserules.reward(e, "").feedback)]
    if world.start == "bare":
        rules = [HouseRule(rule.order) for rule in rules]
    if world.start == "harmed":
        rules += [HouseRule(order) for order in _listed()["harmful"]]
    return [*map(str, rules), *general]


@dataclass(frozen=True)
class Taught:
    """The roles but the executor, asked of the teacher."""

    executor: LM
    teacher: Teacher

    async def __call__(self, request: Request) -> Reply:
        return await (self.executor if request.role == "executor" else self.teacher)(request)


@dataclass(frozen=True)
class FlippedReward:
    """A reward that is turned round in a share of the cases, by a draw of message and reply."""

    inner: Scorer
    share: float
    seed: int

    async def __call__(self, example: Example, output: Output) -> Score:
        score = await self.inner(example, output)
        draw = keyed_random(self.seed, "flip", example.id, output.text)
        return replace(score, value=1.0 - score.value) if draw.random() < self.share else score


def cells(order: ExperimentRequest, spec: str) -> list[Cell]:
    """All seeds of a world before the next world, so that a run that is cut off has whole ones."""
    own = _listed().get(order.preset, {}).get("settings", {})
    return [
        cell_of(world, arm, seed, merge(settings_of(world, spec), own))
        for world in worlds(order.preset)
        for seed in range(order.seeds)
        for arm in (SOUND, *world.arms)
    ]


def settings_of(world: RuleWorld, spec: str) -> dict[str, Any]:
    first = {"init": {"instincts": first_instincts(world)}, "lm": spec}
    return merge(_listed()["settings"], first, world.settings)


def cell_of(
    world: RuleWorld,
    arm: str,
    seed: int,
    settings: Mapping[str, Any],
    sizes: WorldSizes | None = None,
) -> Cell:
    """One arm's run in a world; `sizes` = messages of each topic, where they are not the page's."""
    change: Mapping[str, Any] = _listed()["arms"].get(arm, {})
    whole = merge(settings, change.get("settings", {}), {"seed": seed})
    most = len(whole["init"]["instincts"])
    whole["init"]["instincts"] = whole["init"]["instincts"][: min(most, whole["size"])]
    manner = TeacherBehaviour(**{**_listed()["manner"], **world.manner, **change.get("manner", {})})
    operator = "" if change or arm == SOUND else arm
    known = {"manner": repr(manner), "operator": operator, "flips": world.flips}
    train_on, test_on = sizes or (_listed()["train"], _listed()["test"])
    data = one_topic(train_on, 0, test_on, world.topics)

    def measure(lab: Lab) -> CellResult:
        executor = lab.replies.counted if lab.replies is not None else None
        sources = Sources(data=data, lm=Taught(executor, Teacher(manner)) if executor else None)
        config = load_config(whole, where=f"the experiment's cell {world.name}")

        async def run(assembled: Assembled) -> CellResult:
            learner = build_learner(assembled)
            if world.flips:
                assert learner.trial.scorer is not None
                flipping = FlippedReward(learner.trial.scorer, world.flips, seed)
                learner = replace(learner, trial=replace(learner.trial, scorer=flipping))
            if operator:
                learner = OPERATORS[operator](learner)
            found = await learned(assembled, learner, judged_before=arm == SOUND)
            # One trace of each arm is enough to read.
            traced = {"instincts", "changed"} if seed else set[str]()
            found = {**found, "changed": found["changed"][:12]}
            return {key: value for key, value in found.items() if key not in traced}

        return lab.work(config, run, sources)

    return Cell(
        f"{world.name}/{arm}/{seed}", {**whole, **known, "data": [train_on, test_on]}, measure
    )


async def learned(assembled: Assembled, learner: Learner, *, judged_before: bool) -> CellResult:
    """A training and what its last state earns on the test messages; what the first one earns, if
    that is asked for; calls of the training, and every text that a step changed."""
    config, data = learner.config, assembled.dataset
    evaluator = assembled.evaluator()

    async def earned(state: State) -> list[float]:
        way = Deployed(learner.composer, state.parameters, state.statistics)
        return list((await evaluator.evaluate("state", way, data.test, "test")).rewards)

    state = await initialise(assembled)
    schedule = Schedule(data.train, config.update, config.randomness)
    changed, trained = list[list[Any]](), list[float]()
    first, ended = state, state
    async for step in train(learner, schedule, state):
        ended = State.after(step)
        trained.append(fmean(t.unit or 0.0 for t in step.traces))
        changed += [
            [step.index, str(r.variable), r.gradient[:150], r.after[-150:]]
            for r in step.rewrites
            if r.kept and r.after != r.before
        ]
    calls = {role: usage.calls for role, usage in assembled.models.ledger.usage.items()}
    return {
        "rewards": await earned(ended),
        "first": await earned(first) if judged_before else [],
        "calls": calls,
        "trained": trained,
        "instincts": list(ended.parameters.codebook.texts),
        "routes": list(ended.statistics.selected),
        "changed": changed,
    }


# The page.


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean over seeds, by Student's t."""
    n, mean = len(values), fmean(values)
    reach = student_quantile(n - 1, SIDE) * stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return Interval(mean, mean - reach, mean + reach, n)


def judged(expected: str, lost: Interval) -> str:
    """What a part's row comes to; `lost` = reward with it minus reward without it."""
    found = "gains" if lost.low > 0 else "harms" if lost.high < 0 else "nothing"
    return read_table("what_learns")["judged"][expected][found]


def _of(world: RuleWorld, arm: str, results: Mapping[str, CellResult]) -> dict[str, CellResult]:
    """An arm's runs by seed."""
    head = f"{world.name}/{arm}/"
    return {key.removeprefix(head): r for key, r in results.items() if key.startswith(head)}


def _calls(runs: Sequence[CellResult]) -> str:
    return f"{fmean(sum(run['calls'].values()) for run in runs):,.0f}"


def _row(world: RuleWorld, arm: str, results: Mapping[str, CellResult]) -> list[str] | None:
    """What is lost without the part, paired by seed; None where no seed has both."""
    with_it, without = _of(world, SOUND, results), _of(world, arm, results)
    seeds = sorted(with_it.keys() & without.keys(), key=int)
    if not seeds:
        return None
    lost = over_seeds([fmean(with_it[s]["rewards"]) - fmean(without[s]["rewards"]) for s in seeds])
    calls = _calls([without[s] for s in seeds])
    return [world.name, arm, with_reach(lost), calls, judged(world.expected, lost)]


def _told(world: RuleWorld, results: Mapping[str, CellResult]) -> str:
    runs = list(_of(world, SOUND, results).values())
    gains = [fmean(run["rewards"]) - fmean(run["first"]) for run in runs]
    return in_short(world.name, world.argument, gains, _calls(runs) if runs else "0")


def with_reach(of: Interval) -> str:
    """An interval by Student's t, which is as wide below its mean as above it."""
    return f"{of.mean:+.3f} ±{of.high - of.mean:.3f}"


HEAD = ["world", "arm", "lost without", "calls", "so"]


def in_short(name: str, argument: str, gains: Sequence[float], calls: str) -> str:
    """A world's line: what the sound run gains, and the first sentence of the argument."""
    gain = f" ({with_reach(over_seeds(gains))}, {calls} calls)" if gains else ""
    return f"- `{name}`{gain}: {sentences_of(argument)[0]}"


def real_blocks(measured: Results) -> list[Block]:
    texts: Mapping[str, str] = read_table("what_learns")["findings"]["real"]
    listed = worlds(measured.order.preset)
    found: list[Block] = [texts["summary"]]
    for part in dict.fromkeys(world.part for world in listed):
        mine = [world for world in listed if world.part == part]
        made = [_row(world, arm, measured.results) for world in mine for arm in world.arms]
        rows = [row for row in made if row]
        name = f"real-{mine[0].name.partition('-')[0]}"
        found += [
            f"### {part}",
            "\n".join(_told(w, measured.results) for w in mine if w.expected != "idle"),
        ]
        found += [PageTable(name, HEAD, rows)] * bool(rows)
        if part in texts:
            found.append(texts[part])
    return found


def _page(measured: Results) -> Page:
    lab, order = measured.lab, measured.order
    typed = f"pco reproduce what-learns --preset {order.preset} --seeds {order.seeds}"
    head = said(
        "what-learns",
        "head",
        spec=lab.spec,
        weights=lab.weights,
        seeds=order.seeds,
        train=_listed()["train"],
        test=_listed()["test"],
    )
    blocks = [f"```\n{typed}\n```", head, "## The real executor", *real_blocks(measured)]
    return Page("What learns", ["A generated page. Made by", *blocks, *missing(measured)])


EXPERIMENT = Experiment(
    "what-learns", "", cells, _page, seeds=10, folder="what-learns", presets=("quick", "default")
)
