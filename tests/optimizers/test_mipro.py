"""MIPROv2 as an optimizer of ours: dspy itself, on our program, models, budget and store."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook.calls import Request
from promptcodebook.errors import MissingExtra
from promptcodebook.lm.scripted import ScriptedLM
from tests.optimizers.teachable import answer, learn, model, total
from tests.optimizers.test_gepa import two_steps
from tests.run.test_optimize import data


def test_it_learns_a_prompt_with_demonstrations_through_our_models(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lm = model()
    run = learn(tmp_path, "mipro", lm)
    assert run.ended == "finished" and [*run.rows] == ["present", "mipro"]
    assert run.rows["mipro"].score.mean > run.rows["present"].score.mean
    assert total(run) == len(lm.history) and run.usage["updater"].calls > 5
    settings = run.settings
    assert settings["library"].startswith("MIPROv2 (dspy 3.")
    assert (settings["auto"], settings["seed"]) == ("light", 0)
    systems = [r.messages[0].content for r in lm.history if r.role == "executor"]
    assert not any("Given the fields" in s for s in systems), "words of dspy's for no prompt"
    shown = [s for s in systems if "\n\nExamples:\n\nInput: In " in s]
    assert shown, "some prompts show examples"
    held_out = [e.input for e in (*data().val, *data().test)]
    assert not any(text in s for s in shown for text in held_out), "all of them from training"
    told = capfd.readouterr()
    assert "Bootstrapp" not in told.out + told.err and "Trial" not in told.out + told.err


@pytest.mark.slow
def test_it_comes_to_the_same_again_and_a_stopped_run_pays_for_nothing_twice(
    tmp_path: Path,
) -> None:
    whole = learn(tmp_path, "mipro", name="whole")
    lm = model()
    part = {"name": "part", "config": {"budget": {"reserve_for_verdict": 0.3}}}
    stopped = learn(tmp_path, "mipro", lm, budget="100calls", **part)
    assert stopped.ended == "budget" and [*stopped.rows] == ["present", "mipro"]
    assert stopped.spent.calls <= 100
    rest = learn(tmp_path, "mipro", lm, resume="last", budget="999calls", **part)
    assert (rest.ended, rest.rows["mipro"].prompt) == ("finished", whole.rows["mipro"].prompt)
    keys = [str((r.messages, r.sample, r.sampling)) for r in lm.history]
    assert len(keys) == len(set(keys)) == total(rest)


def test_a_weak_proposer_is_a_row_that_says_how_it_failed(tmp_path: Path) -> None:
    def weak(request: Request) -> str:
        return "" if request.role == "updater" else answer(request)

    lm = ScriptedLM().reply_with(weak)
    run = learn(tmp_path, "mipro", lm, config={"init": {"prompt": "Be brief."}})
    assert run.ended == "finished"
    assert run.rows["mipro"].prompt == "Be brief."
    assert "failed with AdapterParseError" in run.verdict
    assert "The prompt that it began with stands in its place." in run.verdict


@pytest.mark.slow
def test_each_stage_has_a_predictor_of_its_own(tmp_path: Path) -> None:
    lm = model()
    config = {"compose_per_stage": True, "init": {"prompt": "Be brief."}}
    run = learn(tmp_path, "mipro", lm, config=config, executor=two_steps)
    assert run.ended == "finished"
    prompt = run.rows["mipro"].prompt
    assert prompt is not None and prompt.startswith("plan: ") and "say: " in prompt
    asked = [r.messages[0].content for r in lm.history if r.role == "executor"]
    shown = [text for text in asked if "Examples:" in text]
    planned = [text for text in shown if "Input: Plan" in text or "Input: In " in text]
    said = [text for text in shown if "Input: use " in text]
    assert planned and said, "what a stage is shown is what that stage read and wrote"
    assert not set(planned) & set(said)


@pytest.mark.slow
def test_instructions_alone_where_no_demonstrations_are_wanted(tmp_path: Path) -> None:
    lm = model()
    learn(tmp_path, "mipro", lm, config={"mipro": {"demos": 0}})
    assert not any("Examples:" in r.messages[0].content for r in lm.history if r.role == "executor")


@pytest.mark.parametrize("module", ["dspy", "optuna"])
def test_a_missing_package_is_named_before_anything_is_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match="MIPROv2 needs an optional dependency") as caught:
        learn(tmp_path, "mipro")
    assert caught.value.hint == "pip install 'promptcodebook[baselines]'"
    assert isinstance(caught.value, pco.PcoError)
