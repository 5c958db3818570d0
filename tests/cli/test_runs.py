from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.invoked import Terminal, pco


def test_none_yet(tmp_path: Path) -> None:
    result = pco("runs", "list", cwd=tmp_path)
    assert result.code == 0 and "no run" in result.out and "pco train" in result.out
    assert pco("runs", "list", "--json", cwd=tmp_path).json == []


def test_the_list_has_one_line_per_run(trained: Path, run_id: str) -> None:
    head, line, told = pco("runs", "list", cwd=trained).out.splitlines()
    assert head.split()[:3] == ["run", "state", "updates"]
    assert line.split()[:3] == [run_id, "finished", "4"]
    assert re.search(r"\d\* ", line) and told.startswith("* of the simulated model")
    assert len(head) <= 80 and len(line) <= 80
    [run] = pco("runs", "list", "--json", cwd=trained).json
    assert run["id"] == run_id and run["ended"] == "finished" and not run["resumable"]
    assert run["simulated"]


def test_show_has_the_settings_the_spend_and_the_verdict(trained: Path, run_id: str) -> None:
    shown = pco("runs", "show", run_id[:15], "--json", cwd=trained).json
    assert shown["run"] == run_id and shown["config"]["preset"] == "quick"
    assert shown["usage"]["executor"]["calls"] > 0
    assert [m["name"] for m in shown["judged"]] == [
        "present",
        "concat",
        "best_fixed",
        "untrained",
        "learned",
    ]
    text = " ".join(pco("runs", "show", run_id, cwd=trained).out.split())
    assert shown["verdict"] in text and "executor" in text


def test_runs_are_looked_for_where_the_environment_says(
    trained: Path, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_RUNS", str(trained / "runs"))
    assert run_id in pco("runs", "list", cwd=tmp_path).out


def test_nothing_is_removed_without_a_yes(trained: Path, run_id: str) -> None:
    pco("runs", "rm", run_id, cwd=trained).error(2, run_id, "add --yes")
    assert (trained / "runs" / run_id).is_dir()


def test_yes_removes(trained: Path, run_id: str) -> None:
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
