"""`pco init --from FILE`: what it makes of files as people have them."""

import csv
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.assemble import Sources, plan_run
from promptcodebook.cli.command import gather_settings
from promptcodebook.config import load_config
from promptcodebook.config.loading import select_remark
from promptcodebook.data import load_settings
from promptcodebook.policy.policy import load_policy
from tests.build.cli import Result, Terminal, pco
from tests.build.nasty import NASTY

KINDS = ("billing", "delivery", "account")
WORDS = re.findall(r"\w+", "the parcel of last week has come in the end and all is well with it")


def one_of_three(n: int) -> str:
    return KINDS[n % 3]


def rows(count: int, **columns: Any) -> list[dict[str, Any]]:
    """Makes `count` rows; a column is a function of a row's number, or the same in all."""
    made = [
        {"message": f"Message {n} about {WORDS[n % len(WORDS)]}, please help."}
        for n in range(count)
    ]
    return [
        {**row, **{name: of(n) if callable(of) else of for name, of in columns.items()}}
        for n, row in enumerate(made)
    ]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def propose(folder: Path, *words: str, name: str = "mine.csv", stdin: Any = "") -> Result:
    return pco("init", "--from", name, *words, cwd=folder, stdin=stdin)


def settings(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pco.toml").read_text("utf-8"))


@pytest.mark.parametrize(("name", "columns", "reward"), [
    ("mine.csv", {"label": lambda n: KINDS[n % 3]}, "label"),
    ("mine.jsonl", {"note": "seen", "team": lambda n: KINDS[n % 3]}, "label"),
    ("mine.csv", {"total": lambda n: n * 1.5}, "numeric"),
    ("mine.jsonl", {"solution": lambda n: f"I add 2 to {n}.\n#### {n + 2}"}, "numeric"),
    ("mine.csv", {"solution": lambda n: f"So it is \\boxed{{{n}}} in 3 steps."}, "numeric"),
    ("mine.csv", {"answer": lambda n: f"form {n}"}, "contains"),
    ("mine.csv", {"summary": lambda n: f"Somebody wrote {n} lines on it."}, "f1"),
    ("mine.jsonl", {"output": lambda n: {"item": f"mug {n}", "count": n}}, "fields"),
    ("mine.csv", {}, "judge"),
])  # fmt: skip
def test_the_reward_fits_the_references(
    tmp_path: Path, name: str, columns: Mapping[str, Any], reward: str
) -> None:
    write(tmp_path / name, rows(90, **columns))
    result = propose(tmp_path, "--yes", name=name)
    assert result.code == 0, result.err
    made = settings(tmp_path)
    given = made["reward"]
    assert (given if isinstance(given, str) else given["kind"]) == reward
    assert made["data"]["input"] == "message" and made["data"]["path"] == name
    assert made["data"]["target"] == (list(columns)[-1] if columns else "")
    if reward == "label":
        assert made["reward"]["labels"] == sorted(KINDS)
        assert made["base_prompt"].endswith("account, billing, delivery.")
    dataset = load_settings(load_config(made).data, tmp_path)
    assert len(dataset) == 90 and len(dataset.test) >= 20
    shown = f"{len(dataset.train)} train, {len(dataset.val)} val, {len(dataset.test)} test"
    assert shown in result.out and shown in (tmp_path / "pco.toml").read_text()


@pytest.mark.parametrize("folds", [(), ("train", "val", "test")], ids=["drawn", "given"])
def test_a_large_file_is_validated_and_judged_on_a_sample(
    tmp_path: Path, folds: Sequence[str]
) -> None:
    data = rows(1800, message=lambda n: f"Message {n}", label=lambda n: KINDS[n % 3])
    data = [{**row, "fold": folds[n % 3]} if folds else row for n, row in enumerate(data)]
    write(tmp_path / "mine.jsonl", data)
    result = propose(tmp_path, "--yes", name="mine.jsonl")
    assert result.code == 0, result.err
    made = settings(tmp_path)
    dataset = load_settings(load_config(made).data, tmp_path)
    if folds:
        assert (made["verdict_examples"], made["validation"]["examples"]) == (300, 150)
        assert "judged  on 300 of the test rows; the best states on 150 validation" in result.out
    else:
        assert (len(dataset.test), len(dataset.val)) == (300, 150) and made["data"]["stratify"]
    assert "300 test rows find a gain of 8 points in four of five cases" in result.out
    write(tmp_path / "few.csv", rows(90, label=lambda n: KINDS[n % 3]))
    result = propose(tmp_path, "few", "--yes", name="few.csv")
    made = settings(tmp_path / "few")
    assert "verdict_examples" not in made and "validation" not in made
    assert "judged" not in result.out
    partly = rows(90, split=lambda n: "val" if n % 3 else "train")
    write(tmp_path / "partly.csv", partly)
    result = propose(tmp_path, "partly", "--yes", name="partly.csv")
    assert "test, as given, the others drawn from train\n" in result.out


def test_a_model_as_small_as_smollm2_can_say_a_label_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_LM", "smollm2")
    write(tmp_path / "mine.csv", rows(90, queue=lambda n: KINDS[n % 3]))
    assert propose(tmp_path, "--yes", name="mine.csv").code == 0
    made, labels = settings(tmp_path), sorted(KINDS)
    form = made["roles"]["executor"]["extra"]["response_format"]
    assert form["json_schema"]["schema"] == {"enum": labels}
    assert made["reward"] == {"kind": "label", "labels": labels} and "base_prompt" not in made
    assert made["init"]["instincts"] == [f"Say only: {label}" for label in labels]
    assert made["init"]["prompt"].endswith("account, billing, delivery.")
    assert propose(tmp_path, "exact", "--yes", "--reward", "exact", name="mine.csv").code == 0
    made = settings(tmp_path / "exact")
    assert made["roles"]["executor"]["extra"]["response_format"] == form
    assert made["init"]["instincts"] == [f"Say only: {label}" for label in labels]


def test_an_agent_keeps_its_own_way_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_LM", "smollm2")
    write(tmp_path / "mine.csv", rows(90, queue=lambda n: KINDS[n % 3]))
    (tmp_path / "plan.txt").write_text('Say "plan".\nThen plan.')
    agent = ("--agent", "python agent.py", "--present", "plan=plan.txt")
    assert propose(tmp_path, "--yes", *agent).code == 0
    made = settings(tmp_path)
    present = {"plan": 'Say "plan".\nThen plan.'}
    assert made["executor"] == {"command": "python agent.py", "present": present}
    assert "roles" not in made and "base_prompt" not in made and "instincts" not in made["init"]
    assert made["init"]["prompt"] == load_config(made).init.prompt and made["compose_per_stage"]
    alone = pco("init", "other", *agent, cwd=tmp_path)
    assert alone.code == 2 and "--agent has no effect without --from" in alone.err


@pytest.mark.parametrize(("lm", "kind", "prompt"), [
    ("simulated", "from_prompt", "Which queue? {message}\nSay one word."),
    ("smollm2", "expert", "Say which queue."),
])  # fmt: skip
def test_a_prompt_is_what_to_beat_and_to_start_from(
    tmp_path: Path, lm: str, kind: str, prompt: str
) -> None:
    """A small model keeps an instinct for each label; it has to beat the user's prompt too."""
    write(tmp_path / "mine.csv", rows(90, queue=lambda n: KINDS[n % 3]))
    (tmp_path / "p.txt").write_text(f"{prompt}\n", "utf-8")
    told = propose(tmp_path, "--yes", "--lm", lm, "--prompt", "p.txt")
    has = "yours, to beat" + " and, with our general" * (kind == "from_prompt")
    assert told.code == 0 and f"prompt  {has}" in told.out
    made = settings(tmp_path)
    assert (made["init"]["kind"], made["init"]["prompt"]) == (kind, prompt)
    assert "base_prompt" not in made and load_config(made).init.prompt == prompt


def test_a_prompt_names_the_input_and_never_the_reference(tmp_path: Path) -> None:
    columns = {"why": lambda n: f"since {n} is so", "queue": lambda n: KINDS[n % 3]}
    write(tmp_path / "mine.csv", rows(90, **columns))
    propose(tmp_path, "--yes", "--prompt", "{mesage}? Say it.").error(2, "mean 'message'")
    propose(tmp_path, "--yes", "--prompt", "Say {queue} now.").error(2, "not an input column")
    assert propose(tmp_path, "--yes", "--prompt", "Why {why}? Is it {message}?").code == 0
    assert settings(tmp_path)["data"]["input"] == "{why}\n\n{message}"
    told = pco("init", "other", "--from", "mine.csv", "--yes", cwd=tmp_path)
    assert "pco train --prompt FILE" in told.out


def test_doctor_names_the_command_that_reads_the_data_as_the_settings_do(tmp_path: Path) -> None:
    data = rows(90, label=lambda n: KINDS[n % 3])
    write(tmp_path / "mine.csv", [*data, *({**row, "label": "account"} for row in data)])
    assert propose(tmp_path, "--yes").code == 0
    (found,) = (
        finding
        for section in pco("doctor", "--json", cwd=tmp_path).json["sections"]
        for finding in section["findings"]
        if finding["name"] == "data"
    )
    step = shlex.split(found["next_step"])
    assert found["level"] == "warn" and step[:3] == ["pco", "data", "check"]
    checked = pco(*step[1:], cwd=tmp_path)
    assert "180 examples" in checked.out, checked
    lines = pco("doctor", "--lm", "simulated", cwd=tmp_path).out
    assert "nothing fails, but read the warnings; next: pco estimate" in lines


def test_a_column_of_chat_messages_is_found(tmp_path: Path) -> None:
    asked = ([{"role": "user", "content": f"Case {n}?"}] for n in range(9))
    write(tmp_path / "talks.jsonl", [{"messages": chat, "reply": "So."} for chat in asked])
    result = propose(tmp_path, "chat", "--yes", name="talks.jsonl")
    assert result.code == 0, result.err
    found = settings(tmp_path / "chat")["data"]
    assert (found["messages"], found["path"]) == ("messages", "../talks.jsonl")
    assert "cannot give a verdict, which needs at least 20" in result.out


def test_what_is_unclear_is_asked_on_a_terminal_and_given_by_flags_elsewhere(
    tmp_path: Path,
) -> None:
    write(tmp_path / "mine.csv", rows(80, label=lambda n: KINDS[n % 3], why="so it is"))
    propose(tmp_path).error(2, "cannot be confirmed without a terminal", "--yes")
    propose(tmp_path, "--yes", "--target", "lable").error(2, "did you mean 'label'")
    propose(tmp_path, "--yes", "--reward", "f2").error(2, "unknown kind 'f2'", "kinds: ")
    assert not (tmp_path / "pco.toml").exists()
    wrong = propose(tmp_path, stdin=Terminal("\n\nexact\nsmolm2\n"))
    assert wrong.code == 2 and "did you mean 'smollm2'" in wrong.err
    asked = propose(tmp_path, stdin=Terminal("\n\nexact\nopenai/gpt-x\nSay one word.\n"))
    assert asked.code == 0, asked.err
    for guess in ("[message]", "none [label]", "reward [label]", "[none yet]"):
        assert guess in asked.err and guess not in asked.out
    made = settings(tmp_path)
    assert (made["reward"], made["lm"]) == ("exact", "openai/gpt-x")
    assert made["init"] == {"kind": "from_prompt", "prompt": "Say one word."}
    propose(tmp_path, "--yes").error(2, "pco.toml already exists", "nothing was written")
    flags = ("--input", "{why}: {message}", "--target", "", "--reward", "reward.py:reward")
    (tmp_path / "flags").mkdir()
    (tmp_path / "flags/reward.py").write_text("def reward(example, output):\n    return 1.0\n")
    assert propose(tmp_path, "flags", *flags).code == 0
    made = settings(tmp_path / "flags")
    assert (made["reward"], made["data"]["target"]) == ("reward.py:reward", "")


def test_it_ends_in_a_verdict_that_counts_the_rows_without_a_reference(tmp_path: Path) -> None:
    write(tmp_path / "mine.csv", rows(75, label=lambda n: KINDS[n % 3] if n % 5 else ""))
    left_out = "15 rows without a reference are left out"
    made = propose(tmp_path, "--yes")
    assert made.code == 0 and f"warn    {left_out}" in made.out, made.err
    assert left_out in " ".join(pco("doctor", cwd=tmp_path).out.split())
    pco("train", cwd=tmp_path).error(2, "the run has no model", "--lm smollm2", "--lm simulated")
    typed = ("--lm", "simulated", "--preset", "quick", "--set", "update.epochs=1")
    done = pco("train", *typed, cwd=tmp_path)
    out = " ".join(done.out.split())
    assert done.code == 0 and left_out in done.err, done.err
    dataset = load_settings(load_config(settings(tmp_path)).data, tmp_path).with_references()
    assert f"test split, n = {len(dataset.test)}" in done.out and len(dataset.test) >= 20
    assert "\nOn the simulated model: " in done.out and f"{left_out}." in out


def test_of_a_large_file_a_sample_is_read_and_all_labels_are_known(tmp_path: Path) -> None:
    data = rows(6000, id=lambda n: f"t{n}", label=lambda n: KINDS[n % 3] if n < 5950 else "late")
    write(tmp_path / "mine.jsonl", [*data, {"message": "Twice", "id": "t300", "label": "late"}])
    made = propose(tmp_path, "--yes", name="mine.jsonl")
    assert made.code == 0, made.err
    tree = settings(tmp_path)
    assert tree["reward"]["labels"] == sorted([*KINDS, "late"]) and "id" not in tree["data"]
    dataset = load_settings(load_config(tree).data, tmp_path)
    assert (len(dataset.test), len(dataset.val)) == (300, 150)
    assert all("late" in {e.target for e in part} for _, part in dataset.items())


@pytest.mark.parametrize(("lm", "words", "tokens"), [
    ("smollm2", 2, 64), ("smollm2", 200, 800), ("openai/gpt-x", 200, None),
    ("openai/gpt-x", 2000, 9000),
])  # fmt: skip
def test_an_answer_has_room_for_the_longest_reference(
    tmp_path: Path, lm: str, words: int, tokens: int | None
) -> None:
    data = rows(60, answer=lambda n: " ".join(["word", str(n), "and more ", *["alpine"] * words]))
    write(tmp_path / "mine.jsonl", data)
    assert propose(tmp_path, "--yes", "--lm", lm, name="mine.jsonl").code == 0
    executor = settings(tmp_path).get("roles", {}).get("executor", {})
    found = executor.get("max_tokens")
    assert (found is None) == (tokens is None)
    assert tokens is None or 0.7 * tokens <= found <= 1.5 * tokens
    longest = max(-(-len(row["answer"]) // 4) for row in data)
    text = f"# the longest of 60 references has about {longest} tokens"
    assert (text in (tmp_path / "pco.toml").read_text()) == (tokens is not None)


def test_what_init_wrote_is_used_without_trust_on_the_machine_that_wrote_it(
    tmp_path: Path,
) -> None:
    write(tmp_path / "mine.csv", rows(60, kind=lambda n: KINDS[n % 3]))
    assert propose(tmp_path, "--yes", "--lm", "smollm2").code == 0
    typed = ("--lm", "simulated", "--set", "update.epochs=1", "--set", "update.batch_size=4")
    done = pco("train", *typed, cwd=tmp_path)
    assert done.code == 0 and "test split, n = 20" in done.out, done.err
    (file,) = tmp_path.glob("runs/*/policy.json")
    copied = tmp_path / "copied.json"
    copied.write_bytes(file.read_bytes())
    for n, ref in enumerate(("last", str(file), str(copied))):
        for verb in (
            ("eval", ref, "--lm", "simulated", "--n", "3"),
            ("explain", ref, "Where is it?", "--lm", "simulated"),
            ("export", ref, "--to", "langchain", "-o", f"out {n}"),
        ):
            used = pco(*verb, cwd=tmp_path)
            assert used.code == 0, (verb, used.err)
    assert load_policy(copied, lm="simulated").answer("Where is it?")


@pytest.mark.parametrize("lm", ["", "smollm2"])
@pytest.mark.parametrize("labels", [2, 3, 12, 60])
def test_a_proposal_can_be_trained_under_every_preset_whatever_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: int, lm: str
) -> None:
    write(tmp_path / "mine.csv", rows(4 * labels + 40, kind=lambda n: f"kind {n % labels}"))
    texts = list[str]()
    for name, module in (
        ("bare", None),
        ("extra", module_from_spec(ModuleSpec("openvino_genai", None))),
    ):
        monkeypatch.setitem(sys.modules, "openvino_genai", module)
        assert propose(tmp_path, name, "--yes", *(("--lm", lm) if lm else ())).code == 0
        texts.append((tmp_path / name / "pco.toml").read_text("utf-8"))
    assert texts[0] == texts[1]
    size = (6 if labels == 60 else labels) if lm else 16  # 60 are too many for an instinct each
    for preset in (None, "default", "lean", "paper", "quick", "small"):
        flags = {"lm": "simulated"} | ({"preset": preset} if preset else {})
        config, base = gather_settings(tmp_path / "bare", flags)
        most = 1 if preset == "small" or (lm and not preset) else 4
        assert (config.size, config.select) == (size, min(size, most))
        assert bool(select_remark(config)) == (size < most)
        assert plan_run(config, Sources(base)).require_training().judged


def test_a_preset_for_many_instincts_trains_a_codebook_of_few_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "mine.csv", rows(60, kind=lambda n: KINDS[n % 3]))
    assert propose(tmp_path, "--yes", "--lm", "smollm2").code == 0
    typed = ("--lm", "simulated", "--preset", "quick", "--set", "update.epochs=1")
    done = pco("train", *typed, cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.err.count("select (S) is lowered to 3, the size of the codebook\n") == 1


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("name", NASTY)
def test_the_name_of_a_column_is_a_name_and_no_setting(
    tmp_path: Path, name: str, kind: str
) -> None:
    if kind == "csv":
        name = name.replace("\r\n", "\n")  # as the reader of a spreadsheet's file has it
    for number, columns in enumerate(({name: one_of_three}, {"label": one_of_three, name: "x"})):
        file, folder = tmp_path / f"{number}.{kind}", str(number)
        write(file, rows(60, **columns))
        made = propose(tmp_path, folder, "--yes", name=file.name)
        assert made.code == 0, made.err
        written = settings(tmp_path / folder)
        asked = {"preset", "reward", "data", "init", "budget", "base_prompt"}
        assert written.keys() == asked
        assert written["data"]["target"] == (name if not number else "label")
        assert written["data"].keys() == {"path", "input", "target", "fractions", "stratify"}
        for shown in (made.out, made.err):
            assert name not in shown or "\n" not in name
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]", shown)
        assert load_settings(load_config(written).data, tmp_path / folder).train


@pytest.mark.parametrize("name", ['a"\nlm = "simulated"\n#', "it's = $(x) `y`", "\x1b[2J"])
def test_the_name_of_a_file_is_a_name_and_no_setting(tmp_path: Path, name: str) -> None:
    write(tmp_path / f"{name}.csv", rows(60, kind=lambda n: KINDS[n % 3]))
    made = propose(tmp_path, "made of $(x)", "--yes", name=f"{name}.csv")
    assert made.code == 0, made.err
    written = settings(tmp_path / "made of $(x)")
    assert written["data"]["path"] == f"../{name}.csv" and "lm" not in written
    assert "\nlm" not in made.out and "\x1b" not in made.out
    assert "\n  cd 'made of $(x)' && " in made.out


def test_a_name_that_no_toml_can_hold_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    write(tmp_path / "mine.jsonl", rows(60, **{"half \ud800": lambda n: KINDS[n % 3]}))
    propose(tmp_path, "mine", "--yes", name="mine.jsonl").error(2, "data.target")
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(("column", "reward", "said"), [
    (lambda n: ("Yes", "yes")[n % 2], "exact", "cannot be distinguished"),
    (lambda n: " ".join(WORDS[n % 7 :] + WORDS[: n % 7]), "judge", "gives 1 to the references of"),
])  # fmt: skip
def test_a_reward_that_cannot_tell_the_rows_apart_is_not_proposed(
    tmp_path: Path, column: Any, reward: str, said: str
) -> None:
    write(tmp_path / "mine.jsonl", rows(60, answer=column))
    made = propose(tmp_path, "--yes", name="mine.jsonl")
    assert made.code == 0, made.err
    given = settings(tmp_path)["reward"]
    assert (given if isinstance(given, str) else given["kind"]) == reward and said in made.out


def test_doctor_shows_what_the_reward_gives_right_and_wrong_answers(tmp_path: Path) -> None:
    write(tmp_path / "mine.csv", rows(60, kind=lambda n: KINDS[n % 3]))

    def table(*typed: str) -> dict[str, str]:
        sections = pco("doctor", "--json", *typed, cwd=tmp_path).json["sections"]
        (found,) = (s["findings"] for s in sections if s["title"].startswith("average reward"))
        return {each["name"]: each["what"] for each in found}

    assert propose(tmp_path, "--yes").code == 0
    assert table() == {
        "its reference": "1",
        "the references of other rows": "0",
        "an empty answer": "0",
        "all labels at once": "0",
    }
    lenient = table("--set", "reward=contains")
    assert lenient["all labels at once"] == "1" and "cannot tell" in lenient["reward"]


@pytest.mark.parametrize("lm", ["smollm2", "simulated"])
def test_few_answers_of_a_published_form_are_no_labels(tmp_path: Path, lm: str) -> None:
    """A prompt that lists them would tell the answers of the test rows."""
    towns = ("Ulm", "Lyon", "Porto")
    asked = [
        {"id": n, "question": f"Where is {n}?", "context": f"{n} is in {towns[n % 3]}.",
         "answers": {"text": [towns[n % 3]], "answer_start": [8]}}
        for n in range(60)
    ]  # fmt: skip
    (tmp_path / "mine.json").write_text(json.dumps(asked), "utf-8")
    made = pco("init", "mine", "--from", "mine.json", "--yes", "--lm", lm, cwd=tmp_path)
    text = (tmp_path / "mine" / "pco.toml").read_text("utf-8")
    assert made.code == 0 and 'reward = "f1"' in text and "Answer with" not in text, text


@pytest.mark.parametrize(("typed", "header"), [("\n", False), ("yes\n", True)])
def test_whether_the_first_line_names_the_columns_is_a_question(
    tmp_path: Path, typed: str, header: bool
) -> None:
    lines = [f"{('ham', 'spam')[n % 2]}\tnote {n} on oaks and elms" for n in range(60)]
    (tmp_path / "mine.tsv").write_text("\n".join(lines), "utf-8")
    made = pco("init", "--from", "mine.tsv", cwd=tmp_path, stdin=Terminal(f"{typed}\n\n\n\n\n"))
    data = tomllib.loads((tmp_path / "pco.toml").read_text("utf-8"))["data"]
    assert made.code == 0 and "names the columns" in made.err and ("header" not in data) == header
    assert data["target"] == ("ham" if header else "column 1")
