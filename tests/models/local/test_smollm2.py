"""SmolLM2 itself: its weights, its tokenizer and openvino-genai, in short pieces."""

from __future__ import annotations

import asyncio
import json
import os
import random
import string
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from promptcodebook.calls import Message
from promptcodebook.errors import RequestRefused
from promptcodebook.method.policy import route_schema
from promptcodebook.models.local import openvino
from promptcodebook.models.local.engine import Embedding, EmbeddingEngine, Engine, Job, find_weights
from promptcodebook.models.local.lm import load_engine

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine(find_weights("smollm2"))


def tokens(text: str) -> int:
    import openvino_genai

    tokenizer = openvino_genai.Tokenizer(find_weights("smollm2").source)
    return len(tokenizer.encode(text, add_special_tokens=False).input_ids.data[0])


def ask(text: str, **fields: Any) -> Job:
    return Job((Message("user", text),), **fields)


async def test_it_answers_and_says_why_it_ended(engine: Engine) -> None:
    whole, cut, stopped = await asyncio.gather(
        engine.generate(ask("Say hi.", temperature=0.0, max_tokens=60)),
        engine.generate(ask("Count from 1 to 20.", temperature=0.0, max_tokens=5)),
        engine.generate(ask("Count from 1 to 20.", temperature=0.0, max_tokens=60, stop=("3",))),
    )
    assert whole.text
    assert whole.finish == "stop"
    assert (cut.finish, cut.completion_tokens) == ("length", 5)
    assert stopped.finish == "stop"
    assert "2" in stopped.text
    assert "3" not in stopped.text
    assert engine.context_length == 8192
    # The template's system message of its own is part of the prompt.
    assert whole.prompt_tokens == tokens("Say hi.") + 30


async def test_a_reply_is_the_same_in_every_batch(engine: Engine) -> None:
    """Alone, beside others, from a cold cache and a warm one; greedy and drawn. Two of the prompts
    end where a block of the cache does, or a token after."""
    texts = ["Name a colour."] + [f"Name a colour{' of the sky' * n}!" for n in range(1, 14, 2)]
    texts += [each for n in range(40) if (tokens(each := "sky " * n) + 30) % 32 < 2]
    for heat in (0.0, 1.0):
        fields = {"temperature": heat, "max_tokens": 12, "logprobs": 0}
        jobs = [ask(text, seed=seed, **fields) for seed, text in enumerate(texts)]
        together = await asyncio.gather(*map(engine.generate, jobs))
        assert [await engine.generate(job) for job in jobs[::3]] == together[::3]
        assert await asyncio.gather(*map(engine.generate, jobs[::-1])) == together[::-1]


async def test_a_route_of_a_weak_model_is_always_valid(engine: Engine) -> None:
    schema = route_schema(4, 16).body
    asked = "Which four of 16 instincts fit? Reply in JSON."
    made = await asyncio.gather(
        *(engine.generate(ask(asked, seed=i, max_tokens=512, schema=schema)) for i in range(8))
    )
    for each in made:
        assert each.finish == "stop"
        jsonschema.validate(json.loads(each.text), dict(schema))


async def test_the_model_s_marks_in_a_message_are_text(engine: Engine) -> None:
    plain, marked = await asyncio.gather(
        engine.generate(ask("ab", max_tokens=1)), engine.generate(ask("a<|im_end|>b", max_tokens=1))
    )
    # One mark would be one token; as text it is several.
    assert marked.prompt_tokens > plain.prompt_tokens + 3


async def test_an_embedding_is_a_fact_of_its_text_and_tells_likeness(engine: Engine) -> None:
    assert isinstance(engine, EmbeddingEngine)
    texts = [
        "My parcel has not come yet, where is it?",
        "The delivery is late again, has it been lost?",
        "I would like to change my password.",
    ]
    parcel, delivery, password = await engine.embed(texts)
    assert (await engine.embed(texts[:1]))[0] == parcel
    assert parcel.tokens == 2 * tokens(texts[0]), "it is read twice"
    assert abs(sum(x * x for x in parcel.vector) - 1.0) < 1e-9

    def likeness(a: Embedding, b: Embedding) -> float:
        return sum(x * y for x, y in zip(a.vector, b.vector, strict=True))

    assert likeness(parcel, delivery) > likeness(parcel, password) + 0.05
    with pytest.raises(RequestRefused, match=r"an embedding of SmolLM2\S* takes 1 to"):
        await engine.embed(["word " * 9000])
    with pytest.raises(RequestRefused, match="has 0 tokens"):
        await engine.embed([""])


def resident_mb() -> float:
    pages = Path("/proc/self/statm").read_text("utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def test_what_grammars_take_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole bound is tested over a scripted pipeline (tests/attack/test_schemas.py)."""
    monkeypatch.setattr(openvino, "_MOST_STATES", 120_000)
    engine = load_engine(find_weights("smollm2"))
    draw, sizes = random.Random(0), list[float]()
    try:
        for _ in range(24):
            values = ["".join(draw.choices(string.ascii_letters, k=17)) for _ in range(1000)]
            await engine.generate(ask("hi", max_tokens=1, schema={"enum": values}))
            sizes.append(resident_mb())
    finally:
        await engine.close()
    # Four or five megabytes for each that is kept, so some 80 without the bound.
    assert max(sizes[8:]) - max(sizes[:8]) < 40, sizes
