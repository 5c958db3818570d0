"""`lean`: what the preset `default` (called `lean` when this was set) gains for its calls, beside
`full` (then `default`: the arms keep those names), a router that learns from outcomes, GEPA and
MIPROv2, in simulated worlds, a fresh one for each run, and on a model. The model of this machine
has rules for a teacher. lean.toml has what was set before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from promptcodebook.assemble import Sources
from promptcodebook.base.intervals import Interval
from promptcodebook.config import merge
from promptcodebook.lm.spec import is_local, parse_spec
from promptcodebook.paper.experiments import experiment as shared
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab, Runs
from promptcodebook.paper.experiments.page import Block, Page, PageTable, read_table, shown
from promptcodebook.paper.experiments.teacher import Teacher, TeacherBehaviour
from promptcodebook.paper.experiments.what_learns import Taught, one_topic

# Those that a verdict does not ask: what a run took of them it took in training.
_ROLES = ("critic", "attribution", "updater")


def _halves(spec: str) -> tuple[str, ...]:
    if parse_spec(spec).kind == "simulated":
        return ("simulated",)
    return ("model", "simulated") if is_local(spec) else ("model",)


def _cells(order: shared.ExperimentRequest, spec: str) -> Sequence[Cell]:
    """What decides the question comes first; the others take half of the simulated worlds."""
    listed, found = read_table("lean"), list[Cell]()
    first = [name for name, arm in listed["arms"].items() if not arm.get("capped")]
    for names in (first, [name for name in listed["arms"] if name not in first]):
        seeds = {half: _seeds(order, spec, half, names is first) for half in _halves(spec)}
        for seed in range(max(seeds.values())):
            for half, count in seeds.items():
                for name in names if seed < count else ():
                    settings = _settings(order, spec, half, name, seed)
                    cell = shared.trained(f"{half}/{name}/{seed}", settings, _SOURCES[half])
                    found.append(replace(cell, measure=partial(_kept, cell)))
    return found


def _seeds(order: shared.ExperimentRequest, spec: str, half: str, decides: bool) -> int:
    """Runs of an arm; on this machine the two that decide have the number that was set before."""
    if not decides or order.preset == "quick":
        return order.seeds
    listed = read_table("lean")
    local = half == "model" and is_local(spec)
    return listed["set"]["seeds"] if local else listed[half]["each"] * order.seeds


def _kept(cell: Cell, lab: Lab) -> CellResult:
    """What the page shows of a run: a whole one has hundreds of routes and rewrites."""
    whole, kept = cell.measure(lab), read_table("lean")["kept"]
    return {key: whole[key] for key in kept}


def _taught(lab: Lab) -> Sources | None:
    """On this machine: the model answers messages of one topic, and rules do all else."""
    if lab.replies is None or not is_local(lab.spec):
        return None
    teacher = Teacher(TeacherBehaviour(**read_table("what_learns")["real"]["manner"]))
    data = one_topic(*read_table("lean")["local"]["messages"])
    return Sources(lm=Taught(lab.replies.counted, teacher), data=data)


_SOURCES: Mapping[str, Callable[[Lab], Sources | None]] = {
    "model": _taught,
    "simulated": lambda lab: Sources(),
}


def _settings(
    order: shared.ExperimentRequest, spec: str, half: str, name: str, seed: int
) -> dict[str, Any]:
    listed = read_table("lean")
    own, arm = listed[half], listed["arms"][name]
    layers: list[dict[str, Any]] = [{"task": own["task"], "seed": seed}, arm["settings"]]
    if half == "simulated":
        layers.append({"lm": f"simulated?world={own['worlds'] + seed}"})  # another for each run
    else:
        given = {"task": order.task, "data_dir": order.data}
        layers.append({"lm": spec, **{key: value for key, value in given.items() if value}})
        if is_local(spec):
            own = listed["local"]
            first = {"instincts": read_table("teacher")["general"]}
            layers += [own["settings"], own["arms"].get(name, {}), {"init": first}]
    if order.preset == "quick":
        own = listed["quick"]
        layers.append(own["settings"])
    if arm.get("capped"):
        training, judging = own["calls"]
        kept = (judging + 0.5) / (training + judging)
        layers.append({"budget": {"calls": training + judging, "reserve_for_verdict": kept}})
    return merge(*layers)


@dataclass(frozen=True, slots=True)
class _Arm:
    """The runs of one method that can be compared, in order, and those of the arm `default` beside
    them."""

    title: str
    own: Runs
    default: Runs
    row: str

    @property
    def rewards(self) -> shared.Rewards:
        return [run["rows"][self.row]["rewards"] for run in self.own]

    def of_default(self, row: str) -> shared.Rewards:
        return [run["rows"][row]["rewards"] for run in self.default]

    @property
    def calls(self) -> list[int]:
        """Of training and choosing, by run."""
        return [run["training"]["calls"] for run in self.own]

    @property
    def gains(self) -> list[float]:
        """Over the untrained codebook of the arm `default`, the same for all methods."""
        pairs = zip(self.rewards, self.of_default("untrained"), strict=True)
        return [fmean(mine) - fmean(first) for mine, first in pairs]

    def line(self) -> list[str]:
        first = self.of_default("untrained")
        by_calls = [
            [1000 * (a - b) / calls for a, b in zip(mine, theirs, strict=True)]
            for mine, theirs, calls in zip(self.rewards, first, self.calls, strict=True)
        ]
        most = 1000 / min(self.calls)
        over = shared.difference(self.rewards, self.of_default(shared.LEARNED))
        return [
            self.title,
            shown(shared.score(self.rewards)),
            shown(shared.difference(self.rewards, first), signed=True),
            f"{min(self.gains):+.3f}",
            "" if self.own == self.default else shown(over, signed=True),
            f"{fmean(self.calls):,.0f}",
            shown(shared.crossed_interval(by_calls, bounds=(-most, most)), signed=True),
            str(len(self.own)),
        ]


def _arms(measured: shared.Results, half: str) -> tuple[dict[str, _Arm], list[str]]:
    found: dict[str, _Arm] = {}
    dropped: list[str] = []
    results = measured.results
    for name, listed in read_table("lean")["arms"].items():
        row, title = listed.get("row", shared.LEARNED), listed["title"]
        pairs = [
            (mine, theirs)
            for seed in range(len(shared.runs_of(results, f"{half}/default")))
            if row in (mine := results.get(f"{half}/{name}/{seed}", {"rows": {}}))["rows"]
            and shared.LEARNED
            in (theirs := results.get(f"{half}/default/{seed}", {"rows": {}}))["rows"]
        ]
        tried = sorted(mine["search"].get("tried", 0) for mine, _ in pairs)
        if listed.get("searches") and pairs:
            search = f"tried {tried[0]} to {tried[-1]} prompts per run"
            if tried[0] < 2:
                dropped.append(shared.text("main", "left_out", title=title, search=search))
                continue
            title = f"{title} ({search})"
        if pairs:
            own, default = zip(*pairs, strict=True)
            found[name] = _Arm(title, own, default, row)
    return found, dropped


def _half(measured: shared.Results, half: str) -> list[Block]:
    arms, dropped = _arms(measured, half)
    blocks: list[Block] = [shared.text("lean", half)]
    head = ["method", "reward (95 %)", "gain over untrained", "least gain", "minus `full`"]
    head += ["training calls", "gain per 1,000 calls", "runs"]
    blocks.append(PageTable(f"{half}-gain", head, [arm.line() for arm in arms.values()]))
    blocks += ["\n".join(dropped)] * bool(dropped)
    if "lean" in arms:
        local = half == "model" and is_local(measured.lab.spec)
        blocks.append(_decided(arms["lean"], over_seeds=local))
        rows = [_calls(arm) for name, arm in arms.items() if name in ("lean", "default", "short")]
        head = ["method", "rollouts and validation", *_ROLES, "training calls"]
        blocks.append(PageTable(f"{half}-calls", head, rows, "Training calls per run, by role"))
    named = read_table("lean")["arms"]
    runs = {arm: shared.runs_of(measured.results, f"{half}/{arm}") for arm in named}
    return [*blocks, *shared.stopped(runs)]


def _decided(lean: _Arm, *, over_seeds: bool) -> str:
    """Whether it is not worse at the share of calls that was set before. `over_seeds`: the test
    messages stay as they are, and the interval is Student's over the runs alone."""
    margin, most = (read_table("lean")["set"][key] for key in ("margin", "share"))
    default = lean.of_default(shared.LEARNED)
    over = shared.difference(lean.rewards, default)
    if over_seeds:
        lost = [fmean(a) - fmean(b) for a, b in zip(lean.rewards, default, strict=True)]
        reach = shared.reach_of_seeds(lost)
        over = Interval(fmean(lost), fmean(lost) - reach, fmean(lost) + reach, len(lost))
    share = sum(lean.calls) / sum(run["training"]["calls"] for run in lean.default)
    met = "met" if over.low > -margin and share <= most else "not met"
    words = {"over": shown(over, signed=True), "share": share, "most": most, "margin": margin}
    said = shared.text("lean", "decided", met=met, **words)
    fixed = shared.text("lean", "over_seeds", seeds=over.n, messages=len(default[0]))
    return f"{said} {fixed}" if over_seeds else said


def _calls(arm: _Arm) -> list[str]:
    taught = [fmean(run["by_role"].get(role, [0])[0] for run in arm.own) for role in _ROLES]
    whole = fmean(arm.calls)
    return [arm.title, *(f"{n:,.0f}" for n in (whole - sum(taught), *taught, whole))]


def _page(measured: shared.Results) -> Page:
    words = shared.lab_words(measured, None, "examples")
    head = [shared.text("lean", "head", **words)]
    blocks: list[Block] = []
    for half in _halves(measured.lab.spec):
        blocks += [f"## {shared.text('lean', f'{half}_title')}", *_half(measured, half)]
    return shared.framed(measured, "", blocks, head)


LEAN = shared.Experiment(
    "lean", "", _cells, _page, seeds=10, presets=("quick", "default"), folder="lean"
)
