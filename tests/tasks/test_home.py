"""Where a benchmark's rows come from, and what is said when they are not as they should be."""

from pathlib import Path

import pytest
from pydantic import field_validator

from promptcodebook.calls import Chat, Message, Reply
from promptcodebook.errors import ConfigError, DataError, TaskError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.tasks.home import BenchmarkRow, read_rows
from promptcodebook.tasks.program import SingleCall, make_program
from promptcodebook.tasks.task import load_task, task_names
from promptcodebook.types import Example, Output, Prompt


class Counted(BenchmarkRow):
    id: str
    n: int | float


class Query(BenchmarkRow):
    q: str


SECRET = "Jane Roe, 12 Elm Street"


def lines(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", "not valid JSON"),
        ("[1]", "expected a JSON object"),
        ('{"id": "1"}', "the field 'n' is missing"),
        ('{"id": "1", "n": null}', "'n' must be a whole number or a number, not null"),
        ('{"id": "1", "n": true}', "'n' must be a whole number or a number, not true or false"),
        ('{"id": 1, "n": 2}', "'id' must be a text, not a whole number"),
    ],
)
def test_faults_name_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    path = lines(tmp_path / "a.jsonl", '{"id": "1", "n": 1.5}', line)
    with pytest.raises(DataError) as caught:
        read_rows(path, Counted)
    assert str(caught.value).startswith(f"{path}:2")
    assert said in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "line",
    [
        f'{{"q": "{SECRET}"',
        f'"{SECRET}"',
        f'{{"{SECRET}": 1, "{SECRET}": 2}}',
        f'{{"q": ["{SECRET}"]}}',
        f'{{"{SECRET}": 1}}',
    ],
)
def test_a_private_files_faults_quote_nothing_of_it(tmp_path: Path, line: str) -> None:
    path = lines(tmp_path / "a.jsonl", '{"q": "x"}', line)
    with pytest.raises(DataError) as caught:
        read_rows(path, Query, private=True)
    assert f"{path}:2" in str(caught.value)
    assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    # A bad byte or an empty file has no content to show either.
    path.write_bytes(b'{"q": "\xff"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1"):
        read_rows(path, Query, private=True)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.jsonl"):
        read_rows(path, Query, private=True)


class Sound(BenchmarkRow):
    q: str

    @field_validator("q")
    @classmethod
    def _check(cls, text: str) -> str:
        if not text.strip():
            raise DataError("the question is blank", hint="fill it in")
        return text


def test_a_rows_own_rule_is_reported_at_its_line(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", '{"q": "x"}', '{"q": " "}')
    with pytest.raises(DataError, match=r"a\.jsonl:2: the question is blank") as caught:
        read_rows(path, Sound)
    assert caught.value.hint == "fill it in"


# The registry, the default executor, and tasks of the user's own.


def chat(lm: ScriptedLM) -> Chat:
    return BoundChat(lm, lambda purpose: 7, greedy=False)


def test_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PCO_DATA", raising=False)
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


async def test_one_call_with_the_prompt_as_system_message() -> None:
    lm = ScriptedLM().enqueue("the answer")
    output = await SingleCall()(Prompt("Be {brief}."), Example("e1", "What is {x}?"), chat(lm))
    assert output == Output("the answer")
    assert lm.history[0].messages == (
        Message("system", "Be {brief}."),
        Message("user", "What is {x}?"),
    )
    assert lm.history[0].role == "executor"


async def test_chat_messages_follow_the_prompt() -> None:
    lm = ScriptedLM().enqueue(Reply("fine", finish="length"))
    turns = (Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "How?"))
    made = await SingleCall()(Prompt("p"), Example("e1", "rendered", messages=turns), chat(lm))
    assert made.truncated, "a cut answer is marked"
    assert lm.history[0].messages == (Message("system", "p"), *turns)


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
    with pytest.raises(ConfigError, match=r"it must take \(prompt, example, lm\)"):
        (tmp_path / "bad.py").write_text("def run(prompt): ...\n")
        make_program("bad.py:run", tmp_path)


async def test_executors_handed_in_as_functions() -> None:
    async def silent(messages: str, *, system: str = "", **_: object) -> Reply:
        return Reply(f"{system}|{messages}")

    async def agent(prompt: str, example: Example, lm: Chat) -> Output:
        return Output((await lm(example.input, system=prompt)).text)

    assert isinstance(make_program(None, Path()), SingleCall)
    assert isinstance(make_program("", Path()), SingleCall)
    executor = make_program(agent, Path())
    assert await executor(Prompt("p"), Example("e1", "x"), silent) == Output("p|x")  # type: ignore[arg-type]
