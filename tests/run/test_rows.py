"""What the rows of a verdict are made of: which state, which statistics, which prompts, and how
they are asked. Only the model is scripted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.calls import Request
from promptcodebook.errors import PolicyError
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.method.templates import load_templates
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import first_policy, resolve
from promptcodebook.store.run import RunStore
from promptcodebook.types import Example, Rewrite
from tests.method.build import said, talkative

SEEDS = ("rule zero", "rule one", "rule two", "rule three")
SETTINGS: dict[str, Any] = {
    "size": 4,
    "select": 2,
    "cache": False,
    "init": {"instincts": SEEDS, "prompt": "You are terse."},
    "update": {"epochs": 2, "batch_size": 4},
    "validation": {"every": 1, "subset": 4, "patience": 99},
    "output_format": "Reply with a number.",
}


def examples(split: str, count: int) -> tuple[Example, ...]:
    return tuple(
        Example(f"{split}{i}", f"{split} input number {i}", f"target {i}") for i in range(count)
    )


def reward(example: Example, output: str) -> float:
    """The number that was answered."""
    return float(output) if output.replace(".", "", 1).isdecimal() else 0.0


def train(folder: Path, lm: ScriptedLM, **settings: Any) -> pco.Run:
    data = pco.Dataset(examples("train", 8), examples("val", 4), examples("test", 20))
    config = {**SETTINGS, **settings}
    return pco.optimize(data, reward, lm=lm, config=config, runs_dir=folder)


def scripted(executor: str = "0.5") -> ScriptedLM:
    def reply(request: Request) -> Scripted:
        return executor if request.role == "executor" else talkative(request)

    return ScriptedLM().reply_with(reply)


def falling() -> ScriptedLM:
    """Whatever was rewritten makes answers worse: the untrained codebook validates best."""

    def reply(request: Request) -> Scripted:
        if request.role == "executor":
            return "0.3" if "rewritten" in said(request) else "0.5"
        return talkative(request)

    return ScriptedLM().reply_with(reply)


def on_test(lm: ScriptedLM, role: str) -> list[Request]:
    return [r for r in lm.history if r.role == role and "test input number" in said(r)]


def test_the_verdict_is_asked_greedily_and_training_is_not(tmp_path: Path) -> None:
    lm = scripted()
    train(tmp_path, lm)
    judged = on_test(lm, "executor")
    validated = [r for r in lm.history if r.role == "executor" and "val input" in said(r)]
    trained = [r for r in lm.history if r.role == "executor" and "train input" in said(r)]
    assert judged and all(r.greedy for r in judged)
    assert validated and all(r.greedy for r in validated)
    assert trained and not any(r.greedy for r in trained)


def test_concat_is_the_kept_codebook_and_the_output_format(tmp_path: Path) -> None:
    run = train(tmp_path, scripted(), keep="last")
    assert all(text not in run.codebook.texts for text in SEEDS[:2])
    expected = "\n".join(run.codebook.texts) + "\n\nReply with a number."
    assert run.rows["concat"].prompt == expected
    assert run.policy.row("concat").prompt == expected
    assert run.rows["present"].prompt == "You are terse."
    assert run.policy.row("present").prompt == "You are terse."


def test_concat_gets_no_format_where_the_learned_prompts_get_none(tmp_path: Path) -> None:
    run = train(tmp_path, scripted(), compose="verbatim", base_prompt="Before all.")
    prompt = run.rows["concat"].prompt
    assert prompt == "Before all.\n\n" + "\n".join(run.codebook.texts)
    assert run.rows["present"].prompt == "Before all.\n\nYou are terse."


def test_a_saved_policy_has_the_rows_with_one_prompt_and_says_what_the_others_are(
    tmp_path: Path,
) -> None:
    run = train(tmp_path, scripted())
    run.policy.save(tmp_path / "saved.json")
    loaded = pco.load_policy(tmp_path / "saved.json", lm="simulated")
    for row in ("present", "concat"):
        assert loaded.row(row).prompt == run.rows[row].prompt
    assert run.rows["learned"].prompt is None
    with pytest.raises(PolicyError, match="each input gets another"):
        loaded.row("learned")


def test_learned_is_routed_with_the_trained_statistics_and_untrained_without(
    tmp_path: Path,
) -> None:
    lm = scripted()
    run = train(tmp_path, lm, keep="last")
    lines = load_templates("default").lines
    first = first_policy(tmp_path, run.id)
    trained = lines.show(run.codebook, run.policy.file.statistics)
    fresh = lines.show(first.parameters.codebook, RoutingStatistics.fresh(4))
    assert "(success 0.5" in trained
    assert trained != lines.show(run.codebook, RoutingStatistics.fresh(4))
    routed = [said(r) for r in on_test(lm, "encoder")]
    assert sum(trained in text for text in routed) == 20
    assert sum(fresh in text for text in routed) == 20
    assert len(routed) == 40


def test_keep_decides_which_state_is_judged_saved_and_resolved(tmp_path: Path) -> None:
    best = train(tmp_path, falling(), compose="verbatim")
    last = train(tmp_path, falling(), compose="verbatim", keep="last")
    assert best.codebook.texts == SEEDS
    assert last.codebook.texts != SEEDS
    assert (best.best.step, last.best.step) == (-1, 1)
    for run in (best, last):
        saved = read_policy_file(run.path / "policy.json")
        assert saved.digest == run.policy.file.digest
        assert saved.digest == resolve(tmp_path, run.id).file.digest
        prompt = run.rows["concat"].prompt
        assert prompt is not None and all(text in prompt for text in run.codebook.texts)
    assert "Training changed nothing on the test split" in best.verdict
    assert "changed nothing" not in last.verdict


def rewrites(run: pco.Run) -> list[Rewrite]:
    with closing(RunStore.open(run.path)) as store:
        made = [r for step in store.steps() for r in step.rewrites]
    return [r for r in made if isinstance(r.variable, int)]


def updating(text: str) -> ScriptedLM:
    def reply(request: Request) -> Scripted:
        return text if request.role == "updater" else talkative(request)

    return ScriptedLM().reply_with(reply)


LONG = "the ferry leaves pier nine at seven sharp every morning"


def test_no_rewrite_carries_a_training_input_away(tmp_path: Path) -> None:
    def learn(split: str) -> pco.Run:
        splits = {name: list(examples(name, n)) for name, n in (("train", 8), ("val", 4))}
        splits[split][0] = Example("long", LONG, "target")
        data = pco.Dataset(tuple(splits["train"]), tuple(splits["val"]), examples("test", 2))
        return pco.optimize(
            data,
            reward,
            lm=updating(f"Say that {LONG}."),
            config=SETTINGS,
            runs_dir=tmp_path / split,
        )

    leaked = rewrites(learn("train"))
    assert leaked and not any(r.kept for r in leaked)
    assert all("eight words in a row from a training input" in r.reason for r in leaked)
    # Training has not seen what stands in the other splits: there it is no leak.
    assert any(r.kept for r in rewrites(learn("val")))


def test_no_rewrite_becomes_a_copy_of_another_instinct(tmp_path: Path) -> None:
    made = rewrites(train(tmp_path, updating("Rule three.")))
    others = [r for r in made if r.variable != 3]
    assert others and not any(r.kept for r in others)
    assert {r.reason for r in others} == {"a near-copy of another instinct"}


def test_before_a_verdict_there_are_no_rows(tmp_path: Path) -> None:
    run = train(tmp_path, scripted(), budget={"calls": 30})
    assert run.ended == "budget"
    assert dict(run.rows) == {} and run.deploy == ""


@pytest.mark.parametrize(
    ("prompt", "title"),
    [("You are terse.", "the present prompt"), ("", "zero-shot (no prompt)")],
)
def test_the_first_row_is_named_after_what_the_user_has_today(
    tmp_path: Path, prompt: str, title: str
) -> None:
    run = train(tmp_path, scripted(), init={"instincts": SEEDS, "prompt": prompt})
    assert run.rows["present"].title == title
