"""The way into a server: pages of other sites, bodies that are not JSON, too much at once."""

from __future__ import annotations

import pytest

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
