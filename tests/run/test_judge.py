"""What a verdict has evaluated, what it stores, and under which terms it judges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.assemble import Assembled, Plan
from promptcodebook.calls import Request
from promptcodebook.data import Dataset
from promptcodebook.intervals import Interval
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.lm.stack import Models, Supplies
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.method.templates import load_templates
from promptcodebook.optimizers.base import Problem, Result
from promptcodebook.progress import Phase
from promptcodebook.run.verdict import Terms, judge, row_of
from promptcodebook.store.events import Amended, Compared, Concluded, Stepped, fold
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.program import SingleCall
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Codebook, Evaluation, Example, Parameters, Rollout, Step
from tests.method.build import config, examples, said

HEADER = Header("run", "2026-01-01T00:00:00+00:00", "0")
WORTH = {"you are present": 0.3, "you are concat": 0.4, "you are learned": 0.8}


def answer(request: Request) -> Scripted:
    """What the prompt is worth, with a sway from one input to the next; the rival has none."""
    text = said(request)
    prompt, level = next(pair for pair in WORTH.items() if pair[0] in text)
    sway = 0.0 if prompt == "you are concat" else 0.01 * (int(text.split()[-1]) % 5 - 2)
    return str(round(level + sway, 3))


class Court:
    """A problem with nothing but a test split, and a result to be judged on it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.lm = ScriptedLM().reply_with(answer)
        self.phases: list[Phase] = []
        tree = {"init": {"prompt": "you are present"}, **settings}
        chosen = config(lm="own", cache=False, **tree)
        data = Dataset(tuple(examples(2)), (), tuple(examples(24, start=10)))
        task = Task("t", data, asks_nobody(self.reward), SingleCall())
        plan = Plan(chosen, task, load_templates("default"))
        models = Models.build(chosen, Supplies(own=self.lm))
        self.store = RunStore.create(folder, HEADER)
        self.problem = Problem(Assembled(plan, models), self.store, self.hear)

    def reward(self, example: Example, output: str) -> float:
        return float(output)

    def hear(self, event: object) -> None:
        if isinstance(event, Phase):
            self.phases.append(event)

    def result(self, remark: str = "") -> Result:
        rival = Result("concat", "the long prompt", FixedPrompt("you are concat"))
        mine = FixedPrompt("you are learned")
        return Result("learned", "the learned one", mine, rivals=(rival,), remark=remark)


@pytest.fixture
def court(tmp_path: Path) -> Iterator[Court]:
    made = Court(tmp_path)
    yield made
    made.store.close()


async def test_the_present_prompt_the_rivals_and_the_result_are_asked_on_all_of_the_test_split(
    court: Court,
) -> None:
    made = await judge(court.problem, court.result())
    assert [row.name for row in made.rows] == ["present", "concat", "learned"]
    assert [row.title for row in made.rows][1:] == ["the long prompt", "the learned one"]
    for row, level in zip(made.rows, WORTH.values(), strict=True):
        assert row.score.n == 24 and row.score.mean == pytest.approx(level, abs=0.01)
    assert made.worth is True and made.deploy == "learned"
    assert len(court.lm.history) == 3 * 24
    begun = [phase.name for phase in court.phases if phase.done == 0]
    assert begun == ["judging present", "judging concat", "judging learned"]


async def test_what_was_evaluated_is_stored_and_not_asked_again(court: Court) -> None:
    first = await judge(court.problem, court.result())
    assert [e.name for e in court.store.test_evaluations()] == ["present", "concat", "learned"]
    assert await judge(court.problem, court.result()) == first
    assert len(court.lm.history) == 3 * 24


async def test_a_remark_of_the_optimizer_ends_the_sentence(court: Court) -> None:
    plain = await judge(court.problem, court.result())
    told = await judge(court.problem, court.result("Nothing was rewritten, for want of replies."))
    assert told.sentence == f"{plain.sentence} Nothing was rewritten, for want of replies."
    assert (told.rows, told.worth, told.deploy) == (plain.rows, plain.worth, plain.deploy)


async def test_a_verdict_is_drawn_by_the_seed_within_the_range_of_the_rewards(
    tmp_path: Path,
) -> None:
    """The terms are those of the run: its intervals are not those of another seed or range."""
    settings = {"seed": 3, "reward_range": (-1.0, 2.0)}
    court = Court(tmp_path, **settings)
    made = await judge(court.problem, court.result())
    present, concat, _ = court.store.test_evaluations()

    def scores(terms: Terms) -> list[Interval]:
        return [row_of(evaluation, None, terms).score for evaluation in (present, concat)]

    judged = [row.score for row in made.rows[:2]]
    assert judged == scores(Terms(3, (-1.0, 2.0)))
    assert judged[0] != scores(Terms(4, (-1.0, 2.0)))[0]
    assert judged[1] != scores(Terms(3, (0.0, 1.0)))[1], "equal rewards, in a narrower range"
    court.store.close()


async def test_a_run_that_was_made_longer_says_that_it_looks_again_and_corrects_for_it(
    court: Court,
) -> None:
    """The looks are counted from the store, so that another session knows of them."""
    store = court.store
    for look, level in ((1, "95 %"), (2, "98.75 %"), (3, "99.38 %")):
        made = await judge(court.problem, court.result())
        assert ("same test split" in made.sentence) == (look > 1)
        assert f"({level} +0." in made.sentence
        store.append(Concluded(made.sentence, made.worth, made.table.as_json()))
        assert await judge(court.problem, court.result()) == made, (
            "the same look, not a further one"
        )
        store.append(Amended(("epochs: 2 → 4",), "2026-02-01T00:00:00+00:00", extended=True))
    assert "This is look 3 at the same test split" in made.sentence
    path = store.path
    store.close()
    again = RunStore.open(path)
    assert again.outline().looks == again.state().looks == 3
    again.close()


def test_a_run_that_goes_on_after_its_verdict_looks_again_however_it_is_read(court: Court) -> None:
    """A budget stopped it after a verdict, twice, and it took more steps: one read leaves all steps
    out but the last one."""
    row = Evaluation("learned", "test", (Rollout("a", reward=1.0),))
    for step in range(9):
        empty = Parameters(str(step), "", Codebook(()), "")
        court.store.append(Stepped(Step(step, step, 0.5, (), (), empty, (), (), ())))
        if step in (2, 5):
            court.store.append(Compared(row))
            court.store.append(Concluded("No.", False))
            court.store.append(Concluded("No.", False))  # resumed, and nothing to do
    assert court.store.outline().looks == fold(court.store.events()).looks == 2
