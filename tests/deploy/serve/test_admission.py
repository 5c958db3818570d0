"""The way into a server: pages of other sites, bodies that are not JSON, too much at once."""

import asyncio
import json
import logging
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from promptcodebook.config import Budget
from promptcodebook.deploy.http import admission
from promptcodebook.deploy.http.completions import Refusal
from promptcodebook.deploy.serve.spending import Spending
from promptcodebook.errors import ConfigError
from promptcodebook.lm.budget import PriceTable
from promptcodebook.lm.scripted import ScriptedLM
from tests.build.clock import Clock, until
from tests.build.method import talkative
from tests.build.proxied import CHAT, Setup, Up, ask, limited, one_call, streams, three_call, up
from tests.build.server import drops, fails, raw, says

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))


@pytest.mark.parametrize(("headers", "expected"), CASES["origins"])
async def test_without_a_key_no_page_of_another_site_may_ask_and_with_one_any(
    headers: dict[str, str], expected: int
) -> None:
    async with up() as served:
        status, body, _ = await served.ask(json={"messages": CHAT}, headers=headers)
        assert (status, served.upstream.calls) == (expected, int(expected == 200))
        assert status == 200 or "Host" in headers or "PCO_SERVE_KEY" in body["error"]["message"]
    async with up(setup=Setup(keys=("right-key-4711",))) as served:
        known = {**headers, "Authorization": "Bearer right-key-4711"}
        assert (await served.ask(json={"messages": CHAT}, headers=known))[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "x", ""])
async def test_a_body_that_is_not_said_to_be_json_is_refused(kind: str) -> None:
    async with up() as served:
        for path in ("/v1/chat/completions", "/v1/prompt"):
            sent = {"json": {"messages": CHAT}, "headers": {"Content-Type": kind}}
            status, body, _ = await served.ask(path, **sent)
            assert status == 415
            assert "Content-Type: application/json" in body["error"]["message"]
        sent["headers"] = {"Content-Type": "Application/JSON; charset=utf-8"}
        assert (await served.ask(**sent))[0] == 200


async def test_bodies_that_are_not_all_there_have_room_for_so_many_bytes() -> None:
    limits = admission.RequestLimits(in_flight=1, body_mb=1.0, body_s=20.0)
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
        await until(lambda: sum(first.done() for first in firsts) == 3)
        refused = [first.result() for first in firsts if first.done()]
        assert len(refused) == 3 and all(b" 429 " in line for line in refused)
        small, _, _ = await served.ask(json={"messages": CHAT})
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
    async with up(
        setup=Setup(limits=admission.RequestLimits(write_s=100.0), most_bytes=2**25)
    ) as served:
        long = b'{"choices": [{"message": {"content": "' + b"x" * 30_000_000 + b'"}}]}'
        served.upstream.default = raw(long)
        assert (await served.ask(json={"messages": CHAT}))[1] == long.decode()
        url = served.url + "/v1/chat/completions"
        async with aiohttp.ClientSession(read_bufsize=1024) as http:
            answer = await http.post(url, json={"messages": CHAT})
            assert (await served.metrics())["pco_in_flight"] == 1, "it has its place so long"

            Clock().skip(101.0)

            async def hung_up() -> bool:
                return not (await served.metrics())["pco_in_flight"]

            await until(hung_up)
            answer.close()
        counts = await served.metrics()
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


async def test_a_fault_of_ours_is_logged_by_its_kind_and_place_and_quotes_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(request: Any, visit: admission.RequestContext) -> Any:
        raise KeyError("private-text")

    server = admission.Admission(admission.Callers(()), admission.RequestLimits())
    async with server.listening({"/x": ("GET", answer)}, None, "127.0.0.1", 0) as address:
        status, body, _ = await ask(address.base_url.removesuffix("/v1"), "/x")
    assert (status, body["error"]["message"]) == (500, "the server failed")
    assert "a call to /x failed: KeyError (test_admission.py:" in caplog.text
    assert "private-text" not in caplog.text


def test_of_a_kind_of_warning_one_line_a_second_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, log = 0.0, logging.getLogger("tests.seldom")
    caplog.handler.addFilter(seldom := admission.LogThrottle(lambda: now))
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
    most, bare = 2**20 + 9, len(json.dumps({"messages": CHAT, "user": ""}))
    async with up(setup=Setup(limits=admission.RequestLimits(body_mb=most / 2**20))) as served:
        for length, expected in ((most, 200), (most, 200), (most + 1, 413)):  # in turn, by a thread
            body = json.dumps({"messages": CHAT, "user": "u" * (length - bare)}).encode()
            answer = await asyncio.wait_for(served.ask(data=BytesIO(body)), 20)
            assert answer[0] == expected


def test_keys_come_from_both_places_but_no_file_that_anybody_may_write_to(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# the desk\ndesk-4711-key  # Anna\n\nshop-4711-key\n")
    found = admission.read_keys(" one-4711-key, shop-4711-key,", path)
    assert list(found) == ["one-4711-key", "shop-4711-key", "desk-4711-key"]
    assert set(found.values()) == {None} and admission.read_keys("", None) == {}
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="other users can write") as caught:
        admission.read_keys("", path)
    assert caught.value.hint == f"chmod 600 {path}"
    path.chmod(0o664)
    assert list(admission.read_keys("", path)) == ["desk-4711-key", "shop-4711-key"]


@pytest.mark.parametrize("text", [
    *("", "# none\n", "short\n", "a key of words\n", "schlüssel-12\n"),
    *("key-4711-x 9fingers\n", "key-4711-x 30min\n"),
])  # fmt: skip
def test_a_file_without_keys_is_refused_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        admission.read_keys("", path)
    assert str(path) in str(caught.value)
    assert not text.strip("# \n") or text.strip() not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read"):
        admission.read_keys("", tmp_path / "other")


@pytest.mark.parametrize("given", ["x", "good-key-4711,short", "two words-4711", "schlüssel-12"])
def test_a_key_of_the_environment_that_anybody_could_guess_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="PCO_SERVE_KEY") as caught:
        admission.require_keys(admission.read_keys(given, None), "127.0.0.1", "pco serve last")
    assert given not in str(caught.value) and "openssl rand" in caught.value.hint


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", ""])
def test_another_address_than_loopback_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="no key") as caught:
        admission.require_keys((), host, "pco serve last")
    assert "pco serve last" in caught.value.hint
    admission.require_keys(("some-key",), host, "pco serve last")
    for own in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        admission.require_keys((), own, "pco serve last")


def test_a_caller_has_so_many_requests_a_second() -> None:
    now = 0.0
    limit = admission.RateLimit(2.0, lambda: now)

    def takes(caller: str) -> bool:
        try:
            limit.take(caller)
        except Refusal as refusal:
            assert refusal.status == 429 and refusal.retry_after == 1
            return False
        return True

    assert [takes("a") for _ in range(4)] == [True, True, False, False]
    assert takes("b")
    now = 0.5
    assert [takes("a"), takes("a")] == [True, False]
    now = 60.0
    assert [takes("a") for _ in range(3)] == [True, True, False], "a burst is a second's worth"
    assert all(admission.RateLimit(0.0).take("a") is None for _ in range(100))


TOLD = {"prompt_tokens": 100, "completion_tokens": 50}


async def asks(served: Up, key: str, **fields: Any) -> tuple[int, str, str]:
    """Status, message and Retry-After of a request for ten tokens."""
    sent = {"messages": CHAT, "max_tokens": 10, **fields}
    headers = {"Authorization": f"Bearer {key}"}
    status, body, headers = await served.ask(json=sent, headers=headers)
    text = body["error"]["message"] if status != 200 and isinstance(body, dict) else ""
    return status, text, headers.get("retry-after", "")


async def test_a_key_spends_so_many_calls_a_day_and_the_refusal_says_when_it_may_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "requests.sqlite"
    async with up(setup=limited(path, anna="2calls", ben="5calls")) as served:
        assert [(await asks(served, "anna-key-4711"))[0] for _ in range(2)] == [200, 200]
        status, text, wait = await asks(served, "anna-key-4711")
        assert (status, wait) == (429, "21600")
        assert "2 calls a day" in text and "resets at 2026-03-02 00:00 UTC" in text
        assert (await asks(served, "ben-key-4711"))[0] == 200
        assert (await asks(served, "free-key-4711"))[0] == 200
        assert served.upstream.calls == 4
    async with up(setup=limited(path, anna="2calls")) as served:
        assert (await asks(served, "anna-key-4711"))[0] == 429, "a restart gives nothing back"
    later = limited(path, at="2026-03-02T00:00:01+00:00", anna="2calls")
    async with up(setup=later) as served:
        assert (await asks(served, "anna-key-4711"))[0] == 200


async def test_what_is_in_flight_is_reserved_and_what_it_took_is_booked(tmp_path: Path) -> None:
    setup = limited(tmp_path / "r.sqlite", anna="1500tok", ben="1.5usd", cy="4calls")
    async with up(setup=setup) as served:
        for key, most in (("anna", 6), ("ben", 6), ("cy", 4)):
            # A prompt of some 200 bytes is reserved at a token a byte, and takes 100.
            served.upstream.default = says(usage=TOLD, delay=0.3)
            at_once = [asks(served, f"{key}-key-4711") for _ in range(8)]
            landed = [status for status, _, _ in await asyncio.gather(*at_once)]
            assert 1 <= landed.count(200) <= most and set(landed) == {200, 429}, key
            served.upstream.default = says(usage=TOLD)
            landed += [(await asks(served, f"{key}-key-4711"))[0] for _ in range(12)]
            assert landed[-1] == 429
            if key != "cy":  # 150 tokens a call, and none begins that could pass the limit
                assert 7 <= landed.count(200) <= 10, key
        assert (await asks(served, "anna-key-4711", max_tokens="9"))[0] == 400


async def test_a_call_that_the_model_failed_counts_and_one_that_never_reached_it_does_not(
    tmp_path: Path,
) -> None:
    for status, left in ((400, 429), (401, 502), (403, 502), (407, 502)):
        setup = limited(tmp_path / f"{status}.sqlite", anna="2calls")
        async with up(setup=setup) as served:
            served.upstream.default = fails(status)
            for _ in range(2):
                await asks(served, "anna-key-4711")
            assert (await asks(served, "anna-key-4711"))[0] == left
    async with up(setup=limited(tmp_path / "tokens.sqlite", anna="900tok")) as served:
        served.upstream.default = fails(400)
        assert {(await asks(served, "anna-key-4711"))[0] for _ in range(9)} == {400}


async def test_a_request_that_names_no_length_gets_one_where_tokens_count(tmp_path: Path) -> None:
    setup = limited(tmp_path / "r.sqlite", anna="9ktok", cy="4calls")
    async with up(one_call(roles={"executor": {"max_tokens": None}}), setup) as served:
        for key in ("anna", "cy", "free"):
            assert (await asks(served, f"{key}-key-4711", max_tokens=None))[0] == 200
        assert [body["max_tokens"] for body in served.upstream.bodies] == [20, None, None]


async def test_a_stream_is_booked_by_its_usage_which_only_who_asked_for_it_gets(
    tmp_path: Path,
) -> None:
    told = b'data: {"choices": [], "usage": {"prompt_tokens": 1300, "completion_tokens": 9}}\n\n'
    choice = b'{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}'
    event = b'data: {"choices": [' + choice + b'], "usage": null}\n\n'
    async with up(setup=limited(tmp_path / "r.sqlite", anna="4100tok")) as served:
        head = {"Authorization": "Bearer anna-key-4711"}
        for options, shown in ((None, event), ({"include_usage": True}, event + told)):
            served.upstream.script(streams(event + told))
            sent = {"messages": CHAT, "stream": True, "max_tokens": 9, "stream_options": options}
            status, text, _ = await served.ask(json=sent, headers=head)
            assert (status, text) == (200, shown.decode())
            assert served.upstream.bodies[-1]["stream_options"] == {"include_usage": True}
        # Twice 1,309 tokens are spent. What breaks off counts as the most that it can have cost.
        served.upstream.script(drops())
        assert (await asks(served, "anna-key-4711", max_tokens=1000))[0] == 502
        assert (await asks(served, "anna-key-4711", max_tokens=10))[0] == 429


async def test_the_calls_for_a_prompt_are_the_callers_too(tmp_path: Path) -> None:
    setup = limited(tmp_path / "r.sqlite", anna="5calls")
    setup.lm = ScriptedLM().reply_with(talkative)
    async with up(three_call(), setup) as served:
        asked = [{"role": "user", "content": text} for text in ("How far?", "How long?")]
        found = [await asks(served, "anna-key-4711", messages=[each]) for each in asked]
        assert [status for status, _, _ in found] == [200, 429]
        assert served.upstream.calls == 1 and len(setup.lm.history) == 4


async def test_a_money_budget_over_an_unknown_price_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a money budget needs a price"):
        Spending(tmp_path / "r", {"": Budget(usd=1.0)}, PriceTable(), ("http://x/v1#m",), 20)
    Spending(tmp_path / "r", {"": Budget(calls=1)}, PriceTable(), ("http://x/v1#m",), 20).close()
