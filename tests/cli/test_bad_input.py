"""The tour of bad input: one clear message (what, where, what to type next), nothing written."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from promptcodebook.store.lock import RunLock
from tests.cli.conftest import QUICK
from tests.cli.invoked import Result, pco, served
from tests.lm.server import Server, fails, says


def lines(folder: Path) -> list[str]:
    return (folder / "data.jsonl").read_text().splitlines()


def write(folder: Path, rows: list[str]) -> None:
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")


def train(folder: Path, *more: str) -> Result:
    return pco("train", *QUICK, *more, cwd=folder)


def refused(folder: Path, *parts: str, more: tuple[str, ...] = ()) -> None:
    """Training is refused before anything is written: exit 2 with one message."""
    before = _files(folder)
    train(folder, *more).error(2, *parts)
    assert _files(folder) == before


def _files(folder: Path) -> dict[Path, bytes]:
    """All but what importing the reward leaves behind."""
    inside = (p for p in folder.rglob("*") if "__pycache__" not in p.parts)
    return {p: p.read_bytes() for p in inside if p.is_file()}


# Keys


def test_a_provider_that_wants_a_key_is_told_of_before_a_run_is_begun(folder: Path) -> None:
    parts = ("openai/gpt-x needs a key", "next: export OPENAI_API_KEY=...")
    refused(folder, *parts, more=("--lm", "openai/gpt-x"))
    assert not (folder / "runs").exists()
    critic = ("--set", "roles.critic.model=openai/gpt-x")
    refused(folder, *parts, more=critic)
    pco("bench", "quick", "--lm", "openai/gpt-x", cwd=folder).error(2, *parts)
    assert not (folder / "runs").exists()


def test_no_use_of_a_policy_begins_without_the_key(trained: Path, run_id: str) -> None:
    parts = ("openai/gpt-x needs a key", "export OPENAI_API_KEY=...")
    for typed in (("eval", run_id), ("explain", run_id, "a question")):
        pco(*typed, "--lm", "openai/gpt-x", cwd=trained).error(2, *parts)


def test_an_estimate_needs_no_key(folder: Path) -> None:
    assert pco("estimate", "--lm", "openai/gpt-x", "--set", "update.epochs=2", cwd=folder).code == 0


# Data


def test_a_missing_column_is_named_with_those_that_are_there(folder: Path) -> None:
    write(folder, [row.replace('"input"', '"inptu"') for row in lines(folder)])
    refused(folder, "data.jsonl has no column 'input'", "did you mean 'inptu'", "next: its columns")


def test_an_empty_column_is_named_with_its_line(folder: Path) -> None:
    rows = lines(folder)
    rows[4] = json.dumps({"input": "  ", "target": "x"})
    write(folder, rows)
    refused(folder, "data.jsonl:5: the input is empty", "next: fill it in")


def test_a_column_that_is_null_is_named_with_its_line(folder: Path) -> None:
    rows = lines(folder)
    rows[2] = json.dumps({"input": None, "target": "x"})
    write(folder, rows)
    refused(folder, "data.jsonl:3: column 'input' is null")


def test_duplicate_columns_are_named(folder: Path) -> None:
    (folder / "data.csv").write_text("input,target,input\na,b,c\n")
    refused(folder, "data.csv:1", "'input'", more=("--set", "data.path=data.csv"))


def test_wrong_json_is_placed_by_line(folder: Path) -> None:
    rows = lines(folder)
    rows[6] = '{"input": "a", "target": }'
    write(folder, rows)
    refused(folder, "data.jsonl:7:")


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "data.jsonl").unlink()
    refused(folder, "data.jsonl")


def test_an_empty_file_is_refused(folder: Path) -> None:
    write(folder, [""])
    refused(folder, "data.jsonl is empty")


def test_an_empty_split_is_named(folder: Path) -> None:
    (folder / "none.jsonl").write_text("")
    more = ("--set", "data.path=", "--set", "data.train=data.jsonl", "--set", "data.val=none.jsonl")
    refused(folder, "none.jsonl is empty", more=more)


def test_overlap_between_splits_is_refused_with_both_ids(folder: Path) -> None:
    rows = [json.loads(row) | {"split": "train"} for row in lines(folder)]
    rows += [rows[3] | {"split": "test"}]
    write(folder, [json.dumps(row) for row in rows])
    refused(folder, "1 input appears in two splits", "(train)", more=("--set", "data.split=split"))


# Settings


def test_more_selected_than_there_are_is_refused(folder: Path) -> None:
    refused(folder, "select (S = 17) is larger than size (K = 16)", more=("--set", "select=17"))


@pytest.mark.parametrize(
    ("key", "meant"), [("sise", "size"), ("update.epoch", "epochs"), ("roles.critic.topp", "top_p")]
)
def test_an_unknown_key_gets_a_did_you_mean(folder: Path, key: str, meant: str) -> None:
    parts = (f"unknown key '{key}' in the command line", f"did you mean '{meant}'", "known here")
    refused(folder, *parts, more=("--set", f"{key}=1"))


def test_an_unknown_key_in_the_file_is_placed_there(folder: Path) -> None:
    path = folder / "pco.toml"
    path.write_text("sedd = 1\n" + path.read_text())
    refused(folder, "unknown key 'sedd' in pco.toml", "did you mean 'seed'")


def test_a_file_that_is_no_toml_is_named(folder: Path) -> None:
    (folder / "pco.toml").write_text("lm = simulated\n")
    refused(folder, "pco.toml is not valid TOML", "next: edit pco.toml")


def test_an_unknown_task_gets_a_did_you_mean(folder: Path) -> None:
    parts = ("unknown task 'constrains'", "did you mean 'constraints'", "next: ready-made tasks")
    refused(folder, *parts, more=("--task", "constrains"))


def test_an_unknown_role_gets_a_did_you_mean(folder: Path) -> None:
    more = ("--set", "roles.critics.temperature=0")
    refused(folder, "unknown role 'critics'", "did you mean 'critic'", more=more)


def test_a_money_budget_over_an_unknown_price_is_refused(folder: Path) -> None:
    more = ("--lm", "http://127.0.0.1:9/v1#m", "--budget", "5usd")
    refused(folder, "none is known for 'http://127.0.0.1:9/v1#m'", "[prices.", more=more)


def test_a_budget_that_cannot_be_read_is_quoted(folder: Path) -> None:
    refused(folder, "cannot read the budget '5eur'", "write e.g. 5usd", more=("--budget", "5eur"))


def test_no_model_at_all_says_where_one_is_named(folder: Path) -> None:
    refused(folder, "has no model", "--lm", more=("--set", "lm="))


def test_an_unknown_command_gets_a_did_you_mean(tmp_path: Path) -> None:
    pco("trian", cwd=tmp_path).error(2, "no command 'trian'", "did you mean 'train'")


def test_errors_are_json_when_json_is_asked(folder: Path) -> None:
    result = train(folder, "--json", "--set", "sise=1")
    assert result.code == 2
    assert result.json["error"] == "ConfigError"
    assert "sise" in result.json["message"] and result.json["hint"]


# Rewards


def reward(folder: Path, body: str) -> None:
    (folder / "reward.py").write_text(f"def reward(example, output):\n{body}\n")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return float('nan') if wrong(example) else 0.5", "returned nan"),
        ("    return 7 if wrong(example) else 0.5", "outside its range 0..1"),
        ("    return 1 / 0 if wrong(example) else 0.5", "ZeroDivisionError"),
    ],
)
def test_a_reward_that_fails_now_and_then_is_recorded_and_the_run_goes_on(
    folder: Path, body: str, message: str
) -> None:
    reward(folder, f"{body}\n\ndef wrong(example):\n    return 'prime' in example.input")
    rows = [r for r in lines(folder) if "prime" not in r]
    rows += [json.dumps({"input": f"Is {n} prime? Yes or no.", "target": "no"}) for n in (4, 6, 8)]
    write(folder, rows)
    assert train(folder).code == 0
    failures = pco("runs", "show", "last", "--json", cwd=folder).json["failures"]
    assert failures and all(f["stage"] == "reward" and message in f["message"] for f in failures)
    assert all("reward.py" in f["traceback"] for f in failures if message == "ZeroDivisionError")
    text = pco("runs", "show", "last", cwd=folder).out
    assert f"{len(failures)} failures" in text and message in text


def test_a_reward_that_fails_whatever_the_answer_stops_before_anything_is_paid(
    folder: Path,
) -> None:
    reward(folder, "    return example.no_such_thing")
    train(folder).error(2, "no_such_thing", "reward.py:2", "user_code.trial = false")
    assert list((folder / "runs").iterdir()) == []


def test_a_reward_that_fails_mostly_stops_the_run_with_the_first_error(folder: Path) -> None:
    reward(folder, "    return example.no_such_thing")
    untried = train(folder, "--set", "user_code.trial=false")
    error = untried.error(1, "rollouts failed; the first, at reward", "no_such_thing")
    assert "reward.py:2" in error
    shown = pco("runs", "show", "last", cwd=folder).out
    assert "no_such_thing" in shown and "Traceback" in shown


MUTE = """class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")
"""


def test_an_error_that_cannot_be_read_is_one_like_any_other(folder: Path) -> None:
    reward(folder, "    raise Mute")
    told = (folder / "reward.py").read_text()
    (folder / "reward.py").write_text(f"{MUTE}\n\n{told}")
    train(folder).error(2, "Mute", "its message cannot be read", "reward.py")
    train(folder, "--set", "user_code.trial=false").error(1, "at reward", "Mute")
    (folder / "reward.py").write_text(f"{MUTE}\n\nraise Mute\n")
    refused(folder, "the reward file does not run", "Mute", "reward.py")


def test_a_reward_file_that_does_not_run_is_placed(folder: Path) -> None:
    (folder / "reward.py").write_text("import nothing_of_this_name\n")
    refused(folder, "the reward file does not run", "reward.py:1", "nothing_of_this_name")


# Endpoints

KEY = "sk-verysecretindeed"


def test_an_endpoint_that_is_down_is_named(folder: Path) -> None:
    result = train(folder, "--lm", "http://127.0.0.1:9/v1#m", "--set", "retries=0")
    assert result.code == 1
    assert "nothing answers at http://127.0.0.1:9/v1" in result.err
    assert result.err.count("pco: error") == 1


def test_a_wrong_key_is_never_echoed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCO_API_KEY", KEY)
    server = Server()
    server.default = fails(401, f"Incorrect API key provided: {KEY}")
    with served(server):
        result = train(folder, "--lm", server.spec)
        doctor = pco("doctor", "--lm", server.spec, cwd=folder)
    assert result.code == 1 and "AuthRefused" in result.err
    assert "PCO_API_KEY" in result.err
    assert doctor.code == 1 and "PCO_API_KEY" in doctor.out
    output = result.out + result.err + doctor.out + doctor.err
    shown = pco("runs", "show", "last", cwd=folder)
    assert KEY not in output + shown.out
    for path in (p for p in folder.parent.rglob("*") if p.is_file()):
        assert KEY.encode() not in path.read_bytes(), path


def test_a_model_that_is_not_there_is_named_with_those_that_are(folder: Path) -> None:
    server = Server()
    server.default = fails(404, "The model `m` does not exist", code="model_not_found")
    server.models = ["other-model"]
    with served(server):
        result = train(folder, "--lm", server.spec)
    assert result.code == 1
    assert "ModelNotFound" in result.err and "'m'" in result.err


def test_critiques_that_never_parse_stop_the_run_and_all_is_counted(folder: Path) -> None:
    server = Server()
    server.default = says("I would rather talk about the weather.")
    with served(server):
        result = train(folder, "--lm", server.spec, "--set", "cache=false")
    assert result.code == 1
    told = " ".join(result.err.split())
    assert "critiques taught nothing; the first, at critique: ParseError" in told
    assert "pco doctor" in told
    shown = pco("runs", "show", "last", "--json", cwd=folder).json
    assert shown["ended"] == "failed"
    assert shown["tallies"]["parse_failed"] > 0 and shown["tallies"]["route_fallbacks"] > 0
    assert {f["kind"] for f in shown["failures"]} == {"ParseError"}
    assert "pco doctor" in pco("runs", "show", "last", cwd=folder).out


def test_doctor_says_that_an_endpoint_ignores_the_schema(folder: Path) -> None:
    server = Server()
    server.default = says("hello")
    with served(server):
        result = pco("doctor", "--lm", server.spec, cwd=folder)
    assert "warn  structured output: accepted and ignored" in result.out


# Runs


@pytest.mark.parametrize(
    ("typed", "said", "hint"),
    [
        (("report", "last", "-o", "data.jsonl/r.html"), "r.html cannot be written", "-o FILE"),
        (("report", "last", "-o", "runs"), "runs cannot be written", "-o FILE"),
        (("init", "data.jsonl/x"), "cannot write to data.jsonl/x", "pco init OTHER_FOLDER"),
        (("templates", "copy", "data.jsonl/x"), "cannot write the templates", "name a folder"),
        (("data", "fetch", "pupa", "--cache", "data.jsonl"), "pupa cannot be kept", "--cache"),
    ],
)
def test_what_cannot_be_written_is_said_with_where_else(
    trained: Path, typed: tuple[str, ...], said: str, hint: str
) -> None:
    before = sorted(p for p in trained.rglob("*"))
    pco(*typed, cwd=trained).error(pco(*typed, cwd=trained).code or 1, said, hint)
    assert sorted(p for p in trained.rglob("*")) == before


@pytest.mark.parametrize("typed", [("demo", "--worlds", "1"), ("train",), ("bench", "quick")])
def test_a_place_for_runs_that_is_none_is_said_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PCO_RUNS", "data.jsonl")
    told = pco(*typed, *(("--task", "aime") if typed[0] == "bench" else ()), cwd=folder)
    assert told.code == 1 and "Traceback" not in told.err and "internal error" not in told.err
    assert "data.jsonl" in told.err and "PCO_RUNS" in told.err + told.out


def test_a_run_in_use_is_left_alone(trained: Path, run_id: str) -> None:
    lock = RunLock(trained / "runs" / run_id)
    try:
        pco("train", "--resume", "last", cwd=trained).error(2, "is being written by process")
        pco("runs", "rm", run_id, "--yes", cwd=trained).error(2, "nothing was removed")
    finally:
        lock.release()
    assert pco("runs", "list", "--json", cwd=trained).json[0]["id"] == run_id


@pytest.fixture
def stopped(folder: Path) -> Path:
    """A folder with a run that its budget stopped."""
    result = train(folder, "--budget", "200calls")
    assert result.code == 3, result.err
    return folder


def test_a_resumed_run_whose_data_changed_is_refused(stopped: Path) -> None:
    write(stopped, [row.replace("48", "58") for row in lines(stopped)])
    result = pco("train", "--resume", "last", "--budget", "9000calls", cwd=stopped)
    result.error(2, "the data of the run", "changed since it started", "put the old data back")


def test_a_resumed_run_whose_settings_changed_names_the_keys(stopped: Path) -> None:
    more = ("--set", "explore.tau=0.7", "--seed", "5")
    result = pco("train", "--resume", "last", *more, cwd=stopped)
    result.error(2, "other settings: explore.tau: 0.5 → 0.7; seed: 0 → 5", "put them back")


def test_a_reached_budget_says_how_to_go_on(stopped: Path) -> None:
    [run] = (stopped / "runs").iterdir()
    shown = pco("runs", "show", "last", "--json", cwd=stopped).json
    assert shown["ended"] == "budget"
    result = pco("train", "--resume", run.name[:12], "--budget", "90000calls", cwd=stopped)
    assert result.code == 0, result.err
    assert (run / "policy.json").is_file()


def test_a_finished_run_has_nothing_to_resume(trained: Path) -> None:
    pco("train", "--resume", "last", cwd=trained).error(
        2, "nothing to resume", "--set update.epochs=MORE"
    )


def test_a_store_from_a_newer_version_is_refused(trained: Path, run_id: str) -> None:
    with sqlite3.connect(trained / "runs" / run_id / "run.sqlite") as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    for command in (("runs", "show"), ("codebook", "show"), ("report",), ("train", "--resume")):
        pco(*command, run_id, cwd=trained).error(2, "999", "reads formats up to")


def test_a_run_that_is_not_there_is_said_so(trained: Path, run_id: str) -> None:
    wrong = run_id.replace("data", "dtaa")
    pco("eval", wrong, cwd=trained).error(2, f"no run '{wrong}'", f"did you mean '{run_id}'")


def test_a_file_that_is_no_policy_is_said_so(trained: Path) -> None:
    (trained / "odd.json").write_text('{"codebook": []}')
    pco("codebook", "show", "odd.json", cwd=trained).error(2, "odd.json is not a policy file")
