"""`pco explain`, also on an example of the run, and `pco prompt`, alone on stdout."""

from __future__ import annotations

import contextlib
import json
from contextlib import closing
from pathlib import Path

import pytest

import promptcodebook
from promptcodebook.assemble import Sources
from promptcodebook.config import load_config
from promptcodebook.policy.policy import deploy
from promptcodebook.policy.references import first_policy
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run
from promptcodebook.types import Step, Trace, variable_name
from tests.cli.conftest import QUICK
from tests.cli.invoked import pco
from tests.store.edit import edit_header


def inputs(trained: Path) -> dict[str, str]:
    """Id -> input, of the example data that `pco init` writes."""
    from promptcodebook.data import load

    data = load(trained / "data.jsonl")
    return {e.id: e.input for _, split in data.items() for e in split}


@pytest.fixture
def blamed(store: RunStore) -> tuple[Step, Trace]:
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
    shown = pco("explain", "last", validated, cwd=trained).out
    assert f"in validation (example {validated})" in shown


def test_without_its_data_or_of_private_data_nothing_is_looked_up(
    trained: Path, run_id: str, blamed: tuple[Step, Trace]
) -> None:
    asked = inputs(trained)[blamed[1].rollout.example_id]
    (trained / "data.jsonl").rename(trained / "moved.jsonl")
    moved = ("--lm", "simulated", "--set", "data.path=moved.jsonl")
    gone = pco("explain", "last", asked, *moved, cwd=trained)
    (trained / "moved.jsonl").rename(trained / "data.jsonl")
    edit_header(
        trained / "runs" / run_id / "run.sqlite",
        lambda text: json.dumps({**json.loads(text), "private": True}),
    )
    for shown in (gone, pco("explain", "last", asked, cwd=trained)):
        assert shown.code == 0 and "in training" not in shown.out


def test_explain_has_route_reasons_and_prompt(trained: Path, run_id: str) -> None:
    explained = pco("explain", "last", "How many mugs are 3 and 4?", "--json", cwd=trained).json
    assert len(explained["route"]["indices"]) == 4 and explained["prompt"]
    assert [k for k, _ in explained["instincts"]] == explained["route"]["indices"]
    assert "".join(span["text"] for span in explained["spans"]) == explained["prompt"]
    text = pco("explain", run_id, "-", cwd=trained, stdin="How many mugs are 3 and 4?\n").out
    for span in explained["spans"]:
        assert span["instinct"] is None or f"c{span['instinct']}  " in text
    assert "record" not in explained and "in training" not in text
    assert "route " + ", ".join(map(str, explained["route"]["indices"])) in text
    assert explained["route"]["analysis"] in " ".join(text.split())
    pco("explain", "last", "-", cwd=trained, stdin=" \n").error(2, "the input is empty")


def test_an_input_of_several_columns_is_explained_from_json(folder: Path) -> None:
    rows = [{"title": f"T{n}", "body": f"B{n}", "target": "x"} for n in range(8)]
    config = {"preset": "quick", "update": {"epochs": 1, "batch_size": 2}}
    with contextlib.chdir(folder):
        run = promptcodebook.optimize(
            promptcodebook.load(rows, input="{title}: {body}"), "exact", "simulated",
            config={**config, "validation": {"every": 0}}, progress=False,
        )  # fmt: skip
        assert run.explain({"title": "A", "body": "{B}"}).input == "A: {B}"
    columns = '{"title": "A", "body": "{B}", "more": 1}'
    result = pco("explain", "last", columns, "--json", cwd=folder)
    assert result.json["input"] == "A: {B}"
    assert pco("explain", "last", "-", "--json", cwd=folder, stdin=columns).json == result.json
    assert pco("explain", "last", "A: {B}", "--json", cwd=folder).json["input"] == "A: {B}"
    pco("explain", "last", '{"titel": "A", "body": ""}', cwd=folder).error(
        2, "no column 'title' (did you mean 'titel'?)"
    )
    pco("explain", "last", '{"title": "A', cwd=folder).error(2, "not valid JSON")


def test_json_that_is_the_input_itself_stays_a_text(trained: Path) -> None:
    text = '{"title": "an order", "lines": [1, 2]}'
    assert pco("explain", "last", text, "--json", cwd=trained).json["input"] == text
    assert pco("explain", "last", "{oops", "--json", cwd=trained).json["input"] == "{oops"
    as_column = json.dumps({"input": text})
    assert pco("explain", "last", as_column, "--json", cwd=trained).json["input"] == text


# `pco prompt`


def test_concat_and_present_are_what_the_verdict_measured(trained: Path, store: RunStore) -> None:
    measured = {e.name: e.rollouts[0].prompt for e in store.test_evaluations()}
    for row in ("concat", "present"):
        result = pco("prompt", "last", "--row", row, cwd=trained)
        assert result.code == 0, result.err
        assert result.out == measured[row] + "\n"


def test_a_row_typed_as_the_input_is_named(trained: Path) -> None:
    result = pco("prompt", "last", "concat", cwd=trained)
    assert result.code == 0 and "pco prompt last --row concat" in result.err
    assert "--row" not in pco("prompt", "last", "a concatenation", cwd=trained).err


def test_the_learned_prompt_is_composed_for_the_input(trained: Path, run_id: str) -> None:
    said = pco("prompt", run_id, "Say in 5 words what maps are.", "--json", cwd=trained)
    assert said.code == 0, said.err
    tree = json.loads(said.out)
    explained = pco("explain", run_id, "Say in 5 words what maps are.", "--json", cwd=trained).json
    assert tree == {"ref": run_id, "row": "learned", "prompt": explained["prompt"]}
    piped = pco("prompt", run_id, "-", cwd=trained, stdin="Say in 5 words what maps are.\n")
    assert piped.out == explained["prompt"] + "\n"


def test_the_untrained_prompt_is_composed_for_the_input(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the policy that the run began with."""
    text = "Say in 5 words what maps are."
    assert pco("train", *QUICK, "--set", "keep=last", cwd=trained).code == 0
    said = pco("prompt", "last", text, "--row", "untrained", "--json", cwd=trained)
    assert said.code == 0, said.err
    monkeypatch.chdir(trained)
    with closing(RunStore.open(find_run(trained / "runs", "last"))) as store:
        settings, first = load_config(store.header.settings), first_policy(Path("runs"), "last")
        composed = deploy(first, settings, Sources(Path(store.header.base))).prompt(text)
        assert said.json == {"ref": store.header.id, "row": "untrained", "prompt": composed}
    assert said.json["prompt"] != pco("prompt", "last", text, cwd=trained).out.rstrip("\n")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ((), ("for each input", 'pco prompt last "an input"', "--row concat")),
        (("--row", "untrained"), ("for each input", 'pco prompt last --row untrained "an input"')),
        (("x", "--row", "concat"), ("one prompt for every input",)),
        (("--row", "concatt"), ("unknown row 'concatt'", "did you mean 'concat'")),
    ],
)
def test_what_cannot_be_printed_says_what_to_type(
    trained: Path, args: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    result = pco("prompt", "last", *args, cwd=trained)
    result.error(2, *parts)
    assert result.out == ""


def test_a_policy_file_does_not_know_what_its_run_began_with(trained: Path, run_id: str) -> None:
    file = str(trained / "runs" / run_id / "policy.json")
    said = pco("prompt", file, "an input", "--row", "untrained", cwd=trained)
    said.error(2, "only its run knows", 'pco prompt RUN --row untrained "an input"')
