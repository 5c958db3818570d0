"""The registry, the default executor, and tasks of the user's own."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from promptcodebook.calls import Chat, Message, Reply, Role, Schema
from promptcodebook.data import load
from promptcodebook.errors import ConfigError, TaskError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.tasks.program import SingleCall, make_program, user_task
from promptcodebook.tasks.rewards import Exact
from promptcodebook.tasks.task import asks_nobody, load_task, task_names
from promptcodebook.types import Example, Output, Prompt


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


async def test_a_cut_answer_is_marked() -> None:
    lm = ScriptedLM().enqueue(Reply("the ans", finish="length"))
    assert (await SingleCall()(Prompt("p"), Example("e1", "x"), chat(lm))).truncated


async def test_chat_messages_follow_the_prompt() -> None:
    lm = ScriptedLM().enqueue("fine")
    turns = (Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "How?"))
    await SingleCall()(Prompt("p"), Example("e1", "rendered", messages=turns), chat(lm))
    assert lm.history[0].messages == (Message("system", "p"), *turns)


def test_a_task_of_the_users_own() -> None:
    dataset = load([{"input": f"x{n}", "target": "y"} for n in range(4)], name="tickets")
    task = user_task(
        dataset,
        asks_nobody(Exact()),
        program=SingleCall(),
        reward_range=(0.0, 5.0),
        base_prompt="Stay polite.",
    )
    assert (task.name, task.reward_range, task.base_prompt) == (
        "tickets",
        (0.0, 5.0),
        "Stay polite.",
    )
    assert isinstance(task.program, SingleCall)
    assert task.seeds == ()


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
    class Silent:
        async def __call__(
            self,
            messages: str | Sequence[Message],
            *,
            system: str = "",
            role: Role = "executor",
            schema: Schema | None = None,
            purpose: str = "",
        ) -> Reply:
            return Reply(f"{system}|{messages}")

    async def agent(prompt: str, example: Example, lm: Chat) -> Output:
        return Output((await lm(example.input, system=prompt)).text)

    assert isinstance(make_program(None, Path()), SingleCall)
    assert isinstance(make_program("", Path()), SingleCall)
    executor = make_program(agent, Path())
    assert await executor(Prompt("p"), Example("e1", "x"), Silent()) == Output("p|x")


def test_the_environment_names_a_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_DATA", str(tmp_path))
    with pytest.raises(TaskError, match=r"no train\.jsonl in"):
        load_task("aime")
    assert len(load_task("constraints").dataset) == 160
