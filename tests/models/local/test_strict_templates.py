"""Chat templates that raise, filled in by transformers, as vLLM fills them in: their words are
learned from, whatever the order of a conversation."""

import shutil
from pathlib import Path

import pytest

from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.spec import Credentials, parse_spec
from tests.build.local_server import served_by_us

pytestmark = pytest.mark.local

TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}"
    "{% endif %}{% endfor %}" + TURNS
)
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}"
    "{% endif %}{% endfor %}" + TURNS
)
REFUSED = 'pco_requests_total{path="/v1/chat/completions",status="400"}'
SYSTEM, USER = Message("system", "Answer briefly."), Message("user", "Where does the river lead?")
GREETING = Message("assistant", "Welcome to the river.")
TALKS = [(SYSTEM, USER), (SYSTEM, SYSTEM, USER), (SYSTEM, GREETING, USER)]
TALKS += [(SYSTEM, USER, GREETING, SYSTEM, USER)]


@pytest.mark.parametrize(("template", "most"), [(NO_SYSTEM, 1), (SYSTEM_FIRST, 0)])
async def test_every_conversation_gets_through_a_strict_template(
    model: Path, tmp_path: Path, template: str, most: int
) -> None:
    strict = Path(shutil.copytree(model, tmp_path / "strict"))
    (strict / "chat_template.jinja").write_text(template)
    sampling = Sampling(max_tokens=8)
    with served_by_us(f"hf:{strict}", tmp_path) as ours:
        async with Endpoint(parse_spec(ours.spec, {}), Credentials(), timeout=60.0) as lm:
            replies = [await lm(Request("executor", each, sampling=sampling)) for each in TALKS]
        assert ours.metric(REFUSED) == most
    assert all(reply.text for reply in replies)
