"""The tour: what it prints, and that it never forgets to say that it is simulated."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.calls import Reply, Request, Usage
from promptcodebook.config import Config, load_config
from promptcodebook.errors import Interrupted
from promptcodebook.experiments.demo import NAME, demo_config, missing_model, show
from promptcodebook.simulated import cli
from promptcodebook.store.runs import list_runs
from tests.cli.invoked import pco

ROWS = [
    "zero-shot",
    "all K instincts (concat)",
    "best of its prompts for all",
    "untrained codebook",
    "trained",
    "oracle",
]


def test_one_world_gives_its_raw_rewards_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a third of the tour's updates."""
    monkeypatch.setitem(cli._SETTINGS, "update", {"epochs": 10})
    done = pco("demo", "--world", "3", cwd=tmp_path)
    assert done.code == 0, done.err
    worlds = done.json
    assert set(worlds) == {"load 0 (long prompts cost nothing)", "default load"}
    for rows in worlds.values():
        assert set(rows) == {"present", "concat", "best_fixed", "untrained", "learned", "oracle"}
        assert all(len(row["rewards"]) == 60 for row in rows.values())
        mean = {name: sum(row["rewards"]) / 60 for name, row in rows.items()}
        assert mean["present"] < mean["learned"] < mean["oracle"]
    assert list(tmp_path.iterdir()) == []


# What `pco demo` shows of a run on a real model: the model is scripted here, all else is real.

PLAIN = "Thank you for your message, we will look into it and be in touch with you very soon."
STORY = (
    "Once upon a time there was a lamp that shone for the whole of the house and for the street."
)


def small(**update: object) -> Config:
    """The demo's own settings, a fraction of the work."""
    tree = demo_config().model_dump(mode="json")
    tree["update"].update({"epochs": 4, "batch_size": 16})
    tree["validation"]["subset"] = 4
    return load_config(tree, {"verdict_examples": 24, **update}, where="the test")


class Obedient:
    """Tells the story when the prompt asks for one alone, and answers plainly else."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.asked = 0
        self._stop_after = stop_after

    async def __call__(self, request: Request) -> Reply:
        self.asked += 1
        if self._stop_after is not None and self.asked > self._stop_after:
            raise Interrupted("interrupted by the user")
        turn = request.messages[-1].content
        told = "Once upon a time" in turn and "Spanish" not in turn
        return Reply(STORY if told else PLAIN, "stop", Usage(1, len(turn) // 4, 20))


def test_the_demo_says_which_model_it_is_and_shows_seven_rows_and_three_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert show(small(), Sources(lm=Obedient()), plain=True, as_json=False) == 0
    out, err = capsys.readouterr()
    told = " ".join(err.split())
    assert "SmolLM2-135M-Instruct" in told and "135 million parameters" in told
    assert "Nothing below is simulated" in told and "text optimiser is off" in told
    rows = ["no instructions", "the present prompt", "best single instinct"]
    rows += ["all instincts in one prompt", "the untrained codebook"]
    rows += ["learned: one for each message", "the right rules (oracle)"]
    table = out.split("\n\n")[1]
    assert max(map(len, out.splitlines())) <= 100
    assert [row for row in rows if row in table] == rows
    assert table.count("..") >= 11  # an interval for every score and every gain
    assert "24 held-out messages" in out
    assert out.count("route     ") == 3
    assert "report.html" in out and "simulated" not in table


def test_a_policy_that_does_not_win_is_not_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def deaf(request: Request) -> Reply:
        return Reply(PLAIN, "stop", Usage(1, 50, 20))

    monkeypatch.chdir(tmp_path)
    config = small(update={"epochs": 2, "batch_size": 100})
    assert show(config, Sources(lm=deaf), plain=True, as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["training_rollouts"] == 136  # the second batch is what the first left over
    assert shown["worth"] is False and shown["simulated"] is False
    assert shown["verdict"].startswith("Not worth deploying yet")
    rewards = {row["name"]: row["score"]["mean"] for row in shown["rows"]}
    assert len(set(rewards.values())) == 1


def test_a_stopped_demo_goes_on_where_it_was_and_pays_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second, whole = Obedient(stop_after=40), Obedient(), Obedient()
    assert show(small(), Sources(lm=first), plain=True, as_json=True) == 130
    assert "pco demo resumes it" in capsys.readouterr().err
    assert show(small(), Sources(lm=second), plain=True, as_json=True) == 0
    [run] = list_runs(tmp_path / "runs")
    assert run.name == NAME and run.ended == "finished"
    resumed = json.loads(capsys.readouterr().out)
    monkeypatch.chdir(tmp_path / "runs")
    assert show(small(), Sources(lm=whole), plain=True, as_json=True) == 0
    assert 40 + second.asked == whole.asked
    assert resumed["rows"] == json.loads(capsys.readouterr().out)["rows"]


def test_where_the_wheels_are_missing_it_says_what_to_type_and_runs_the_tour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tour of one world and two updates."""
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    monkeypatch.setattr(cli, "_WORLDS", 1)
    monkeypatch.setitem(cli._SETTINGS, "update", {"epochs": 2})
    missing = missing_model()
    assert missing is not None
    assert "pip install" in (missing.hint or "")
    result = pco("demo", cwd=tmp_path)
    assert result.code == 0 and "no real model here" in result.err
    assert "pip install" in result.err and "the simulated tour instead" in result.err
    assert "All figures above are simulated" in result.out
    tables = result.out.split("simulated model, ")[1:]
    loads = ["load 0 (long prompts cost nothing)", "default load"]
    assert [table.split(":")[0] for table in tables] == loads
    for table in tables:
        assert [row for row in ROWS if row in table] == ROWS
        assert "1 worlds x 60 examples" in " ".join(table.split()) and table.count("..") >= 11
    reports = list((tmp_path / "runs").glob("*/report.html"))
    assert ["simulated" in report.read_text("utf-8") for report in reports] == [True] * 2
