import contextlib
import io
import json
import re
import shlex
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import promptcodebook
from promptcodebook.assemble import Sources
from promptcodebook.config import load_config
from promptcodebook.policy.policy import deploy
from promptcodebook.policy.references import first_policy
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run
from tests.build.cases import table
from tests.build.cli import Result, pco
from tests.build.project import QUICK
from tests.build.project import folder as folder
from tests.build.store import edit_header


def evaluate(folder: Path, ref: str = "last", *more: str) -> Result:
    result = pco("eval", ref, *more, "--json", cwd=folder)
    assert result.code == 0, result.err
    return result


def test_a_run_is_evaluated_as_its_verdict_was(trained: Path, run_id: str, store: RunStore) -> None:
    expected = {e.name: e for e in store.test_evaluations()}["learned"]
    evaluation = evaluate(trained).json
    assert [e["reward"] for e in evaluation["examples"]] == list(expected.rewards)
    assert [e["id"] for e in evaluation["examples"]] == [r.example_id for r in expected.rollouts]
    assert evaluation["split"] == "test" and evaluation["simulated"] is True
    assert evaluation["score"]["mean"] == pytest.approx(expected.score)
    by_file = evaluate(trained, f"runs/{run_id}/policy.json").json
    assert by_file["ref"] == "policy.json" and by_file["examples"] == evaluation["examples"]
    out = pco("eval", run_id[:14], cwd=trained).out
    assert out.startswith("simulated model, test split, n = 6")
    parts = ("reward", "(95 % ", "answered only", "failed", "truncated", "tokens", "$0")
    for part in (*parts, "fallback routes  0 %", "longest prompt"):
        assert part in out, part
    assert re.search("replies +from the verdict's recorded replies", out)
    assert by_file["replies"] == "from recorded replies"
    assert re.search("replies +asked again", pco("eval", "last", "--again", cwd=trained).out)
    sides = pco("compare", "last", "last", "--json", cwd=trained).json
    assert sides["a"]["replies"] == evaluation["replies"]
    assert sides["a"]["score"] == sides["b"]["score"] == evaluation["score"]


def test_a_policy_file_needs_data_or_a_ready_made_task(
    trained: Path, run_id: str, tmp_path: Path
) -> None:
    (trained / "runs" / run_id / "policy.json").rename(tmp_path / "p.json")
    pco("eval", "p.json", "--lm", "simulated", cwd=tmp_path).error(2, "no data", "--task")
    args = ("--task", "constraints", "--lm", "simulated", "--split", "val", "--n", "5")
    evaluation = evaluate(tmp_path, "p.json", *args).json
    assert evaluation["n"] == 5 and evaluation["split"] == "val"


def test_a_sample_is_chosen_by_id_and_is_the_same_for_everyone(trained: Path) -> None:
    three, again = (
        [e["id"] for e in evaluate(trained, "last", "--n", "3", *args).json["examples"]]
        for args in ((), ("--set", "seed=9"))
    )
    assert three == again and len(three) == 3
    pco("eval", "last", "--split", "tset", cwd=trained).error(2, "did you mean 'test'")
    pco("eval", "last", "--n", "0", cwd=trained).error(2, "n must be 1 or more")


def test_data_that_changed_since_the_run_are_named(trained: Path) -> None:
    path = trained / "data.jsonl"
    assert "changed since" not in pco("eval", "last", cwd=trained).err
    path.write_text(path.read_text().replace("48", "58"))
    result = pco("eval", "last", cwd=trained)
    assert result.code == 0 and "the data changed since the run" in result.err


def test_when_nothing_was_answered_there_is_no_figure(trained: Path) -> None:
    args = ("--lm", "http://127.0.0.1:9/v1#m", "--set", "retries=0")
    result = pco("eval", "last", *args, cwd=trained)
    result.error(1, "6 of 6 rollouts failed", "EndpointDown", "pco doctor --lm http")
    assert result.out == ""


def test_the_training_budget_does_not_bind_an_evaluation(folder: Path) -> None:
    args = ("--preset", "quick", "--set", "update.epochs=2", "--budget", "400calls")
    assert pco("train", *args, cwd=folder).code in (0, 3)
    assert pco("eval", "last", "--set", "budget.calls=1", cwd=folder).code == 0


def test_compare_reads_saved_evaluations_and_is_a_gate(trained: Path) -> None:
    """The interval decides, which is wider than the mean of six equal differences."""
    tree = evaluate(trained).json
    assert tree["n"] == 6 and tree["reward_range"] == [0.0, 1.0]
    for name, reward in (("a", 1.0), ("b", 0.75), ("c", 0.0)):
        examples = [{**example, "reward": reward} for example in tree["examples"]]
        (trained / f"{name}.json").write_text(json.dumps({**tree, "examples": examples}))
    gain = pco("compare", "a.json", "b.json", "--json", cwd=trained).json["gain"]
    assert gain["mean"] == pytest.approx(0.25)
    assert "no clear difference" in pco("compare", "a.json", "b.json", cwd=trained).out
    assert "A is better" in pco("compare", "a.json", "c.json", cwd=trained).out
    assert "B is better" in pco("compare", "c.json", "a.json", cwd=trained).out
    sides = ("b.json", "a.json")
    low = -pco("compare", *sides, "--json", cwd=trained).json["gain"]["low"]
    assert low > 0.25
    assert pco("compare", *sides, "--margin", str(low), cwd=trained).code == 0
    missed = pco("compare", *sides, "--margin", "0.25", cwd=trained)
    assert missed.code == 1 and "which exceeds --margin 0.25" in missed.err


def test_a_policy_judged_with_another_program_is_noted_once(trained: Path, run_id: str) -> None:
    policy = json.loads((trained / "runs" / run_id / "policy.json").read_text())
    (trained / "p.json").write_text(json.dumps({**policy, "program": "agent.py:run"}))
    result = pco("eval", "p.json", cwd=trained)
    assert result.code == 0 and "with 'single call'" in result.err
    assert result.err.count("judged with the program 'agent.py:run'") == 1
    (trained / "mine.py").write_text("def run(prompt, example, lm):\n    return example.target\n")
    same = pco("eval", "p.json", "--set", "executor=mine.py:run", cwd=trained)
    assert same.code == 0 and "judged with" not in same.err


def test_a_run_from_python_says_what_is_missing_and_how_to_name_it(folder: Path) -> None:
    """A run whose data, reward and agent are objects of the program that made it."""

    async def agent(prompt: str, example: promptcodebook.Example, lm: promptcodebook.Chat) -> str:
        return (await lm(example.input, system=prompt)).text

    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    config: dict[str, Any] = {"preset": "quick", "update": {"epochs": 1, "batch_size": 2}}
    with contextlib.chdir(folder):
        run = promptcodebook.optimize(
            promptcodebook.load(rows), lambda e, o: float((e.target or "") in o), "simulated",
            config={**config, "validation": {"every": 0}}, progress=False, executor=agent,
        )  # fmt: skip
    error = pco("eval", "last", cwd=folder).error(2, run.id, "data, reward, executor")
    assert "--set data.path=data.jsonl --set reward=reward.py:reward" in error
    assert "--set executor=agent.py:run" in error and "--lm" not in error
    (folder / "agent.py").write_text(
        "async def agent(prompt, example, lm):\n"
        "    return (await lm(example.input, system=prompt)).text\n"
    )
    named = ("--set", "data.path=data.jsonl", "--set", "reward=reward.py:reward")
    pco("eval", "last", *named, cwd=folder).error(2, "took executor as Python objects")
    result = pco("eval", "last", *named, "--set", "executor=agent.py:agent", "--json", cwd=folder)
    assert result.code == 0 and result.json["n"] > 0, result.err
    assert "judged with the program" not in result.err  # the same agent by another way
    assert pco("explain", "last", "an input", cwd=folder).code == 0  # needs none of them


# Whose model it is


def models(folder: Path, *typed: str) -> set[str]:
    """The models of the roles that an evaluation of the last run asks."""
    asked = evaluate(folder, "last", "--n", "1", *typed).json["models"]
    return {asked[role] for role in ("encoder", "generator", "executor")}


def test_a_run_is_evaluated_by_its_own_model_whatever_the_shell_names(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_LM", "simulated?load=0")
    monkeypatch.setenv("PCO_LM_EXECUTOR", "simulated?load=0")
    path = trained / "pco.toml"  # nor what merely lies there
    path.write_text(path.read_text().replace('lm = "simulated"', 'lm = "simulated?load=0.3"'))
    assert models(trained) == {"simulated"}
    assert models(trained, "--task", "constraints") == {"simulated"}
    told = pco("eval", "last", "--n", "1", cwd=trained).err
    assert "PCO_LM is not used" in told and "own model, simulated (--lm overrides it)" in told
    assert "PCO_LM" not in pco("eval", "last", "--n", "1", "--lm", "simulated", cwd=trained).err
    for typed in (("compare", "last", "last"), ("explain", "last", "q")):
        assert "PCO_LM is not used" in pco(*typed, cwd=trained).err


def test_another_model_takes_the_place_of_the_run_s_own_once_it_is_given(trained: Path) -> None:
    other = "simulated?load=0.2"
    assert models(trained, "--lm", other) == {other}
    assert models(trained, "--task", "constraints", "--lm", other) == {other}
    assert models(trained, "--set", f"roles.executor.model={other}") == {"simulated", other}
    (trained / "other").mkdir()
    for name in ("data.jsonl", "reward.py"):
        shutil.copy(trained / name, trained / "other" / name)
    toml, own = (trained / "pco.toml").read_text(), 'lm = "simulated"'
    for line, asked in ((f'lm = "{other}"', other), ("", "simulated")):
        (trained / "other" / "pco.toml").write_text(toml.replace(own, line))
        assert models(trained, "other") == {asked}


def test_what_was_typed_wrongly_is_not_laid_on_the_policy(trained: Path, run_id: str) -> None:
    for typed in (
        ("eval", run_id),
        ("explain", f"runs/{run_id}/policy.json", "a question"),
        ("train", "--resume", run_id),
    ):
        told = pco(*typed, "--set", "concurrency=many", cwd=trained)
        told.error(2, "your options or PCO_*: concurrency")
    told = pco("eval", run_id, "--set", "concurency=3", cwd=trained)
    told.error(2, "unknown key 'concurency' in your options or PCO_*")


def test_an_evaluation_is_a_gate(trained: Path) -> None:
    mean = evaluate(trained).json["score"]["mean"]
    passed = pco("eval", "last", "--at-least", str(mean), cwd=trained)
    missed = pco("eval", "last", "--at-least", str(mean + 0.01), "--json", cwd=trained)
    assert (passed.code, missed.code) == (0, 1)
    assert missed.json["score"]["mean"] == mean, "the result is on stdout all the same"
    assert "is below --at-least" in missed.err


# `pco explain`, also on an example of the run, and `pco prompt`, alone on stdout.


def inputs(trained: Path) -> dict[str, str]:
    """Id -> input, of the example data that `pco init` writes."""
    from promptcodebook.data import load

    data = load(trained / "data.jsonl")
    return {e.id: e.input for _, split in data.items() for e in split}


def test_an_example_is_found_by_its_id_where_its_data_may_be_looked_through(
    trained: Path, run_id: str
) -> None:
    name, text = next(iter(inputs(trained).items()))
    by_id = pco("explain", "last", name, "--json", cwd=trained).json
    by_input = pco("explain", "last", text, "--json", cwd=trained).json
    assert by_id == by_input and by_id["input"] == text
    moved = ("--lm", "simulated", "--set", "data.path=moved.jsonl")
    (trained / "data.jsonl").rename(trained / "moved.jsonl")
    gone = pco("explain", "last", name, *moved, "--json", cwd=trained)
    (trained / "moved.jsonl").rename(trained / "data.jsonl")
    edit_header(
        trained / "runs" / run_id / "run.sqlite",
        lambda text: json.dumps({**json.loads(text), "private": True}),
    )
    for shown in (gone, pco("explain", "last", name, "--json", cwd=trained)):
        assert shown.json["input"] == name, "an id is then a text like any other"


def test_explain_has_route_reasons_and_prompt(trained: Path, run_id: str) -> None:
    explained = pco("explain", "last", "How many mugs are 3 and 4?", "--json", cwd=trained).json
    assert len(explained["route"]["indices"]) == 4 and explained["prompt"]
    assert [k for k, _ in explained["instincts"]] == explained["route"]["indices"]
    assert "".join(span["text"] for span in explained["spans"]) == explained["prompt"]
    text = pco("explain", run_id, "-", cwd=trained, stdin="How many mugs are 3 and 4?\n").out
    for span in explained["spans"]:
        assert span["instinct"] is None or f"c{span['instinct']}  " in text
    assert explained["replies"] == "a model was asked" and "a model was asked" in text
    assert "route " + ", ".join(map(str, explained["route"]["indices"])) in text
    assert explained["route"]["analysis"] in " ".join(text.split())
    pco("explain", "last", "-", cwd=trained, stdin=" \n").error(2, "the input is empty")


class Endless(io.StringIO):
    def read(self, size: int | None = -1, /) -> str:
        assert size is not None and 0 < size < 10**9, "all of it"
        return "a" * size


@pytest.mark.parametrize(("stdin", "said"), [
    (Endless(), "standard input is longer than 100.0 MB\n  next: give one input"),
    (io.TextIOWrapper(io.BytesIO(b"a\xff"), "utf-8"), "standard input is not UTF-8\n  next: iconv"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["explain", "prompt"])
def test_an_input_that_is_too_long_or_no_text_is_refused(
    trained: Path, name: str, stdin: io.StringIO, said: str
) -> None:
    stdin.seek(0)
    pco(name, "last", "-", cwd=trained, stdin=stdin).error(2, said)


def test_an_input_of_several_columns_is_explained_from_json(folder: Path) -> None:
    rows = [{"title": f"T{n}", "body": f"B{n}", "target": "x"} for n in range(8)]
    config = {"preset": "quick", "update": {"epochs": 1, "batch_size": 2}}
    with contextlib.chdir(folder):
        run = promptcodebook.optimize(
            promptcodebook.load(rows, input="{title}: {body}"), "exact", "simulated",
            config={**config, "validation": {"every": 0}}, progress=False,
        )  # fmt: skip
        assert run.explain({"title": "A", "body": "{B}"}).input == "A: {B}"
    columns = '{"title": "A", "body": "{B}", "more": 1}'
    result = pco("explain", "last", columns, "--json", cwd=folder)
    assert result.json["input"] == "A: {B}"
    assert pco("explain", "last", "-", "--json", cwd=folder, stdin=columns).json == result.json
    assert pco("explain", "last", "A: {B}", "--json", cwd=folder).json["input"] == "A: {B}"
    pco("explain", "last", '{"titel": "A", "body": ""}', cwd=folder).error(
        2, "no column 'title', but has 'titel'"
    )
    pco("explain", "last", '{"title": "A', cwd=folder).error(2, "not valid JSON")


def test_json_that_is_the_input_itself_stays_a_text(trained: Path) -> None:
    text = '{"title": "an order", "lines": [1, 2]}'
    assert pco("explain", "last", text, "--json", cwd=trained).json["input"] == text
    assert pco("explain", "last", "{oops", "--json", cwd=trained).json["input"] == "{oops"
    noted = pco("explain", "last", text, cwd=trained).err
    assert "the JSON has no column 'input', so all of it is taken as the text" in noted
    as_column = json.dumps({"input": text})
    assert pco("explain", "last", as_column, "--json", cwd=trained).json["input"] == text


@pytest.mark.parametrize("name", ["explain", "prompt"])
def test_a_column_of_json_with_a_typing_error_is_no_text(trained: Path, name: str) -> None:
    error = pco(name, "last", '{"inptu": "a question"}', cwd=trained).error(2, "no column 'input'")
    assert "but has 'inptu'" in error and "the policy reads 'input'" in error


# `pco prompt`


def test_a_row_typed_as_the_input_is_named(trained: Path) -> None:
    result = pco("prompt", "last", "concat", cwd=trained)
    assert result.code == 0 and "pco prompt last --row concat" in result.err
    assert "--row" not in pco("prompt", "last", "a concatenation", cwd=trained).err


def test_the_learned_prompt_is_composed_for_the_input(trained: Path, run_id: str) -> None:
    result = pco("prompt", run_id, "Say in 5 words what maps are.", "--json", cwd=trained)
    assert result.code == 0, result.err
    tree = json.loads(result.out)
    explained = pco("explain", run_id, "Say in 5 words what maps are.", "--json", cwd=trained).json
    assert tree == {"ref": run_id, "row": "learned", "prompt": explained["prompt"]}
    piped = pco("prompt", run_id, "-", cwd=trained, stdin="Say in 5 words what maps are.\n")
    assert piped.out == explained["prompt"] + "\n"


def test_the_untrained_prompt_is_composed_for_the_input(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the policy that the run began with."""
    text = "Say in 5 words what maps are."
    assert pco("train", *QUICK, "--set", "keep=last", cwd=trained).code == 0
    result = pco("prompt", "last", text, "--row", "untrained", "--json", cwd=trained)
    assert result.code == 0, result.err
    monkeypatch.chdir(trained)
    with closing(RunStore.open(find_run(trained / "runs", "last"))) as store:
        settings, first = load_config(store.header.settings), first_policy(Path("runs"), "last")
        composed = deploy(first, settings, Sources(Path(store.header.base))).prompt(text)
        assert result.json == {"ref": store.header.id, "row": "untrained", "prompt": composed}
    assert result.json["prompt"] != pco("prompt", "last", text, cwd=trained).out.rstrip("\n")


@pytest.mark.parametrize(("args", "parts"), table(__file__, "not_printed"))
def test_what_cannot_be_printed_says_what_to_type(
    trained: Path, args: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    result = pco("prompt", "last", *args, cwd=trained)
    result.error(2, *parts)
    assert result.out == ""


def test_a_policy_file_does_not_know_what_its_run_began_with(trained: Path, run_id: str) -> None:
    file = str(trained / "runs" / run_id / "policy.json")
    result = pco("prompt", file, "an input", "--row", "untrained", cwd=trained)
    result.error(2, "only its run has", 'pco prompt RUN --row untrained "an input"')


def test_a_command_that_is_printed_holds_a_name_as_one_word(trained: Path, run_id: str) -> None:
    name = "it's $(touch PWNED) `x`; y #"
    (trained / "runs" / run_id).rename(trained / name)
    ref = f"./{name}"
    for words, printed in (
        (("explain", ref), "pco explain {} "),
        (("prompt", ref), "pco prompt {} "),
        (("export", ref, "--to", "dspy"), "pco export {} --to dspy"),
        (("train", "--resume", ref), "pco train --resume {} --set update.epochs=MORE"),
        (("runs", "show", ref), "pco report {}"),
    ):
        result = pco(*words, cwd=trained)
        assert printed.format(shlex.quote(ref)) in result.out + result.err, (words, result)


def test_a_plain_prompt_is_scored_alone_and_beside_a_policy(trained: Path) -> None:
    (trained / "p.txt").write_text("Answer briefly: {input}\n", "utf-8")
    prompt = ("--prompt", "p.txt")
    alone = pco("eval", *prompt, "--json", cwd=trained).json
    assert alone["ref"] == "'Answer briefly: {input}'" and alone["n"] == 6
    assert pco("eval", ".", *prompt, "--json", cwd=trained).json["score"] == alone["score"]
    beside = pco("eval", "last", *prompt, "--json", cwd=trained).json
    assert beside["score"] == alone["score"] and beside["ref"] == alone["ref"]
    both = pco("compare", "last", *prompt, "--json", cwd=trained).json
    assert both["b"]["score"] == alone["score"] and both["gain"]["n"] == 6
    (trained / "a.json").write_text(json.dumps(evaluate(trained).json), "utf-8")
    saved = pco("compare", "a.json", *prompt, "--json", cwd=trained).json
    assert saved["gain"] == both["gain"]
    for typed, part in (
        (("eval", "--prompt", "p.tx"), "did you mean 'p.txt'"),
        (("eval", "last", "--prompt", "Say {inptu} now."), "did you mean 'input'"),
        (("eval", "Answer in one word."), "looks like a prompt, not a run or policy"),
        (("compare", "last"), "missing argument B"),
    ):
        pco(*typed, cwd=trained).error(2, part)


def test_training_starts_from_a_prompt_and_resumes_with_it(folder: Path) -> None:
    prompt = ("--prompt", "Answer in one word. Be kind: {input}")
    quick = (*QUICK, "--set", "init.split=sentences")
    cut = pco("train", *quick, *prompt, "--budget", "30calls", cwd=folder)
    assert cut.code == 3, cut.err
    made = pco("train", "--resume", "last", *prompt, "--budget", "5000calls", cwd=folder)
    assert made.code == 0, made.err
    present = pco("prompt", "last", "--row", "present", cwd=folder)
    assert present.out == f"{prompt[1]}\n"
    other = pco("train", "--resume", "last", "--prompt", "Be brief.", cwd=folder)
    other.error(2, "init.prompt")
    estimated = pco("estimate", *quick, "--prompt", "Say {inptu} now.", cwd=folder)
    estimated.error(2, "did you mean 'input'")
