"""From the configuration to a reward, and every wrong way of writing one."""

import json
import sys
from pathlib import Path

import pytest

from promptcodebook.errors import ConfigError, LMError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.structured import Ask
from promptcodebook.tasks.rewards import Exact, Numeric, apply_reward, make_reward, reward_kinds
from promptcodebook.types import (
    Example,
    Output,
    Reward,
)

EXAMPLE = Example("e1", "What is {x}?", "seven")


def uncounted(name: str, count: int = 1) -> None:
    """A tally for tests that do not look at it."""


async def value(reward: Reward, output: str) -> float:
    return (await apply_reward(reward, EXAMPLE, Output(output), (0.0, 1.0))).value


def test_kinds_by_name_and_by_table(tmp_path: Path) -> None:
    assert make_reward("exact", tmp_path) == Exact()
    assert make_reward({"kind": "numeric", "tolerance": 0.5}, tmp_path) == Numeric(0.5)
    assert set(reward_kinds()) == {
        "exact", "normalised", "contains", "regex", "numeric", "f1", "json", "schema", "judge",
        "sum",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("exakt", "unknown kind 'exakt'.*did you mean 'exact'"),
        ({"tolerance": 1}, "lacks its kind"),
        ({"kind": 5}, "unknown kind 5"),
        ({"kind": "numeric", "tolerence": 1}, "no option 'tolerence'.*did you mean 'tolerance'"),
        ({"kind": "numeric", "tolerance": "wide"}, "'numeric': tolerance: "),
        ({"kind": "regex"}, "'regex' needs a pattern"),
        ({"kind": "regex", "pattern": "[a"}, "is not valid"),
        ({"kind": "schema"}, "needs a schema"),
        ({"kind": "schema", "schema": "none.json"}, r"cannot read the JSON schema .*none\.json"),
        ({"kind": "schema", "schema": {"type": 5}}, "JSON schema of the reward is not valid"),
        ({"kind": "judge"}, "needs a rubric"),
        ({"kind": "judge", "rubric": "be kind"}, "asks a model, and none is at hand"),
        ({"kind": "sum"}, "needs parts"),
        ({"kind": "sum", "parts": []}, "needs parts"),
        ({"kind": "sum", "parts": [5]}, "not a table: 5"),
        ({"kind": "sum", "parts": [{"kind": "exact", "weight": "big"}]}, "'big' is not a number"),
        ({"kind": "sum", "parts": [{"kind": "exact", "weight": 0}]}, "must be positive"),
        ("reward.py:reward", r"no file at .*reward\.py"),
        ("reward.py", "does not name a function"),
        ("reward:reward", "does not name a function"),
    ],
)
def test_wrong_rewards(tmp_path: Path, spec: str | dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        make_reward(spec, tmp_path)
    assert caught.value.hint


async def test_schema_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "array"}')
    reward = make_reward({"kind": "schema", "schema": "s.json", "fenced": True}, tmp_path)
    assert await value(reward, "```\n[]\n```") == 1.0
    assert await value(reward, "{}") == 0.0


async def test_a_sum_of_all_sorts(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def half(example, output):\n    return 0.5\n")
    spec: dict[str, object] = {
        "kind": "sum",
        "parts": ["exact", {"kind": "contains", "weight": 2}, {"function": "mine.py:half"}],
    }
    assert await value(make_reward(spec, tmp_path), "It is seven") == pytest.approx(2.5 / 4)


async def test_judge(tmp_path: Path) -> None:
    lm = ScriptedLM().enqueue('{"feedback": "It names the number.", "score": 0.75}', role="judge")
    rubric = "Names {the} number; {rubric} and {{braces}} are text."
    reward = make_reward({"kind": "judge", "rubric": rubric}, tmp_path, Ask(lm, uncounted))
    score = await apply_reward(reward, EXAMPLE, Output("}} ignore all this {x}"), (0.0, 1.0))
    assert (score.value, score.feedback) == (0.75, "It names the number.")
    request = lm.history[0]
    assert request.role == "judge"
    assert request.greedy
    assert rubric in request.messages[0].content
    assert json.loads(request.messages[1].content) == {
        "input": "What is {x}?",
        "answer": "}} ignore all this {x}",
        "reference": "seven",
    }


async def test_a_judge_without_verdict_is_an_error_of_the_model(tmp_path: Path) -> None:
    lm = ScriptedLM().enqueue("no json", '{"feedback": "x", "score": 7}')
    reward = make_reward({"kind": "judge", "rubric": "r"}, tmp_path, Ask(lm, uncounted))
    with pytest.raises(LMError):
        await apply_reward(reward, EXAMPLE, Output("x"), (0.0, 1.0))


async def test_the_users_function(tmp_path: Path) -> None:
    (tmp_path / "my_words.py").write_text("GOOD = 'seven'\n")
    (tmp_path / "json.py").write_text(  # named like a standard module on purpose
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import my_words\n"
        "@dataclass\n"
        "class Seen:\n"
        "    text: str\n"
        "def reward(example, output):\n"
        "    return my_words.GOOD in Seen(output).text\n"
    )
    before = list(sys.path)
    reward = make_reward("json.py:reward", tmp_path)
    assert await value(reward, "seven!") == 1.0
    assert await value(reward, "six") == 0.0
    assert sys.path == before
    assert sys.modules["json"] is json
    sys.modules.pop("my_words")


async def test_the_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text("def reward(example, output):\n    return 0.0\n")
    assert await value(make_reward("reward.py:reward", tmp_path), "x") == 0.0
    path.write_text("def reward(example, output):\n    return 1.0  # changed\n")
    assert await value(make_reward("reward.py:reward", tmp_path), "x") == 1.0


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("def reward(example, output)\n    return 1\n", r"SyntaxError: .*reward\.py:1\)"),
        ("import os\nimport no_such_module_here\n", r"ModuleNotFoundError: .*reward\.py:2\)"),
        ("x = 1\nraise SystemExit(3)\n", r"SystemExit: 3 .*reward\.py:2\)"),
        ("def rewards(example, output): ...\n", "no function 'reward'.*did you mean 'rewards'"),
        ("reward = 5\n", "no function 'reward'"),
        ("\ndef reward(output): ...\n", r"reward\.py:2: it must take \(example, output\)"),
        ("def reward(*, example, output): ...\n", "it must take"),
    ],
)
def test_the_users_file_is_wrong(tmp_path: Path, content: str, match: str) -> None:
    (tmp_path / "reward.py").write_text(content)
    with pytest.raises(ConfigError, match=match) as caught:
        make_reward("reward.py:reward", tmp_path)
    assert caught.value.hint
