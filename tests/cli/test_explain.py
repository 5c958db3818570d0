"""`pco explain` on an example of the run: what became of it there, from route to rewrites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptcodebook.store.run import RunStore
from promptcodebook.types import Step, Trace, variable_name
from tests.cli.invoked import pco
from tests.store.edit import edit_header


def inputs(trained: Path) -> dict[str, str]:
    """Id -> input, of the example data that `pco init` writes."""
    from promptcodebook.data import load

    data = load(trained / "data.jsonl")
    return {e.id: e.input for _, split in data.items() for e in split}


def blaming(store: RunStore) -> tuple[Step, Trace]:
    """The last time that an example blamed an instinct of which the rewrite was kept."""
    found: dict[str, tuple[Step, Trace]] = {}
    last: dict[str, int] = {}
    for step in store.steps(traces=True):
        kept = {r.variable for r in step.rewrites if r.kept} - set(step.reverted)
        for trace in step.traces:
            last[trace.rollout.example_id] = step.index
            if kept & set(trace.gradients.codebook):
                found[trace.rollout.example_id] = step, trace
    return next((s, t) for name, (s, t) in found.items() if last[name] == s.index)


@pytest.fixture
def blamed(store: RunStore) -> tuple[Step, Trace]:
    return blaming(store)


def test_a_training_example_is_told_to_the_end(trained: Path, blamed: tuple[Step, Trace]) -> None:
    step, trace = blamed
    name = trace.rollout.example_id
    shown = pco("explain", "last", inputs(trained)[name], cwd=trained)
    flat = " ".join(shown.out.split())
    assert f"in training (example {name}, update {step.index + 1}, " in flat
    order = ["input ", "route ", "why ", "prompt ", "in training ", "output ", "reward ", "critic "]
    places = [flat.index(f" {part}" if part != "input " else part) for part in order]
    assert places == sorted(places)
    for k, gradient in trace.gradients.codebook.items():
        assert f"blame c{k}: {' '.join(gradient.split())}" in flat
        assert f"changed {variable_name(k)}: " in flat


def test_an_example_is_found_by_its_id_too(trained: Path, blamed: tuple[Step, Trace]) -> None:
    name = blamed[1].rollout.example_id
    by_id = pco("explain", "last", name, "--json", cwd=trained).json
    by_input = pco("explain", "last", inputs(trained)[name], "--json", cwd=trained).json
    assert by_id == by_input and by_id["input"] == inputs(trained)[name]
    last = by_id["record"]["trainings"][-1]
    assert last["step"] == blamed[0].index
    assert {r["variable"] for r in last["rewrites"]} <= {
        int(k) if k.isdigit() else k
        for k in (*last["trace"]["gradients"]["codebook"], "encoder", "generator", "critic")
    }
    assert [k for k, _ in last["instincts"]] == last["trace"]["rollout"]["route"]["indices"]


def test_test_and_validation_examples_have_what_was_made_of_them(
    trained: Path, store: RunStore
) -> None:
    rows = list(store.test_evaluations())
    name = rows[0].rollouts[0].example_id
    shown = pco("explain", "last", name, cwd=trained).out
    assert f"in the verdict (example {name} of the test split)" in shown
    for row in rows:
        assert f"\n  {row.name} " in shown
    last = store.last_validation()
    assert last is not None
    validated = last.evaluation.rollouts[0].example_id
    assert (
        f"in validation (example {validated})" in pco("explain", "last", validated, cwd=trained).out
    )


def test_every_piece_of_the_prompt_stands_behind_its_source(trained: Path) -> None:
    tree = pco("explain", "last", "How many mugs are 3 and 4?", "--json", cwd=trained).json
    assert "".join(span["text"] for span in tree["spans"]) == tree["prompt"]
    shown = pco("explain", "last", "How many mugs are 3 and 4?", cwd=trained).out
    for span in tree["spans"]:
        if span["instinct"] is not None:
            assert f"c{span['instinct']}  " in shown
    assert "record" not in tree and "in training" not in shown


def test_without_its_data_a_run_is_explained_without_its_record(trained: Path) -> None:
    (trained / "data.jsonl").rename(trained / "moved.jsonl")
    shown = pco(
        "explain",
        "last",
        "a question",
        "--lm",
        "simulated",
        "--set",
        "data.path=moved.jsonl",
        cwd=trained,
    )
    assert shown.code == 0 and "in training" not in shown.out


def test_of_private_data_nothing_is_looked_up(
    trained: Path, run_id: str, blamed: tuple[Step, Trace]
) -> None:
    name = blamed[1].rollout.example_id
    asked = inputs(trained)[name]
    edit_header(
        trained / "runs" / run_id / "run.sqlite",
        lambda text: json.dumps({**json.loads(text), "private": True}),
    )
    shown = pco("explain", "last", asked, cwd=trained)
    assert shown.code == 0 and "in training" not in shown.out
