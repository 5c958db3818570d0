"""The tiny random Llama: behind `pco lm serve hf:DIR`, and behind `transformers serve`."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from promptcodebook.calls import Message, Reply, Request, Sampling
from promptcodebook.doctor.probe import probe
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.spec import Credentials, parse_spec
from tests.build import cli as invoked
from tests.build.local_server import Ours, Served, served_by_us
from tests.build.tiny_model import BEGIN, END, TURN

pytestmark = pytest.mark.local

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "indices": {"type": "array", "items": {"enum": [0, 1, 2, 3]}, "maxItems": 3},
        "why": {"type": "string", "maxLength": 20},
    },
    "required": ["indices", "why"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def ours(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    with served_by_us(f"hf:{model}", tmp_path_factory.mktemp("ours")) as running:
        yield running


@pytest.fixture
async def client(ours: Ours) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=ours.url, api_key="none", max_retries=0) as made:
        yield made


async def ask(client: openai.AsyncOpenAI, text: str, **more: Any) -> Any:
    turns = [{"role": "user", "content": text}]
    return await client.chat.completions.create(
        model="", messages=turns, **{"max_tokens": 24, "seed": 1, **more}
    )


async def test_rows_of_a_batch_draw_each_for_itself(client: openai.AsyncOpenAI) -> None:
    alone = [(await ask(client, "Name a boat.", seed=seed)).choices[0] for seed in range(3)]
    assert len({choice.message.content for choice in alone}) == 3
    asked = [ask(client, "Name a boat.", seed=seed % 3) for seed in range(12)]
    greedy = [ask(client, "Name a boat.", seed=seed, temperature=0) for seed in range(3)]
    *drawn, first, second, third = await asyncio.gather(*asked, *greedy)
    texts = [reply.choices[0].message.content for reply in drawn]
    assert texts == [alone[seed % 3].message.content for seed in range(12)]
    assert first.choices == second.choices == third.choices


async def test_each_row_has_its_own_cap_and_its_own_stop(client: openai.AsyncOpenAI) -> None:
    whole = (await ask(client, "Tell all.", max_tokens=200)).choices[0].message.content
    stop = whole[3:5]
    capped, stopped = await asyncio.gather(
        ask(client, "Tell all.", max_tokens=1), ask(client, "Tell all.", stop=[stop, "never"])
    )
    assert (capped.choices[0].finish_reason, capped.usage.completion_tokens) == ("length", 1)
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == whole[: whole.index(stop)]


async def test_a_stream_is_the_whole_in_pieces(client: openai.AsyncOpenAI) -> None:
    whole = await ask(client, "Who keeps the lamp?")
    pieces = [
        choice.delta.content
        async for chunk in await ask(client, "Who keeps the lamp?", stream=True)
        for choice in chunk.choices
        if choice.delta.content
    ]
    assert "".join(pieces) == whole.choices[0].message.content and len(pieces) > 2


async def test_a_random_model_keeps_to_a_schema(client: openai.AsyncOpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "route", "schema": SCHEMA}}
    asked = [
        ask(client, "Which?", seed=seed, max_tokens=400, response_format=form) for seed in range(6)
    ]
    for reply in await asyncio.gather(*asked):
        [choice] = reply.choices
        assert choice.finish_reason == "stop"
        answer = json.loads(choice.message.content)
        assert set(answer) == {"indices", "why"}
        assert len(answer["indices"]) <= 3 and set(answer["indices"]) <= {0, 1, 2, 3}
        assert len(answer["why"]) <= 20
        assert "  " not in choice.message.content.replace(json.dumps(answer["why"]), "")
    any_object = await ask(
        client, "Which?", max_tokens=400, response_format={"type": "json_object"}
    )
    if any_object.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(any_object.choices[0].message.content), dict)


async def test_what_cannot_be_enforced_is_refused(client: openai.AsyncOpenAI) -> None:
    schema = {"type": "string", "pattern": "(a)\\1"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="cannot be enforced"):
        await ask(client, "Which?", response_format=form)
    with pytest.raises(openai.BadRequestError, match="tokens, but the model reads at most 16384"):
        await ask(client, "word " * 20_000)


async def test_likeness_is_seen_in_embeddings(client: openai.AsyncOpenAI) -> None:
    made = await client.embeddings.create(model="", input=["a river", "a river", "the clock"])
    one, same, other = (each.embedding for each in made.data)
    product = sum(a * b for a, b in zip(one, same, strict=True))
    assert product == pytest.approx(1.0, abs=1e-3)
    assert sum(a * b for a, b in zip(one, other, strict=True)) < product


async def test_a_caller_that_hangs_up_frees_its_place(
    ours: Ours, client: openai.AsyncOpenAI
) -> None:
    schema = {"type": "string", "minLength": 9_000}  # an answer that does not end by itself
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    stream = await ask(client, "Long.", stream=True, max_tokens=15_000, response_format=form)
    async for _ in stream:
        break
    assert await asyncio.to_thread(ours.metric, "pco_in_flight") == 1
    await stream.close()
    async with asyncio.timeout(20):
        while await asyncio.to_thread(ours.metric, "pco_running"):  # noqa: ASYNC110 (not ours)
            await asyncio.sleep(0.1)
    assert ours.metric("pco_in_flight") == 0


async def test_the_probe_sees_that_schemas_are_enforced(ours: Ours) -> None:
    found = await probe(ours.spec, timeout=120.0)
    assert found["structured output"].level == "ok", found["structured output"].what
    assert {found[name].level for name in ("call", "usage", "length cap")} == {"ok"}


async def test_four_bits_answer_too(model: Path, tmp_path: Path) -> None:
    with served_by_us(f"hf:{model}", tmp_path, "--4bit") as running:
        async with openai.AsyncOpenAI(base_url=running.url, api_key="none") as client:
            reply = await ask(client, "Name a boat.")
    assert reply.choices[0].message.content.strip()


# A real transformer behind a server that no one here wrote: tiny, random, and never of use.


async def say(server: Served, text: str, sample: int = 0, cap: int = 24) -> Reply:
    sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=cap)
    request = Request("executor", (Message("user", text),), sample=sample, sampling=sampling)
    async with Endpoint(parse_spec(server.spec, {}), Credentials(), timeout=60.0) as endpoint:
        return await endpoint(request)


async def test_a_reply_has_the_tokenizers_own_count_and_is_drawn_by_its_seed(
    server: Served,
) -> None:
    from tokenizers import Tokenizer

    reply = await say(server, "Where does the river lead?", cap=24)
    rendered = f"{BEGIN}{TURN}user\nWhere does the river lead?{END}{TURN}assistant\n"
    tokenizer = Tokenizer.from_file(str(server.model / "tokenizer.json"))
    assert reply.usage.prompt_tokens == len(tokenizer.encode(rendered).ids)
    assert 1 <= reply.usage.completion_tokens <= 24 and not reply.estimated
    assert reply.text.strip() and 0.0 < reply.usage.latency_s < 60.0
    first, again, other = [await say(server, "Name a boat.", sample) for sample in (1, 1, 2)]
    assert first.text == again.text != other.text
    # No reply ends before a second token: the first that can end it is still to be followed.
    cut = await say(server, "Tell all you know.", cap=1)
    assert (cut.finish, cut.usage.completion_tokens) == ("length", 1)


def test_the_doctor_says_so_in_plain_words(server: Served, tmp_path: Path) -> None:
    look = ("doctor", "--task", "constraints", "--lm", server.spec)
    # The rehearsal fails: a random model's verdicts never parse, and doctor says so.
    plain = invoked.pco(*look, cwd=tmp_path)
    assert plain.code == 1, plain.err
    assert "fail  critic: ParseError" in plain.out
    assert "warn  structured output: accepted and ignored" in plain.out
