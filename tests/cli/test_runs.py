""""""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from promptcodebook.base.intervals import Interval
from promptcodebook.calls import Reply
from promptcodebook.deploy.viewer.lists import RunFilter, RunsList
from promptcodebook.lm.cache import ReplyCache
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import COLUMNS
from tests.build.cli import Terminal, pco
from tests.build.project import QUICK


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_has_a_line_per_run_with_its_verdict(
    trained: Path, run_id: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    none = pco("runs", "list", cwd=trained / "runs")
    assert none.code == 0 and "no run" in none.out and "pco train" in none.out
    headline = pco("runs", "show", run_id, "--json", cwd=trained).json["headline"]
    for _ in range(2):  # as it is read, and as its summary was kept
        [run] = pco("runs", "list", "--json", cwd=trained).json
        assert run["id"] == run_id and run["ended"] == "finished" and not run["resumable"]
        assert run["simulated"] and run["step"] == 3
        assert run["decision"] == headline["decision"] == "Undecided"
        gain = Interval(**run["gain"])
        assert f"{gain.mean:.3f} more" in headline["lines"]["gain"] and gain.n == 6
        lines = pco("runs", "list", cwd=trained).out.splitlines()
        ends = gain.text(signed=True, level="", between="..")
        told = ["Undecided*", *ends.split(), f"{run['score']['mean']:.3f}"]
        assert lines[0].split()[:5] == ["run", "verdict", "gain", "test", "score"]
        assert lines[1].split()[:5] == [run_id, *told]
        assert all(len(line) <= width for line in lines)
        shown = [line for line in lines if line.startswith(f"{run_id}  ")]
        assert len(shown) == (2 if width == 80 else 1)
        assert "  finished" in shown[0]
        assert lines[-1].startswith("* of the simulated model")


def test_every_column_of_the_one_list_is_on_the_terminal_and_in_the_viewer(
    trained: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    head = pco("runs", "list", cwd=trained).out.splitlines()[0]
    assert head.split("  ")[0] == "run" and "name" not in head, "no run has a name"
    for column in COLUMNS:
        assert column.brief in head or column.brief == "name"
        for by in filter(None, (column.heading, f"-{column.heading}" * bool(column.heading))):
            body = RunsList(trained / "runs").screen(RunFilter(by=by)).body
            assert f">{column.heading}</a>" in body and run_id in body


def test_show_has_the_settings_the_spend_and_the_verdict(trained: Path, run_id: str) -> None:
    shown = pco("runs", "show", run_id[:15], "--json", cwd=trained).json
    assert shown["run"] == run_id and shown["config"]["preset"] == "quick"
    assert shown["usage"]["executor"]["calls"] > 0
    rows = ["present", "concat", "best_fixed", "untrained", "learned"]
    assert [m["name"] for m in shown["judged"]] == rows
    text = " ".join(pco("runs", "show", run_id, cwd=trained).out.split())
    assert shown["verdict"] in text and "executor" in text


def test_a_yes_removes(trained: Path, run_id: str) -> None:
    pco("runs", "rm", run_id, cwd=trained).error(2, run_id, "add --yes")
    assert (trained / "runs" / run_id).is_dir()
    result = pco("runs", "rm", "last", "--yes", cwd=trained)
    assert result.code == 0 and run_id in result.out
    assert list((trained / "runs").iterdir()) == []


@pytest.mark.parametrize(("answer", "left"), [("n", 1), ("", 1), ("y", 0)])
def test_a_person_is_asked(trained: Path, run_id: str, answer: str, left: int) -> None:
    result = pco("runs", "rm", run_id, "--json", cwd=trained, stdin=Terminal(f"{answer}\n"))
    assert result.code == (2 if left else 0)
    assert f"Remove {run_id} for good? [y/N]" in result.err
    assert len(list((trained / "runs").iterdir())) == left
    assert ("removed" if not left else "error") in result.json  # and no question on stdout


def test_report_is_written_where_it_is_asked_for(trained: Path, run_id: str) -> None:
    result = pco("report", "last", "-o", "r.html", cwd=trained)
    assert result.code == 0 and result.out.strip() == "r.html"
    html = (trained / "r.html").read_text()
    rows = map(json.loads, (trained / "data.jsonl").read_text().splitlines())
    assert any(row["input"] in html for row in rows)  # the run's store holds ids alone
    assert pco("report", run_id, cwd=trained).out.strip() == f"runs/{run_id}/report.html"


# --- What `pco train` prints at its end ---


def test_the_verdict_has_a_row_for_each_prompt_and_fits_80_columns(folder: Path) -> None:
    result = pco("train", *QUICK, cwd=folder)
    assert result.code == 0, result.err
    assert "\x1b" not in result.out + result.err and "\r" not in result.err  # it is no terminal
    [path] = (folder / "runs").iterdir()
    with closing(RunStore.open(path)) as store:
        conclusion = store.outline().conclusion
    assert conclusion is not None
    head, _, tables = result.out.partition("test split, n = ")
    assert head.startswith("Undecided: the learned policy (simulated)\n  gain  ")
    assert conclusion.text in " ".join(head.split()) and "Add test inputs: a verdict takes" in head
    assert f"  type  pco report {path.name}" in head
    shown = pco("runs", "show", path.name, cwd=folder).out
    assert head.strip() in shown
    told = pco("runs", "show", path.name, "--json", cwd=folder).json["headline"]
    assert told["decision"] == "Undecided" and told["lines"]["type"] == f"pco report {path.name}"
    scores, _, below = tables.partition("per query:")
    prices, _, rest = below.strip().partition("\n\n")
    for row in conclusion.rows:
        [score] = [line for line in scores.splitlines() if line.split()[:1] == [row["name"]]]
        [price] = [line for line in prices.splitlines() if line.split()[:1] == [row["name"]]]
        assert f"{row['score']['mean']:.3f}" in score and f"{row['calls_per_query']:.1f}" in price
    assert all(len(line) <= 80 for line in (scores + prices).splitlines())
    assert "gain 95 %" in scores
    assert f"policy: runs/{path.name}/policy.json" in rest
    assert f"pco report {path.name}" in rest


def test_a_budget_that_is_reached_says_how_to_go_on(folder: Path) -> None:
    result = pco("train", *QUICK, "--budget", "40calls", cwd=folder)
    assert result.code == 3
    assert "pco: stopped: " in result.err and "pco train --resume" in result.err
    assert "No verdict: the budget is reached" in result.out
    assert "policy:" in result.out  # of the best state so far


def test_a_run_that_fails_says_what_is_missing_and_keeps_its_policy(folder: Path) -> None:
    # The critic's server is not there: nothing can be learned from any rollout.
    down = ("--set", "roles.critic.model=http://127.0.0.1:9/v1#m", "--set", "retries=0")
    result = pco("train", *QUICK, *down, cwd=folder)
    assert result.code == 1, result.err
    assert "pco train --resume" in result.err
    assert "pco explain" not in result.out  # it would ask the same models
    assert "next: pco report" in result.out
    out = " ".join(result.out.split())
    assert "No verdict: the run failed after 0 updates (TooManyFailures)." in out
    [path] = (folder / "runs").iterdir()
    assert f"policy: runs/{path.name}/policy.json" in out and (path / "policy.json").is_file()
    again = pco("train", *QUICK, *down, "--json", cwd=folder)
    assert again.code == 1 and again.json["error"] == "TooManyFailures", "one document"
    assert again.json["hint"] and again.json["ended"] == "failed" and again.json["policy"]


def test_a_run_goes_by_its_name_in_every_command(folder: Path) -> None:
    result = pco("train", *QUICK, "--name", "tickets", "--json", cwd=folder)
    assert result.code == 0 and result.json["name"] == "tickets"
    run = result.json["run"]
    head, line, *_ = pco("runs", "list", cwd=folder).out.splitlines()
    assert head.split()[:2] == ["run", "name"] and line.split()[:2] == [run, "tickets"]
    assert "name     tickets" in pco("runs", "show", "tickets", cwd=folder).out
    assert pco("codebook", "show", "tickets", "--json", cwd=folder).json["ref"] == run
    pco("train", "--name", "last", cwd=folder).error(2, "cannot be called 'last'")


# `pco cache`


def test_stats_and_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.sqlite"
    monkeypatch.setenv("PCO_CACHE", str(path))
    unused = pco("cache", "stats", "--json", cwd=tmp_path).json
    assert unused == {"path": str(path), "replies": 0, "bytes": 0} and not path.exists()
    assert pco("cache", "clear", cwd=tmp_path).code == 0
    cache = ReplyCache(path)
    cache.put(b"k" * 32, Reply("hello"))
    cache.close()
    stopped = tmp_path / "mine.unfinished" / "an-evaluation"
    stopped.mkdir(parents=True)
    stats = pco("cache", "stats", "--json", cwd=tmp_path).json
    assert stats["replies"] == 1 and stats["bytes"] > 0
    assert ": 1 reply, " in pco("cache", "stats", cwd=tmp_path).out
    pco("cache", "clear", cwd=tmp_path).error(2, "no reply was removed", "add --yes")
    refused = pco("cache", "clear", cwd=tmp_path, stdin=Terminal("n\n"))
    assert refused.code == 2 and f"Remove every reply from {path}? [y/N]" in refused.err
    assert pco("cache", "stats", "--json", cwd=tmp_path).json["replies"] == 1
    assert stopped.exists()
    assert pco("cache", "clear", "--yes", "--json", cwd=tmp_path).json["removed"] == 1
    assert not stopped.exists()
    assert pco("cache", "stats", "--json", cwd=tmp_path).json["replies"] == 0
