"""`what-learns`: which part of the method earns its calls, in worlds made so that it should, and in
worlds made so that it should not. In one half (what_learns.toml) the executor is SmolLM2 on
`houserules` and all other roles are the rules of teacher.py; a run is judged by its last state, on
unseen messages. The other half (simulated_worlds.toml) has worlds of the simulated model, and shows
nothing about any real model. A gain is the test reward of the last state minus that of the
first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any, Literal

from promptcodebook.assemble import Assembled, Sources
from promptcodebook.base.intervals import Interval
from promptcodebook.base.randomness import keyed_int, keyed_random
from promptcodebook.calls import LM, Reply, Request, request_key
from promptcodebook.config import merge
from promptcodebook.data import Dataset
from promptcodebook.lm.spec import parse_spec
from promptcodebook.method.executor import Scorer
from promptcodebook.method.policy import Deployed
from promptcodebook.method.state import Schedule, State
from promptcodebook.method.train import Learner, train
from promptcodebook.optimizers.pco import build_learner, initialise
from promptcodebook.paper.experiments import experiment as shared
from promptcodebook.paper.experiments import teacher as teachers
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab, Work
from promptcodebook.paper.experiments.operators import OPERATORS
from promptcodebook.paper.experiments.page import Block, Page, PageTable, read_table
from promptcodebook.paper.simulated.model import SimulatedLM, simulated_model
from promptcodebook.paper.simulated.world import World
from promptcodebook.paper.tasks.constraints import task as constraints
from promptcodebook.paper.tasks.constraints.checks import check
from promptcodebook.paper.tasks.houserules import task as houserules
from promptcodebook.progress import Phase
from promptcodebook.types import Example, Output, Score

SOUND = "sound"


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A kind of world: the `part` of the method it is about, and what should come of it, by which
    `argument`, written beforehand; `gist` says in a sentence what it is like."""

    name: str
    part: str
    argument: str
    gist: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class RuleWorld(_Kind):
    """A pair's half: what a run is like in it, which `arms` are compared with the sound one, and
    what is `expected` of the part.

    Attributes:
        flips: Share of the training rewards that are turned round.
    """

    expected: Literal["matters", "idle", "control"]
    arms: Sequence[str]
    start: Literal["general", "right", "bare", "harmed"] = "general"
    topics: Sequence[str] = houserules.SIX
    manner: Mapping[str, Any] = field(default_factory=dict[str, Any])
    flips: float = 0.0

    def expects(self, arm: str) -> str:
        return self.expected


@dataclass(frozen=True, kw_only=True)
class Setup(_Kind):
    """A kind of simulated world; which arms matter in it, which do not, which are `measured`."""

    spec: str = ""
    first: str = "seeds"
    flip: float = 0.0
    matters: Sequence[str] = ()
    idle: Sequence[str] = ()
    measured: Sequence[str] = ()

    @property
    def arms(self) -> Sequence[str]:
        return (*self.matters, *self.idle, *self.measured)

    def expects(self, arm: str) -> str:
        """What is expected of a part; '' = nothing is."""
        return "matters" if arm in self.matters else "idle" if arm in self.idle else ""


# The real executor's half.


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
    told = [houserules.reward(example, "").feedback for example in asked]
    rules = [rule for text in told for rule in teachers.broken_rules(text)]
    if world.start == "bare":
        rules = [teachers.HouseRule(rule.order) for rule in rules]
    if world.start == "harmed":
        rules += [teachers.HouseRule(order) for order in _listed()["harmful"]]
    return [*map(str, rules), *general]


@dataclass(frozen=True)
class Taught:
    """The teacher answers what it knows, but for the templates in `spared`; the model all else."""

    model: LM
    teacher: teachers.Teacher
    spared: Set[str] = frozenset()

    async def __call__(self, request: Request) -> Reply:
        template = "" if request.role == "executor" else teachers.template_of(request)
        own = template in ("", *self.spared)
        return await (self.model if own else self.teacher)(request)


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


def real_cells(order: shared.ExperimentRequest, spec: str) -> list[Cell]:
    """All seeds of a world before the next world, so that a run that is cut off has whole ones."""
    cells, own = list[Cell](), _listed().get(order.preset, {}).get("settings", {})
    for world in worlds(order.preset):
        first = {"init": {"instincts": first_instincts(world)}, "lm": spec}
        settings = merge(_listed()["settings"], first, world.settings, own)
        for seed in range(order.seeds):
            cells += [real_cell(world, arm, seed, settings) for arm in (SOUND, *world.arms)]
    return cells


def real_cell(world: RuleWorld, arm: str, seed: int, settings: Mapping[str, Any]) -> Cell:
    """One arm's run in a world."""
    change: Mapping[str, Any] = _listed()["arms"].get(arm, {})
    whole = merge(settings, change.get("settings", {}), {"seed": seed})
    most = len(whole["init"]["instincts"])
    whole["init"]["instincts"] = whole["init"]["instincts"][: min(most, whole["size"])]
    behaves = {**_listed()["manner"], **world.manner, **change.get("manner", {})}
    manner = teachers.TeacherBehaviour(**behaves)
    operator = "" if change or arm == SOUND else arm
    known: dict[str, Any] = {"manner": repr(manner), "operator": operator, "flips": world.flips}
    train_on, test_on = _listed()["train"], _listed()["test"]
    data = one_topic(train_on, 0, test_on, world.topics)

    def measure(lab: Lab) -> CellResult:
        executor = lab.replies.counted if lab.replies is not None else None
        taught = Taught(executor, teachers.Teacher(manner)) if executor else None
        sources = Sources(data=data, lm=taught)

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

        return lab.work(whole, run, sources)

    known["data"] = [train_on, test_on]
    return Cell(f"{world.name}/{arm}/{seed}", {**whole, **known}, measure)


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
    first, ended, kept = state, state, [0, 0]
    async for step in train(learner, schedule, state):
        ended = State.after(step)
        kept = [kept[0] + sum(r.kept for r in step.rewrites), kept[1] + len(step.rewrites)]
        trained.append(fmean(t.unit or 0.0 for t in step.traces))
        changed += [
            [step.index, str(r.variable), r.gradient[:150], r.after[-150:]]
            for r in step.rewrites
            if r.kept and r.after != r.before
        ]
    used = assembled.models.ledger.usage
    return {
        "rewards": await earned(ended),
        "first": await earned(first) if judged_before else [],
        "calls": {role: usage.calls for role, usage in used.items()},
        "usage": {role: [u.calls, u.tokens, u.latency_s] for role, u in used.items()},
        "kept": kept,
        "trained": trained,
        "instincts": list(ended.parameters.codebook.texts),
        "routes": list(ended.statistics.selected),
        "changed": changed,
    }


# The simulated half.


def setups() -> list[Setup]:
    return [Setup(**each) for each in read_table("simulated_worlds")["worlds"]]


@dataclass(frozen=True)
class FlippedChecks:
    """The training reward, each demand judged wrong in a `share` of cases, with its feedback."""

    share: float
    world: int

    async def __call__(self, example: Example, output: Output) -> Score:
        draw = keyed_random("flip", self.world, example.id, output.text)
        asked = constraints.constraints_of(example)
        results = [check(constraint, example.input, output.text) for constraint in asked]
        turns = [draw.random() < self.share for _ in results]
        if not results:
            return constraints.reward(example, output.text)
        pairs = zip(results, turns, strict=True)
        return constraints.score_of(
            [replace(r, satisfied=r.satisfied != turn) for r, turn in pairs]
        )

    def over(self, learner: Learner) -> Learner:
        """A learner whose training is rewarded so; what judges it is not."""
        trial = replace(learner.trial, scorer=self)
        return replace(learner, trial=trial, rescore=replace(learner.rescore, trial=trial))


@dataclass
class Memory:
    """The simulated model, which is asked once for what several arms ask."""

    model: SimulatedLM
    replies: dict[bytes, Reply] = field(default_factory=dict[bytes, Reply])

    async def __call__(self, request: Request) -> Reply:
        key = request_key(request)
        if key not in self.replies:
            self.replies[key] = await self.model(request)
        return self.replies[key]


def first_of(first: str, world: World, size: int, seed: int) -> tuple[str, ...]:
    """The codebook that a world begins with; () = the task's own seeds."""
    skills, listed = world.skills, read_table("simulated_worlds")["general"]
    plain = [f"{how} {what} of the request." for how, what in product(*listed.values())]
    right = sorted(world.lacking, key=lambda k: keyed_int("first", seed, k))
    orders = [skills.say(k, k) for k in right]
    if first == "seeds":
        return ()
    if first == "late":
        paying = max(1, size // 8)
        held = [" ".join(orders[start::paying]) for start in range(paying)]
        return (*plain[: size - paying], *held)
    if first == "mixed":
        broad = [k for k in range(len(skills)) if len(skills[k].breaks) > 1 and k not in right[:4]]
        drawn = sorted(broad, key=lambda k: keyed_int("harmful", seed, k))[:4]
        texts = [*orders[:4], *(skills.say(k, None) for k in drawn), *plain[: size - 8]]
        keyed_random("mixed", seed).shuffle(texts)
        return tuple(texts)
    return (*orders, *plain)[:size]


def simulated_cells(order: shared.ExperimentRequest) -> list[Cell]:
    """A cell for each world and setup; all setups of a world come before the next world."""
    table = read_table("simulated_worlds")
    scale = table[order.preset]
    numbers = range(1, 1 + scale["worlds"])
    return [simulated_cell(setup, seed, scale["update"]) for seed in numbers for setup in setups()]


def simulated_cell(setup: Setup, seed: int, update: Mapping[str, Any]) -> Cell:
    """All arms of a setup in one world; the argument decides no figure."""
    table = read_table("simulated_worlds")
    changes = {arm: table["arms"].get(arm, {}) for arm in (SOUND, *setup.arms)}
    spec = f"simulated?world={seed}&noise_seed={seed}{setup.spec}"
    base = merge(table["settings"], {"update": update}, setup.settings, {"lm": spec, "seed": seed})

    def measure(lab: Lab) -> CellResult:
        data, found = constraints.draw_constraints(seed), dict[str, CellResult]()
        memory = Memory(simulated_model("constraints", data, parse_spec(spec)))
        world, size = memory.model.world, base.get("size", 16)
        texts = first_of(setup.first, world, size, seed)
        for number, (arm, change) in enumerate(changes.items()):
            name = f"simulated world {seed}, {setup.name}"
            lab.listener(Phase(name, number, len(changes)))
            settings = merge(base, change.get("settings", {}), {"init": {"instincts": texts}})
            operator = change.get("operator", "" if change or arm == SOUND else arm)
            sources = Sources(data=data, lm=memory)
            work = _work(operator, FlippedChecks(setup.flip, seed), judged_before=arm == SOUND)
            found[arm] = lab.work(settings, work, sources)
        return found

    known = {"changes": changes, "first": setup.first, "flip": setup.flip}
    return Cell(f"sim/{setup.name}/{seed}", {**base, **known}, measure)


def _work(operator: str, flipping: FlippedChecks, *, judged_before: bool) -> Work[CellResult]:
    async def work(assembled: Assembled) -> CellResult:
        learner = build_learner(assembled)
        learner = flipping.over(learner) if flipping.share else learner
        learner = OPERATORS[operator](learner) if operator else learner
        made = await learned(assembled, learner, judged_before=judged_before)
        parts = Counter("codebook" if k.isdigit() else k for _, k, *_ in made["changed"])
        return {**_figures(made), "changed": dict(parts)}

    return work


def _figures(run: CellResult) -> dict[str, float]:
    """Mean rewards of a run's last state, and of its first where it was judged; calls in all."""
    means = {key: fmean(run[key]) for key in ("rewards", "first") if run[key]}
    return {**means, "calls": sum(run["calls"].values())}


# The page.

Figures = Mapping[str, Mapping[str, float]]  # of the runs of one arm, by seed


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean over seeds, by Student's t."""
    mean = fmean(values)
    reach = shared.reach_of_seeds(values) if len(values) > 1 else math.inf
    return Interval(mean, mean - reach, mean + reach, len(values))


def with_reach(of: Interval) -> str:
    """An interval by Student's t, which is as wide below its mean as above it."""
    return f"{of.mean:+.3f} ±{of.high - of.mean:.3f}"


def real_blocks(measured: shared.Results) -> list[Block]:
    def of(world: RuleWorld | Setup, arm: str) -> Figures:
        head, results = f"{world.name}/{arm}/", measured.results
        return {n.removeprefix(head): _figures(results[n]) for n in results if n.startswith(head)}

    texts = read_table("what_learns")["findings"]["real"]
    return [texts["summary"], *_parts("real", worlds(measured.order.preset), of, texts)]


def simulated_blocks(measured: shared.Results) -> list[Block]:
    """Each setup with its argument and its arms, over the worlds that are measured."""
    table = read_table("simulated_worlds")
    runs = {each.name: shared.runs_of(measured.results, f"sim/{each.name}") for each in setups()}
    if not any(runs.values()):
        return []

    def of(world: RuleWorld | Setup, arm: str) -> Figures:
        return {str(k): run[arm] for k, run in enumerate(runs[world.name])}

    n, update = max(map(len, runs.values())), table["settings"]["update"]
    head = ["## The simulated model", shared.text("what-learns", "simulated", n=n, **update)]
    listed = [setup for setup in setups() if runs[setup.name]]
    return [*head, *_parts("simulated", listed, of, table["findings"])]


def _parts(
    half: str,
    listed: Sequence[RuleWorld | Setup],
    of: Callable[[RuleWorld | Setup, str], Figures],
    findings: Mapping[str, str],
) -> list[Block]:
    """Under each part of the method its worlds, with what is lost without the part, paired by seed;
    `of` gives the runs of an arm."""
    blocks: list[Block] = []
    head = ["world", "arm", "lost without", "calls", "result"]
    for part in dict.fromkeys(world.part for world in listed):
        mine = [world for world in listed if world.part == part]
        lines, rows = list[str](), list[list[str]]()
        for world in mine:
            sound = of(world, SOUND)
            if {*map(world.expects, world.arms)} != {"idle"}:
                lines.append(_in_short(world, sound))
            for arm in world.arms:
                without = of(world, arm)
                if seeds := sound.keys() & without.keys():
                    lost = [sound[s]["rewards"] - without[s]["rewards"] for s in seeds]
                    figures = [with_reach(over_seeds(lost)), _mean_calls(without, seeds)]
                    so = judged(world.expects(arm), over_seeds(lost))
                    rows.append([world.name, arm, *figures, so])
        blocks += [f"### {part}", "\n".join(lines)]
        name = f"{half}-{mine[0].name.partition('-')[0]}"
        blocks += [PageTable(name, head, rows)] * bool(rows)
        blocks += filter(None, [findings.get(part, "")])
    return blocks


def _in_short(world: RuleWorld | Setup, sound: Figures) -> str:
    """A world's line: what the sound run gains, and what the world is like."""
    gain = ""
    if sound:
        gained = over_seeds([run["rewards"] - run["first"] for run in sound.values()])
        gain = f" ({with_reach(gained)}, {_mean_calls(sound, sound)} calls)"
    return f"- `{world.name}`{gain}: {world.gist}"


def _mean_calls(runs: Figures, seeds: Iterable[str]) -> str:
    return f"{fmean(runs[seed]['calls'] for seed in seeds):,.0f}"


def judged(expected: str, lost: Interval) -> str:
    """What a part's row comes to; `lost` = reward with it minus reward without it."""
    found = "gains" if lost.low > 0 else "harms" if lost.high < 0 else "nothing"
    return read_table("what_learns")["judged"][expected][found] if expected else ""


def _page(measured: shared.Results) -> Page:
    lab, order, listed = measured.lab, measured.order, _listed()
    sizes = {"seeds": order.seeds, "train": listed["train"], "test": listed["test"]}
    head = shared.text("what-learns", "head", spec=lab.spec, weights=lab.weights, **sizes)
    blocks = ["## The real executor", *real_blocks(measured), *simulated_blocks(measured)]
    return shared.framed(measured, "", blocks, [head])


EXPERIMENT = shared.Experiment(
    "what-learns",
    "",
    lambda order, spec: [*real_cells(order, spec), *simulated_cells(order)],
    _page,
    seeds=10,
    folder="what-learns",
    presets=("quick", "default"),
)
