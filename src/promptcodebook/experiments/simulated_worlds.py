"""The simulated half of `what-learns`: the same question in worlds of the simulated model, each
made so that a part of the loop should matter, or should not (simulated_worlds.toml).

Every figure is simulated: it shows what the loop makes of what a part says, and nothing about any
real model. A gain is the test reward of the last state minus that of the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

from promptcodebook.assemble import Assembled, Sources
from promptcodebook.calls import Reply, Request, request_key
from promptcodebook.config import load_config, merge
from promptcodebook.experiments import what_learns
from promptcodebook.experiments.experiment import Measured, Order, said
from promptcodebook.experiments.lab import Cell, Lab, Result
from promptcodebook.experiments.operators import OPERATORS
from promptcodebook.experiments.page import Block, Page, Table, read_table, shown
from promptcodebook.experiments.what_learns import SOUND, judged, learned, over_seeds
from promptcodebook.lm.spec import parse_spec
from promptcodebook.optimizers.pco import build_learner
from promptcodebook.progress import Phase
from promptcodebook.randomness import keyed_int, keyed_random
from promptcodebook.simulated.model import SimulatedLM, simulated_model
from promptcodebook.simulated.world import World
from promptcodebook.tasks.constraints.checks import check
from promptcodebook.tasks.constraints.task import (
    constraints_of,
    draw_constraints,
    reward,
    score_of,
)
from promptcodebook.types import Example, Score


@dataclass(frozen=True)
class Setup:
    """A kind of world; which arms should matter in it, which should not, by which argument `why`,
    and which are only `measured`."""

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
class Flipping:
    """The reward of the task, in which each demand of a training example is judged the wrong way
    round in a `share` of cases, its feedback alike."""

    share: float
    world: int

    def __call__(self, example: Example, output: str) -> Score:
        if not (self.share and example.id.startswith("train")):
            return reward(example, output)
        draw = keyed_random("flip", self.world, example.id, output)
        results = [check(c, example.input, output) for c in constraints_of(example)]
        turned = (draw.random() < self.share for _ in results)
        return score_of(
            [
                replace(r, satisfied=r.satisfied != turn)
                for r, turn in zip(results, turned, strict=True)
            ]
        )


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


def cells(order: Order) -> list[Cell]:
    """A cell a world, with all setups and arms, so that a run that is cut off has whole worlds."""
    table = read_table("simulated_worlds")
    scale = table[order.preset]
    told = ("why", "part")  # what decides no figure
    listed = [{k: v for k, v in each.items() if k not in told} for each in table["worlds"]]
    settings = {"setups": listed, "arms": table["arms"], "base": table["settings"], **scale}

    def cell(seed: int) -> Cell:
        return Cell(f"sim/{seed}", settings, lambda lab: _measured(lab, seed, scale))

    return [cell(seed) for seed in range(1, 1 + scale["worlds"])]


def _measured(lab: Lab, seed: int, scale: Mapping[str, Any]) -> Result:
    """All arms in one world."""
    table, data = read_table("simulated_worlds"), draw_constraints(seed)
    jobs = [(setup, arm) for setup in setups() for arm in (SOUND, *setup.arms)]
    found, models = dict[str, Result](), dict[str, Memory]()
    for number, (setup, arm) in enumerate(jobs):
        lab.listener(Phase(f"simulated world {seed}", number, len(jobs)))
        change = table["arms"].get(arm, {})
        operator = change.get("operator", "" if change or arm == SOUND else arm)
        spec = f"simulated?world={seed}&noise_seed={seed}{setup.spec}"
        own = {"lm": spec, "seed": seed}
        updates = {"update": scale["update"]}
        parts = (table["settings"], updates, setup.settings, change.get("settings", {}), own)
        settings = merge(*parts)
        if spec not in models:
            models[spec] = Memory(simulated_model("constraints", data, parse_spec(spec)))
        memory = models[spec]
        size = settings.get("size", 16)
        texts = first_instincts(setup.first, memory.model.world, size, seed)
        config = load_config({**settings, "init": {"instincts": texts}})
        sources = Sources(data=data, reward=Flipping(setup.flip, seed), lm=memory)
        found[f"{setup.name}/{arm}"] = lab.work(config, _work(operator, arm == SOUND), sources)
    return found


def _work(operator: str, sound: bool) -> Any:
    async def work(assembled: Assembled) -> Result:
        learner = build_learner(assembled)
        learner = OPERATORS[operator](learner) if operator else learner
        made = await learned(assembled, learner, judged_before=sound)
        parts = Counter("codebook" if k.isdigit() else k for _, k, *_ in made["changed"])
        figures = {key: fmean(made[key]) for key in ("rewards", "first") if made[key]}
        return {**figures, "calls": sum(made["calls"].values()), "changed": dict(parts)}

    return work


# The page.


def blocks(measured: Measured) -> list[Block]:
    """Each setup with its argument and its arms, over the worlds that are measured."""
    table, found = read_table("simulated_worlds"), list[Block]()
    worlds = [run for name, run in measured.results.items() if name.startswith("sim/")]
    if not worlds:
        return []
    update = table["settings"]["update"]
    found += ["## The simulated model", said("what-learns", "simulated", n=len(worlds), **update)]
    for part in dict.fromkeys(setup.part for setup in setups()):
        mine = [setup for setup in setups() if setup.part == part]
        told = [f"- `{setup.name}`: {setup.why}" for setup in mine]
        rows = [_row(setup, arm, worlds) for setup in mine for arm in (SOUND, *setup.arms)]
        name = f"simulated-{mine[0].name.partition('-')[0]}"
        found += [f"### {part}", "\n".join(told), Table(name, table["page"]["head"], rows)]
        if part in table["findings"]:
            found.append(table["findings"][part])
    return found


def _row(setup: Setup, arm: str, worlds: Sequence[Result]) -> list[str]:
    """An arm's gain, what is lost by it (paired by world), and its training calls."""
    pairs = [(world[f"{setup.name}/{SOUND}"], world[f"{setup.name}/{arm}"]) for world in worlds]
    gain = over_seeds([own["rewards"] - sound["first"] for sound, own in pairs])
    calls = fmean(own["calls"] for _, own in pairs)
    row = [setup.name, arm, shown(gain, signed=True)]
    figures = [f"{calls:,.0f}", f"{1000 * gain.mean / calls:+.3f}"]
    if arm == SOUND:
        return [*row, "", *figures, "", ""]
    lost = over_seeds([sound["rewards"] - own["rewards"] for sound, own in pairs])
    expected = "matters" if arm in setup.matters else "idle" if arm in setup.idle else ""
    words = read_table("what_learns")["expected"].get(expected, "")
    so = judged(expected, lost) if expected else ""
    return [*row, shown(lost, signed=True), *figures, words, so]


def _page(measured: Measured) -> Page:
    page = what_learns.EXPERIMENT.page(measured)
    return Page(page.title, [*page.blocks, *blocks(measured)])


def _cells(order: Order, spec: str) -> list[Cell]:
    return [*what_learns.cells(order, spec), *cells(order)]


EXPERIMENT = replace(what_learns.EXPERIMENT, cells=_cells, page=_page)
"""The real executor's half and the simulated one."""
