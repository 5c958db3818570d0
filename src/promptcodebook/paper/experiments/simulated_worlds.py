"""The simulated half of `what-learns`: worlds of the simulated model, each made so that a part of
the loop should matter, or should not (simulated_worlds.toml). It shows nothing about any real
model. A gain is the test reward of the last state minus that of the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

from promptcodebook.assemble import Assembled, Sources
from promptcodebook.base.randomness import keyed_int, keyed_random
from promptcodebook.calls import Reply, Request, request_key
from promptcodebook.config import load_config, merge
from promptcodebook.lm.spec import parse_spec
from promptcodebook.method.train import Learner
from promptcodebook.optimizers.pco import build_learner
from promptcodebook.paper.experiments import what_learns
from promptcodebook.paper.experiments.experiment import ExperimentRequest, Results, runs_of, said
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab
from promptcodebook.paper.experiments.operators import OPERATORS
from promptcodebook.paper.experiments.page import Block, Page, PageTable, read_table
from promptcodebook.paper.experiments.what_learns import (
    HEAD,
    SOUND,
    in_short,
    judged,
    learned,
    over_seeds,
    with_reach,
)
from promptcodebook.paper.simulated.model import SimulatedLM, simulated_model
from promptcodebook.paper.simulated.world import World
from promptcodebook.paper.tasks.constraints.checks import check
from promptcodebook.paper.tasks.constraints.task import (
    constraints_of,
    draw_constraints,
    reward,
    score_of,
)
from promptcodebook.progress import Phase
from promptcodebook.types import Example, Output, Score


@dataclass(frozen=True)
class Setup:
    """A kind of world; which arms matter in it, which do not, `why`, and which are `measured`."""

    name: str
    part: str
    why: str
    spec: str = ""
    first: str = "seeds"
    flip: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    matters: Sequence[str] = ()
    idle: Sequence[str] = ()
    measured: Sequence[str] = ()

    @property
    def arms(self) -> tuple[str, ...]:
        return (*self.matters, *self.idle, *self.measured)


def setups() -> list[Setup]:
    return [Setup(**each) for each in read_table("simulated_worlds")["worlds"]]


@dataclass(frozen=True)
class FlippedChecks:
    """The training reward, each demand judged wrong in a `share` of cases, with its feedback."""

    share: float
    world: int

    async def __call__(self, example: Example, output: Output) -> Score:
        draw = keyed_random("flip", self.world, example.id, output.text)
        results = [check(c, example.input, output.text) for c in constraints_of(example)]
        turns = [draw.random() < self.share for _ in results]
        if not results:
            return reward(example, output.text)
        pairs = zip(results, turns, strict=True)
        return score_of([replace(r, satisfied=r.satisfied != turn) for r, turn in pairs])

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


def first_instincts(first: str, world: World, size: int, seed: int) -> tuple[str, ...]:
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


def cells(order: ExperimentRequest) -> list[Cell]:
    """A cell for each world and setup; all setups of a world come before the next world."""
    table = read_table("simulated_worlds")
    scale = table[order.preset]
    numbers = range(1, 1 + scale["worlds"])
    return [cell_of(setup, seed, scale["update"]) for seed in numbers for setup in setups()]


def cell_of(setup: Setup, seed: int, update: Mapping[str, Any]) -> Cell:
    """All arms of a setup in one world; the argument decides no figure."""
    table = read_table("simulated_worlds")
    changes = {arm: table["arms"].get(arm, {}) for arm in (SOUND, *setup.arms)}
    spec = f"simulated?world={seed}&noise_seed={seed}{setup.spec}"
    base = merge(table["settings"], {"update": update}, setup.settings, {"lm": spec, "seed": seed})

    def measure(lab: Lab) -> CellResult:
        data, found = draw_constraints(seed), dict[str, CellResult]()
        memory = Memory(simulated_model("constraints", data, parse_spec(spec)))
        world, size = memory.model.world, base.get("size", 16)
        texts = first_instincts(setup.first, world, size, seed)
        for number, (arm, change) in enumerate(changes.items()):
            name = f"simulated world {seed}, {setup.name}"
            lab.listener(Phase(name, number, len(changes)))
            settings = merge(base, change.get("settings", {}), {"init": {"instincts": texts}})
            operator = change.get("operator", "" if change or arm == SOUND else arm)
            sources = Sources(data=data, lm=memory)
            work = _work(operator, FlippedChecks(setup.flip, seed), judged_before=arm == SOUND)
            found[arm] = lab.work(load_config(settings), work, sources)
        return found

    known = {"changes": changes, "first": setup.first, "flip": setup.flip}
    return Cell(f"sim/{setup.name}/{seed}", {**base, **known}, measure)


def _work(
    operator: str, flipping: FlippedChecks, *, judged_before: bool
) -> Callable[[Assembled], Awaitable[CellResult]]:
    async def work(assembled: Assembled) -> CellResult:
        learner = build_learner(assembled)
        learner = flipping.over(learner) if flipping.share else learner
        learner = OPERATORS[operator](learner) if operator else learner
        made = await learned(assembled, learner, judged_before=judged_before)
        parts = Counter("codebook" if k.isdigit() else k for _, k, *_ in made["changed"])
        figures = {key: fmean(made[key]) for key in ("rewards", "first") if made[key]}
        return {**figures, "calls": sum(made["calls"].values()), "changed": dict(parts)}

    return work


# The page.


def blocks(measured: Results) -> list[Block]:
    """Each setup with its argument and its arms, over the worlds that are measured."""
    table, found = read_table("simulated_worlds"), list[Block]()
    runs = {setup.name: runs_of(measured.results, f"sim/{setup.name}") for setup in setups()}
    if not any(runs.values()):
        return []
    worlds, update = max(map(len, runs.values())), table["settings"]["update"]
    found += ["## The simulated model", said("what-learns", "simulated", n=worlds, **update)]
    for part in dict.fromkeys(setup.part for setup in setups()):
        mine = [setup for setup in setups() if setup.part == part and runs[setup.name]]
        told = [_told(setup, runs[setup.name]) for setup in mine if not setup.idle or setup.matters]
        rows = [_row(setup, arm, runs[setup.name]) for setup in mine for arm in setup.arms]
        if mine:
            found += [f"### {part}", "\n".join(told)]
        if rows:
            found.append(PageTable(f"simulated-{mine[0].name.partition('-')[0]}", HEAD, rows))
        if part in table["findings"]:
            found.append(table["findings"][part])
    return found


def _told(setup: Setup, worlds: Sequence[CellResult]) -> str:
    gains = [world[SOUND]["rewards"] - world[SOUND]["first"] for world in worlds]
    calls = fmean(world[SOUND]["calls"] for world in worlds)
    return in_short(setup.name, setup.why, gains, f"{calls:,.0f}")


def _row(setup: Setup, arm: str, worlds: Sequence[CellResult]) -> list[str]:
    """What is lost in an arm, paired by world, and its training calls."""
    lost = over_seeds([world[SOUND]["rewards"] - world[arm]["rewards"] for world in worlds])
    expected = "matters" if arm in setup.matters else "idle" if arm in setup.idle else ""
    calls = fmean(world[arm]["calls"] for world in worlds)
    so = judged(expected, lost) if expected else ""
    return [setup.name, arm, with_reach(lost), f"{calls:,.0f}", so]


def _page(measured: Results) -> Page:
    page = what_learns.EXPERIMENT.page(measured)
    return Page(page.title, [*page.blocks, *blocks(measured)])


def _cells(order: ExperimentRequest, spec: str) -> list[Cell]:
    return [*what_learns.cells(order, spec), *cells(order)]


# The real executor's half and the simulated one.
EXPERIMENT = replace(what_learns.EXPERIMENT, cells=_cells, page=_page)
