"""Gains by slice: in pure numbers, and in runs, comparisons and reports."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.errors import ConfigError
from promptcodebook.run.decision import JudgingTerms, RowSource, conclude
from promptcodebook.run.slices import Slice, gains_by_slice, slices_of, worse_in
from promptcodebook.types import Evaluation, Example, Rollout
from tests.build.cli import pco as typed

CHANNELS = ("phone", "mail", "chat")


def worlds(count: int, size: int, loss: float = 0.0) -> list[list[str]]:
    """Names of slices called worse in worlds of 20 slices of a size; the first loses `loss`."""
    found = list[list[str]]()
    for number in range(count):
        draw = random.Random(number)
        ids = {f"e{i}": (f"slice = {i % 20:02}",) for i in range(20 * size)}
        losing = {name: loss * (of[0] == "slice = 00") for name, of in ids.items()}
        before = {name: float(draw.random() < 0.6) for name in ids}
        after = {name: float(draw.random() < 0.6 - losing[name]) for name in ids}
        found.append(worse_in(gains_by_slice(before, after, ids, {})))
    return found


def test_of_twenty_slices_that_lose_nothing_some_is_called_worse_in_few_worlds() -> None:
    assert sum(map(bool, worlds(200, 30))) <= 10


def test_a_slice_that_loses_much_is_found_and_no_other() -> None:
    found = worlds(40, 60, loss=0.5)
    assert sum(each == ["slice = 00"] for each in found) >= 36


def test_a_slice_takes_twenty_independent_examples() -> None:
    ids = [f"e{i}" for i in range(60)]
    slices = {name: ("language = de",) for name in ids}
    rewards = dict.fromkeys(ids, 1.0)
    assert [s.gain.n for s in gains_by_slice(rewards, rewards, slices, {})] == [60]
    three = {name: str(i % 3) for i, name in enumerate(ids)}
    assert gains_by_slice(rewards, rewards, slices, three) == (), "three conversations"
    assert gains_by_slice(dict(list(rewards.items())[:19]), rewards, slices, {}) == ()


def test_a_row_has_a_slice_for_each_column_that_it_fills() -> None:
    rows = [Example("a", "x", fields={"n": 3, "lang": "de"}), Example("b", "y", fields={"n": None})]
    assert slices_of(rows, ("lang", "n")) == {"a": ("lang = de", "n = 3"), "b": ()}
    assert slices_of(rows, ()) == {}


def a_project(folder: Path, more: str = "") -> None:
    """Messages by channel; any prompt is wrong on the phone, and right elsewhere."""
    with (folder / "data.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["input", "target", "channel", "split"])
        for number in range(200):
            split = "train" if number < 30 else "val" if number < 50 else "test"
            rows.writerow([f"Question {number}?", "a", CHANNELS[number % 3], split])
    (folder / "reward.py").write_text(
        "def reward(example, output):\n"
        "    learned = 'instinct' in output\n"
        "    return float(learned is (example.fields['channel'] != 'phone'))\n"
    )
    (folder / "agent.py").write_text(
        "async def run(prompt, example, lm):\n"
        "    return 'instinct' if prompt else 'none'\n"
    )  # fmt: skip
    (folder / "pco.toml").write_text(
        'reward = "reward.py:reward"\nexecutor = "agent.py:run"\nlm = "simulated"\n'
        'preset = "quick"\ncompose = "verbatim"\n'
        "[update]\nepochs = 1\n[encoder]\nmode = 'none'\n"
        f'[data]\npath = "data.csv"\nsplit = "split"\nslices = ["channel"]\n{more}'
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slices")
    a_project(folder)
    typed("train", cwd=folder)
    return folder


def test_a_verdict_names_the_slice_that_is_worse(trained: Path) -> None:
    shown = typed("runs", "show", "last", "--json", cwd=trained).json
    by = {each["slice"]: each for each in shown["slices"]}
    assert by.keys() == {f"channel = {name}" for name in CHANNELS}
    assert by["channel = phone"]["gain"]["high"] < 0 < by["channel = mail"]["gain"]["low"]
    assert (by["channel = phone"]["before"], by["channel = phone"]["after"]) == (1.0, 0.0)
    assert "; worse for channel = phone" in shown["headline"]["about"]
    text = typed("runs", "show", "last", cwd=trained).out
    assert "by slice:" in text and "channel = phone" in text
    typed("report", "last", "-o", "report.html", cwd=trained)
    page = (trained / "report.html").read_text()
    assert "channel = phone" in page and "Bonferroni" in page


def test_a_rule_about_slices_decides() -> None:
    """A gain over all rows, and a loss on the phone."""
    ids = [f"e{i}" for i in range(120)]
    slices = {name: (f"channel = {CHANNELS[i % 3]}",) for i, name in enumerate(ids)}
    sources = list[RowSource]()
    for name, phone, others in (("present", 0.8, 0.2), ("learned", 0.3, 0.9)):
        levels = [(phone if i % 3 == 0 else others) + 0.01 * (i % 5) for i in range(120)]
        rollouts = tuple(Rollout(n, reward=x) for n, x in zip(ids, levels, strict=True))
        sources.append(RowSource(f"the {name} prompt", Evaluation(name, "test", rollouts)))
    for rule, worth in (((), True), (("channel = mail",), True), (("channel",), False)):
        made = conclude(sources, JudgingTerms(slices=slices, no_worse_in=rule))
        assert made.worth is worth and made.deploy == ("learned" if worth else "present")
        assert ("is clearly worse for channel = phone" in made.sentence) is not worth
        assert "worse for channel = phone" in made.headline().about


@pytest.mark.parametrize(
    ("key", "value"), [("data.slices", "chanel"), ("verdict.no_worse_in", "x")]
)
def test_a_slice_that_is_not_there_is_refused_before_anything_is_paid(
    tmp_path: Path, key: str, value: str
) -> None:
    a_project(tmp_path)
    refused = typed("train", "--set", f'{key}=["{value}"]', cwd=tmp_path)
    refused.error(2, f"{key}: there is no column '{value}'")


def test_a_comparison_shows_slices_and_exits_where_one_is_worse(trained: Path) -> None:
    for row in ("present", "learned"):
        saved = typed("eval", "last", "--row", row, "--json", cwd=trained)
        (trained / f"{row}.json").write_text(saved.out)
    both = ("compare", "learned.json", "present.json")
    shown = typed(*both, "--json", cwd=trained).json
    assert shown["slices"][0]["slice"] == "channel = phone"
    assert "channel = phone" in typed(*both, cwd=trained).out
    assert typed(*both, "--no-worse-in", "channel = mail", cwd=trained).code == 0
    worse = typed(*both, "--no-worse-in", "channel", cwd=trained)
    assert worse.code == 1 and "clearly worse than B for channel = phone" in worse.err
    typed(*both, "--no-worse-in", "chanel", cwd=trained).error(2, "did you mean 'channel'?")


def test_python_has_the_slices_too(trained: Path) -> None:
    name = typed("runs", "list", "--json", cwd=trained).json[0]["id"]
    run = pco.load_run(trained / "runs" / name)
    assert run.conclusion is not None
    worst: Slice = run.conclusion.slices[0]
    assert worst.worse and worst.name == "channel = phone"
    with pytest.raises(ConfigError):
        data = pco.load([{"input": f"x {n}", "target": "y"} for n in range(9)])
        config: dict[str, Any] = {"data": {"slices": ["nowhere"]}}
        pco.optimize(data, "exact", "simulated", config=config, progress=False)
