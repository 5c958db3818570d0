"""The model behind a policy that is served: a request goes to it as it came, and so does the reply.
Our key goes with it and comes back in nothing. 502 and 504 are faults of ours or the model's, all
other statuses the caller's."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, cast

from promptcodebook.base.incidents import Incident
from promptcodebook.base.text import LENIENT_JSON, parse_json, shell
from promptcodebook.config import Config
from promptcodebook.config.secrets import secret_variables
from promptcodebook.deploy.http.completions import Refusal
from promptcodebook.errors import ConfigError, LMError
from promptcodebook.lm.endpoint import Endpoint, OpenReply, Transport, transport_to
from promptcodebook.lm.quirks import CAPS, FormSearch, KnownForms, Quirks
from promptcodebook.lm.spec import ApiKey, Spec, parse_spec
from promptcodebook.lm.wire import (
    BAD_KEY,
    ENDINGS,
    ModelAddress,
    broken_off,
    read_error_body,
    read_misfit,
    read_retry_after,
)

_log = logging.getLogger(__name__)
_LONGEST_LINE = 2**20  # Bytes of a stream that wait for the end of their line.
_LEAST_PIECE = 4  # Characters in which a key is known to begin: a stream waits for more there.
_MOST_CHOICES = 128
_MOST_KEPT = 20_000  # characters of an answer that are kept, where answers are
_SHORTEST = 8  # Fewest bytes of a key that differs from a word in an error.
_OURS = (401, 403, 407)  # What a model's server says of our key, and not of the caller's.
_BROKE_OFF = "the model's reply broke off"
# An end that deserves a look. Within a text of JSON the quotes would be escaped.
_ENDS = "|".join(filter(None, ENDINGS)).encode()
_ENDING = re.compile(rb'"(?:finish_reason|error)"\s*+:\s*+(?!null\b|"(?:%s)")' % _ENDS)
_WHOLE = re.compile(rb'"choices"\s*+:\s*+\[\s*+\{')
# What says that a stream is over, well or not; and what ends one whether it is over or not.
_OVER = re.compile(rb'"finish_reason"\s*+:\s*+"|"error"\s*+:\s*+["{]')
_DONE = re.compile(rb"^data:\s*\[DONE\]", re.MULTILINE)
_WORDS: Mapping[Incident | None, tuple[int, str]] = {
    Incident.TIMEOUT: (504, "the model did not answer in time"),
    Incident.REFUSED_CONNECTION: (502, "the model cannot be reached"),
    Incident.DROPPED: (502, _BROKE_OFF),
    Incident.MALFORMED_BODY: (502, "the model's reply is too large"),
}
# What is read of a stream: 'ignored' = its usage alone; 'hidden' = the caller did not ask for the
# event of its usage.
Usage = Literal["ignored", "shown", "hidden"]


class _Watch:
    """Reads a stream's events: their usage, the first choice's text in pieces (`output`), and a key
    that comes in pieces. Lines wait in `held` while a key may have begun in them."""

    def __init__(self, secrets: Sequence[bytes], usage: Usage) -> None:
        self.usage: dict[str, object] = {}
        self.output: list[str] = []
        self.held = b""
        self._wanted, self._hidden = usage, False
        self._secrets = [each.decode("latin-1") for each in secrets]
        self._most = max(map(len, self._secrets), default=0)
        self._ends: dict[int, str] = {}

    def passes(self, lines: bytes) -> bytes:
        """What of the lines may pass now, after those that waited. Raises Refusal at a key."""
        if not self._secrets and self._wanted == "ignored" and b'"usage"' not in lines:
            return lines
        ready = b""
        for line in lines.splitlines(keepends=True):
            # With an event that is for this server alone goes the empty line behind it.
            before, self._hidden = self._hidden, line.startswith(b"data:") and self._hear(line[5:])
            if self._hidden or (before and not line.strip()):
                continue
            self.held += line
            begun = any(
                end.endswith(secret[:length])
                for end in self._ends.values()
                for secret in self._secrets
                for length in range(min(len(end), len(secret) - 1), _LEAST_PIECE - 1, -1)
            )
            if len(self.held) > _LONGEST_LINE or not begun:
                ready, self.held = ready + self.held, b""
        return ready

    def _hear(self, data: bytes) -> bool:
        try:
            tree: Any = parse_json(data, LENIENT_JSON)
            choices: Any = tree["choices"]
            if usage := tree.get("usage"):
                self.usage.update(usage)
            if usage and not choices:
                return self._wanted == "hidden"
            for each in choices:
                index = each.get("index")
                index = index if index in range(_MOST_CHOICES) else 0
                delta: Any = each.get("delta")
                text = cast("Any", delta).get("content") if isinstance(delta, dict) else None
                if not index and isinstance(text, str) and len(self.output) < _MOST_KEPT:
                    self.output.append(text)
                end = self._ends.get(index, "") + "".join(_texts(delta))
                if any(secret in end for secret in self._secrets):
                    message = "the model's reply contains this server's key, and was cut off there"
                    raise Refusal(message, status=502, kind="upstream_error")
                self._ends[index] = end[-self._most :]
        except (ValueError, TypeError, LookupError, AttributeError):
            pass  # no event of ours: it says nothing
        return False


def _is_broken_off(data: bytes) -> bool:
    if not _ENDING.search(data):
        return False
    try:
        return broken_off(json.loads(data)) is not None
    except (ValueError, RecursionError):
        return False


def _status(body: bytes) -> int:
    """The status of what came with a 200: that of the error that it is, if it is one. Raises
    Refusal for what is no completion, or half of one."""
    if _WHOLE.search(body) and body.rstrip().endswith(b"}") and not _ENDING.search(body):
        return 200
    if _is_broken_off(body):
        raise Refusal(_BROKE_OFF, status=502, kind="upstream_error")
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        if json.loads(body)["choices"][0]:
            return 200
    error = read_misfit(body, "it is not a chat completion")
    if not error.status or body.lstrip().startswith(b"<"):
        _log.warning("the model's server did not send a chat completion")
        text = "the model's reply is not a chat completion"
        raise Refusal(text, status=502, kind="upstream_error", unpaid=not error.worked)
    return error.status


def _whole_events(lines: bytes) -> tuple[bytes, bool]:
    """What comes before the event in which a model breaks off its reply, and if there is one."""
    for found in _ENDING.finditer(lines):
        begun = lines.rfind(b"\n", 0, found.start()) + 1
        ended = lines.find(b"\n", begun)
        line = lines[begun : ended if ended >= 0 else len(lines)]
        if line.startswith(b"data:") and _is_broken_off(line[5:]):
            return lines[:begun], True
    return lines, False


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        yield from chain(*map(_texts, cast("dict[str, Any]", tree).values()))
    elif isinstance(tree, list):
        yield from chain(*map(_texts, cast("list[Any]", tree)))


def _refusal(error: LMError) -> Refusal:
    """A model's error, logged, for a caller, who need not know where the model runs."""
    _log.warning("%s", error)
    status, text = _WORDS.get(error.incident, (502, "the model failed"))
    return Refusal(text, status=status, kind="upstream_error", unpaid=not error.sent)


async def connect_upstream(config: Config, environment: Mapping[str, str]) -> Upstream:
    """The executor's model. Raises ConfigError for one of this process, MissingExtra, and LMError
    where it has to be asked for its name and does not answer."""
    text = config.model_of("executor")
    spec = parse_spec(text, environment)
    if spec.in_process:
        hint = f"pco lm serve {shell(text)}, then --lm with the address that it prints"
        raise ConfigError(f"{text} has no address to pass requests on to", hint=hint)
    settings = config.roles.get("executor")
    headers = dict(settings.headers) if settings is not None else {}
    found = spec.credentials(headers, environment)
    if not spec.model:
        async with Endpoint(spec, found, timeout=10.0) as endpoint:
            only = await endpoint.named_model()
        spec = parse_spec(f"{spec.base_url}#{only}", environment)
    most_bytes = int(config.max_reply_mb * 1e6)
    transport = transport_to(spec, found, config.timeout, most_bytes)
    extra = settings.extra if settings is not None else {}
    secrets = tuple(environment[name[1:]].strip() for name in secret_variables(extra))
    return Upstream(spec, found.key, transport, secrets, length_field(spec))


def length_field(spec: Spec) -> Literal["max_tokens", "max_completion_tokens"]:
    """How OpenAI's own models want a length said, and how all others do."""
    return "max_completion_tokens" if "//api.openai.com/" in spec.base_url else "max_tokens"


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """What came back: a body, or pieces of one that are whole lines. `close` gives up the rest, and
    `heard` reads the pieces as they pass."""

    status: int
    kind: str
    headers: Mapping[str, str]
    body: bytes = b""
    pieces: AsyncGenerator[bytes, None] | None = None
    close: Callable[[], None] = lambda: None
    heard: _Watch | None = None

    @property
    def output(self) -> str:
        """The text of its first choice as far as it came, cut at 20,000 characters; '' for none."""
        if self.heard is not None:
            return "".join(self.heard.output)[:_MOST_KEPT]
        try:
            text: Any = parse_json(self.body, LENIENT_JSON)["choices"][0]["message"]["content"]
        except (ValueError, TypeError, LookupError):
            return ""
        return text[:_MOST_KEPT] if isinstance(text, str) else ""

    @property
    def usage(self) -> object:
        """What the reply says that it took; None or {} where it does not."""
        if self.heard is not None:
            return self.heard.usage
        # An answer may be long, so not all of it is read. Within a text the quotes are escaped.
        _, found, tail = self.body.rpartition(b'"usage"')
        with suppress(ValueError, RecursionError):
            text = tail.decode("utf-8", "replace").lstrip(" \t\r\n:") if found else ""
            return json.JSONDecoder().raw_decode(text)[0]
        return None


def _set(given: Mapping[str, Any]) -> set[str]:
    """The fields that a caller sets."""
    return {name for name, value in given.items() if value is not None}


class Upstream:
    """No reply holds one of `secrets`. `cap` is the model's own field for a length."""

    def __init__(
        self,
        spec: Spec,
        key: ApiKey | None,
        transport: Transport,
        secrets: Sequence[str] = (),
        cap: Literal["max_tokens", "max_completion_tokens"] = "max_tokens",
    ) -> None:
        self.model = spec.model
        # The caller's own stays as it is, where the model's server may have it in its cache.
        quirks = replace(Quirks.of_provider(spec.provider), cap=cap, apart=True)
        self._known = KnownForms(quirks)
        self._json = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
        sent = [] if key is None else [v.removeprefix("Bearer ") for v in key.headers().values()]
        known = [each.encode() for each in (*secrets, *sent)]
        # Local servers are given words for keys: replies are full of 'none' and 'token'. A good
        # reply is the model's own text: only what can be nothing but a key is removed there.
        self._secrets = [each for each in known if len(each) >= _SHORTEST]
        self._telling = [
            each
            for each in known
            if len(each) >= (16 if any(c in b"0123456789" for c in each) else 24)
        ]
        self._transport = transport
        self._url = f"{spec.base_url}/chat/completions"
        self._where = ModelAddress(spec.base_url, spec.model, key, spec.key_names, private=True)

    @property
    def cap(self) -> str:
        return self._known.quirks.cap

    def completed(self, given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """The caller's body with `own` fields, the verdict's, where the caller says nothing."""
        theirs = _set(given)
        left_out = theirs if theirs.isdisjoint(CAPS) else theirs.union(CAPS)
        return {**given, **{name: v for name, v in own.items() if name not in left_out}}

    def search(self, given: Mapping[str, Any]) -> FormSearch:
        """In what form the model is asked first, but for the caller's own fields."""
        return FormSearch(self._known.quirks, _set(given))

    def learns(self, search: FormSearch, answer: UpstreamAnswer) -> bool:
        """Whether the answer may refuse what is ours, so that another form is to be tried."""
        if answer.status == 200:
            self._known.keep(search)
            return False
        refused = search.refused(search.sent, answer.status, read_error_body(answer.body))
        return refused and self._known.another(search)

    def body(self, given: Mapping[str, Any], search: FormSearch | None = None) -> bytes:
        """A caller's body as it goes up, under our model's name. Raises Refusal."""
        search = search or self.search(given)
        try:
            # ASCII escapes: half of a surrogate pair is legal in a string and not in UTF-8.
            sent = {**given, "model": self.model}
            search.quirks.adapt(sent, search.theirs)
            search.sent = sent
            return self._json.encode(sent).encode("ascii")
        except (ValueError, RecursionError):
            raise Refusal("the body is not valid JSON, or is nested too deeply") from None

    async def ask(self, data: bytes, usage: Usage = "ignored") -> UpstreamAnswer:
        """The reply, to be closed. Raises Refusal where there is none or our key was refused."""
        try:
            reply = await self._transport.open(self._url, self._where, data)
        except LMError as error:
            raise _refusal(error) from None
        watch = _Watch(self._telling, usage)
        kind = reply.headers.get("Content-Type", "application/json")
        # In seconds: a date would be by the clock of another server than ours.
        wait = read_retry_after(reply.headers)
        headers = {"Retry-After": str(math.ceil(wait))} if wait else {}
        if reply.status == 200 and kind.lower().startswith("text/event-stream"):
            pieces = self._lines(reply, watch)
            return UpstreamAnswer(200, kind, headers, b"", pieces, reply.close, watch)
        try:
            whole = await reply.whole()
        except LMError as error:
            raise _refusal(error) from None
        finally:
            reply.close()
        status = _status(whole) if reply.status == 200 else reply.status
        kind = "application/json" if status != reply.status else kind
        body = self._scrub(whole, status)
        wrong_key = status == 400 and read_error_body(body).code == BAD_KEY
        if wrong_key or status in _OURS or 300 <= status < 400:
            _log.error("the model's server answered with status %d", status)
            text = "the model refused this server"
            raise Refusal(text, status=502, kind="upstream_error", unpaid=True)
        return UpstreamAnswer(status, kind, headers, body)

    async def close(self) -> None:
        await self._transport.close()

    async def _lines(self, reply: OpenReply, watch: _Watch) -> AsyncGenerator[bytes, None]:
        """The pieces of a stream, each to the end of a line: an event is cut nowhere else."""
        rest, over = b"", False
        most_kept = max(map(len, self._secrets), default=1) - 1
        try:
            async with aclosing(reply.pieces) as pieces:
                async for piece in pieces:
                    whole, newline, rest = (rest + piece).rpartition(b"\n")
                    if len(rest) > _LONGEST_LINE:
                        # Its end may be the beginning of a key.
                        line = self._scrub(rest)
                        at = max(0, len(line) - most_kept)
                        line, rest = line[:at], line[at:]
                        whole, newline = whole + newline + line, b""
                    whole, broken = _whole_events(whole + newline)
                    over = over or _OVER.search(whole) is not None
                    if not over and (done := _DONE.search(whole)):
                        whole, broken = whole[: done.start()], True
                    if ready := watch.passes(self._scrub(whole)):
                        yield ready
                    if broken:
                        raise Refusal(_BROKE_OFF, status=502, kind="upstream_error")
            over = over or _OVER.search(rest) is not None
            rest = rest if over else b""  # half an event, or a spurious end
            if ready := watch.passes(self._scrub(rest)) + watch.held:
                yield ready
            if not over:
                raise Refusal(_BROKE_OFF, status=502, kind="upstream_error")
        except LMError as error:
            raise _refusal(error) from None

    def _scrub(self, data: bytes, status: int = 200) -> bytes:
        """Without our secrets, which a server may echo."""
        for secret in self._telling if status == 200 else self._secrets:
            data = data.replace(secret, b"***")
        return data
