"""Broken and hostile servers on a real socket: every call ends soon, counted, the key unseen."""

import asyncio
import gzip
import json
import logging
import re
import resource
import traceback
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, Field

from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.errors import LMError
from promptcodebook.lm.limit import Backoff
from promptcodebook.lm.stack import Endpoints
from promptcodebook.lm.structured import Ask
from tests.build.method import Counts

# From the request's head to the pieces to send; after the last one the connection is closed.
Attack = Callable[[bytes], AsyncIterator[bytes]]


def completion(text: object, **choice: object) -> bytes:
    """The JSON of a chat completion."""
    first = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return json.dumps({"choices": [first], "usage": usage}).encode()


def http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = -1) -> bytes:
    """A whole response; `length` None leaves Content-Length out, another one lies."""
    size = [] if length is None else [f"Content-Length: {len(body) if length < 0 else length}"]
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *size, *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def at_once(*pieces: bytes, then: bytes | None = None, pause: float = 0.0) -> Attack:
    """Sends the pieces and hangs up, or sends `then` again and again as long as anybody listens."""

    async def attack(head: bytes) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        while then is not None:
            yield then
            await asyncio.sleep(pause)

    return attack


def for_ever(first: bytes, piece: bytes, pause: float = 0.0) -> Attack:
    return at_once(first, then=piece, pause=pause)


@dataclass
class RawServer:
    """Answers every request with `attack`; counts requests."""

    attack: Attack
    spec: str = ""
    requests: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            [size] = re.findall(rb"content-length: *(\d+)", head.lower())
            self.bodies.append(json.loads(await reader.readexactly(int(size))))
            self.requests += 1
            async for piece in self.attack(head):
                writer.write(piece)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, ValueError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def attacking(attack: Attack) -> AsyncIterator[RawServer]:
    """A server that says whatever bytes an attack wants, on a real socket."""
    made = RawServer(attack)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.spec = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1#m"
    yield made
    server.close()


KEY = "sk-attack-0123456789abcdef"
TIMEOUT_S = 2.0
BOUND_S = 4 * TIMEOUT_S + 8  # two tries, a re-ask of two more, and a busy machine


class Verdict(BaseModel):
    score: float = Field(ge=0, le=1)
    feedback: str = ""


GOOD = '{"score": 0.5, "feedback": "cite it"}'
ASK = Request("critic", (Message("user", "judge"),), sampling=Sampling(max_tokens=50))


def chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return http(body, "Transfer-Encoding: chunked", length=None)


async def echo_error(head: bytes) -> AsyncIterator[bytes]:
    body = json.dumps({"error": {"message": head.decode("latin-1")}}).encode()
    yield http(body, status="500 Internal Server Error")


async def echo_html(head: bytes) -> AsyncIterator[bytes]:
    yield http(b"<html>" + head, status="403 Forbidden")


async def echo_header(head: bytes) -> AsyncIterator[bytes]:
    yield http(b"{}", f"Retry-After: {KEY}", f"Location: http://x/?{KEY}", status="302 Found")


def gigabyte() -> bytes:
    """The beginning of a gzip file, and what stands for another megabyte of it 1,024 times."""
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = bomb.compress(b"") + bomb.flush(zlib.Z_FULL_FLUSH)
    return head + (bomb.compress(b" " * 2**20) + bomb.flush(zlib.Z_FULL_FLUSH)) * 1024


SPACES = b" " * 65536

PACKED, CHUNKED = "Content-Encoding: gzip", "Transfer-Encoding: chunked"
# Bodies with status 200 that are no completion.
UNREADABLE = {
    "HTML": b"<!doctype html><title>Sign in</title>",
    "an empty body": b"",
    "null": b"null",
    "a number": b"1e400",
    "a list": b"[1, 2]",
    "a list of lists": b"[[1]]",
    "choices of texts": b'{"choices": ["x"]}',
    "a string": b'"choices"',
    "an error with 200": b'{"error": {"message": "no"}}',
    "deep lists": b"[" * 1_000_000,
    "deep objects": b'{"choices":' * 200_000,
    "a number too long": b'{"choices": ' + b"9" * 10**6,
    "invalid UTF-8": b'{"choices": [{"message": {"content": "\xff\xfe"}}]}',
    "choices empty": b'{"choices": []}',
    "choices an object": b'{"choices": {"0": 1}}',
    "choices of null": b'{"choices": [null]}',
    "message a string": b'{"choices": [{"message": "x"}]}',
    "content a number": completion(7),
    "content an object": completion({"a": 1}),
    "a stream": b'data: {"choices": []}\n\ndata: [DONE]\n\n',
}
DROPPED = {
    "nothing at all": at_once(),
    "half a head": at_once(b"HTTP/1.1 200 OK\r\nConte"),
    "no HTTP": at_once(b"220 smtp ready\r\n\r\n"),
    "an SSH banner": at_once(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "a cut body": at_once(http(completion(GOOD)[:-9], length=400)),
    "a cut chunk": at_once(chunked(completion(GOOD))[:-20]),
    "a wrong chunk size": at_once(http(b"zz\r\nhi\r\n", CHUNKED, length=None)),
    "a negative length": at_once(http(completion(GOOD), "Content-Length: -5", length=None)),
    "two lengths": at_once(http(completion(GOOD), "Content-Length: 3")),
    "endless headers": for_ever(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 1000),
    "an endless header": for_ever(b"HTTP/1.1 200 OK\r\nX-A: ", b"b" * 65536),
    "an endless status": for_ever(b"HTTP/1.1 200 ", b"b" * 65536),
    "a status of no number": at_once(http(b"", status="abc OK")),
}
MALFORMED = {
    **{name: at_once(http(body)) for name, body in UNREADABLE.items()},
    "a bomb": at_once(http(gigabyte(), PACKED)),
    "an endless body": for_ever(http(b"", length=None), SPACES),
    "endless chunks": for_ever(http(b"", CHUNKED, length=None), b"10000\r\n" + SPACES + b"\r\n"),
}
EITHER = {
    "a short length": at_once(http(completion(GOOD), length=20)),
    "not what was said": at_once(http(completion(GOOD), PACKED)),
    "half a gzip": at_once(http(gzip.compress(completion(GOOD))[:-12], PACKED)),
}
LATE = {
    "a drip": for_ever(http(b"", length=10**6), b" ", 0.05),
    "a dripping head": for_ever(b"HTTP/1.1 200 OK\r\n", b"X", 0.05),
    "silence": for_ever(b"", b"", 3600),
    "silence in the body": for_ever(http(b"{", length=100), b"", 3600),
}
FAULTS = {
    "no such status": at_once(http(b"", status="999 What")),
    "an endless error": for_ever(http(b"", length=None, status="500 No"), SPACES),
    "a bomb of an error": at_once(http(gigabyte(), PACKED, status="500 No")),
    "a deep error": at_once(http(b"[" * 10**6, status="500 No")),
    "the key in an error": echo_error,
}
REFUSED = {
    "a redirect": at_once(http(b"", "Location: http://x/", status="307 Temporary Redirect")),
    "a redirect to itself": at_once(http(b"", "Location: /", status="302 Found")),
    "the key in a refusal": echo_html,
    "the key in a redirect": echo_header,
}
INTERIM = for_ever(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.01)
# Nothing that could be read came, so each of these calls fails: each try is counted as one of the
# incidents, and without one nothing is tried again.
BROKEN: dict[str, tuple[Attack, tuple[str, ...]]] = {
    **{name: (attack, ("dropped",)) for name, attack in DROPPED.items()},
    **{name: (attack, ("malformed_body",)) for name, attack in MALFORMED.items()},
    **{name: (attack, ("dropped", "malformed_body")) for name, attack in EITHER.items()},
    **{name: (attack, ("timeout",)) for name, attack in LATE.items()},
    **{name: (attack, ("server_error",)) for name, attack in FAULTS.items()},
    "an error with 200": (MALFORMED["an error with 200"], ("server_error",)),
    **{name: (attack, ()) for name, attack in REFUSED.items()},
    "endless interim answers": (INTERIM, ("timeout", "dropped")),
}


@pytest.fixture
def tally() -> Counts:
    return Counts()


@pytest.fixture(autouse=True)
def _no_loud_loop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@asynccontextmanager
async def closed_after(endpoints: Endpoints) -> AsyncIterator[Endpoints]:
    try:
        yield endpoints
    finally:
        await endpoints.close()


async def outcome(server: RawServer, tally: Counts) -> Verdict | LMError:
    """What comes of asking the server for a verdict, within the bound."""
    backoff, environment = Backoff(retries=1, first=0.01), {"PCO_API_KEY": KEY}
    opened = Endpoints(TIMEOUT_S, 4, backoff, tally=tally, environment=environment)
    async with closed_after(opened) as endpoints:
        ask = Ask(endpoints.connect(server.spec), tally)
        try:
            return (await asyncio.wait_for(ask.typed(ASK, Verdict), BOUND_S)).value
        except LMError as error:
            return error


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_answer_is_a_counted_failure(
    name: str, tally: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    attack, counted = BROKEN[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with attacking(attack) as server:
        error = await outcome(server, tally)
    assert isinstance(error, LMError), error
    assert error.hint
    assert server.requests == (2 if counted else 1)
    assert tally.total() == sum(tally[each] for each in counted) == (2 if counted else 0)
    shown = "".join(traceback.format_exception(error)) + error.hint + caplog.text
    assert KEY not in shown and KEY[3:] not in shown
    assert len(str(error)) < 1000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 120_000, f"{grown} kB more memory"


async def test_a_thousand_calls_to_hostile_servers_leave_nothing_open(tally: Counts) -> None:
    """Bodies that were refused in the middle hold no connection and no task."""
    attack = for_ever(http(b"", length=None), SPACES)
    async with attacking(attack) as server:
        before = len(asyncio.all_tasks())
        opened = Endpoints(TIMEOUT_S, 64, Backoff(retries=0), tally=tally)
        async with closed_after(opened) as endpoints:
            lm = endpoints.connect(server.spec)
            calls = (lm(ASK) for _ in range(30))
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, LMError) for each in results)
        for _ in range(100):
            if len(asyncio.all_tasks()) <= before:
                break
            await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) <= before
    assert tally.total() == 30
