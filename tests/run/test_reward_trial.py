"""The reward is tried on one example before anything is paid for, and no model is asked for it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.assemble import RewardTrial, Sources, plan_run, try_reward
from promptcodebook.calls import Reply, Request
from promptcodebook.config import load_config
from promptcodebook.errors import ConfigError
from tests.build.method import talkative

ROWS = [{"input": f"question {n}", "target": f"answer {n}"} for n in range(8)]
NO_REFERENCE = [{"input": f"question {n}"} for n in range(8)]


async def trial(reward: Any, rows: list[dict[str, str]] = ROWS, **more: Any) -> RewardTrial:
    data = pco.load(rows, target="target" if "target" in rows[0] else None)
    ready = {} if callable(reward) else {"reward": reward}
    config = load_config({"lm": "simulated", **ready})
    function = reward if callable(reward) else None
    return await try_reward(plan_run(config, Sources(data=data, reward=function, **more)))


@pytest.mark.parametrize(("reward", "said"), [
    (lambda e, o: None, "'NoneType'"),
    (lambda e, o: 1.0 if e.target in o else None, "'NoneType'"),
    (lambda e, o: "good", "'str'"),
    (lambda e, o: math.nan, "returned nan"),
    (lambda e, o: 5, "outside its range 0..1"),
    (lambda e, o: e.fields["titel"], "KeyError: 'titel'"),
    (lambda e, o: undefined_name, "NameError"),  # type: ignore[name-defined]  # noqa: F821
])  # fmt: skip
async def test_one_that_cannot_be_used_is_refused_with_what_to_do(
    reward: Callable[..., Any], said: str
) -> None:
    with pytest.raises(ConfigError, match="before anything is paid for") as caught:
        await trial(reward)
    assert said in str(caught.value)
    assert "user_code.trial = false" in caught.value.hint


async def test_a_sound_reward_passes_in_silence_and_a_doubtful_one_is_warned_of() -> None:
    tried = await trial(lambda e, o: float(e.target in o))
    assert [score.value for _, score in tried.scores if score] == [1.0, 0.0]
    assert tried.warnings == ()
    [warning] = (await trial(lambda e, o: float(int(o.split()[1]) >= 0))).warnings
    assert "ValueError" in warning and "return 0.0" in warning, "only nonsense makes it raise"
    [warning] = (await trial(lambda e, o: 0.5)).warnings
    assert "gives 0.5 to the reference as well as to 'Seventeen" in warning
    assert (await trial(lambda e, o: 0.5, NO_REFERENCE)).warnings == ()


LABELS = [{"input": f"question {n}", "target": ("French", "German")[n % 2]} for n in range(16)]


@pytest.mark.parametrize(
    ("rows", "value", "warned"), [(LABELS, 0.0, False), (LABELS, 1.0, True), (ROWS, 0.0, True)]
)
async def test_a_label_need_not_score_since_outputs_are_texts_of_another_kind(
    rows: list[dict[str, str]], value: float, warned: bool
) -> None:
    """A reward may ask in which language an answer is; the label itself is no such answer."""
    assert bool((await trial(lambda e, o: value, rows)).warnings) is warned


async def test_an_agent_s_answers_may_have_a_form_that_the_trial_cannot_guess() -> None:
    async def agent(prompt: str, example: pco.Example, lm: pco.Chat) -> str:
        return json.dumps({"label": "x"})

    [warning] = (
        await trial(lambda e, o: float(json.loads(o)["label"] == e.target), executor=agent)
    ).warnings
    assert "JSONDecodeError" in warning

    def whole(example: pco.Example, output: pco.Output) -> float:
        return float(bool(output.fields["titles"]))

    assert await trial(whole, executor=agent) == RewardTrial()
    with pytest.raises(ConfigError, match="NameError"):
        await trial(lambda e, o: undefined_name, executor=agent)  # type: ignore[name-defined]  # noqa: F821


async def test_ready_made_rewards_are_tried_without_a_model() -> None:
    with pytest.raises(ConfigError, match="no target to compare with"):
        await trial("exact", NO_REFERENCE)
    assert (await trial("exact")).warnings == ()
    assert (await trial("json")).warnings == ()  # neither is JSON, and that says nothing
    assert await trial({"kind": "judge", "rubric": "Is it right?"}) == RewardTrial()
    summed = {"kind": "sum", "parts": ["exact", {"kind": "judge", "rubric": "Right?"}]}
    assert await trial(summed) == RewardTrial()


def optimize(tmp_path: Path, reward: Any, **more: Any) -> pco.Run:
    config = {
        "preset": "quick", "update": {"epochs": 1, "batch_size": 2},
        "validation": {"every": 0}, **more.pop("config", {}),
    }  # fmt: skip
    return pco.optimize(
        pco.load(ROWS), reward, more.pop("lm", "simulated"),
        config=config, runs_dir=tmp_path / "runs", **more,
    )  # fmt: skip


def test_a_run_with_a_broken_reward_asks_nobody_and_leaves_nothing_behind(tmp_path: Path) -> None:
    lm = pco.ScriptedLM().reply_with(lambda request: "never")
    with pytest.raises(ConfigError, match="'NoneType'"):
        optimize(tmp_path, lambda e, o: 1.0 if o == "never" else None, lm=lm)
    assert lm.history == []
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_doubtful_one_is_told_of_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "promptcodebook"):
        run = optimize(tmp_path, lambda e, o: 0.5)
    assert run.ended == "finished"
    assert "gives 0.5 to the reference" in caplog.text


@pytest.mark.parametrize("scores", [False, True])
def test_a_reward_that_never_scores_is_told_of_at_once_and_in_the_verdict(
    scores: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"input": f"question {n}", "target": ("a", "b")[n % 2]} for n in range(16)]

    def reward(example: pco.Example, output: str) -> float:
        return float(scores and example.id < "8")

    config = {"preset": "quick", "update": {"epochs": 4}, "validation": {"every": 1}}
    with caplog.at_level(logging.WARNING, "promptcodebook"):
        run = pco.optimize(pco.load(rows), reward, "simulated", config=config, runs_dir=tmp_path)
    assert caplog.text.count("answers earned 0, which teaches nothing") == (not scores)
    assert ("No answer of this run ever scored" in run.verdict) is not scores


@pytest.mark.parametrize(("answer", "what", "keys"), [
    (Reply("<think>so many", finish="length"), "hit their cap of 77 tokens, ",
     ("raise roles.executor.max_tokens",)),
    (Reply("The answer is", finish="length"), "hit their cap of 77 tokens: ",
     ("raise roles.executor.max_tokens",)),
    (Reply("<think>all of it</think>"), "without text (thoughts alone, or nothing), and 0 hit",
     ("roles.executor.extra", "roles.executor.max_tokens")),
    (Reply(" \n"), "came without text", ("roles.executor.extra",)),
])  # fmt: skip
def test_answers_that_are_cut_or_hold_no_text_are_told_of_with_the_key_to_change(
    answer: Reply,
    what: str,
    keys: tuple[str, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def replies(request: Request) -> Any:
        return answer if request.role == "executor" else talkative(request)

    roles = {"executor": {"max_tokens": 77}}
    config = {"preset": "quick", "update": {"epochs": 4}, "roles": roles}
    rows, lm = pco.load(ROWS * 2), pco.ScriptedLM().reply_with(replies)
    with caplog.at_level(logging.WARNING, "promptcodebook"):
        run = pco.optimize(rows, lambda e, o: 0.0, lm, config=config, runs_dir=tmp_path)
    told = [r.getMessage() for r in caplog.records if "roles.executor" in r.getMessage()]
    assert len(told) == 1 and what in told[0]
    conclusion = run.conclusion
    assert conclusion is not None
    advice = conclusion.headline().lines["next"]
    for text in (told[0], run.verdict, advice):
        assert all(key in text for key in keys), text
    assert "reward" not in run.verdict.partition("Beware:")[2] and "mend" not in advice
    assert "teaches nothing" not in caplog.text and " answers " in run.verdict


def test_the_trial_can_be_left_out(tmp_path: Path) -> None:
    seen = list[str]()

    def reward(example: pco.Example, output: str) -> float:
        seen.append(output)
        return 1.0

    optimize(tmp_path, reward, config={"user_code": {"trial": False}})
    assert not any("umbrellas" in output for output in seen)


@pytest.mark.parametrize("reward", ["exact", {"kind": "contains", "ignore_case": False}])
def test_a_ready_made_reward_is_stored_so_that_others_can_evaluate(
    tmp_path: Path, reward: Any
) -> None:
    run = optimize(tmp_path, reward, config={"reward": {"kind": "regex", "pattern": "x"}})
    assert run.ended == "finished"
    from promptcodebook.policy.references import resolve

    header = resolve(tmp_path / "runs", run.id).header
    assert header is not None and header.config["reward"] == reward


@pytest.mark.parametrize(("name", "function"), [
    ("reward", lambda output: 1.0),
    ("reward", lambda e, o: (yield)),
    ("executor", lambda prompt, lm: ""),
])  # fmt: skip
def test_what_takes_other_arguments_or_yields_is_refused_at_once(
    tmp_path: Path, name: str, function: Any
) -> None:
    given: dict[str, Any] = {"reward": lambda e, o: 1.0, name: function}
    with pytest.raises(ConfigError, match=f"optimize\\(\\): the {name}"):
        optimize(tmp_path, given.pop("reward"), **given)
    assert not (tmp_path / "runs").exists()
