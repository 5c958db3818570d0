"""Runs that are found again by their settings, `pco reproduce`, and what the demos show."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.calls import Reply, Request, Usage
from promptcodebook.config import Budget, Config, load_config
from promptcodebook.errors import BudgetReached, Interrupted
from promptcodebook.paper.experiments.demo import NAME, demo_config, missing_model, show
from promptcodebook.paper.experiments.lab import run_once
from promptcodebook.paper.simulated.orders import read_table
from promptcodebook.progress import Note, ProgressEvent
from promptcodebook.run.opening import Where
from promptcodebook.store.runs import list_runs
from tests.build.cli import pco
from tests.build.store import edit_header


def test_what_was_mistyped(tmp_path: Path) -> None:
    for typed, message in (
        (("reproduce", "abblation"), "did you mean 'ablation'"),
        (("reproduce", "small-real-model", "--preset", "paper"), "--preset quick or default"),
        (("reproduce", "real-roles", "--lm", "simulated"), "needs a real model"),
    ):
        pco(*typed, cwd=tmp_path).error(2, message)


def once(folder: Path, **changed: Any) -> Path:
    """A run of a few steps, by its settings."""
    small = {
        "lm": "simulated",
        "preset": "quick",
        "task": "aime",
        "update": {"epochs": 1, "batch_size": 2},
        "validation": {"every": 0},
        "keep": "last",
    }
    return run_once(load_config(small, changed), Sources(folder), Where(folder / "cells"))


def test_another_setting_or_other_data_is_another_run(tmp_path: Path) -> None:
    first = once(tmp_path)
    seeded = once(tmp_path, seed=7)
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "val", "test"):
        rows = [f'{{"id":"{split}{n}","problem":"{split} {n}","answer":"{n}"}}' for n in range(4)]
        (data / f"{split}.jsonl").write_text("\n".join(rows), "utf-8")
    other = once(tmp_path, data_dir=str(data))
    assert len({first, seeded, other}) == 3
    # How much may be spent and how fast is no part of what a run is.
    assert once(tmp_path, concurrency=2, budget={"calls": 10**6}) == first


def test_a_run_with_a_setting_that_is_gone_is_left_out_with_a_note(tmp_path: Path) -> None:
    first = once(tmp_path)
    text = '"samples": 1', '"samplings": 1'
    edit_header(first / "run.sqlite", lambda header: header.replace(*text))
    notes = list[str]()
    config = load_config({"lm": "simulated", "preset": "quick", "task": "aime"}, {"seed": 7})

    def hear(event: ProgressEvent) -> None:
        notes.extend([event.text] if isinstance(event, Note) else [])

    config = config.model_copy(update={"budget": Budget(calls=20)})
    path = run_once(config, Sources(tmp_path), Where(first.parent), hear, at_budget=True)
    assert path != first
    assert any(f"{first.name} is left out: unknown key 'samplings'" in note for note in notes)


def test_a_stopped_run_is_resumed_unless_it_is_compared_at_its_budget(tmp_path: Path) -> None:
    with pytest.raises(BudgetReached):
        once(tmp_path, budget={"calls": 20})
    [stopped] = list_runs(tmp_path / "cells")
    config = load_config(
        {"lm": "simulated", "preset": "quick", "task": "aime", "update": {"epochs": 1}}
    ).model_copy(update={"budget": Budget(calls=20)})
    where = Where(tmp_path / "budgets")
    more = config.model_copy(update={"budget": Budget(calls=30)})
    first, again, other = (
        run_once(each, Sources(tmp_path), where, at_budget=True) for each in (config, config, more)
    )
    assert first == again != other
    assert once(tmp_path).name == stopped.id


# `pco reproduce`: a page by its name, and what is typed next where it cannot be made.


@pytest.mark.slow
def test_a_page_is_written_once(tmp_path: Path) -> None:
    sweep = ("reproduce", "sweep-s", "--preset", "quick", "--out", "results", "--json")
    first = pco(*sweep, cwd=tmp_path)
    assert first.code == 0, first.err
    told = first.json
    assert told["finished"] == ["S-1/0", "S-2/0", "S-4/0"] and told["missing"] == {}
    assert "S-1/0 (1 of 3)" in first.err
    page = (tmp_path / told["page"]).read_text("utf-8")
    assert told["page"] == "results/sweep-s.md" and "**Simulated.**" in page
    beside = {path.suffix for path in (tmp_path / "results" / "sweep-s").iterdir()}
    assert beside == {".svg", ".png"}
    again = pco(*sweep, cwd=tmp_path)
    assert "(1 of 3)" not in again.err and again.json == told
    [folder] = (tmp_path / "runs/bench").iterdir()
    assert folder.name == "tables-simulated"


# The tour: what it prints, and that it never forgets to say that it is simulated.

ROWS = [
    "zero-shot",
    "all K instincts (concat)",
    "best of its prompts for all",
    "untrained codebook",
    "trained",
]


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
    assert "Nothing below is simulated" in told and "the same model criticises" in told
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
    assert out.endswith("next, with your own data and model: pco init mytask\n")


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_where_the_wheels_are_missing_it_says_what_to_type_and_runs_the_tour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tour of two updates."""
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    monkeypatch.setitem(read_table("demo")["settings"], "update", {"epochs": 2})
    missing = missing_model()
    assert missing is not None
    assert "pip install" in (missing.hint or "")
    result = pco("demo", cwd=tmp_path)
    assert result.code == 0 and "no real model here" in result.err
    assert "pip install" in result.err and "the simulated tour instead" in result.err
    assert "All figures above are simulated" in result.out and "60 examples" in result.out
    assert [row for row in ROWS if row in result.out] == ROWS and result.out.count("..") >= 9
    [report] = (tmp_path / "runs").glob("*/report.html")
    assert "simulated" in report.read_text("utf-8")
    tree = pco("demo", "--simulated", "--json", cwd=tmp_path).json
    assert tree["simulated"] and len(tree["rows"]) == len(ROWS)
