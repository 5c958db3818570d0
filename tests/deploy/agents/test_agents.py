"""Agents that are trained as they are: what they are asked, what they see, and how they end."""

import asyncio
import hashlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

import promptcodebook as pco
from promptcodebook.calls import Reply, Request, Usage, read_message
from promptcodebook.deploy.agents.agent import answer_of
from promptcodebook.deploy.agents.endpoint import turns_of
from promptcodebook.errors import ConfigError, ExecutorError, LMError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.types import Prompt, Turn
from tests.build.agents import EXAMPLE, SCRIPT, SYSTEM, act, answer, in_process, texts, turns
from tests.build.clock import Clock, is_alive, until

LARGE = f"data:image/jpeg;base64,{'/9j/' * 50_000}"
PNG = "data:image/png;base64,iVBORw0KGgo="
TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
NESTED: Any = {}
for _ in range(200):
    NESTED = {"a": NESTED}
MALFORMED = (
    b"{",
    b"[]",
    b'{"messages": 1}',
    b'{"messages": [{"role": "x"}]}',
    b'{"messages": [], "stream": true, "stream_options": [1]}',
)


def process(mode: str, *words: str, **more: Any) -> pco.Agent:
    command = [sys.executable, str(SCRIPT), mode, *words]
    return pco.Agent(command=command, **{"present": SYSTEM, **more})


@pytest.mark.parametrize(("agent", "system"), [
    (in_process(act("Be kind. {{pco}}")), "Be kind. Say P."),
    (in_process(act("{{ pco:plan }} Be kind.")), "Say P. Be kind."),
    (in_process(act(f"{SYSTEM} Be kind."), present=f"{SYSTEM}\n"), "Say P. Be kind."),
    (process("works"), "Say P."),
])  # fmt: skip
async def test_the_composed_prompt_stands_where_the_agent_has_its_own(
    agent: pco.Agent, system: str
) -> None:
    lm = ScriptedLM().enqueue("P")
    output = await answer(agent, lm)
    assert output.text == "P" and texts(lm) == [system, "Where is my parcel?"]
    assert [(s.input, s.output) for s in output.trace] == [("user: Where is my parcel?", "P")]


async def test_each_stage_gets_its_own_prompt_and_what_a_user_says_is_data() -> None:
    async def both(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        plan = await act("{{pco:plan}}", "{{pco}} and {{pco:plan}}")(client, example)
        return await act("Solve it by the plan.", plan)(client, example)

    lm = ScriptedLM().enqueue("a plan", "P")
    agent = in_process(both, present={"plan": "Plan it.", "solve": "Solve it by the plan."})
    prompts = Prompt.of_stages({"plan": "Think.", "solve": "Do."})
    output = await answer(agent, lm, prompts)
    assert texts(lm, 0) == ["Think.", "{{pco}} and {{pco:plan}}"] and texts(lm) == ["Do.", "a plan"]
    assert [stage.name for stage in output.trace] == ["plan", "solve"]
    assert agent.stages == ("plan", "solve")


async def test_two_stages_in_one_request_are_both_recorded() -> None:
    lm = ScriptedLM().reply_with(lambda request: "P")
    prompts = Prompt.of_stages({"plan": "Think of {{pco:solve}}.", "solve": "Do."})
    output = await answer(in_process(act("{{pco:plan}} {{pco:solve}}")), lm, prompts)
    assert [stage.name for stage in output.trace] == ["plan + solve"]
    assert texts(lm)[0] == "Think of {{pco:solve}}. Do."
    both = in_process(
        act("Plan it. Solve it. Plan it."), present={"plan": "Plan it.", "solve": "Solve it."}
    )
    output = await answer(both, lm, Prompt.of_stages({"plan": "Solve it.", "solve": "Do."}))
    assert [stage.name for stage in output.trace] == ["plan + solve"]
    assert texts(lm)[0] == "Solve it. Do. Plan it."


async def test_a_trajectory_keeps_tool_calls_and_their_results() -> None:
    async def with_tools(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        messages = turns("{{pco}}", [{"type": "text", "text": "Look."},
                                     {"type": "image_url", "image_url": {"url": PNG}}])  # fmt: skip
        for _ in range(2):
            made = await client.chat.completions.create(
                model="m",
                messages=messages,
                tools=[TOOL],
                temperature=0.9,  # type: ignore[arg-type]
            )
            choice = made.choices[0]
            if choice.finish_reason != "tool_calls":
                return choice.message.content or ""
            messages.append(choice.message.model_dump(exclude_none=True))
            call = (choice.message.tool_calls or [])[0]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "it is late"})
        return "none"

    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    lm = ScriptedLM().enqueue(Reply("", tool_calls=(call,)), "P")
    output = await answer(in_process(with_tools), lm)
    first, second = output.trace
    assert "[image]" in first.input and first.output == "look_up({})"
    assert second.input == "tool: it is late" and second.output == "P"
    name = f"image/png 9 B, sha256 {hashlib.sha256(PNG.encode()).hexdigest()[:12]}"
    assert first.turns == (
        Turn("user", "Look."), Turn("image", PNG, name), Turn("tool call", "{}", "look_up")
    )  # fmt: skip
    assert second.turns == (Turn("tool result", "it is late", "look_up"), Turn("assistant", "P"))
    assert lm.history[0].messages[1].media[0]["image_url"] == {"url": PNG}
    assert lm.history[0].sampling.extra == {"tools": [TOOL]}
    assert lm.history[0].sampling.temperature is None, "how replies are drawn is the run's"


@pytest.mark.parametrize(("type_", "inner", "text", "name"), [
    ("image_url", {"url": LARGE, "detail": "low"}, "", "image/jpeg 150.0 kB, sha256 "),
    ("image_url", {"url": "data:image/svg+xml,<svg/>"}, "", "image/svg+xml "),
    ("image_url", {"url": "https://a.b/c.png"}, "https://a.b/c.png", ""),
    ("input_audio", {"data": "UklGRg==", "format": "wav"}, "", "6 B, sha256 "),
    ("file", {"file_id": "file-1"}, "file-1", ""),
])  # fmt: skip
def test_of_media_a_trajectory_keeps_what_it_is(
    type_: str, inner: Any, text: str, name: str
) -> None:
    message = read_message({"role": "user", "content": [{"type": type_, type_: inner}]})
    [shown] = turns_of([message], [message], Reply(""))
    assert shown.text == text and shown.name.startswith(name) and shown.kind in type_
    odd = read_message({"role": "user", "content": [{"type": "image_url", "image_url": 7}]})
    assert turns_of([odd], [odd], Reply("")) == ()


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_stream_and_openai_s_newer_wire_say_the_same(wire: str) -> None:
    async def stream(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        pieces = list[str]()
        if wire == "responses":
            events = await client.responses.create(
                model="m", instructions="{{pco}}", input="Where?", stream=True
            )
            async for event in events:
                pieces += [event.delta] if event.type == "response.output_text.delta" else []
            return "".join(pieces)
        chunks = await client.chat.completions.create(
            model="m", messages=turns("{{pco}}"), stream=True, n=2,
            stream_options={"include_usage": True},
        )  # fmt: skip
        async for chunk in chunks:
            pieces += [c.delta.content or "" for c in chunk.choices]
        return "|".join(filter(None, pieces))

    lm = ScriptedLM().reply_with(lambda request: f"P{len(lm.history)}")
    output = await answer(in_process(stream), lm)
    assert output.text == ("P1" if wire == "responses" else "P1|P2") and texts(lm)[0] == "Say P."


async def twice(client: openai.AsyncOpenAI, example: pco.Example) -> str:
    """The marker in two messages, by the body that a client would not check."""
    messages = [*turns("{{pco}}"), {"role": "developer", "content": "{{pco}}"}]
    made = await client.chat.completions.create(model="m", messages=messages)
    return made.choices[0].message.content or ""


@pytest.mark.parametrize(("agent", "match"), [
    (process("crashes"), "exited with status 1: it has no idea"),
    (process("nothing"), "printed no answer"),
    (process("silent"), "it made no call"),
    (process("works", present="Another prompt."), "none of its 1 calls has it"),
    (pco.Agent(command="no-such-program"), "cannot be started"),
    (in_process(act("{{pco}}{{pco}}")), "twice in one request"),
    (in_process(twice), "twice in one request"),
    (in_process(act("{{pco}}", n=0)), "n must be a whole number of at least 1"),
])  # fmt: skip
async def test_what_is_no_rollout_fails_with_a_sentence(agent: pco.Agent, match: str) -> None:
    lm = ScriptedLM().reply_with(lambda request: "P")
    with pytest.raises((ExecutorError, openai.BadRequestError), match=match):
        await answer(agent, lm)


async def test_a_flood_leaves_the_answer() -> None:
    assert (await answer(process("floods"), ScriptedLM().enqueue("P"))).text == "P"


@pytest.mark.parametrize("how", ["forks", "leads", "daemons"])
async def test_no_child_outlives_its_rollout(how: str, tmp_path: Path) -> None:
    """Also one that leads a session of its own, and a child of a child that ignores a request."""
    pid = tmp_path / "pid"
    assert (await answer(process(how, str(pid)), ScriptedLM().enqueue("P"))).text == "P"
    assert not is_alive(int(pid.read_text()))


_RUN = f"""
import asyncio, sys
import promptcodebook as pco
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.types import Prompt

async def main():
    command = [sys.executable, {str(SCRIPT)!r}, "hangs", sys.argv[1]]
    agent, prompt = pco.Agent(command=command, present="x"), Prompt("Say P.")
    chat = BoundChat(ScriptedLM(), lambda purpose: 0, prompt=prompt)
    rows = [pco.Example(f"e{{i}}", "x", None) for i in range(4)]
    await asyncio.gather(*(agent(prompt, row, chat) for row in rows))

asyncio.run(main())
"""


async def test_no_agent_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", _RUN, str(tmp_path))
    files = [tmp_path / f"e{i}{child}" for i in range(4) for child in ("", "-child")]
    await until(lambda: all(file.exists() and file.read_text() for file in files))
    run.kill()
    await run.wait()
    pids = [int(file.read_text()) for file in files]
    await until(lambda: not any(map(is_alive, pids)))


async def test_a_child_whose_parent_is_gone_has_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptcodebook.deploy.agents.agent._GRACE_S", 60.0)
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    lm = ScriptedLM().reply_with(lambda request: "P")
    assert (await answer(process("leaves", str(begun), str(ended)), lm)).text == "P"
    assert ended.exists()


def test_an_agent_forgets_the_loops_that_have_ended() -> None:
    agent, lm = in_process(act("{{pco}}")), ScriptedLM().reply_with(lambda request: "P")
    for _ in range(3):
        asyncio.run(answer(agent, lm))
    assert len(agent._free) == 1


async def test_a_process_that_reads_lines_serves_many_rollouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, prompt = process("lines", "echo", lines=True), Prompt("Say P.")
    chat = BoundChat(ScriptedLM().reply_with(lambda request: "P"), lambda purpose: 0, prompt=prompt)
    first = [await agent(prompt, EXAMPLE, chat) for _ in range(2)]
    assert first[0].fields == first[1].fields, "one process for both"
    both = await asyncio.gather(*(agent(prompt, EXAMPLE, chat) for _ in range(2)))
    assert both[0].fields != both[1].fields, "rollouts side by side have one each"
    with pytest.raises(ExecutorError, match="exited with status 3"):
        await agent(prompt, pco.Example("e2", "crash", None), chat)
    monkeypatch.setattr("promptcodebook.deploy.agents.agent._IDLE_S", 0.05)
    last = await agent(prompt, EXAMPLE, chat)
    pid = last.fields["pid"]
    assert isinstance(pid, int) and last.text == "P"
    await until(lambda: not is_alive(pid))


async def rollouts(agent: pco.Agent, count: int = 6) -> list[pco.Output | ExecutorError]:
    """Of questions that are their own answers, one after the other."""
    prompt = Prompt("Say P.")
    lm = ScriptedLM().reply_with(lambda request: request.messages[-1].content)
    made = list[pco.Output | ExecutorError]()
    for k in range(count):
        chat = BoundChat(lm, lambda purpose: 0, prompt=prompt)
        try:
            made.append(await agent(prompt, pco.Example(f"e{k}", f"question {k}", None), chat))
        except ExecutorError as error:
            made.append(error)
        if "later" in agent.command and k == 1:
            await until(Path(agent.command[-1]).exists)
    return made


@pytest.mark.parametrize("when", ["banner", "before", "after", "next", "later"])
async def test_an_agent_that_reads_lines_may_print_what_it_likes_beside_its_answers(
    when: str, tmp_path: Path
) -> None:
    made = await rollouts(process("lines", "echo", when, str(tmp_path / "printed"), lines=True))
    outputs = [each for each in made if not isinstance(each, ExecutorError)]
    assert [each.text for each in outputs] == [f"question {k}" for k in range(6)]
    assert len({each.fields["pid"] for each in outputs}) == 1


@pytest.mark.parametrize(("when", "match"), [("", "which request"), ("dies", "status 4")])
async def test_an_agent_whose_answer_has_no_id_or_that_dies_fails_its_rollout(
    when: str, match: str
) -> None:
    made = await rollouts(process("lines", *when.split(), lines=True), 2)
    assert all(isinstance(each, ExecutorError) and match in str(each) for each in made), made


def test_a_process_that_reads_lines_ends_with_the_event_loop_that_started_it() -> None:
    agent = process("lines", "echo", lines=True)
    lm = ScriptedLM().reply_with(lambda request: "P")
    pids = list[Any]()
    for _ in range(2):
        made = asyncio.run(answer(agent, lm))
        assert made.text == "P"
        pids.append(made.fields["pid"])
        assert not is_alive(pids[-1])
    assert pids[0] != pids[1]


async def test_an_agent_that_hangs_is_ended_though_it_ignores_it(tmp_path: Path) -> None:
    begun, clock = tmp_path / "begun", Clock()
    os.mkfifo(begun)
    task = asyncio.create_task(answer(process("hangs", str(begun), seconds=600.0), ScriptedLM()))
    pid = int(await asyncio.to_thread(begun.read_text))
    clock.skip(600.0)
    with pytest.raises(ExecutorError, match=r"did not answer within 600 s \(example e1\)"):
        await task
    assert not is_alive(pid)


async def test_a_loop_ends_at_its_cap_and_nothing_is_asked_after_it() -> None:
    async def loop(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        while True:
            await act("{{pco}}")(client, example)

    lm = ScriptedLM().reply_with(lambda request: "P")
    with pytest.raises(ExecutorError, match="calls its model more than 5 times"):
        await answer(in_process(loop, most_calls=5), lm)
    assert len(lm.history) == 5
    lm = ScriptedLM().reply_with(lambda request: Reply("P", usage=Usage(1, 900, 100)))
    with pytest.raises(ExecutorError, match="exceed 2,500 tokens"):
        await answer(in_process(loop, most_tokens=2500), lm)
    assert len(lm.history) == 3


@pytest.mark.parametrize(("agent", "match"), [
    (in_process(act("{{pco}}", n=10**9)), "calls its model more than 50 times"),
    (in_process(act("{{pco}}" * 20_000)), "twice in one request"),
    (in_process(act("".join(f"{{{{pco:s{k}}}}}" for k in range(20_000)))), "100 markers"),
    (
        in_process(act("{{pco}}", "?" * 4_000_000), question="?"),
        "repeats the question too often",
    ),
    (in_process(act("{{pco}}", logit_bias=NESTED)), "is nested too deeply"),
], ids=["n", "one marker", "many markers", "the question", "depth"])  # fmt: skip
async def test_what_a_request_may_ask_is_bounded_before_work(agent: pco.Agent, match: str) -> None:
    lm = ScriptedLM().reply_with(lambda request: "P")
    with pytest.raises((ExecutorError, openai.BadRequestError), match=match):
        await answer(agent, lm)
    assert not lm.history


async def test_a_rollout_sees_nothing_of_another() -> None:
    """A wrong key, name or path is 404, and says nothing; so is what comes late."""
    seen = list[tuple[int, str]]()

    async def pry(url: str, key: str, example: pco.Example) -> str:
        async with aiohttp.ClientSession() as session:

            async def post(place: str, used: str, data: Any, **headers: str) -> tuple[int, str]:
                headers["Authorization"] = f"Bearer {used}"
                where = f"{place}/chat/completions"
                async with session.post(where, data=data, headers=headers) as made:
                    assert made.status != 400 or made.headers["x-should-retry"] == "false"
                    return made.status, await made.text()

            body = json.dumps({"messages": turns("{{pco}}")})  # names no model
            elsewhere = url.replace("/r/", "/r/x"), url.removesuffix("/v1") + "/v2"
            for place, used in ((url, "another"), (url, ""), *((each, key) for each in elsewhere)):
                seen.append(await post(place, used, body))
            for malformed in MALFORMED:
                assert (await post(url, key, malformed))[0] == 400
            assert (await post(url, key, b"no gzip", **{"Content-Encoding": "gzip"}))[0] == 415
            large = json.dumps({"messages": turns("{{pco}}", "x" * 20_000_000)})
            _, answered = await post(url, key, io.BytesIO(large.encode()))
            return json.loads(answered)["choices"][0]["message"]["content"]

    lm = ScriptedLM().reply_with(lambda request: "P")
    assert (await answer(pco.Agent(function=pry), lm)).text == "P"
    assert len(seen) == 4 and {status for status, _ in seen} == {404}
    assert {text for _, text in seen} == {seen[0][1]} and len(lm.history) == 1


async def test_a_model_that_fails_ends_the_rollout_with_its_own_error() -> None:
    """A client that retries by itself is told not to, and an agent's answer does not hide it."""

    async def stubborn(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        try:
            return await act("{{pco}}")(client, example)
        except openai.APIError:
            await asyncio.sleep(600)
            return "P"

    lm = ScriptedLM().enqueue(LMError("the model is away"))
    with pytest.raises(LMError, match="the model is away"):
        await answer(in_process(stubborn), lm)
    assert len(lm.history) == 1


async def test_a_caller_that_hangs_up_leaves_a_reply_that_is_kept() -> None:
    asked, over = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Reply:
        asked.set()
        await asyncio.sleep(0.2)
        over.set()
        return Reply("P", usage=Usage(1, 1, 1))

    async def hang_up(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        first = asyncio.create_task(act("{{pco}}", stream=False)(client, example))
        await asked.wait()
        first.cancel()
        await over.wait()
        return await act("{{pco}}")(client, example)

    prompt = Prompt("Say P.")
    chat = BoundChat(slow, lambda purpose: 0, prompt=prompt)
    output = await in_process(hang_up)(prompt, EXAMPLE, chat)
    assert output.text == "P" and chat.usage.calls == 2


async def test_the_agent_sees_no_key_and_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("PCO_API_KEY", "sk-secret")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("WEATHER_API_KEY", "its own")
    for name in ("REPLICATE_API_TOKEN", "AWS_SECRET_ACCESS_KEY", "OLLAMA_API_KEY", "https_proxy"):
        monkeypatch.setenv(name, "sk-secret")
    output = await answer(process("works", env=["WEATHER_API_KEY"]), ScriptedLM().enqueue("P"))
    assert output.fields["row"] == {"id": "e1", "input": "Where is my parcel?", "day": "Monday"}
    env = output.fields["env"]
    assert isinstance(env, list) and {"WEATHER_API_KEY", "OPENAI_API_KEY"} <= {*env}
    assert not {name for name, value in os.environ.items() if value == "sk-secret"} & {*env}
    for names in (["OPENAI_API_KEY"], ["A", "PCO_LM"], "WEATHER_API_KEY"):
        with pytest.raises(ConfigError, match=r"executor\.env"):
            process("works", env=names)


async def test_an_agent_that_reads_no_row_is_found_or_its_question_is_replaced() -> None:
    """A quick start asks a question from its own file. One that ends early is no fault."""
    other = pco.Example("e2", "May I have a refund?", "R")

    async def asks(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        text = [{"type": "text", "text": "Tell me: Why?"}]
        await act("{{pco}} Why?", text)(client, example)
        return await act("{{pco}}", "Why?", verbosity="low", reasoning_effort="low")(
            client, example
        )

    async def ends(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        raise ExecutorError(await asks(client, example))

    with pytest.raises(ConfigError, match="the same question for every row") as caught:
        await in_process(asks).check(EXAMPLE, other)
    assert "--question" in (caught.value.hint or "")
    for agent in (in_process(asks, question=" Why?\n"), in_process(ends), process("works")):
        await agent.check(EXAMPLE, other)
    await in_process(asks).check(EXAMPLE, EXAMPLE)
    lm = ScriptedLM().enqueue("a", "P")
    await answer(in_process(asks, question=" Why?\n"), lm)
    assert texts(lm, 0) == ["Say P. Why?", f"Tell me: {EXAMPLE.input}"]
    assert texts(lm, 1) == ["Say P.", EXAMPLE.input]
    assert not lm.history[1].sampling.extra, "how replies are drawn is the run's"


@pytest.mark.parametrize(("agent", "match"), [
    (process("works", present="Another prompt."), "none of its 1 calls has it"),
    (process("silent"), "it made no call"),
    (process("deep"), "it made no call"),
    (process("crashes"), r"fails before it calls its model \(the agent exited with status 1"),
])  # fmt: skip
async def test_a_prompt_without_a_place_is_found_before_anything_is_paid(
    agent: pco.Agent, match: str
) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        await agent.check(EXAMPLE)
    assert ("OPENAI_BASE_URL" if "none of" not in match else "{{pco}}") in (caught.value.hint or "")
    await process("works").check(EXAMPLE)
    await process("twice").check(EXAMPLE)


@pytest.mark.parametrize(("line", "outcome"), [
    ("[" * 200_000, "[" * 200_000),
    ("1" * 400, "1" * 400),
    ('{"output": "P", "fields": {"x": NaN}}', "NaN is not JSON"),
    ('{"output": "P", "fields": {"x": 1e999}}', "1e999 is not JSON"),
    ('{"output": "P", "fields": {"x": ' + '{"a":' * 200_000, "nested too deeply"),
    ('{"output": "P", "fields": {"x": ' + "[" * 500 + "]" * 500 + "}}", "nested too deeply"),
], ids=range(6))  # fmt: skip
def test_a_line_that_no_run_can_keep_is_text_or_a_failed_rollout(line: str, outcome: str) -> None:
    try:
        assert answer_of(line).text == outcome
    except ExecutorError as error:
        assert outcome in str(error)


def test_an_agent_has_a_command_or_a_function() -> None:
    for given in ({}, {"command": "x", "function": act("")}):
        with pytest.raises(ConfigError, match="a command or a function"):
            pco.Agent(**given)  # type: ignore[arg-type]
