from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptcodebook.intervals import paired_interval
from promptcodebook.store.run import RunStore
from tests.cli.invoked import Result, pco


def evaluate(folder: Path, ref: str = "last", *more: str) -> Result:
    result = pco("eval", ref, *more, "--json", cwd=folder)
    assert result.code == 0, result.err
    return result


def test_a_run_is_evaluated_as_its_verdict_was(trained: Path, store: RunStore) -> None:
    judged = {e.name: e for e in store.judged()}["learned"]
    found = evaluate(trained).json
    assert [e["reward"] for e in found["examples"]] == list(judged.rewards)
    assert [e["id"] for e in found["examples"]] == [r.example_id for r in judged.rollouts]
    assert found["split"] == "test" and found["simulated"] is True
    assert found["score"]["mean"] == pytest.approx(judged.score)


def test_the_table_has_what_a_query_costs_and_says_simulated(trained: Path, run_id: str) -> None:
    out = pco("eval", run_id[:14], cwd=trained).out
    assert out.startswith("simulated model, test split, n = 6")
    for head in ("reward", "95 %", "answered only", "failed", "truncated", "tokens", "USD"):
        assert head in out


def test_a_policy_file_is_evaluated_under_the_folder_s_settings(trained: Path, run_id: str) -> None:
    by_run = evaluate(trained).json
    by_file = evaluate(trained, f"runs/{run_id}/policy.json").json
    assert by_file["ref"] == "policy.json"
    assert by_file["examples"] == by_run["examples"]


def test_a_policy_file_on_a_ready_made_task(trained: Path, run_id: str, tmp_path: Path) -> None:
    (trained / "runs" / run_id / "policy.json").rename(tmp_path / "p.json")
    args = ("--task", "constraints", "--lm", "simulated", "--split", "val", "--n", "5")
    found = evaluate(tmp_path, "p.json", *args).json
    assert found["n"] == 5 and found["split"] == "val"


def test_a_policy_file_alone_lacks_data(trained: Path, run_id: str, tmp_path: Path) -> None:
    (trained / "runs" / run_id / "policy.json").rename(tmp_path / "p.json")
    pco("eval", "p.json", "--lm", "simulated", cwd=tmp_path).error(2, "no data", "--task")


def test_a_sample_is_chosen_by_id_and_is_the_same_for_everyone(trained: Path) -> None:
    three = [e["id"] for e in evaluate(trained, "last", "--n", "3").json["examples"]]
    again = [
        e["id"] for e in evaluate(trained, "last", "--n", "3", "--set", "seed=9").json["examples"]
    ]
    four = [e["id"] for e in evaluate(trained, "last", "--n", "4").json["examples"]]
    assert three == again and len(three) == 3 and set(three) < set(four)


def test_an_unknown_split_and_an_empty_sample_are_refused(trained: Path) -> None:
    pco("eval", "last", "--split", "tset", cwd=trained).error(2, "did you mean 'test'")
    pco("eval", "last", "--n", "0", cwd=trained).error(2, "--n 1 or more")


def test_when_nothing_was_answered_there_is_no_figure(trained: Path) -> None:
    args = ("--lm", "http://127.0.0.1:9/v1#m", "--set", "retries=0")
    result = pco("eval", "last", *args, cwd=trained)
    result.error(1, "6 of 6 rollouts failed", "EndpointDown", "pco doctor --lm http")
    assert result.out == ""


def test_a_budget_stops_an_evaluation(trained: Path) -> None:
    result = pco("eval", "last", "--budget", "4calls", cwd=trained)
    assert result.code == 3 and "the budget is reached: 4 calls" in result.err


def test_the_training_budget_does_not_bind_an_evaluation(folder: Path) -> None:
    args = ("--preset", "quick", "--set", "update.epochs=2", "--budget", "400calls")
    assert pco("train", *args, cwd=folder).code in (0, 3)
    assert pco("eval", "last", "--set", "budget.calls=1", cwd=folder).code == 0


def test_compare_pairs_by_example(trained: Path, run_id: str) -> None:
    path = trained / "runs" / run_id / "policy.json"
    other = json.loads(path.read_text())
    for entry in other["codebook"]:
        entry["text"] = f"Say {entry['text'][:5]}."
    (trained / "other.json").write_text(json.dumps(other))
    a = evaluate(trained).json["examples"]
    b = evaluate(trained, "other.json").json["examples"]
    found = pco("compare", "last", "other.json", "--json", cwd=trained).json
    expected = paired_interval([e["reward"] for e in a], [e["reward"] for e in b])
    assert found["gain"]["mean"] == pytest.approx(expected.mean)
    assert (found["gain"]["low"], found["gain"]["high"]) == (expected.low, expected.high)
    assert found["simulated"] is True and found["n"] == 6
    text = pco("compare", "last", "other.json", cwd=trained).out
    assert text.startswith("simulated model") and "A - B:" in text


def test_compare_reads_saved_evaluations(trained: Path) -> None:
    saved = evaluate(trained)
    (trained / "a.json").write_text(saved.out)
    tree = saved.json
    for example in tree["examples"]:
        example["reward"] -= 0.25
    (trained / "b.json").write_text(json.dumps(tree))
    found = pco("compare", "a.json", "b.json", "--json", cwd=trained).json
    assert found["gain"]["mean"] == pytest.approx(0.25)
    assert "A is better" in pco("compare", "a.json", "b.json", cwd=trained).out


def test_compare_refuses_different_examples(trained: Path) -> None:
    (trained / "a.json").write_text(evaluate(trained).out)
    (trained / "b.json").write_text(evaluate(trained, "last", "--split", "val").out)
    pco("compare", "a.json", "b.json", cwd=trained).error(2, "not evaluated on the same examples")


def test_explain_has_route_reasons_and_prompt(trained: Path, run_id: str) -> None:
    found = pco("explain", "last", "How many mugs are 3 and 4?", "--json", cwd=trained).json
    assert len(found["route"]["indices"]) == 4 and found["prompt"]
    assert [k for k, _ in found["instincts"]] == found["route"]["indices"]
    text = pco("explain", run_id, "-", cwd=trained, stdin="How many mugs are 3 and 4?\n").out
    assert "route " + ", ".join(map(str, found["route"]["indices"])) in text
    assert found["route"]["analysis"] in " ".join(text.split())


def test_explain_wants_an_input(trained: Path) -> None:
    pco("explain", "last", "-", cwd=trained, stdin=" \n").error(2, "the input is empty")


def test_explain_a_policy_file_wants_a_model(trained: Path, run_id: str, tmp_path: Path) -> None:
    (trained / "runs" / run_id / "policy.json").rename(tmp_path / "p.json")
    pco("explain", "p.json", "hello", cwd=tmp_path).error(2, "has no model", "--lm")
    shown = pco("explain", "p.json", "hello", "--lm", "simulated", cwd=tmp_path)
    assert shown.code == 0 and "\nprompt\n" in shown.out


def test_report_is_written_where_it_is_asked_for(trained: Path, run_id: str) -> None:
    result = pco("report", "last", "-o", "r.html", cwd=trained)
    assert result.code == 0 and result.out.strip() == "r.html"
    html = (trained / "r.html").read_text()
    rows = map(json.loads, (trained / "data.jsonl").read_text().splitlines())
    assert any(row["input"] in html for row in rows)  # the run's store holds ids alone
    assert pco("report", run_id, cwd=trained).out.strip() == f"runs/{run_id}/report.html"


def test_a_report_does_without_data_that_is_gone(trained: Path) -> None:
    (trained / "data.jsonl").unlink()
    assert pco("report", "last", "-o", "r.html", cwd=trained).code == 0


def test_data_that_changed_since_the_run_is_said_so(trained: Path) -> None:
    path = trained / "data.jsonl"
    assert "changed since" not in pco("eval", "last", cwd=trained).err
    path.write_text(path.read_text().replace("48", "58"))
    result = pco("eval", "last", cwd=trained)
    assert result.code == 0 and "the data changed since the run" in result.err
