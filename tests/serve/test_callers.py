"""Who may ask: keys of the environment and of a file, so many requests a second, and what a key
may spend a day."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.config import Budget, Price
from promptcodebook.errors import ConfigError
from promptcodebook.lm.budget import PriceTable
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.serve.admission import (
    RateLimit,
    caller_of,
    daily_budget,
    read_keys,
    require_keys,
)
from promptcodebook.serve.completions import Refusal
from promptcodebook.serve.spending import Spending
from tests.lm.server import drops, fails, says
from tests.method.build import talkative
from tests.serve.proxied import SAID, Setup, Up, three_call, up
from tests.serve.test_proxy import streams


def test_keys_come_from_both_places(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# the desk\ndesk-4711-key  # Anna\n\nshop-4711-key\n")
    found = read_keys(" one-4711-key, shop-4711-key,", path)
    assert list(found) == ["one-4711-key", "shop-4711-key", "desk-4711-key"]
    assert set(found.values()) == {None} and read_keys("", None) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# none\n",
        "short\n",
        "key-4711-x 9fingers\n",
        "key-4711-x 30min\n",
        "a key of words\n",
        "schlüssel-12\n",
    ],
)
def test_a_file_without_keys_is_refused_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_keys("", path)
    assert str(path) in str(caught.value)
    assert not text.strip("# \n") or text.strip() not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read"):
        read_keys("", tmp_path / "other")


@pytest.mark.parametrize("given", ["x", "good-key-4711,short", "two words-4711", "schlüssel-12"])
def test_a_key_of_the_environment_that_anybody_could_guess_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="PCO_SERVE_KEY") as caught:
        require_keys(read_keys(given, None), "127.0.0.1", "pco serve last")
    assert given not in str(caught.value) and "openssl rand" in caught.value.hint


def test_a_file_of_keys_that_anybody_may_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("desk-4711-key\n")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="other users may write") as caught:
        read_keys("", path)
    assert caught.value.hint == f"chmod 600 {path}"
    path.chmod(0o664)
    assert list(read_keys("", path)) == ["desk-4711-key"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", ""])
def test_another_address_than_loopback_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="no key") as caught:
        require_keys((), host, "pco serve last")
    assert "pco serve last" in caught.value.hint
    require_keys(("some-key",), host, "pco serve last")
    require_keys((), "127.0.0.1", "pco serve last")


def test_a_caller_has_so_many_requests_a_second() -> None:
    now = 0.0
    limit = RateLimit(2.0, lambda: now)

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
    assert all(RateLimit(0.0).take("a") is None for _ in range(100))


TOLD = {"prompt_tokens": 100, "completion_tokens": 50}


async def asks(served: Up, key: str, **fields: Any) -> tuple[int, str, str]:
    """Status, message and Retry-After of a request for ten tokens."""
    sent = {"messages": SAID, "max_tokens": 10, **fields}
    headers = {"Authorization": f"Bearer {key}"}
    status, body, headers = await served.ask(json=sent, headers=headers)
    text = body["error"]["message"] if status != 200 and isinstance(body, dict) else ""
    return status, text, headers.get("retry-after", "")


def limited(path: Path, *, at: str = "2026-03-01T18:00:00+00:00", **budgets: str) -> Setup:
    """Keys NAME-key-4711 with these budgets a day; a token costs a thousandth of a dollar."""
    keys = {f"{name}-key-4711": daily_budget(text, name) for name, text in budgets.items()}
    allowed = {caller_of(key): budget for key, budget in keys.items()}
    prices = PriceTable({"m": Price(prompt=1000, completion=1000)})
    spending = Spending(path, allowed, prices, ("m",), 20, lambda: datetime.fromisoformat(at))
    return Setup(keys=(*keys, "free-key-4711"), spending=spending)


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


async def test_what_the_model_refuses_takes_no_tokens(tmp_path: Path) -> None:
    async with up(setup=limited(tmp_path / "r.sqlite", anna="900tok")) as served:
        served.upstream.default = fails(400)
        assert {(await asks(served, "anna-key-4711"))[0] for _ in range(9)} == {400}


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


async def test_a_request_that_names_no_length_gets_one_where_tokens_count(tmp_path: Path) -> None:
    setup = limited(tmp_path / "r.sqlite", anna="9ktok", cy="4calls")
    async with up(setup=setup) as served:
        for key in ("anna", "cy", "free"):
            assert (await asks(served, f"{key}-key-4711", max_tokens=None))[0] == 200
        assert [body["max_tokens"] for body in served.upstream.bodies] == [20, None, None]


async def test_a_stream_is_booked_by_its_usage_which_only_who_asked_for_it_gets(
    tmp_path: Path,
) -> None:
    told = b'data: {"choices": [], "usage": {"prompt_tokens": 1300, "completion_tokens": 9}}\n\n'
    said = b'data: {"choices": [{"index": 0, "delta": {"content": "ok"}}], "usage": null}\n\n'
    async with up(setup=limited(tmp_path / "r.sqlite", anna="4100tok")) as served:
        head = {"Authorization": "Bearer anna-key-4711"}
        for options, shown in ((None, said), ({"include_usage": True}, said + told)):
            served.upstream.script(streams(said + told))
            sent = {"messages": SAID, "stream": True, "max_tokens": 9, "stream_options": options}
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


async def test_a_money_budget_over_an_unknown_price_is_refused_at_the_start(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="a money budget needs a price"):
        Spending(tmp_path / "r", {"": Budget(usd=1.0)}, PriceTable(), ("http://x/v1#m",), 20)
    Spending(tmp_path / "r", {"": Budget(calls=1)}, PriceTable(), ("http://x/v1#m",), 20).close()
