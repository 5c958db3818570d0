"""`pco prompt`: what the verdict recommends can be had, alone on stdout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.config import load_config
from promptcodebook.method.state import State
from promptcodebook.method.templates import load_templates
from promptcodebook.policy.file import PolicyFile, read_policy_file
from promptcodebook.policy.policy import deploy
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run
from tests.cli.conftest import QUICK
from tests.cli.invoked import pco


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


def test_a_policy_file_is_enough(trained: Path, run_id: str, tmp_path: Path) -> None:
    (trained / "runs" / run_id / "policy.json").rename(tmp_path / "p.json")
    file = read_policy_file(tmp_path / "p.json")
    concat = pco("prompt", "p.json", "--row", "concat", cwd=tmp_path)
    assert concat.out == file.concat + "\n"
    assert all(entry.text in concat.out for entry in file.codebook)
    assert pco("prompt", "p.json", "--row", "present", cwd=tmp_path).code == 0


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
    store = RunStore.open(find_run(trained / "runs", "last"))
    settings = load_config(store.header.settings)
    templates = store.header.templates or load_templates(settings.templates)
    state = State.first(store.started().parameters)
    store.close()
    first = PolicyFile.of(state, settings, templates, store.header.program, ())
    assert said.json == {
        "ref": store.header.id,
        "row": "untrained",
        "prompt": deploy(first, settings, Sources(Path(store.header.base))).prompt(text),
    }
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


def test_a_run_with_few_test_examples_has_no_verdict(store: RunStore) -> None:
    conclusion = store.outline().conclusion
    assert conclusion is not None and conclusion.worth is None and conclusion.deploy == ""
    assert "at least 20 test examples, and there are 6" in conclusion.text


def test_a_policy_file_does_not_know_what_its_run_began_with(trained: Path, run_id: str) -> None:
    file = str(trained / "runs" / run_id / "policy.json")
    said = pco("prompt", file, "an input", "--row", "untrained", cwd=trained)
    said.error(2, "only its run knows", 'pco prompt RUN --row untrained "an input"')
