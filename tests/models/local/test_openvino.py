"""The engine over a pipeline that a test steps through: what it is asked, and what it is told."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from promptcodebook.calls import Message
from promptcodebook.errors import LMError, RequestRefused, ServerFault
from promptcodebook.models.local import openvino
from promptcodebook.models.local.engine import Generation, Job, Load
from promptcodebook.models.local.openvino import GgufHeader, HiddenStates, OpenVinoEngine
from tests.build.openvino import _END, _HEADER, RUNTIME, Pipeline, Tokenizer

_LONG = GgufHeader(5000, (), 0)


class Careful(Tokenizer):
    """Takes its time."""

    def encode(self, text: str, **_: Any) -> Any:
        time.sleep(0.01)
        return super().encode(text)


@asynccontextmanager
async def running(pipeline: Pipeline, header: GgufHeader = _HEADER) -> AsyncIterator[Any]:
    size = header.context_length
    made = OpenVinoEngine(RUNTIME, lambda: pipeline, "tiny", header, HiddenStates("", "tiny", size))
    yield made
    await made.close()


def ask(text: str = "hi", **fields: Any) -> Job:
    return Job((Message("user", text),), **fields)


async def test_a_reply_with_its_counts_and_its_reason() -> None:
    async with running(Pipeline()) as engine:
        whole = await engine.generate(ask())
        cut = await engine.generate(ask(max_tokens=3))
    assert (whole.text, whole.finish, whole.prompt_tokens) == ("hello", "stop", 5)
    assert (whole.completion_tokens, whole.cached_tokens) == (6, None)  # the end is a token too
    assert (cut.text, cut.finish, cut.completion_tokens) == ("hel", "length", 3)


async def test_what_the_job_asks_for_reaches_the_pipeline() -> None:
    pipeline = Pipeline()
    async with running(pipeline) as engine:
        schema = {"type": "boolean"}
        job = ask(temperature=0.5, top_p=0.9, seed=2**31 + 7, stop=("x",), schema=schema)
        await engine.generate(job)
        await engine.generate(ask(temperature=0.0, top_p=0.3, seed=9))
    drawn, greedy = (handle.settings for handle in pipeline.handles)
    assert (drawn.do_sample, drawn.temperature, drawn.top_p, drawn.rng_seed) == (True, 0.5, 0.9, 7)
    assert drawn.stop_strings == {"x"}
    assert "true" in drawn.structured_output_config.grammar
    assert drawn.max_new_tokens == 64 - 5
    assert greedy.do_sample is False
    assert not hasattr(greedy, "rng_seed")


async def test_jobs_of_one_moment_begin_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long each takes to prepare: else they come in one by one, a step for each."""
    monkeypatch.setattr(openvino, "_MOMENT_S", 1.0)
    pipeline = Pipeline()
    pipeline.get_tokenizer = Careful
    async with running(pipeline) as engine:
        jobs = [asyncio.create_task(engine.generate(ask(str(i)))) for i in range(8)]
        await asyncio.gather(*jobs)
        await engine.generate(ask())
    assert pipeline.together == [8] * 6 + [2] * 6
    assert len(pipeline.threads) == 1 and threading.get_ident() not in pipeline.threads


async def test_no_step_has_a_single_row() -> None:
    """Over one row a real pipeline sums in another order than over several."""
    pipeline = Pipeline(says="x" * 30)
    async with running(pipeline) as engine:
        first = asyncio.create_task(engine.generate(ask()))
        await asyncio.sleep(0.01)
        replies = [await engine.generate(ask(max_tokens=5)), await first]
        replies.append(await engine.generate(ask()))
    assert {reply.text for reply in replies} == {"x" * 5, "x" * 30}
    assert min(pipeline.together) == 2 and max(pipeline.together) < 4
    assert all(handle.cancelled for handle in pipeline.company)


@pytest.mark.parametrize(("letters", "times"), [(28, 1), (29, 2), (30, 2), (31, 1)])
async def test_a_prompt_of_whole_blocks_is_read_ahead(letters: int, times: int) -> None:
    """Else its last token is read alone where the cache holds the others, and not where it does
    not. With its template the prompt has three tokens more than letters."""
    pipeline = Pipeline()
    async with running(pipeline) as engine:
        reply = await engine.generate(ask("x" * letters))
    assert (reply.text, reply.completion_tokens, reply.prompt_tokens) == ("hello", 6, letters + 3)
    assert len(pipeline.prompts) == times and len({tuple(p) for p in pipeline.prompts}) == 1
    assert [handle.settings.max_new_tokens for handle in pipeline.handles][:-1] == [1] * (times - 1)


async def test_a_stream_is_its_pieces_and_the_whole() -> None:
    async with running(Pipeline(says="caf\u00e9")) as engine:
        events = [event async for event in engine.stream(ask())]
    assert events[:-1] == ["c", "a", "f", "\u00e9"]
    assert isinstance(events[-1], Generation)
    assert events[-1].text == "caf\u00e9"


async def test_who_cancels_frees_the_place() -> None:
    pipeline = Pipeline(says="x" * 1000, pace=lambda: time.sleep(0.002))
    async with running(pipeline, _LONG) as engine:
        task = asyncio.create_task(engine.generate(ask()))
        stream = engine.stream(ask())
        await anext(stream)
        assert engine.load == Load(running=2)
        task.cancel()
        await stream.aclose()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(20):
            while engine.load != Load():  # noqa: ASYNC110 (not ours)
                await asyncio.sleep(0.01)
    assert all(handle.cancelled for handle in pipeline.handles)


async def test_a_mark_in_a_message_is_text_and_no_mark() -> None:
    pipeline = Pipeline()
    async with running(pipeline) as engine:
        await engine.generate(ask("a<|end|>\ue000b"))
    tokens = pipeline.prompts[0]
    assert tokens.count(_END) == 1  # the template's own
    assert "".join(map(chr, tokens[:-1])) == "u:a<|end|>\ue000b"


@pytest.mark.parametrize(("fields", "message"), [
    ({"text": "x" * 100}, "the prompt has 103 tokens, but tiny reads up to 64"),
    ({"top_p": 1.5}, "top_p must be at most 1"),
    ({"schema": {"type": "string", "pattern": "x"}}, "'pattern'"),
])  # fmt: skip
async def test_what_cannot_be_done_is_refused(fields: dict[str, Any], message: str) -> None:
    async with running(Pipeline()) as engine:
        with pytest.raises(RequestRefused, match=message):
            await engine.generate(ask(**fields))


async def test_a_step_that_breaks_is_the_new_job_s_fault_and_no_other_s() -> None:
    pipeline = Pipeline(
        says="x" * 40,
        pace=lambda: time.sleep(0.005),
        breaks=lambda settings: hasattr(settings, "structured_output_config"),
    )
    async with running(pipeline) as engine:
        good = asyncio.create_task(engine.generate(ask()))
        await asyncio.sleep(0.05)
        with pytest.raises(RequestRefused, match="no such rule"):
            await engine.generate(ask(schema={"type": "null"}))
        assert (await good).text == "x" * 40
        assert (await engine.generate(ask())).text == "x" * 40


async def test_a_job_without_room_in_the_cache_says_so() -> None:
    def starve() -> None:
        pipeline.handles[0].state = "IGNORED"

    pipeline = Pipeline(pace=starve)
    async with running(pipeline) as engine:
        with pytest.raises(ServerFault, match="ran out of memory"):
            await engine.generate(ask())


async def test_closing_ends_what_runs_and_what_comes_later() -> None:
    pipeline = Pipeline(says="x" * 1000, pace=lambda: time.sleep(0.002))
    async with running(pipeline, _LONG) as engine:
        task = asyncio.create_task(engine.generate(ask()))
        await asyncio.sleep(0.05)
        await engine.close()
    with pytest.raises(LMError):
        await task
    with pytest.raises(ServerFault, match="closed"):
        await engine.generate(ask())
