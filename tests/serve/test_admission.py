"""The way into a server: pages of other sites, bodies that are not JSON, too much at once."""

from __future__ import annotations

import asyncio
import json
import logging
from urllib.parse import urlsplit

import aiohttp
import pytest

from promptcodebook.serve.admission import Limits
from promptcodebook.serve.metrics import Seldom
from tests.lm.server import raw
from tests.serve.proxied import SAID, Setup, up


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://127.0.0.1@evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "Cross-Site"},
    ],
)
async def test_without_a_key_a_page_of_another_site_is_refused(headers: dict[str, str]) -> None:
    async with up() as served:
        status, body, _ = await served.ask(json={"messages": SAID}, headers=headers)
        calls = served.upstream.calls
    assert (status, calls) == (403, 0)
    assert "PCO_SERVE_KEY" in body["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "http://127.0.0.1:8080"},
        {"Origin": "http://[::1]:8080"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_a_page_of_this_machine_may_ask(headers: dict[str, str]) -> None:
    async with up() as served:
        status, _, _ = await served.ask(json={"messages": SAID}, headers=headers)
    assert status == 200


async def test_who_has_a_key_may_ask_from_anywhere() -> None:
    async with up(setup=Setup(keys=("right-key-4711",))) as served:
        headers = {"Authorization": "Bearer right-key-4711", "Origin": "https://desk.example"}
        status, _, _ = await served.ask(json={"messages": SAID}, headers=headers)
    assert status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "x", ""])
async def test_a_body_that_is_not_said_to_be_json_is_refused(kind: str) -> None:
    async with up() as served:
        for path in ("/v1/chat/completions", "/v1/prompt"):
            sent = {"json": {"messages": SAID}, "headers": {"Content-Type": kind}}
            status, body, _ = await served.ask(path, **sent)
            assert status == 415
            assert "Content-Type: application/json" in body["error"]["message"]
        sent["headers"] = {"Content-Type": "Application/JSON; charset=utf-8"}
        assert (await served.ask(**sent))[0] == 200


async def test_bodies_that_are_not_all_there_have_room_for_so_many_bytes() -> None:
    limits = Limits(in_flight=1, body_mb=1.0, body_s=20.0)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    )
    async with up(setup=Setup(limits=limits)) as served:
        parts = urlsplit(served.url)

        async def begins() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(head + b" " * 900_000)
            return reader, writer

        opened = [await begins() for _ in range(4)]
        firsts = [asyncio.ensure_future(reader.readline()) for reader, _ in opened]
        for _ in range(500):
            if sum(first.done() for first in firsts) >= 3:
                break
            await asyncio.sleep(0.02)
        refused = [first.result() for first in firsts if first.done()]
        assert len(refused) == 3 and all(b" 429 " in line for line in refused)
        small, _, _ = await served.ask(json={"messages": SAID})
        assert small == 200, "a short one needs no room"
        [last] = [number for number, first in enumerate(firsts) if not first.done()]
        opened[last][1].write(b"{}".rjust(100_000))
        assert b" 400 " in await firsts[last]
        for _, writer in opened:
            writer.close()
        long = [{"role": "user", "content": "x" * 900_000}]
        status, _, _ = await served.ask(json={"messages": long})
    assert status == 200, "and gives its room back"


async def test_who_does_not_take_a_long_answer_is_hung_up_on() -> None:
    async with up(setup=Setup(limits=Limits(write_s=1.0), most_bytes=2**25)) as served:
        served.upstream.default = raw(b"x" * 30_000_000)
        assert (await served.ask(json={"messages": SAID}))[1] == "x" * 30_000_000
        url = served.url + "/v1/chat/completions"
        async with aiohttp.ClientSession(read_bufsize=1024) as http:
            answer = await http.post(url, json={"messages": SAID})
            assert (await served.metrics())["pco_in_flight"] == 1, "it has its place so long"
            for _ in range(200):
                if (await served.metrics())["pco_in_flight"] == 0:
                    break
                await asyncio.sleep(0.02)
            answer.close()
        counts = await served.metrics()
    assert counts["pco_in_flight"] == 0
    assert counts['pco_requests_total{path="/v1/chat/completions",status="499"}'] == 1


async def test_who_waits_for_a_word_to_go_on_gets_it_and_no_body_is_asked_of_who_may_not() -> None:
    head = (
        b"POST /v1/prompt HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Expect: 100-continue\r\nContent-Length: 14\r\n"
    )
    async with up(setup=Setup(keys=("right-key-4711",))) as served:
        parts = urlsplit(served.url)
        for key, first in ((b"right-key-4711", b"HTTP/1.1 100"), (b"wrong", b"HTTP/1.1 401")):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(head + b"Authorization: Bearer " + key + b"\r\n\r\n")
            assert (await reader.readline()).startswith(first)
            if first.endswith(b"100"):
                writer.write(b'{"input": "x"}')
                assert b"200 OK" in await reader.readuntil(b"prompt")
            writer.close()


def test_of_a_kind_of_warning_one_line_a_second_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, log = 0.0, logging.getLogger("tests.seldom")
    caplog.handler.addFilter(seldom := Seldom(lambda: now))
    try:
        for number in range(1000):
            log.warning("call %d failed", number)
            log.error("accept failed\nsocket %s", number)
        now = 1.0
        log.warning("call %d failed", 1000)
    finally:
        caplog.handler.removeFilter(seldom)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "call 0 failed",
        "accept failed\nsocket 0",
        "call 1000 failed (999 more like it)",
    ]


async def test_a_body_may_be_as_long_as_the_limit_and_no_byte_longer() -> None:
    most, bare = 2**19, len(json.dumps({"messages": SAID, "user": ""}))
    async with up(setup=Setup(limits=Limits(body_mb=0.5))) as served:
        for length, expected in ((most, 200), (most + 1, 413)):
            body = json.dumps({"messages": SAID, "user": "u" * (length - bare)}).encode()
            headers = {"Content-Type": "application/json"}
            assert (await served.ask(data=body, headers=headers))[0] == expected


async def test_a_prompt_is_asked_for_with_a_text() -> None:
    async with up() as served:
        for given in (5, ["late"], {"text": "late"}):
            status, body, _ = await served.ask("/v1/prompt", json={"input": given})
            assert (status, body["error"]["param"]) == (400, "input")
