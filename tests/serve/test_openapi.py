"""The proxy against its own OpenAPI description: requests that it allows and such that it does not,
none answered with a 5xx."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from tests.serve.proxied import Up, up

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

EXAMPLES = 20


def tried(url: str, description: dict[str, Any]) -> dict[str, set[int]]:
    """Status codes by operation, over generated requests."""
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis.generation import GenerationMode

    seen: dict[str, set[int]] = {}
    schema = schemathesis.openapi.from_dict(description)
    for found in schema.get_all_operations():
        operation = found.ok()
        statuses = seen.setdefault(f"{operation.method.upper()} {operation.path}", set())
        for mode in GenerationMode:
            cases = operation.as_strategy(generation_mode=mode)
            settled = settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            # Where nothing may be sent, nothing can be sent wrongly.
            with suppress(Unsatisfiable) if mode is GenerationMode.NEGATIVE else nullcontext():
                settled(given(case=cases)(checked(url, statuses)))()
    return seen


def checked(url: str, statuses: set[int]) -> Callable[[Any], None]:
    """What is tried with a request: it gets no 5xx, and an error says what it is."""

    def sends(case: Any) -> None:
        answer = case.call(base_url=url, timeout=20)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)
        if answer.status_code >= 400 and case.method != "HEAD":
            assert answer.json()["error"]["message"]

    return sends


async def test_no_request_that_can_be_written_down_gets_a_5xx(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    served: Up
    async with up() as served:
        _, description, _ = await served.ask("/openapi.json")
        seen = await asyncio.to_thread(tried, served.url, description)
    assert len(seen) == 7, json.dumps({name: sorted(codes) for name, codes in seen.items()})
    assert {200, 400} <= seen["POST /v1/chat/completions"]
    assert {200, 400} <= seen["POST /v1/prompt"]
