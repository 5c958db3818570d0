"""Bodies of the chat-completions wire: what is read from them, and what is written."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.calls import Message, Reply, Request, Sampling, Schema, Usage
from promptcodebook.deploy.http import completions
from promptcodebook.deploy.serve.proxy import RoutedChatRequest
from promptcodebook.lm.quirks import Quirks, request_body
from promptcodebook.lm.wire import read_tree

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))
HELLO = [{"role": "user", "content": "Hello."}]
_NAMES = (
    *("messages", "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed"),
    *("response_format", "stream", "stream_options", "n", "stop", "model", "tools"),
)


def read(body: object) -> completions.ChatCall:
    return completions.call_of(completions.parse_body(json.dumps(body).encode()))


@pytest.mark.parametrize("schema", [None, Schema("Answer", {"type": "object"})])
def test_what_our_client_sends_is_what_the_server_reads(schema: Schema | None) -> None:
    sent = Request(
        role="executor",
        messages=(Message("system", "Be brief."), Message("user", "Hello."), Message("user", "?")),
        schema=schema,
        sample=17,
        model="m",
        sampling=Sampling(0.5, 0.9, 100, {"top_k": 20}),
    )
    for quirks in (Quirks(), Quirks(cap="max_completion_tokens")):
        body, dropped = request_body(sent, "m", quirks)
        assert read(body).request == sent and not dropped


def test_what_the_server_writes_is_what_our_client_reads() -> None:
    request = Request("executor", (Message("user", "Hello."),))
    for finish in ("stop", "length", "content_filter"):
        reply = Reply("Good day.", finish, Usage(1, 7, 3, 2, None, 0.5))
        assert read_tree(completions.Completion("x-1", "m").body(reply), request, 0.5) == reply


def test_messages_come_in_every_form_that_clients_write() -> None:
    parts = [{"type": "text", "text": "He"}, {"type": "text", "text": "llo."}]
    forms = (
        ({"role": "developer", "content": "Be brief."}, ("system", "Be brief.")),
        ({"role": "user", "content": parts}, ("user", "Hello.")),
        ({"role": "assistant", "content": None}, ("assistant", "")),
        ({"role": "tool", "content": "42"}, ("user", "42")),
        ({"content": "Go on."}, ("user", "Go on.")),
    )
    messages = read({"messages": [written for written, _ in forms]}).request.messages
    assert [(m.role, m.content) for m in messages] == [turn for _, turn in forms]


def test_fields_that_are_null_are_not_set() -> None:
    empty: dict[str, Any] = dict.fromkeys(set(_NAMES) - {"messages", "tools"})
    assert read({"messages": HELLO, **empty}) == read({"messages": HELLO})
    caps = {"max_completion_tokens": None, "max_tokens": 5}
    assert read({"messages": HELLO, **caps}).request.sampling.max_tokens == 5


@pytest.mark.parametrize(("field", "value"), CASES["chat"])
def test_a_refusal_names_the_field_at_fault(field: str, value: object) -> None:
    with pytest.raises(completions.Refusal) as caught:
        read({"messages": HELLO, field: value})
    assert caught.value.status == 400
    assert completions.error_body(caught.value)["error"]["param"] == caught.value.param == field


@pytest.mark.parametrize("data", [
    b"", b"{", b"[" * 100_000, b"\xff\xfe", b"[]", b"3", b"null", b'{"temperature": Infinity}',
    b'{"n": 1e999}',
])  # fmt: skip
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(completions.Refusal, match="the body is not"):
        completions.parse_body(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(_NAMES), _JSON, max_size=5))
def test_any_body_is_read_or_refused(body: dict[str, Any]) -> None:
    for tried in (body, {"messages": HELLO, **body}):
        for reads in (read, partial(completions.read_fields, RoutedChatRequest)):
            try:
                assert reads(tried)
            except completions.Refusal as refusal:
                assert refusal.status == 400 and str(refusal)


@pytest.mark.parametrize("data", [
    b'{"x": [' + b"[]," * 300_000 + b"0]}",
    b'{"x": [' + b'"",' * 300_000 + b"0]}",
    b'{"x": ["\\\\",' + b"{}," * 300_000 + b'""]}',
    b'{"x": ["\\"",' + b"0," * 300_000 + b"0]}",
])  # fmt: skip
def test_a_body_of_too_many_values_is_refused_before_it_is_read(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(completions.Refusal, match="200,000 values") as caught:
        completions.parse_body(data)
    assert caught.value.status == 413


def test_a_long_text_may_have_any_number_of_brackets_and_quotes() -> None:
    text = '[{"a": "b\\"}, ' * 150_000 + "\\"
    tree = {"messages": [{"role": "user", "content": text}]}
    assert completions.parse_body(json.dumps(tree).encode()) == tree


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_body_is_utf_8(encoding: str) -> None:
    with pytest.raises(completions.Refusal, match="not JSON"):
        completions.parse_body('{"messages": []}'.encode(encoding))
    assert completions.parse_body('{"a": "é"}'.encode("utf-8-sig")) == {"a": "é"}
