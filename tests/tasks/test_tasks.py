"""What the six benchmarks have in common, data folders, faulty files, and programs of modules."""

import inspect
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from promptcodebook.calls import Chat, Message, Reply
from promptcodebook.errors import ConfigError, DataError, TaskError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.paper import tasks as benchmarks
from promptcodebook.tasks import load_task, task_names
from promptcodebook.tasks.home import BenchmarkRow, read_rows
from promptcodebook.tasks.program import (
    ModuleReply,
    SingleCall,
    ask,
    make_output,
    make_program,
    outside,
    read_outputs,
    think,
)
from promptcodebook.types import Example, Output, Prompt, Stage
from tests.build.cases import table
from tests.build.cli import pco
from tests.build.paper_tasks import shared
from tests.build.teachable import install_package

# Examples of each split in the shared data.
REAL = {
    "aime": [45, 45, 20],
    "hotpotqa": [150, 300, 200],
    "hover": [43, 86, 58],
    "ifbench": [150, 300, 196],
    "livebench_math": [123, 123, 81],
    "pupa": [111, 111, 147],
}
each = pytest.mark.parametrize("name", REAL)


@pytest.fixture
def folder(tmp_path: Path, name: str) -> Path:
    """A data folder that holds what ships as examples."""
    shipped = Path(benchmarks.__file__).parent / name / "examples"
    return Path(shutil.copytree(shipped, tmp_path / "data" / name))


@each
def test_without_data_our_own_examples_stand_in_and_the_task_says_so(name: str) -> None:
    task = load_task(name)
    assert task.name == task.dataset.name == name
    assert all(len(part) >= 3 for _, part in task.dataset.items())
    assert len(task.seeds) == len(set(task.seeds)) >= 16
    assert "examples of our own" in task.description
    assert f"pco data fetch {name}" in task.description


@each
def test_a_folder_or_its_parent(name: str, folder: Path) -> None:
    for place in (folder, folder.parent):
        task = load_task(name, place)
        assert task.dataset == load_task(name).dataset
        assert "of our own" not in task.description


@each
def test_what_is_missing_is_named(name: str, folder: Path) -> None:
    if name in ("hotpotqa", "hover"):
        (folder / "corpus.jsonl").rename(folder / "kept")
        with pytest.raises(TaskError, match=r"needs .*corpus\.jsonl, which is missing") as caught:
            load_task(name, folder)
        assert '"sentences"' in caught.value.hint
        (folder / "kept").rename(folder / "corpus.jsonl")
    (folder / "val.jsonl").unlink()
    with pytest.raises(TaskError, match=r"needs .*val\.jsonl, which is missing"):
        load_task(name, folder)
    with pytest.raises(TaskError, match=r"^neither .*train\.jsonl") as caught:
        load_task(name, folder.parent.parent)
    assert "--data" in caught.value.hint


@each
def test_a_faulty_line_is_named(name: str, folder: Path) -> None:
    lines = (folder / "test.jsonl").read_text("utf-8").splitlines()
    for text, message in (
        ("\n".join([*lines, "{oops"]), rf"test\.jsonl:{len(lines) + 1}"),
        ("\n".join([lines[0], lines[0]]), "occurs twice"),
        ("", r"test\.jsonl"),
    ):
        (folder / "test.jsonl").write_text(text, "utf-8")
        with pytest.raises(DataError, match=message) as caught:
            load_task(name, folder)
        assert caught.value.hint


@pytest.mark.slow
@each
def test_the_real_data_can_be_read(name: str) -> None:
    dataset = load_task(name, shared("data", name)).dataset
    assert [len(part) for _, part in dataset.items()] == REAL[name]


@pytest.mark.parametrize(("name", "change", "error"), table(__file__, "faulty_rows"))
def test_a_faulty_row_is_named(name: str, folder: Path, change: str, error: str) -> None:
    good = (folder / "val.jsonl").read_text("utf-8").splitlines()[0]
    bad = change.removeprefix("LINE ")
    if bad == change:
        row = json.loads(good) | json.loads(change)
        bad = json.dumps({k: v for k, v in row.items() if v != "(missing)"})
    (folder / "val.jsonl").write_text(f"{good}\n{bad}\n", "utf-8")
    with pytest.raises(DataError) as caught:
        load_task(name, folder)
    assert str(caught.value).startswith(f"{folder / 'val.jsonl'}:2")
    assert error in str(caught.value) and caught.value.hint
    assert "SECRET" not in f"{caught.value} {caught.value.hint}", "a private row is never quoted"


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-benchmark.md"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as pip leaves it: the documentation's benchmark, and its .dist-info beside it."""
    site = tmp_path / "site"
    (site / "examples").mkdir(parents=True)
    module = PAGE.read_text("utf-8").split('title="shop_bench/orders.py"\n')[1].split("```")[0]
    (site / "orders.py").write_text(module, "utf-8")
    (site / "seeds.txt").write_text("Be brief.\n", "utf-8")
    for split in ("train", "val", "test"):
        rows = [{"id": f"{split}{n}", "question": f"{n}?", "answer": "Ada"} for n in range(10)]
        (site / "examples" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    offer(site, "orders = orders:load")
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    return site


def offer(site: Path, line: str, name: str = "shop_bench") -> None:
    install_package(site, name, f"[promptcodebook.tasks]\n{line}\n")


@pytest.mark.usefixtures("site")
def test_the_benchmark_of_the_documentation_is_found_and_scores() -> None:
    task = load_task("orders")
    reward: Any = task.reward(None)
    assert (task.seeds, len(task.dataset)) == (("Be brief.",), 30)
    assert reward(task.dataset.test[0], "It was Ada.").value == 1.0


def test_the_command_trains_on_it(site: Path) -> None:
    asked = ("--task", "orders", "--lm", "simulated", "--preset", "quick")
    done = pco("train", *asked, "--set", "update.epochs=1", "--json", cwd=site.parent)
    assert done.code == 0, done.err
    assert json.loads(done.out)


@pytest.mark.parametrize(("line", "message"), table(__file__, "faulty_offers"))
def test_a_faulty_offer_is_named(site: Path, line: str, message: str) -> None:
    offer(site, line, "other_package")
    with pytest.raises(TaskError, match=message):
        load_task(line.split(" ")[0])


def test_a_bad_byte_and_an_empty_file_of_private_rows_are_placed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for content, place in ((b'{"id": "\xff"}\n', r"a\.jsonl:1"), (b"", r"a\.jsonl")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=place):
            read_rows(path, BenchmarkRow, private=True)


# The registry, the default executor, and tasks of the user's own.


def chat(lm: ScriptedLM) -> Chat:
    return BoundChat(lm, lambda purpose: 7)


def test_the_registry() -> None:
    assert {"aime", "constraints", "hover"} <= set(task_names())
    for name in task_names():
        task = load_task(name)
        assert task.name == task.dataset.name == name
        assert task.description
        assert task.zero_shot
        assert task.output_format
        assert task.reward_range[0] < task.reward_range[1] == 1.0
        assert name not in ("aime", "constraints") or isinstance(task.program, SingleCall)
    with pytest.raises(TaskError, match=r"unknown task 'amie'.*did you mean 'aime'") as caught:
        load_task("amie")
    assert ", ".join(task_names()) in caught.value.hint


async def test_the_input_or_its_chat_messages_follow_the_prompt() -> None:
    lm = ScriptedLM().enqueue("the answer", Reply("fine", finish="length"))
    system, question = Message("system", "Be {brief}."), Message("user", "What is {x}?")
    prompt = Prompt(system.content)
    output = await SingleCall()(prompt, Example("e1", question.content), chat(lm))
    assert output == Output("the answer")
    turns = (Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "How?"))
    made = await SingleCall()(prompt, Example("e1", "rendered", messages=turns), chat(lm))
    assert made.truncated, "a cut answer is marked"
    assert [r.messages for r in lm.history] == [(system, question), (system, *turns)]
    assert lm.history[0].role == "executor"


async def test_an_executor_from_a_file_async_or_not(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "async def run(prompt, example, lm):\n"
        "    reply = await lm(example.input, system=prompt)\n"
        "    return reply.text + '!'\n"
        "def plain(prompt, example, lm):\n"
        "    return prompt + example.input\n"
    )
    lm = ScriptedLM().enqueue("done")
    example = Example("e1", "x")
    run = make_program("agent.py:run", tmp_path)
    assert await run(Prompt("p "), example, chat(lm)) == Output("done!")
    plain = make_program("agent.py:plain", tmp_path)
    assert await plain(Prompt("p "), example, chat(lm)) == Output("p x")
    (tmp_path / "bad.py").write_text("def run(prompt): ...\n")
    with pytest.raises(ConfigError, match=r"the function must take \(prompt, example, lm\)"):
        make_program("bad.py:run", tmp_path)


# The modules of compound executors: what is sent, and how replies are read.

LABELLED = "reasoning: the map says so\nanswer: Paris"


async def thought(lm: ScriptedLM, prompt: Prompt, stage: str = "answer") -> ModuleReply:
    return await think(
        chat(lm),
        prompt=prompt,
        stage=stage,
        instruction="Answer the question.",
        fields={"question": "Capital of France?"},
        outputs=("answer",),
    )


async def test_a_module_sends_its_own_prompt_instruction_and_form_and_keeps_its_stage() -> None:
    lm = ScriptedLM().enqueue(LABELLED, LABELLED)
    parts = Prompt("all of it", {"hop": "FOR HOP"})
    reply = await thought(lm, parts, "hop")
    assert reply == {"reasoning": "the map says so", "answer": "Paris"}
    assert reply.stage == Stage("hop", "<question>\nCapital of France?\n</question>", LABELLED)
    await thought(lm, parts, "answer")
    first, second = lm.history
    system, user = first.messages
    assert system.content.startswith("FOR HOP\n\nAnswer the question.\n\n")
    assert system.content.index("reasoning:") < system.content.index("answer:")
    assert "all of it" not in system.content
    assert user == Message("user", reply.stage.input) and first.role == "executor"
    assert second.messages[0].content.startswith("all of it\n\n")


async def test_a_plain_module_takes_the_whole_reply() -> None:
    lm = ScriptedLM().enqueue("  answer: is this a label?\nNo.\n")
    given = {"stage": "respond", "instruction": "Reply.", "fields": {"q": "x"}}
    reply = await ask(chat(lm), prompt=Prompt("P"), **given, output="response")
    assert reply == {"response": "answer: is this a label?\nNo."}
    assert lm.history[0].messages[0].content == "P\n\nReply."


async def test_an_agent_asks_for_the_form_of_a_pydantic_model() -> None:
    class Place(BaseModel):
        town: str

    lm = ScriptedLM().enqueue('{"town": "Paris"}')
    await chat(lm)("Where?", schema=Place)
    asked = lm.history[0].schema
    assert asked is not None and asked.wire["json_schema"]["strict"] is True
    assert asked.body["properties"] == {"town": {"type": "string"}}


async def test_the_untrusted_model_gets_the_message_and_nothing_else() -> None:
    lm = ScriptedLM().enqueue("outside says", role="untrusted")
    reply = await outside(chat(lm), stage="outside", message="a {bare} request", output="reply")
    assert reply == {"reply": "outside says"}
    (request,) = lm.history
    assert request.role == "untrusted"
    assert request.messages == (Message("user", "a {bare} request"),)
    # No other module can be pointed at that role, and `outside` takes no prompt.
    assert all("role" not in inspect.signature(f).parameters for f in (think, ask, outside))
    assert "prompt" not in inspect.signature(outside).parameters


@pytest.mark.parametrize("text", ["{question}", "%s {0} {fields[x]}", "$name <question>", "\\1"])
async def test_texts_are_data(text: str) -> None:
    lm = ScriptedLM().enqueue(LABELLED)
    given = {"question": text, "context": "{question}"}
    sent = {"stage": "s", "instruction": text, "fields": given, "outputs": ("answer",)}
    reply = await think(chat(lm), prompt=Prompt(text), **sent)
    system, user = lm.history[0].messages
    assert system.content.startswith(f"{text}\n\n{text}\n\n")
    wanted = f"<question>\n{text}\n</question>\n\n<context>\n{{question}}\n</context>"
    assert user.content == wanted and reply["answer"] == "Paris"


@pytest.mark.parametrize("reply", table(__file__, "labels_in_many_dresses"))
def test_labels_in_many_dresses(reply: str) -> None:
    assert read_outputs(reply, ("answer",)) == {"reasoning": "because", "answer": "Paris"}


BODY = "  one\n    two\n\nResponse: not a label\n**bold**"


@pytest.mark.parametrize(("text", "cut", "expected"), table(__file__, "replies"))
def test_what_a_reply_gives(text: str, cut: bool, expected: dict[str, str]) -> None:
    read = read_outputs(text, tuple(expected), cut)
    assert read == {"reasoning": read["reasoning"], **expected}
    assert read_outputs("reasoning: r\nanswer: A", ("answer",))["reasoning"] == "r"


async def test_a_cut_reply_marks_the_output() -> None:
    lm = ScriptedLM().enqueue(LABELLED, Reply("answer: Par", finish="length"))
    steps = [await thought(lm, Prompt("P"), stage) for stage in ("one", "two")]
    assert [s.truncated for s in steps] == [False, True]
    output = make_output(steps[-1]["answer"], steps)
    assert output.text == "Par"
    assert output.truncated
    assert [s.name for s in output.trace] == ["one", "two"]
    assert not make_output("x", steps[:1]).truncated


@given(st.text(), st.booleans())
def test_any_reply_is_read(text: str, cut: bool) -> None:
    assert set(read_outputs(text, ("answer", "summary"), cut)) == {"reasoning", "answer", "summary"}
    assert isinstance(read_outputs(text, ("answer",), cut)["answer"], str)
