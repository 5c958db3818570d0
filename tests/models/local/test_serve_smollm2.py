"""SmolLM2 behind `pco lm serve smollm2`, asked by clients that nobody changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.build import clients
from tests.build.local_server import Ours, served_by_us

pytestmark = pytest.mark.local

TURNS: Any = [{"role": "user", "content": clients.QUESTION}]
PARIS = "The capital of France is Paris."


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    with served_by_us("smollm2", tmp_path_factory.mktemp("smollm2")) as running:
        yield running


def test_openai_asks_at_once(smollm2: Ours) -> None:
    with openai.OpenAI(base_url=smollm2.url, api_key="none") as client:
        reply = client.chat.completions.create(
            model=smollm2.model, messages=TURNS, temperature=0, max_tokens=30
        )
        assert reply.choices[0].message.content == PARIS
        assert reply.choices[0].finish_reason == "stop"
        cut = client.chat.completions.create(
            model="smollm2", messages=TURNS, temperature=0, max_tokens=3
        )
        assert cut.choices[0].finish_reason == "length"
        assert cut.usage is not None and cut.usage.completion_tokens == 3


async def test_openai_asks_side_by_side_and_in_streams(smollm2: Ours) -> None:
    async with openai.AsyncOpenAI(base_url=smollm2.url, api_key="none") as client:
        stream = await client.chat.completions.create(
            model=smollm2.model, messages=TURNS, temperature=0, max_tokens=30, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == PARIS and sum(map(bool, pieces)) > 1
        typed = await client.chat.completions.create(
            model=smollm2.model,
            messages=TURNS,
            n=4,
            seed=5,
            max_tokens=60,
            response_format=clients.ENFORCED,  # type: ignore[arg-type]
        )
    for choice in typed.choices:
        assert choice.finish_reason == "stop" and choice.message.content is not None
        assert json.loads(choice.message.content)["answer"] in ("Paris", "London", "Rome")


def test_litellm_dspy_and_gepa_get_what_they_ask_for(smollm2: Ours, tmp_path: Path) -> None:
    before = smollm2.answered
    asked = subprocess.run(
        [sys.executable, clients.__file__, smollm2.url, smollm2.model],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert asked.returncode == 0, asked.stderr[-4000:]
    told = json.loads(asked.stdout[asked.stdout.index('{"litellm"') :])
    by_litellm = told["litellm"]
    # A greedy reply may go on otherwise after a while: it depends on what is computed beside it.
    for text in (by_litellm["text"], by_litellm["streamed"]):
        assert text.startswith(PARIS.rstrip("."))
    assert by_litellm["finish"] == "stop" and by_litellm["tokens"] > 30
    assert by_litellm["typed"]["answer"] in ("Paris", "London", "Rome")
    # What the model says in the object is its own affair; that it is one, with this field, is ours.
    assert isinstance(told["dspy"]["typed"], str) and told["dspy"]["typed"]
    assert told["dspy"]["text"].strip()
    assert told["gepa"]["calls"] >= 6 and told["gepa"]["candidates"] >= 1
    # 3 of litellm, 2 of dspy, 6 answers and a reflection of gepa.
    assert smollm2.answered - before >= 12
