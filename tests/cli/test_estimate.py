"""The estimate is honest: what a run then takes lies between its low and its high."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from promptcodebook.session.span import Span, exactly
from tests.cli.invoked import pco, served
from tests.lm.server import Server, says

SHORT = (
    *("--task", "constraints", "--lm", "simulated", "--preset", "quick"),
    *("--set", "update.epochs=3", "--set", "validation.every=2", "--set", "validation.subset=12"),
)


def usage(folder: Path, *args: str) -> dict[str, Any]:
    result = pco("train", *args, cwd=folder)
    assert result.code == 0, result.err
    return pco("runs", "show", "last", "--json", cwd=folder).json["usage"]


def estimated(folder: Path, *args: str) -> dict[str, Any]:
    result = pco("estimate", *args, "--json", cwd=folder)
    assert result.code == 0, result.err
    return result.json


def holds(estimate: dict[str, Any], used: dict[str, Any]) -> None:
    by_role = {r["role"]: r for r in estimate["roles"]}
    assert used.keys() <= by_role.keys()
    for role, spent in used.items():
        for what, actual in (
            ("calls", spent["calls"]),
            ("prompt_tokens", spent["prompt_tokens"]),
            ("completion_tokens", spent["completion_tokens"]),
        ):
            low, high = by_role[role][what]["low"], by_role[role][what]["high"]
            assert low <= actual <= high, (role, what, low, actual, high)
    calls = sum(u["calls"] for u in used.values())
    total = estimate["total"]["calls"]
    assert total["low"] <= calls <= total["high"]


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--set", "update.mode=online", "--set", "update.batch_size=4"),
        ("--set", "compose=verbatim", "--set", "update.accept=improve"),
        ("--set", "critic.stages=1", "--set", "critic.skip_solved=false"),
        ("--set", "update.text_updates=false", "--set", "keep=last"),
        ("--set", "encoder.mode=none", "--set", "templates=paper"),
        ("--set", "validation.patience=1", "--set", "init.kind=random"),
        ("--set", "update.steps_per_epoch=all", "--set", "update.epochs=1"),
    ],
    ids=lambda more: " ".join(more[1::2]) or "default",
)
def test_what_a_run_takes_lies_within_the_estimate(tmp_path: Path, more: tuple[str, ...]) -> None:
    holds(estimated(tmp_path, *SHORT, *more), usage(tmp_path, *SHORT, *more))


def test_a_run_with_a_judge_and_an_agent_lies_within_the_estimate(folder: Path) -> None:
    (folder / "agent.py").write_text(
        "async def run(prompt, example, lm):\n"
        "    draft = await lm(example.input, system=prompt, purpose='draft')\n"
        "    return (await lm(draft.text, system=prompt, purpose='final')).text\n"
    )
    server = Server()
    server.default = says('{"score": 0.5, "feedback": "so so", "selected_indices": [0, 1, 2, 3]}')
    args = (
        *("--preset", "quick", "--set", "update.epochs=2", "--set", "executor=agent.py:run"),
        *("--set", 'reward={"kind": "judge", "rubric": "Be right."}', "--set", "cache=false"),
    )
    with served(server):
        estimate = estimated(folder, *args, "--lm", server.spec)
        used = usage(folder, *args, "--lm", server.spec)
    by_role = {r["role"]: r for r in estimate["roles"]}
    assert used["judge"]["calls"] > 0 and used["executor"]["calls"] > 0
    for role, spent in used.items():
        low, high = by_role[role]["calls"]["low"], by_role[role]["calls"]["high"]
        assert low <= spent["calls"] <= high, (role, low, spent["calls"], high)
    assert any("your executor is counted" in said for said in estimate["assumptions"])


def test_the_expected_calls_of_the_forward_pass_come_near(tmp_path: Path) -> None:
    estimate, used = estimated(tmp_path, *SHORT), usage(tmp_path, *SHORT)
    for role in ("encoder", "generator", "executor"):
        [found] = [r for r in estimate["roles"] if r["role"] == role]
        assert found["calls"]["expected"] == pytest.approx(used[role]["calls"], rel=0.1)


def test_an_unknown_price_is_unknown(folder: Path) -> None:
    found = estimated(folder, "--lm", "http://127.0.0.1:9/v1#m")
    assert found["total"]["usd"] is None
    assert all(r["usd"] is None for r in found["roles"])
    text = pco("estimate", "--lm", "http://127.0.0.1:9/v1#m", cwd=folder).out
    assert "unknown" in text and "no price is known for http://127.0.0.1:9/v1#m" in text


def test_one_unknown_price_leaves_the_sum_unknown_and_the_others_known(folder: Path) -> None:
    more = ("--lm", "openai/gpt-4o-mini", "--set", "roles.critic.model=http://127.0.0.1:9/v1#m")
    found = estimated(folder, *more)
    usd = {r["role"]: r["usd"] for r in found["roles"]}
    assert usd.pop("critic") is None and found["total"]["usd"] is None
    assert all(each["low"] <= each["expected"] < each["high"] for each in usd.values())


def test_the_user_s_own_price_counts(folder: Path) -> None:
    path = folder / "pco.toml"
    path.write_text(path.read_text() + "\n[prices.simulated]\nprompt = 1.0\ncompletion = 1.0\n")
    found = estimated(folder)
    usd, tokens = found["total"]["usd"], found["total"]["tokens"]
    assert usd["expected"] == pytest.approx(tokens["expected"] / 1e6, rel=1e-3)


def test_it_says_when_the_budget_lies_below(folder: Path) -> None:
    found = estimated(folder, "--budget", "10calls")
    assert any("budget.calls = 10 lies below" in said for said in found["assumptions"])
    assert not any("budget" in said for said in estimated(folder)["assumptions"])


def test_it_asks_no_model_and_leaves_nothing(folder: Path) -> None:
    before = sorted(p.name for p in folder.iterdir())
    result = pco("estimate", "--lm", "http://127.0.0.1:9/v1#m", cwd=folder)
    assert result.code == 0 and "updates; model http://127.0.0.1:9/v1#m" in result.out
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == before


def test_spans_add_and_multiply_value_by_value() -> None:
    a, b = Span(1, 2, 3), Span(0, 1, 2)
    assert a + b == Span(1, 3, 5)
    assert a * b == Span(0, 2, 6)
    assert a * 2 == Span(2, 4, 6)
    assert Span(0.4, 1.5, 2.1).rounded() == Span(0, 2, 3)
    assert a.capped(2) == Span(1, 2, 2) and a.capped(None) == a
    assert exactly(4) == Span(4, 4, 4)
