"""What the benches share: the list that `make bench` goes through, and what a bench cannot do."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from bench.figures import LACKING, Figure, shown
from bench.run import BENCHES, ROOT, outcome
from promptcodebook.errors import MissingExtra


def test_every_bench_of_the_list_is_there() -> None:
    assert {"local_engine", "local_server"} <= set(BENCHES)
    assert all((ROOT / "bench" / f"{name}.py").is_file() for name in BENCHES)


def test_an_extra_that_is_missing_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure() -> list[Figure]:
        raise MissingExtra("the model smollm2", "smollm2")

    monkeypatch.setattr(sys, "argv", ["bench"])
    assert shown(measure, "About.") == LACKING
    assert "next: pip install 'promptcodebook[smollm2]'" in capsys.readouterr().out


def test_figures_are_printed_beside_their_goals_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--json", str(tmp_path / "f.json")])
    good, bad = Figure("a", 1.0, "s", 2.0), Figure("b", 0.5, "", 0.9, at_least=True)
    assert shown(lambda: [good], "About.") == 0
    assert shown(lambda: [good, bad], "About.") == 1
    assert "SHORT" in capsys.readouterr().out
    kept = json.loads((tmp_path / "f.json").read_text("utf-8"))
    assert [(each["name"], each["met"]) for each in kept] == [("a", True), ("b", False)]


@pytest.mark.parametrize(
    ("codes", "named", "said", "code"),
    [
        ({"a": 0}, False, "every goal is met", 0),
        ({"a": 0, "b": 1}, False, "SHORT: b", 1),
        ({"a": -9}, False, "SHORT: a", 1),
        ({"a": 0, "b": LACKING}, False, "NOT RUN, for what is not installed: b", 0),
        ({"a": 0, "b": LACKING}, True, "every goal of those that ran is met", LACKING),
        ({"a": 1, "b": LACKING}, True, "SHORT: a", 1),
    ],
)
def test_what_is_passed_over_is_not_called_met(
    codes: dict[str, int], named: bool, said: str, code: int
) -> None:
    text, ended = outcome(codes, named=named)
    assert said in text and ended == code


def test_the_engines_are_compared_over_rounds_that_pair_them_and_without_the_first() -> None:
    local_engine = import_module("bench.local_engine")

    async def ask(texts: object, cap: int) -> int:
        return 0

    own = local_engine.Way(ask, [1.0, 100.0, 200.0, 50.0], [90.0, 10.0, 12.0])
    ours = local_engine.Way(ask, [1.0, 90.0, 190.0, 20.0], [10.0, 13.0, 14.0])
    share, added = local_engine.figures({"own": own, "ours": ours})
    assert share.value == pytest.approx(0.9) and share.met
    assert added.value == pytest.approx(2.5)
    assert share.beside == "190 against 200 tokens/s"
