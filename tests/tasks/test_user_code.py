"""The user's functions at work: side by side, limited, overheard by nobody's stdout, and harmless
when they try to end more than their own call.
"""

import asyncio
import functools
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from promptcodebook.calls import Chat, Reply
from promptcodebook.errors import ExecutorError, RewardError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.tasks.program import AgentProgram
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.tasks.rewards.ready import Exact
from promptcodebook.tasks.user_code import Escape, Overdue, UserCalls, is_async
from promptcodebook.types import Example, Output, Prompt
from tests.build.clock import Clock

EXAMPLE = Example("e7", "question", "answer")
UNIT = (0.0, 1.0)
HOUR = 3600.0


@pytest.mark.parametrize("threads", [1, 8])
async def test_synchronous_rewards_run_side_by_side(threads: int) -> None:
    inside, most, changed = 0, 0, threading.Condition()

    def gate(*_: object) -> float:
        """Opens when as many are inside as may be."""
        nonlocal inside, most
        with changed:
            inside += 1
            most = max(most, inside)
            changed.notify_all()
            changed.wait_for(lambda: most >= threads, timeout=20)
        time.sleep(0.02)
        with changed:
            inside -= 1
        return 1.0

    calls = UserCalls(threads=threads)
    asked = (apply_reward(gate, EXAMPLE, Output("y"), UNIT, calls) for _ in range(24))
    assert [score.value for score in await asyncio.gather(*asked)] == [1.0] * 24
    assert most == threads


async def test_what_is_async_or_ours_stays_in_the_loop() -> None:
    here, calls = threading.current_thread(), UserCalls()

    async def where(*_: object) -> object:
        await asyncio.sleep(0)
        return threading.current_thread()

    class Callable_:
        async def __call__(self) -> object:
            return threading.current_thread()

    assert await calls.call(where) is here
    assert await calls.call(functools.partial(where, 1)) is here
    assert await calls.call(Callable_()) is here
    assert await calls.call(lambda: where()) is here  # made in a thread, run here
    assert is_async(where) and is_async(Callable_()) and not is_async(Exact())


async def test_a_reward_that_hangs_is_a_failure_that_says_what_to_set() -> None:
    clock, begun, never = Clock(), threading.Event(), threading.Event()
    calls = UserCalls(threads=1, seconds=HOUR)

    def hangs(*_: object) -> float:
        begun.set()
        return float(never.wait())

    task = asyncio.create_task(apply_reward(hangs, EXAMPLE, Output("y"), UNIT, calls))
    await asyncio.to_thread(begun.wait)
    clock.skip(HOUR)
    with pytest.raises(RewardError, match=r"did not return within 3600 s \(example e7\)") as caught:
        await task
    assert "user_code.seconds" in caught.value.hint
    # The thread that hangs takes nobody's place.
    assert (await apply_reward(lambda e, o: 1.0, EXAMPLE, Output("y"), UNIT, calls)).value == 1.0
    never.set()


async def test_a_coroutine_that_hangs_is_cancelled_even_if_it_will_not_hear_of_it() -> None:
    stop, never = asyncio.Event(), threading.Event()
    # The end of a run still cancels what is at work.
    task = asyncio.create_task(UserCalls().call(never.wait))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    never.set()

    async def deaf() -> None:
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), 60)
            except BaseException:
                continue

    began = time.monotonic()
    with pytest.raises(Overdue):
        await UserCalls(seconds=0.05).call(deaf)
    assert time.monotonic() - began < 30
    stop.set()


async def test_waiting_for_a_thread_or_a_model_does_not_count() -> None:
    clock, calls = Clock(), UserCalls(threads=1, seconds=HOUR)
    await asyncio.gather(*(calls.call(clock.skip, HOUR / 4) for _ in range(5)))

    async def model(*_: object, **__: object) -> Reply:
        clock.skip(1.2 * HOUR)
        await asyncio.sleep(0)
        return Reply("y")

    async def agent(prompt: str, example: Example, lm: Chat) -> str:
        one, two = await asyncio.gather(lm("a"), lm("b"))
        return one.text + two.text

    program = AgentProgram(agent, "agent", calls)
    assert (await program(Prompt("p"), EXAMPLE, model)).text == "yy"  # type: ignore[arg-type]

    async def dawdles(prompt: str, example: Example, lm: Chat) -> str:
        for _ in range(100):  # a call in between does not restart its time
            await lm("a")
            clock.skip(HOUR / 50)
            await asyncio.sleep(0.0001)
        return "late"

    with pytest.raises(ExecutorError, match="did not return within"):
        await AgentProgram(dawdles, "agent", calls)(Prompt("p"), EXAMPLE, model)  # type: ignore[arg-type]


def _exit(*_: object) -> float:
    sys.exit(3)


def _interrupt(*_: object) -> float:
    raise KeyboardInterrupt


def _cancel(*_: object) -> float:
    raise asyncio.CancelledError


def _asynchronous(function: Callable[..., float]) -> Callable[..., Awaitable[float]]:
    async def run(*arguments: object) -> float:
        await asyncio.sleep(0)
        return function(*arguments)

    return run


@pytest.mark.parametrize(("function", "kind"), [
    (_exit, "SystemExit"),
    (_cancel, "CancelledError"),
    (_interrupt, "KeyboardInterrupt"),
    (_asynchronous(_exit), "SystemExit"),
    (_asynchronous(_cancel), "CancelledError"),
])  # fmt: skip
async def test_an_exit_and_a_cancellation_of_their_own_are_failures(
    function: Any, kind: str
) -> None:
    with pytest.raises(RewardError, match=f"the reward raised {kind}") as caught:
        await apply_reward(function, EXAMPLE, Output("y"), UNIT)
    line = f"{__file__}:"
    assert line in str(caught.value)
    with pytest.raises(ExecutorError, match=f"the executor raised {kind}"):
        await AgentProgram(function, "agent")(
            Prompt("p"), EXAMPLE, BoundChat(ScriptedLM(), lambda _: 1)
        )
    with pytest.raises(Escape, match=f"^{kind}"):
        await UserCalls().call(function)
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def test_what_user_code_prints_goes_to_stderr_and_what_others_print_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed, spoken = threading.Event(), threading.Event()

    def loud(*_: object) -> float:
        _say("sync says")
        printed.set()
        spoken.wait(20)
        _say("and again")
        return 1.0

    async def loud_too(*_: object) -> float:
        _say("async says")
        await asyncio.create_task(_say_later("its task says"))
        return 1.0

    at_work = asyncio.create_task(apply_reward(loud, EXAMPLE, Output("y"), UNIT))
    await asyncio.to_thread(printed.wait, 20)
    _say("a result")
    spoken.set()
    await at_work
    await apply_reward(loud_too, EXAMPLE, Output("y"), UNIT)
    out, err = capsys.readouterr()
    assert out == "a result\n"
    assert err == "sync says\nand again\nasync says\nits task says\n"
    assert type(sys.stdout).__module__.startswith(("_pytest", "io", "_io"))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


async def _say_later(text: str) -> None:
    _say(text)


def _chat(lm: ScriptedLM) -> Chat:
    return BoundChat(lm, lambda purpose: 7)


async def test_a_synchronous_agent_gets_the_reply_itself_and_may_bring_a_loop_of_its_own() -> None:
    lm = ScriptedLM().enqueue("draft", "final")

    def agent(prompt: str, example: Example, lm: Any) -> str:
        draft = lm(example.input, system=prompt, purpose="draft")

        async def inside() -> str:
            return (await lm(f"Shorten: {draft.text}", purpose="shorten")).text

        return asyncio.run(inside())

    assert (await AgentProgram(agent, "agent")(Prompt("p"), EXAMPLE, _chat(lm))).text == "final"
    assert [r.messages[-1].content for r in lm.history] == ["question", "Shorten: draft"]


async def test_an_agent_that_was_given_up_spends_no_more() -> None:
    lm, go, refused = ScriptedLM().enqueue("paid"), threading.Event(), list[str]()
    over = threading.Event()

    def agent(prompt: str, example: Example, lm: Any) -> str:
        go.wait(20)
        try:
            return lm("another call").text
        except ExecutorError as error:
            refused.append(str(error))
            raise
        finally:
            over.set()

    with pytest.raises(ExecutorError, match="did not return within"):
        await AgentProgram(agent, "agent", UserCalls(seconds=0.05))(Prompt("p"), EXAMPLE, _chat(lm))
    go.set()
    await asyncio.to_thread(over.wait, 20)
    assert refused == ["the executor called a model after its rollout ended"]
    assert lm.history == []
