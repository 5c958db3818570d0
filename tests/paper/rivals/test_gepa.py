"""GEPA as an optimizer of ours: the package itself, on our program, models, budget and store."""

from pathlib import Path
from typing import Any

import pytest

from promptcodebook.calls import Request
from promptcodebook.errors import RunChanged
from promptcodebook.lm.scripted import ScriptedLM
from tests.build.optimize import data
from tests.build.teachable import answer, learn, model, total, two_steps

SHORT = {"gepa": {"rollouts": 60}}


@pytest.mark.parametrize("name", ["gepa", "gepa-merge"])
def test_it_learns_a_prompt_through_our_models(tmp_path: Path, name: str) -> None:
    lm = model()
    run = learn(tmp_path, name, lm, config=SHORT)
    assert run.ended == "finished" and [*run.rows] == ["present", name]
    assert run.rows[name].score.mean > run.rows["present"].score.mean
    prompt = run.rows[name].prompt
    assert prompt is not None and "at level" in prompt
    assert total(run) == len(lm.history) and run.usage["updater"].calls > 2
    settings = run.settings
    assert settings["use_merge"] == (name == "gepa-merge")
    assert settings["library"].startswith("gepa 0.")
    assert (settings["max_metric_calls"], settings["reflection_minibatch_size"]) == (60, 3)
    assert f"{settings['library']} tried " in run.verdict


def test_a_reflection_reads_what_our_critic_reads(tmp_path: Path) -> None:
    lm = model()
    learn(tmp_path, "gepa", lm, config={**SHORT, "init": {"prompt": "Be brief."}})
    first = next(r for r in lm.history if r.role == "updater").messages[-1].content
    assert "```\nBe brief.\n```" in first, "it begins with what the user has today"
    assert "what are" in first and "no idea" in first
    assert "Reward 0 (0 is the least, 1 the best)." in first
    assert "Reference answer: use " in first
    assert "Feedback of the checker: give the stated use" in first


@pytest.mark.parametrize("name", ["gepa", "mipro"])
@pytest.mark.parametrize("prompt", ["Be brief.", ""])
def test_it_begins_with_the_present_prompt_and_draws_with_room(
    tmp_path: Path, name: str, prompt: str
) -> None:
    """Else with the task's zero-shot prompt, '' here; never with instincts, which are PCO's own.
    Whatever our own updater is asked with: of a cold, short one no rival can be made."""
    lm, cold = model(), {"updater": {"temperature": 0.0, "max_tokens": 200}}
    config = {"gepa": {"rollouts": 40}, "init": {"instincts": ["Be kind."], "prompt": prompt}}
    run = learn(tmp_path, name, lm, config=config, roles=cold)
    assert run.candidates[0].prompt.startswith(prompt)
    assert run.candidates[0].prompt == prompt or name == "mipro", "MIPROv2 may add demonstrations"
    sent = [m.content for r in lm.history for m in r.messages]
    assert not any("Be kind." in text for text in sent)
    drawn = [r.sampling for r in lm.history if r.role == "updater"]
    assert drawn and all(s.temperature == 1.0 and s.top_p is None for s in drawn)
    assert all(s.max_tokens == 1024 for s in drawn)
    assert len(run.candidates) > 1


@pytest.mark.parametrize("name", ["gepa", "mipro"])
@pytest.mark.parametrize("most", [None, 4])
def test_it_validates_on_the_whole_split_or_on_what_all_may_use_of_it(
    tmp_path: Path, name: str, most: int | None
) -> None:
    """`validation.subset`, for looks of ours on the way, does not bind it."""
    config: dict[str, Any] = {"gepa": {"rollouts": 40}, "validation": {"subset": 2}}
    config["validation"]["examples"] = most
    lm = model()
    run = learn(tmp_path, name, lm, config=config)
    assert {c.n for c in run.candidates if c.n} == {most or 8}
    greedy = {r.messages[-1].content for r in lm.history if r.role == "executor" and r.greedy}
    assert len(greedy & {e.input for e in data().val}) == (most or 8)


def test_a_budget_stops_it_and_the_best_so_far_is_judged(tmp_path: Path) -> None:
    lm = model()
    config = {"budget": {"calls": 90, "reserve_for_verdict": 0.4}}
    run = learn(tmp_path, "gepa", lm, config=config)
    assert run.ended == "budget" and [*run.rows] == ["present", "gepa"]
    assert total(run) == len(lm.history) <= 90
    assert run.settings["max_metric_calls"] == 10 * 6 * 16, "the budget is what ends it"


def test_a_finished_run_may_take_more_rollouts(tmp_path: Path) -> None:
    more = {"gepa": {"rollouts": 90}}
    whole = learn(tmp_path, "gepa", name="whole", config=more)
    short = learn(tmp_path, "gepa", name="short", config=SHORT)
    with pytest.raises(RunChanged, match="nothing to resume") as caught:
        learn(tmp_path, "gepa", name="short", config=SHORT, resume=short.id)
    assert "config={'gepa': {'rollouts': MORE}}" in caught.value.hint
    longer = learn(tmp_path, "gepa", name="short", config=more, resume=short.id)
    assert longer.rows["gepa"].prompt == whole.rows["gepa"].prompt
    assert longer.rows["gepa"].gain == whole.rows["gepa"].gain
    assert "This is look 2 at the same test split" in longer.verdict


def test_each_stage_is_a_component_of_its_own(tmp_path: Path) -> None:
    lm = model()
    config = {**SHORT, "compose_per_stage": True, "init": {"prompt": "Be brief."}}
    run = learn(tmp_path, "gepa", lm, config=config, executor=two_steps)
    asked = [r.messages[-1].content for r in lm.history if r.role == "updater"]
    assert "# Example 1\n## Inputs\n### input\nIn " in asked[0]
    prompt = run.rows["gepa"].prompt
    assert prompt is not None and prompt.startswith("plan: ") and "\n\nsay: " in prompt
    systems = {r.messages[0].content for r in lm.history if r.role == "executor"}
    assert systems >= {"Be brief."} and not any("plan: " in s for s in systems)


def test_a_perfect_prompt_does_not_keep_it_busy_forever(tmp_path: Path) -> None:
    """At temperature 0 the same rollouts cost nothing, so that no budget would end it."""

    gold = {example.input: example.target or "" for example in (*data().train, *data().val)}

    def perfect(request: Request) -> str:
        return gold.get(request.messages[-1].content) or answer(request)

    lm = ScriptedLM().reply_with(perfect)
    cold = {"executor": {"temperature": 0.0}}
    short = {"update": {"epochs": 1, "batch_size": 6}}
    run = learn(tmp_path, "gepa", lm, roles=cold, budget="9999calls", config=short)
    assert run.ended == "finished" and total(run) == len(lm.history) < 100


# MIPROv2 as an optimizer of ours: dspy itself, on our program, models, budget and store.


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


def test_a_weak_proposer_is_a_row_that_says_how_it_failed(tmp_path: Path) -> None:
    def weak(request: Request) -> str:
        return "" if request.role == "updater" else answer(request)

    lm = ScriptedLM().reply_with(weak)
    run = learn(tmp_path, "mipro", lm, config={"init": {"prompt": "Be brief."}})
    assert run.ended == "finished"
    assert run.rows["mipro"].prompt == "Be brief."
    assert "failed with AdapterParseError" in run.verdict
    assert "The prompt that it started from is used instead." in run.verdict


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
    texts = [text for text in shown if "Input: use " in text]
    assert planned and texts, "what a stage is shown is what that stage read and wrote"
    assert not set(planned) & set(texts)


@pytest.mark.slow
def test_instructions_alone_where_no_demonstrations_are_wanted(tmp_path: Path) -> None:
    lm = model()
    learn(tmp_path, "mipro", lm, config={"mipro": {"demos": 0}})
    assert not any("Examples:" in r.messages[0].content for r in lm.history if r.role == "executor")
