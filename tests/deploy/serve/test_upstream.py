"""The model behind a policy: what of its replies is taken for a key, and replies given up."""

import itertools
import json
from typing import Any

import openai
import pytest

from promptcodebook.deploy.http.completions import Refusal
from promptcodebook.deploy.serve.upstream import Upstream
from promptcodebook.lm.endpoint import HttpTransport
from promptcodebook.lm.spec import ApiKey, Credentials, parse_spec
from tests.build.proxied import CHAT, streams, up
from tests.build.server import Server, fails, raw, says

OVER = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'


async def passed_on(
    step: Any, key: str, passed: list[bytes] | None = None, secrets: tuple[str, ...] = ()
) -> bytes:
    """What is passed on of a reply to a server with that key; `passed` has it where it ends in a
    refusal."""
    pieces = [] if passed is None else passed
    server = Server()
    await server.start()
    server.script(step)
    given = ApiKey("PCO_API_KEY", key)
    transport = HttpTransport(server.url, Credentials(given), 10.0)
    upstream = Upstream(parse_spec(f"{server.url}#m", {}), given, transport, secrets)
    try:
        answer = await upstream.ask(upstream.body({"messages": CHAT}))
        try:
            if answer.pieces is not None:
                async for piece in answer.pieces:
                    pieces.append(piece)
        finally:
            answer.close()
        return answer.body + b"".join(pieces)
    finally:
        await upstream.close()
        await server.stop()


@pytest.mark.parametrize("key", ["token", "null", "x", "none", "completion", "sk-no-key-required"])
async def test_a_word_that_is_given_for_a_key_stays_in_replies(key: str) -> None:
    text = f"A token of thanks: x, none, completion, {key}"
    body = json.loads(await passed_on(says(text), key, secrets=(key, "")))
    assert body["choices"][0]["message"]["content"] == text
    assert body["usage"]["completion_tokens"] == 3
    event = f'data: {{"text": "{text}", "refusal": null}}\n\n'.encode() + OVER
    assert await passed_on(streams(event), key) == event
    if len(key) < 8:
        assert json.loads(await passed_on(fails(400, text), key))["error"]["message"] == text


@pytest.mark.parametrize("end", ['"content_filter:SAFETY"', '"stop", "error": {}'])
async def test_a_completion_that_ends_in_a_servers_own_words_passes_as_it_came(end: str) -> None:
    body = f'{{"choices": [{{"message": {{"content": "ok"}}, "finish_reason": {end}}}]}}'.encode()
    assert await passed_on(raw(body), "x") == body


@pytest.mark.parametrize("key", ["sk-4711-abcdefghij", "only-letters-but-very-long"])
async def test_a_key_comes_back_in_nothing(key: str) -> None:
    stream = streams(f"data: {key}\n".encode() + OVER)
    for step in (says(key), raw(key.encode(), 400), stream):
        assert b"***" in (found := await passed_on(step, key)) and key.encode() not in found
        assert key.encode() not in await passed_on(says(key), "other", secrets=(key,))
    assert await passed_on(raw(b"you sent hunter-22", 404), "hunter-22") == b"you sent ***"


def events(*texts: str, index: int = 0) -> bytes:
    """A stream's events, each with a piece of its text."""
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices = ({"index": index, "delta": {"content": text}} for text in texts)
    trees = ({"choices": [choice], **head} for choice in choices)
    return b"".join(b"data: " + json.dumps(tree).encode() + b"\n\n" for tree in trees)


async def test_a_key_that_a_stream_says_in_pieces_ends_it() -> None:
    key = "sk-4711-abcdefghij"
    for cuts in ((3, 9), range(1, len(key))):
        ends = [0, *cuts, len(key)]
        pieces = [key[a:b] for a, b in itertools.pairwise(ends)]
        whole = events("The key is ", *pieces, " and no other.") + b"data: [DONE]\n\n"
        single = [event + b"\n\n" for event in whole.split(b"\n\n")]
        for sent in ([whole], [whole[:100], whole[100:]], single):
            with pytest.raises(Refusal) as caught:
                await passed_on(streams(*sent), key, passed := list[bytes]())
            assert "this server's key" in str(caught.value) and caught.value.status == 502
            text = b"".join(passed)
            assert key[:5].encode() not in text and text.count(b"delta") <= 5
        assert text.startswith(events("The key is "))
    other = events("The key", index=1) + b"".join(
        events(a, index=0) + events(b, index=1) for a, b in ((key[:9], "x"), (key[9:], "y"))
    )
    with pytest.raises(Refusal):
        await passed_on(streams(other), key)


async def test_a_stream_that_only_begins_like_a_key_comes_whole() -> None:
    key = "sk-4711-abcdefghij"
    whole = events("All keys begin with ", "sk-", "4711", "-a", ", and ", "sk-4711-ab")
    whole += b": a comment\n\ndata: [1]\n\ndata: no JSON\n\n" + events("") + OVER
    whole += b"data: [DONE]\n\n"
    assert await passed_on(streams(whole), key) == whole
    assert await passed_on(streams(whole.rstrip(b"\n")), key) == whole.rstrip(b"\n")
    long = b"data: " + b"x" * (2**20 + 9 - len(key)) + key.encode() + b"\n" + OVER
    assert key.encode() not in await passed_on(
        streams(long[: 2**20 + 7], long[2**20 + 7 :], delay=0.3), key
    )


async def test_the_openai_client_works_unmodified() -> None:
    async with up() as served, served.client() as client:
        reply = await client.chat.completions.create(model="pco/tickets", messages=CHAT)
        assert reply.choices[0].message.content == "ok"
        assert served.upstream.bodies[-1]["messages"][0]["role"] == "system"
        assert (await client.models.list()).data[0].id == "pco/tickets"
        served.upstream.script(streams(events("Hel", "lo"), OVER + b"data: [DONE]\n\n"))
        stream = await client.chat.completions.create(
            model="pco/tickets", messages=CHAT, stream=True
        )
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert texts == ["Hel", "lo", None]
        with pytest.raises(openai.NotFoundError, match="no such model"):
            await client.chat.completions.create(model="gpt-4o", messages=CHAT)
