"""What a reader wants of a verdict: single examples, the prompts compared, and what to type."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from promptcodebook.method.state import State
from promptcodebook.policy.references import Best
from promptcodebook.report.context import Context, DeployedState, facts
from promptcodebook.report.verdict import (
    MOST,
    JudgedSection,
    PromptsSection,
    UseSection,
    VerdictSection,
    pairs_of,
)
from promptcodebook.run.verdict import Entry, Terms, conclude
from promptcodebook.store.events import Amended, Compared, Concluded, Ended, Started
from promptcodebook.store.run import RunStore
from promptcodebook.types import Codebook, Evaluation, Instinct, Rollout, Route
from tests.report.scripted_run import HOSTILE, ScriptedRun
from tests.report.strict import flat, read_page, section

Write = Callable[..., RunStore]


def evaluation(name: str, *rewards: float | None) -> Evaluation:
    return Evaluation(
        name, "test", tuple(Rollout(f"e{i}", reward=r) for i, r in enumerate(rewards))
    )


def test_pairs_come_as_wins_then_losses_then_ties_the_greatest_difference_first() -> None:
    """A row without a reward earned nothing; an example of one row makes no pair."""
    first = evaluation("present", 0.5, 0.5, 0.9, 1.0, 0.2, None)
    second = evaluation("learned", 0.6, 0.5, 0.1, 0.9, 1.0, 0.0, 1.0)
    found = [f"{p.second.example_id} {p.outcome}" for p in pairs_of(first, second)]
    assert found == ["e4 win", "e0 win", "e2 loss", "e3 loss", "e1 tie", "e5 tie"]


def test_test_examples_are_titled_by_their_input_and_say_that_they_are_a_sample(
    write: Write,
) -> None:
    inputs = {f"test-{i}": f"Question {i}?\n{HOSTILE}" for i in range(60)}
    text = flat(section(write(ScriptedRun(steps=2)), JudgedSection, inputs))
    assert "learned against present on 60 test examples: 18 wins, 0 losses, 42 ties" in text
    assert "Shown here, a sample: 12 wins" in text
    titles = re.findall(r"win Question (\d+)\? ", text)
    assert len(titles) == len(set(titles)) == MOST
    assert text.count("0.00 → 1.00") == MOST


@pytest.mark.parametrize(
    ("row", "said"), [("untrained", "as it began"), ("learned", "as deployed")]
)
def test_a_test_example_shows_the_instincts_that_its_row_was_routed_over(
    write: Write, row: str, said: str
) -> None:
    store = write(ScriptedRun(steps=0, size=2, select=1, verdict=False, hostile=""))
    first = Codebook((Instinct("as it began"), Instinct("b")))
    later = Codebook((Instinct("as deployed"), Instinct("b")))
    rollout = Rollout("e0", route=Route((0,)), reward=1.0)
    judged = [evaluation("present", 0.0), Evaluation(row, "test", (rollout,))]
    for each in judged:
        store.append(Compared(each))
    rows = conclude([Entry(each.name, each) for each in judged], Terms(3)).table.as_json()
    store.append(Concluded("Unclear.", None, rows))
    parameters = replace(store.parameters_at(-1), codebook=later)
    deployed = DeployedState(State.first(parameters), Best(None, -1))
    made = JudgedSection(replace(Context.of(store, {}), deployed=deployed))
    made.add(Started(replace(parameters, codebook=first), "expert"))
    for each in judged:
        made.add(Compared(each))
    page = read_page(made.render())
    assert said in page.texts
    assert not ({"as it began", "as deployed"} - {said}) & set(page.texts)


def test_what_was_judged_before_the_run_went_on_is_shown_no_more(write: Write) -> None:
    store = write(ScriptedRun(steps=2, hostile=""))
    store.append(Amended(("epochs: 2 → 4",), "2026-02-01T00:00:00+00:00", extended=True))
    assert "Nothing was compared" in flat(section(store, JudgedSection))


def test_the_fixed_prompts_are_shown_in_full_but_those_of_private_data(write: Write) -> None:
    page = read_page(section(write(ScriptedRun(steps=2, hostile="")), PromptsSection))
    prompt = "Answer briefly and check the constraints. " * 2
    assert page.texts.count(prompt) == 5 and "concat" in page.texts
    private = flat(section(write(ScriptedRun(steps=2, private=True)), PromptsSection))
    assert "Left out" in private and "Answer briefly" not in private
    present = write(present="Be <brief>.")  # there is no verdict yet
    assert "Be <brief>." in flat(section(present, PromptsSection))


@pytest.mark.parametrize(
    ("deploy", "said"),
    [
        ("learned", "pco serve RUN"),
        ("concat", "pco prompt RUN --row concat"),
        ("x; rm -rf ~", "pco prompt RUN --row 'x; rm -rf ~'"),
        ("untrained", 'pco prompt RUN --row untrained "an input"'),
        ("", "pco codebook show RUN"),
    ],
)
def test_what_to_type_follows_the_verdict(write: Write, deploy: str, said: str) -> None:
    store = write(ScriptedRun(steps=2, hostile=""))
    concluded = store.outline().conclusion
    assert concluded is not None
    store.append(replace(concluded, deploy=deploy))
    text = flat(section(store, UseSection))
    assert said.replace("RUN", store.header.id) in text
    others = {"serve": "pco serve", "alone": "prints it, alone", "show": "codebook show"}
    assert sum(words in text for words in others.values()) == (deploy != "untrained")


def test_a_run_without_a_verdict_says_what_to_type_unless_it_is_at_work(write: Write) -> None:
    store = write(ScriptedRun(steps=2, verdict=False, hostile=""))
    typed = f"pco train --resume {store.header.id}"
    assert typed not in section(store, UseSection)
    store.close()
    again = RunStore.open(store.path)
    assert typed in section(again, UseSection)
    assert ("ended", "no: it was cut off") in facts(Context.of(again, {}))
    again.close()
    stopped = write(ScriptedRun(steps=2, verdict=False, hostile="", task="other"))
    stopped.append(Ended("budget", hint="pco train --resume it --budget MORE"))
    for make in (UseSection, VerdictSection):
        assert "pco train --resume it --budget MORE" in section(stopped, make)
    assert ("next", "pco train --resume it --budget MORE") in facts(Context.of(stopped, {}))


def test_the_facts_name_model_budget_plan_and_splits(write: Write) -> None:
    config: dict[str, Any] = {
        "lm": "http://localhost:8000/v1#m",
        "roles": {"critic": {"model": "openai/big"}},
        "budget": {"calls": 900, "tokens": None, "usd": 5},
        "update": {"epochs": 7, "steps_per_epoch": "all", "batch_size": 15},
    }
    store = write(config=config, sizes={"train": 40, "val": 20, "test": 60})
    named = dict(facts(Context.of(store, {})))
    assert named["model"] == "executor: http://localhost:8000/v1#m; critic: openai/big"
    assert named["data"] == "40 train, 20 val, 60 test" and named["steps"] == "0 of 21"
    assert named["budget"] == "900 calls, $5.00"


def test_a_conclusion_without_rows_names_nothing_to_deploy(write: Write) -> None:
    store = write()
    store.append(Compared(evaluation("present", 1.0)))
    store.append(Concluded("There is no test split, so nothing was judged.", None))
    assert "names nothing to deploy" in flat(section(store, UseSection))
