"""Which state is kept (decision 8): every state here scores what its φ says."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.assemble import Assembled, Plan
from promptcodebook.calls import Request
from promptcodebook.config import Config
from promptcodebook.data import Dataset
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.lm.stack import Models, StackResources
from promptcodebook.method.templates import load_templates
from promptcodebook.optimizers.base import Problem
from promptcodebook.optimizers.selection import Selection, is_flat
from promptcodebook.policy.references import kept_state
from promptcodebook.progress import Listener, Note, ValidationDone
from promptcodebook.store.events import Started, Stepped
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.program import SingleCall
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Parameters, Rollout, Route, Step, Trace
from tests.build.cases import table
from tests.build.method import World, config, examples, number_scorer, parameters, sent, talkative

HEADER = Header(
    id="", created="2026-01-31T15:45:02+00:00", version="0", task="t", command="", config={},
    fingerprints={},
)  # fmt: skip


def echo(request: Request) -> Scripted:
    """The composed prompt is φ, and the answer is the prompt."""
    own = request.role in ("generator", "executor")
    return sent(request).split()[0] if own else talkative(request)


def with_phi(score: float) -> Parameters:
    return replace(parameters(), generator=str(score))


@dataclass
class Run:
    """A stored run whose untrained state and steps score as given, validated as it goes."""

    store: RunStore
    problem: Problem
    selection: Selection
    world: World
    heard: list[ValidationDone]
    notes: list[Note]

    async def through(self, *scores: float, earning: int = 0, harmful: str = "") -> None:
        """Appends a step of each score and validates where it is due. Its batch has traces of
        `earning` examples that the encoder routed, each of what the state before it earns, and as
        many and two more explored ones of the opposite (0 = none). `harmful` is the φ that its
        verdicts call so."""
        first = self.store.outline().step + 1
        if first == 0:
            await self.selection.validate_if_due(-1)
        for index, score in enumerate(scores, start=first):
            zeros = (0.0,) * 4
            earned = float(self.store.parameters_at(index - 1).generator)
            explored = [(1 - earned, True)] * (earning + 2 if earning else 0)
            pairs = [*[(earned, False)] * earning, *explored]
            traces = tuple(Trace(Rollout("x", Route((0, 1), e), reward=r), r) for r, e in pairs)
            step = Step(index, 0, 0.0, traces, (), with_phi(score), zeros, zeros, (0,) * 4)
            step = replace(step, harmful=(harmful,) if harmful else ())
            self.store.append(Stepped(step))
            await self.selection.validate_if_due(index)

    async def kept(self) -> float:
        return float((await self.selection.best()).parameters.generator)


def make_run(tmp_path: Path, untrained: float, val: int = 4, **tree: Any) -> Run:
    settings: Config = config(lm="own", **tree)
    world = World(settings, ScriptedLM().reply_with(echo), scorer=number_scorer)
    header = replace(HEADER, config=settings.model_dump(mode="json"))
    store = RunStore.create(tmp_path, header)
    store.append(Started(with_phi(untrained), "expert"))
    data = Dataset(tuple(examples(2)), tuple(examples(val, start=10)), ())

    def reward(example: Example, output: str) -> float:
        return float(output)

    heard: list[ValidationDone] = []
    notes: list[Note] = []

    def listen(event: object) -> None:
        if isinstance(event, ValidationDone):
            heard.append(event)
        elif isinstance(event, Note):
            notes.append(event)

    task = Task("t", data, asks_nobody(reward), SingleCall())
    models = Models.build(settings, StackResources(client=world.lm))
    listener: Listener = listen
    problem = Problem(
        Assembled(Plan(settings, task, load_templates("default")), models), store, listener
    )
    return Run(store, problem, Selection(problem, world.composer), world, heard, notes)


EVERY_STEP = {"every": 1, "subset": 2}


Make = Callable[..., Run]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes runs in folders of their own, and closes them."""
    runs: list[Run] = []

    def made(untrained: float, **tree: Any) -> Run:
        runs.append(make_run(tmp_path / str(len(runs)), untrained, **tree))
        return runs[-1]

    yield made
    for run in runs:
        run.store.close()


async def test_the_best_validated_state_is_kept_or_the_last(make: Make):
    """Decision 8: keep = best_val | last."""
    for keep, kept in (("best_val", 0.9), ("last", 0.5)):
        run = make(0.4, validation=EVERY_STEP, keep=keep)
        await run.through(0.3, 0.9, 0.5)
        assert await run.kept() == kept
    # A run that made things worse keeps what it began with.
    run = make(0.8, validation=EVERY_STEP)
    await run.through(0.3, 0.7)
    assert await run.kept() == 0.8
    assert next((v.step, v.evaluation.score) for v in run.heard if v.best) == (-1, 0.8)


async def test_finalists_are_judged_on_the_whole_split(make: Make):
    """Decision 8: a fixed subset on the way, the best few on all four examples at the end."""
    run = make(0.4, validation={**EVERY_STEP, "finalists": 2})
    await run.through(0.3, 0.9, 0.5)
    on_the_way = {r.example_id for v in run.heard for r in v.evaluation.rollouts}
    assert len(on_the_way) == 2 and len(run.heard) == 4
    await run.kept()
    full = [v for v in run.heard if len(v.evaluation.rollouts) == 4]
    assert [(v.step, v.best) for v in full] == [(1, True), (2, False)], "beside other finalists"


async def test_a_large_split_is_validated_on_a_sample(make: Make):
    """`validation.examples` of the split, whose subset is drawn from those."""
    run = make(0.4, val=40, validation={**EVERY_STEP, "finalists": 1, "examples": 5})
    await run.through(0.3, 0.9)
    assert await run.kept() == 0.9
    looks = [[r.example_id for r in v.evaluation.rollouts] for v in run.heard]
    assert list(map(len, looks)) == [2, 2, 2, 5] and set(looks[0]) < set(looks[-1])
    drawn = sorted(looks[-1], key=lambda name: int(name.removeprefix("x")))
    assert drawn == looks[-1] != [f"x{n}" for n in range(10, 15)], "no head of the split, in order"


async def test_it_validates_every_so_many_steps_and_never_at_zero(make: Make):
    """Each look costs calls, so a subset is looked at now and then (decision 8)."""
    run = make(0.4, validation={"every": 2, "subset": 2})
    never = make(0.4, validation={"every": 0})
    await run.through(0.1, 0.2, 0.3, 0.4)
    assert [v.step for v in run.heard] == [-1, 1, 3]
    await never.through(0.1, 0.2)
    assert never.heard == [] and await never.kept() == 0.2


async def test_what_is_validated_is_the_state_whose_training_examples_earned_most(make: Make):
    """Decision 29: by the encoder's own routes alone, and whatever state is the present one. Each
    look is at a state that has had none, and the untrained one has the first."""
    run = make(0.4, validation={"every": 4, "subset": 2, "finalists": 1})
    await run.through(0.3, 0.9, 0.1, 0.1, 0.2, 0.8, 0.1, 0.0, earning=2)
    assert [v.step for v in run.heard] == [-1, 1, 5]
    assert await run.kept() == 0.9
    assert len([v for v in run.heard if len(v.evaluation.rollouts) == 4]) == 1


@pytest.mark.parametrize(
    ("scores", "earning", "harmful", "settings", "look"), table(__file__, "looked_at")
)
async def test_the_state_that_is_looked_at(
    make: Make, scores: Sequence[float], earning: int, harmful: str, settings: Any, look: int
):
    more = dict(settings)
    run = make(scores[0], validation={"every": more.pop("every", 9), "subset": 2}, **more)
    await run.through(*scores[1:], earning=earning, harmful=harmful)
    assert [v.step for v in run.heard] == [-1, look]


async def test_a_state_that_met_no_example_of_the_encoder_s_is_not_looked_at(make: Make):
    """As the newest, of which nothing is known; unless nothing is known of any other."""
    known, unknown = (make(0.1, validation={"every": 4, "subset": 2}) for name in "ku")
    await known.through(0.2, 0.3, 0.4, 0.9, earning=2)
    await unknown.through(0.2, 0.3, 0.4, 0.9)
    assert [v.step for v in known.heard] == [-1, 2]
    assert [v.step for v in unknown.heard] == [-1, 3]


async def test_a_run_that_ends_between_two_looks_has_its_best_state_among_the_finalists(make: Make):
    """And no other than it was looked at: the same run, taken up again, validates nothing more."""
    run = make(0.4, validation={"every": 4, "subset": 2, "finalists": 1})
    await run.through(0.3, 0.5, 0.5, 0.5, 0.9, 0.1, 0.1, earning=2)
    assert await run.kept() == 0.9
    looks = [(v.step, len(v.evaluation.rollouts)) for v in run.heard]
    assert looks == [(-1, 2), (2, 2), (2, 4), (4, 4)]
    run.selection = Selection(run.problem, run.world.composer)
    await run.selection.validate_if_due(6)
    assert await run.kept() == 0.9 and len(run.heard) == len(looks)


@pytest.mark.parametrize("stopped", [0, 1, 3, 4, 6])
async def test_the_looks_are_the_same_wherever_the_run_is_taken_up(make: Make, stopped: int):
    scores = (0.3, 0.9, 0.1, 0.1, 0.2, 0.8, 0.1, 0.0)
    run = make(0.4, validation={"every": 4, "subset": 2})
    await run.through(*scores[:stopped], earning=2)
    run.selection = Selection(run.problem, run.world.composer)
    await run.selection.validate_if_due(stopped - 1)
    await run.through(*scores[stopped:], earning=2)
    assert [v.step for v in run.heard] == [-1, 1, 5]


async def test_it_stops_early_without_gain_or_at_the_target(make: Make):
    """Decision 8: patience counts validations since the best; the target ends it at once."""
    run = make(0.4, validation={**EVERY_STEP, "patience": 2})
    await run.through(0.6, 0.5)
    assert run.selection.enough(3) is None
    await run.through(0.6)
    assert run.selection.enough(3) == "early_stop"
    target = make(0.4, validation={**EVERY_STEP, "target_score": 0.9})
    await target.through(0.8)
    assert target.selection.enough(3) is None
    await target.through(0.9)
    assert target.selection.enough(3) == "target"
    for harmful, ended in (("", "target"), ("0.9", None)):
        run = make(0.4, validation={**EVERY_STEP, "target_score": 0.9})
        await run.through(0.9, 0.5, harmful=harmful)
        assert run.selection.enough(2) == ended, "a harmful state reaches no target"


@pytest.mark.parametrize(
    ("earned", "fresh", "flat"), table(__file__, "is_flat_after_two_steps_without_gain")
)
def test_training_is_flat_where_the_last_steps_gained_nothing(
    earned: Sequence[float], fresh: Sequence[int], flat: bool
):
    pairs = [(0.0, 0) if one < 0 else (one * 4, 4) for one in earned]
    assert is_flat(pairs, [*[9] * (len(earned) - len(fresh)), *fresh], 2) == flat


@pytest.mark.parametrize("stopped", [0, 2, 3, 5])
async def test_a_flat_training_ends_at_the_same_step_wherever_it_is_taken_up(
    make: Make, stopped: int
):
    update = {"stop_when_flat": 2, "epochs": 9}
    run = make(0.2, update=update, validation={"every": 0})
    ends: list[int] = []
    for step, score in enumerate((0.4, 0.6, 0.6, 0.5, 0.6, 0.7), start=1):
        await run.through(score, earning=2)
        if step == stopped:
            run.selection = Selection(run.problem, run.world.composer)
        ends += [step] if run.selection.enough(step) == "early_stop" else []
    assert ends == [6] and len(run.notes) == 1, "0.5 and 0.6, after 0.6 and 0.6"
    off = make(0.2, update={"stop_when_flat": None, "epochs": 9}, validation={"every": 0})
    await off.through(*[0.2] * 8, earning=2)
    assert off.selection.enough(8) is None


@pytest.mark.parametrize(
    ("update", "every", "planned", "patience"),
    table(__file__, "patience_follows_the_planned_validations"),
)
def test_patience_follows_the_planned_validations(
    make: Make, update: dict[str, Any], every: int, planned: int,
    patience: int,
):  # fmt: skip
    """Decision 8: with the default schedule it can fire: after the third of five without gain."""
    run = make(0.4, update=update, validation={"every": every, "subset": 2})
    assert (run.selection.planned, run.selection.patience) == (planned, patience)
    schedule = config()
    assert (schedule.update.epochs, schedule.validation.every) == (50, 10)


async def test_a_run_at_its_end_is_not_stopped_early(make: Make):
    """Nothing is left to stop; a target that is reached then is reached all the same."""
    validation = {**EVERY_STEP, "patience": 2}
    run = make(0.4, validation=validation, update={"epochs": 3})
    await run.through(0.3, 0.3)
    assert run.selection.enough(2) == "early_stop"
    assert run.selection.enough(3) is None
    target = {**validation, "target_score": 0.4}
    reached = make(0.4, validation=target, update={"epochs": 3})
    await reached.through(0.3)
    assert reached.selection.enough(3) == "target"


async def test_what_was_chosen_at_an_earlier_end_does_not_weigh_in_a_later_one(make: Make):
    """A run that stopped at its budget was chosen among the finalists of then; one that goes on
    chooses as if it had never stopped, wherever it is taken up."""
    validation = {"every": 2, "subset": 2, "finalists": 1}
    for taken_up in ((), (1,), (1, 3)):
        run = make(0.4, validation=validation)
        for index, score in enumerate((0.9, 0.6, 0.7, 0.8, 0.5)):
            if index == 1 and taken_up:
                assert await run.kept() == 0.9
                run.selection = Selection(run.problem, run.world.composer)
            elif index in taken_up:
                run.selection = Selection(run.problem, run.world.composer)
            await run.through(score)
        assert await run.kept() == 0.8
        state, best = kept_state(run.store)
        assert (state.parameters.generator, best.scope) == ("0.8", "full")
