"""A real transformer behind a server that no one here wrote: tiny, random, and never of use.

Its replies are noise, so nothing that is asked for as JSON ever comes back as JSON.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcodebook.calls import Message, Reply, Request, Sampling
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.spec import Credentials, parse_spec
from tests.build import cli as invoked
from tests.build.local_server import Served
from tests.build.tiny_model import BEGIN, END, TURN

pytestmark = pytest.mark.local


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
