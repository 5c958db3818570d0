"""The client's side of the chat-completions wire: a body as a Reply, a refusal as an LMError; token
estimates, and schemas of typed replies."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, cast

from promptcodebook import errors
from promptcodebook.base.incidents import Incident
from promptcodebook.base.text import LENIENT_JSON, parse_json, shell, shipped_table, strip_tags
from promptcodebook.calls import Ending, Reply, Request, Sampling, Usage, in_words
from promptcodebook.errors import LMError, RequestRefused, did_you_mean
from promptcodebook.lm.spec import ApiKey

# What the body of a reply may have by default; no chat completion comes near it.
MOST_BYTES = 8_000_000
TOKENIZER = "estimate: UTF-8 bytes / 4"  # printed wherever a count comes from `estimate_tokens`
_PER_MESSAGE = 4  # what a chat template puts around a message, about
_MOST_TOKENS = 10**9  # no call has more tokens; a larger count would not fit into a store either
_LONGEST_REASON, _LONGEST_WAIT_S = 60, 3600.0
_DECIMALS = 6  # of the numbers of an embedding that are kept


BAD_KEY = "API_KEY_INVALID"  # Google's word for it, in a 400
# Why a whole reply may end. Servers break off a reply with many other words: those are faults.
ENDINGS: Mapping[str | None, Ending] = {
    None: "stop",
    **dict.fromkeys(("stop", "stop_sequence", "eos", "eos_token", "end_turn"), "stop"),
    "tool_calls": "stop",
    "function_call": "stop",  # as older servers spell it
    **dict.fromkeys(("length", "max_tokens", "model_length"), "length"),
    "content_filter": "content_filter",
}


def dialects() -> Mapping[str, Any]:
    """What dialects.toml says of how servers take requests and word refusals."""
    return shipped_table(__file__, "dialects.toml")


class Malformed(ValueError):
    """A 200 whose body is not a chat completion."""


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """The fields of a body that say how a reply is drawn, those of `extra` included."""
    drawn = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
    }
    fields = {**{name: v for name, v in drawn.items() if v is not None}, **sampling.extra}
    if fields.get("response_format") == "none":  # a word of ours, that no server knows
        del fields["response_format"]
    return fields


def read_reply(data: bytes, request: Request, seconds: float) -> Reply:
    """The reply in a 200's body; raises Malformed. `seconds` is the call's latency."""
    try:
        tree = parse_json(data, LENIENT_JSON)
    except ValueError:
        raise Malformed("it is not JSON") from None
    return read_tree(tree, request, seconds)


def read_tree(tree: Any, request: Request, seconds: float) -> Reply:
    """The reply in a parsed body; raises Malformed."""
    if request.embeds:
        return _read_embedding(tree, request, seconds)
    try:
        choice = tree["choices"][0]
        if (reason := finish_reason(choice)) == "content_filter":
            choice.setdefault("message", {})  # Google leaves it out where it withholds the reply
        message: dict[str, Any] = choice["message"] or {}  # null is an empty one
        content = message.get("content")
        calls: tuple[Any, ...] = tuple(message.get("tool_calls") or ())
        usage = told_usage(tree.get("usage"), seconds)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Malformed("it has no choices[0].message") from None
    if isinstance(content, list):
        # Some servers answer in parts, as requests may be written.
        parts = cast("list[object]", content)
        texts = [cast("dict[str, Any]", p).get("text") for p in parts if isinstance(p, dict)]
        content = "".join(each for each in texts if isinstance(each, str))
    if not isinstance(content, str | None):
        raise Malformed("message.content is not text")
    text = content or ""
    asides = (message.get(name) for name in ("reasoning_content", "reasoning"))
    # What the model wrote aside, and was paid for, where the server shows it.
    aside = next((each for each in asides if isinstance(each, str)), "")
    if (tree.get("error") or choice.get("error")) and not (text or aside or calls or usage):
        raise Malformed("it contains an error instead of a reply")
    counted = usage or count_usage(request, in_words(text + aside, calls), seconds)
    about = {"role": request.role, "model": request.model}
    server = request.model or "the provider"
    if (why := broken_off(tree)) is not None:
        what = f"{server} broke off the reply ({why[:_LONGEST_REASON]})"
        error: LMError = errors.ServerFault(what, hint=_LOOK, **about)
        # Its tokens were counted, so it is not booked at its bound.
        error.incident, error.usage, error.lost = Incident.BROKEN_OFF, counted, False
        raise error
    if reason == "content_filter" and not (text or calls):
        why = _why(choice)[:_LONGEST_REASON]
        what = f"a filter on {server} blocked the reply ({why})"
        hint = "reword the input, or leave the example out; some providers accept safety settings"
        error = errors.ReplyWithheld(what, hint=hint, **about)
        error.usage = counted
        raise error
    finish = ENDINGS[reason]
    reply = Reply(text, finish, counted, estimated=usage is None, tool_calls=calls)
    return replace(reply, cache_written=cache_written(tree.get("usage")))


def broken_off(tree: Any) -> str | None:
    """The server's word for why a completion, or a chunk of one, was broken off; None where it was
    not, or is no completion. An error beside it is not quoted: it may hold what was sent."""
    try:
        for choice in tree["choices"]:
            reason = finish_reason(choice)
            known = isinstance(reason, str | None) and reason in ENDINGS
            if not known or choice.get("error") or tree.get("error"):
                return _why(choice)
    except (LookupError, TypeError, AttributeError):
        pass
    return None


def finish_reason(choice: Mapping[str, Any]) -> Any:
    """OpenAI's word for why a choice ended; Google adds a word of its own to a filter's."""
    reason = choice.get("finish_reason")
    filtered = isinstance(reason, str) and reason.startswith("content_filter:")
    return "content_filter" if filtered else reason


def _why(choice: Mapping[str, Any]) -> str:
    """The provider's own word for it."""
    return str(choice.get("native_finish_reason") or choice.get("finish_reason") or "error")


def scrubbed(reply: Reply, scrub: Callable[[str], str]) -> Reply:
    """The reply without what `scrub` takes out of its texts."""
    calls = json.loads(scrub(json.dumps(reply.tool_calls))) if reply.tool_calls else ()
    return replace(reply, text=scrub(reply.text), tool_calls=tuple(calls))


def _read_embedding(tree: Any, request: Request, seconds: float) -> Reply:
    try:
        numbers = tree["data"][0]["embedding"]
        vector = tuple(round(float(each), _DECIMALS) for each in numbers)
        counts = tree.get("usage")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        raise Malformed("it has no list of numbers at data[0].embedding") from None
    if not vector or not all(map(math.isfinite, vector)):
        raise Malformed("its embedding is empty or not finite")
    # Nothing is written, and some servers leave that out.
    if isinstance(counts, dict):
        counts = {"completion_tokens": 0, **cast("dict[str, Any]", counts)}
    usage = told_usage(counts, seconds)
    counted = usage or count_usage(request, "", seconds)
    return Reply("", usage=counted, estimated=usage is None, vector=vector)


def told_usage(tree: object, seconds: float = 0.0) -> Usage | None:
    """What a reply says that the call took; None where it says nothing usable."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    prompt, completion, total = (_count(tree, name) for name in names)
    if not isinstance(tree, dict) or prompt is None or completion is None:
        return None
    # Some count what a model thinks in the total alone, Google and xAI for example, and charge it.
    completion = max(completion, (total or 0) - prompt)
    details = cast("dict[str, Any]", tree).get("prompt_tokens_details")
    return Usage(1, prompt, completion, _count(details, "cached_tokens") or 0, None, seconds)


def cache_written(tree: object) -> int:
    """How much of the prompt a reply says to be in the server's cache from now on."""
    fields = cast("dict[str, Any]", tree) if isinstance(tree, dict) else {}
    return _count(fields.get("prompt_tokens_details"), "cache_write_tokens") or 0


def _count(fields: object, name: str) -> int | None:
    value = cast("dict[str, Any]", fields).get(name) if isinstance(fields, dict) else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _MOST_TOKENS else None


def byte_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def estimate_tokens(text: str) -> int:
    """UTF-8 bytes / 4, rounded up: within a third of common tokenizers on English prose."""
    return -(-byte_size(text) // 4)


def count_usage(request: Request, text: str, seconds: float) -> Usage:
    """Our own count of a call that wrote `text`, where the server's cannot be had. Bytes / 3: a
    budget rests on it, so it is to err upwards where `estimate_tokens` may not."""
    prompt = sum(_PER_MESSAGE + -(-byte_size(m.content) // 3) for m in request.messages)
    return Usage(1, prompt + beyond_texts(request, 3), -(-byte_size(text) // 3), 0, None, seconds)


def beyond_texts(request: Request, bytes_a_token: int) -> int:
    """Tokens of a prompt beside its messages' texts, rather too many: an image by the table of
    `dialects.toml`, and by the most of any provider for a bound (1 byte a token); audio and files
    by a twentieth of the bytes that are sent; tools and a response_format as text."""
    extra, images = request.sampling.extra, dialects()["image_tokens"]
    written = sum(len(json.dumps(extra[n])) for n in ("tools", "response_format") if n in extra)
    image = images["most" if bytes_a_token == 1 else "usual"]
    image = next((n for name, n in images["named"].items() if name in request.model), image)
    media = (part for message in request.messages for part in message.media)
    each = (image if p["type"] == "image_url" else len(json.dumps(p)) // 20 for p in media)
    return -(-written // bytes_a_token) + sum(each)


# What a server refuses, as an error.

_QUOTED = 300
# It came too late or too early, or met another one: said of this moment, not of the request.
_PASSING = (408, 409, 425)
_LOOK = "check the server's own log"
_BAD_GATEWAY = 502  # what an error is that names no kind
_HEAD = 100  # characters of a page in which it may say what is wrong
_STREAM = re.compile(r"\s*(?:data|event|id|retry)?:")  # how the events of a stream begin


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """What errors are about. `private` = real people's data: servers quote what they refuse."""

    base_url: str
    model: str
    key: ApiKey | None = None
    key_names: tuple[str, ...] = ()
    private: bool = False
    spec: str = ""

    @property
    def doctor(self) -> str:
        return f"pco doctor --lm {shell(self.spec)}"

    @property
    def curl(self) -> str:
        """The shortest request, for a shell; a key is named by its variable."""
        hello = {"model": self.model, "messages": [{"role": "user", "content": "hello"}]}
        keyed = "" if self.key is None else f' -H "Authorization: Bearer ${self.key.name}"'
        form = f"-H 'Content-Type: application/json'{keyed} -d {shell(json.dumps(hello))}"
        return f"curl {shell(self.base_url)}/chat/completions {form}"

    def scrub(self, text: str) -> str:
        return text if self.key is None else self.key.scrub(text)

    def clean(self, text: str) -> str:
        """A server's words, short and without our key; none where they may quote private data."""
        if self.private:
            return f"withheld, since the data is private: {len(text)} characters" if text else ""
        scrubbed = self.scrub(" ".join(text.split()))
        return scrubbed if len(scrubbed) <= _QUOTED else scrubbed[:_QUOTED] + "…"


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error body's message, the parameters it points at, its code and type ('' = none), and the
    seconds that it says to wait. Where it came with a 200: why it is no completion, the `status`
    that it describes (0 = none), and whether a model may have `worked` for it."""

    message: str = ""
    param: str = ""
    code: str = ""
    kind: str = ""
    wait: float = 0.0
    misfit: str = ""
    status: int = 0
    worked: bool = False

    @property
    def all(self) -> str:
        return f"{self.message} {self.code}"


def read_error_body(data: bytes) -> ErrorBody:
    """The error in a body, in any of the shapes that servers use; else the body as text."""
    text = data[:20_000].decode("utf-8", "replace")
    tree: Any = _error_tree(text)
    if isinstance(tree, list):  # as Google sends it
        tree = next(iter(cast("list[Any]", tree)), None)
    about = _error_fields(cast("object", tree)) if isinstance(tree, dict | str) else {}
    detail, pointers = about.get("detail") or "", list[str]()
    if isinstance(detail, list):
        faults = [
            cast("dict[str, Any]", e) for e in cast("list[Any]", detail) if isinstance(e, dict)
        ]
        pointers = [_dotted(e.get("loc", [])) for e in faults]
        detail = "; ".join(
            f"{loc}: {e.get('msg', '')}" for loc, e in zip(pointers, faults, strict=True)
        )
    about |= _google_details(about.get("details"))
    texts = (v for n in dialects()["error_body"]["messages"] if isinstance(v := about.get(n), str))
    message = next(texts, detail or strip_tags(text))
    codes = (about[name] for name in dialects()["error_body"]["codes"] if about.get(name))
    param, kind, wait = (str(about.get(n, "")) for n in ("param", "type", "retryDelay"))
    wait = wait or str(about.get("retry_after", ""))
    return ErrorBody(
        str(message),
        param or ", ".join(pointers),
        str(next(codes, "")),
        kind,
        read_retry_after({"Retry-After": wait.removesuffix("s")}),
    )


def read_misfit(data: bytes, why: str) -> ErrorBody:
    """What a 200 holds in place of a completion, with the status that it describes. No server
    bills a page, a sentence or an error; anything else may have been paid for."""
    body, text = read_error_body(data), data[:20_000].decode("utf-8", "replace")
    machine = _STREAM.match(text) or text.lstrip().startswith(("{", "["))
    described = not machine or body.message != text
    # Behind its head a page speaks of much else.
    words = (body.code, body.kind, body.message[: None if machine else _HEAD] if described else "")
    named = [status for each in words if (status := _status_in(each))]
    status = named[0] if named else _BAD_GATEWAY if machine and described else 0
    tree = _error_tree(text)
    fields = cast("dict[str, Any]", tree) if isinstance(tree, dict) else {"choices": True}
    failed = fields.get("success") is False or not fields.get("choices", True)
    failed = failed and not fields.get("usage")
    return replace(body, misfit=why, status=status, worked=not (described or status or failed))


def _status_in(words: str) -> int:
    """The HTTP status that a code, a type or a message names; 0 = none."""
    if number := re.search(r"(?i)(?:^|\b(?:code|error|http|status)\W{1,3})([45]\d\d)\b", words):
        return int(number[1])
    described: Mapping[str, Sequence[str]] = dialects()["described"]
    known = (s for s, forms in described.items() if re.search("|".join(forms), words, re.I))
    return int(next(known, 0))


def _error_tree(text: str) -> object:
    """The body as JSON, or the event of a stream that tells of an error; None = neither."""
    if not _STREAM.match(text):
        with suppress(ValueError):
            return parse_json(text, LENIENT_JSON)
    for line in text.splitlines():
        with suppress(ValueError, TypeError, AttributeError):  # it is no event with an object
            event = parse_json(line.removeprefix("data:"), LENIENT_JSON)
            if event.get("error") or "choices" not in event:
                return event
    return None


def _error_fields(tree: object, about: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """What all levels of a body say of its error: inner fields count for more."""
    if isinstance(tree, list):
        return _error_fields(cast("list[Any]", tree)[0], about) if tree else {**about}
    if not isinstance(tree, dict):
        return {**about} if tree is None else {"message": str(tree), **about}
    fields = cast("dict[str, Any]", tree)
    about = {**about, **{name: value for name, value in fields.items() if value}}
    holders = (about.pop(name) for name in dialects()["error_body"]["holders"] if fields.get(name))
    failed: Any = None
    with suppress(LookupError, TypeError):  # a gateway's, in place of a message
        failed = fields["choices"][0]["error"]
    inner = next(holders, failed)
    return about if inner is None else _error_fields(inner, about)


def _google_details(details: object) -> dict[str, Any]:
    """Why a request was refused, as `code`, and how long to wait; {} from all others."""
    fields = dict[str, Any]()
    for each in cast("list[Any]", details) if isinstance(details, list) else ():
        fields |= each if isinstance(each, dict) else {}
    return fields | ({"code": fields["reason"]} if "reason" in fields else {})


def _dotted(loc: object) -> str:
    return ".".join(map(str, cast("list[object]", loc))) if isinstance(loc, list) else str(loc)


def read_retry_after(headers: Mapping[str, str], now: float | None = None) -> float:
    """Seconds from a Retry-After header, at most an hour; 0 = none or unreadable. It is a number,
    or a date by the server's clock, which its Date header tells: ours may be wrong."""
    value = headers.get("Retry-After", "")
    try:
        seconds = float(value)
    except ValueError:
        at, sent = (_timestamp(each) for each in (value, headers.get("Date", "")))
        if sent is None:
            sent = time.time() if now is None else now
        seconds = 0.0 if at is None else at - sent
    return min(max(0.0, seconds), _LONGEST_WAIT_S) if math.isfinite(seconds) else 0.0


def _timestamp(date: str) -> float | None:
    """An HTTP date; None where it is none."""
    try:
        at = parsedate_to_datetime(date)
        # '-0000' and no zone at all mean UTC, not the zone of this machine.
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def refusal_of(status: int, body: ErrorBody, where: ModelAddress) -> LMError:
    """The error for an HTTP status that is not 200, or for a body that is no completion."""
    quote = where.clean(body.message)
    quoted = f": {quote}" if quote else ""
    if status == 200:
        fault = fault_of(Incident.MALFORMED_BODY, where, body.misfit + quoted)
        fault.lost = body.worked
        return fault
    answered = "200 with an error" if body.misfit else status
    what = f"{where.base_url} answered {answered}{quoted}"
    kind: type[LMError] = RequestRefused
    empty = "|".join(dialects()["described"]["402"])
    told = status in (400, 403, 429) and re.search(empty, body.message, re.I) is not None
    if status == 402 or told or {body.code, body.kind} & {*dialects()["no_credit"]["codes"]}:
        kind, what = errors.NoCredit, f"the account at {where.base_url} has no credit left{quoted}"
        other = f", or set {where.key.name} to a different key" if where.key is not None else ""
        hint = f"top up the account{other}"
    elif status in (429, 503, 529):
        kind, hint = errors.RateLimited, "lower concurrency in pco.toml, or wait"
    elif status >= 500 or status in _PASSING:
        kind, hint = errors.ServerFault, _LOOK
    elif status in (401, 403) or body.code == BAD_KEY:
        kind, hint = errors.AuthRefused, _key_hint(where)
    elif 300 <= status < 400:
        what = f"{where.base_url} redirects elsewhere; the key is not sent there"
        hint = "pass the final address to --lm"
    elif status == 413:
        hint = "the request is too large for this server"
    elif status in (404, 405):
        hint = "the address must end at the API root, usually /v1"
    else:
        hint = f"{where.doctor} shows what this endpoint accepts"
    error = kind(what, hint=hint, model=where.model)
    error.retry_after = body.wait
    if kind is errors.RateLimited and status != 429:
        error.incident = Incident.UNAVAILABLE
    elif kind is errors.ServerFault:
        error.lost = status >= 500 and not body.misfit
    return error


def _key_hint(where: ModelAddress) -> str:
    if where.key is not None:
        return f"the key in {where.key.name} was refused: set a different one"
    if not where.key_names:
        return "set the variable that holds this provider's key"
    return f"no key was sent: export {' or '.join(where.key_names)}=..."


def no_embeddings(what: str, request: Request) -> RequestRefused:
    """The error where embeddings were asked for and there are none; says what to set instead."""
    instead = "router.images = false" if request.messages[0].media else "router.features = 'words'"
    hint = f"{instead}, or set roles.encoder.model to a model that does"
    return RequestRefused(what, hint=hint, role=request.role, model=request.model)


def missing_model(where: ModelAddress, known: Sequence[str]) -> errors.ModelNotFound:
    """The error for a model that the endpoint does not know; lists what it does know."""
    name = where.model or "(none named)"
    listed = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    message = f"{where.base_url} does not know the model {name!r}{did_you_mean(name, known)}"
    hint = f"use one of its models: {listed}" if listed else where.doctor
    return errors.ModelNotFound(message, hint=hint, model=where.model)


def fault_of(incident: Incident, where: ModelAddress, detail: str = "") -> LMError:
    """The error for a call without a usable HTTP answer."""
    at, hint = where.base_url, _LOOK
    kind: type[LMError] = errors.ServerFault
    match incident:
        case Incident.REFUSED_CONNECTION:
            kind, what = errors.EndpointDown, f"nothing answers at {at}"
            hint = f"start the server, or correct its address: {where.doctor}"
            if "WRONG_VERSION_NUMBER" in detail:  # what TLS calls an answer in plain HTTP
                hint = "write http:// in its address: the server does not speak https"
        case Incident.TIMEOUT:
            kind, what = errors.CallTimeout, f"{at} did not answer in time"
            hint = "raise timeout in pco.toml, or lower concurrency"
        case Incident.DROPPED:
            what = f"{at} dropped the connection during a call"
        case _:
            what = f"{at} sent a body that is not a chat completion"
    about = f" ({replace(where, private=False).clean(detail)})" if detail else ""  # our words
    error = kind(what + about, hint=hint, model=where.model)
    error.incident = incident
    return error
