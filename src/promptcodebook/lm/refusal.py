"""Why an endpoint gave no reply, as one of our errors.

It refused (`refusal_of`), does not know the model (`missing_model`), or sent nothing that could be
read (`fault_of`). None of them ever quotes the key.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, cast

from promptcodebook.calls import Request
from promptcodebook.errors import (
    AuthRefused,
    CallTimeout,
    EndpointDown,
    LMError,
    ModelNotFound,
    NoCredit,
    RateLimited,
    RequestRefused,
    ServerFault,
    did_you_mean,
)
from promptcodebook.incidents import Incident
from promptcodebook.lm.spec import ApiKey

_QUOTED = 300
# It came too late or too early, or met another one: said of this moment, not of the request.
_PASSING = (408, 409, 425)
# What servers call an account that is empty or closed, most of them in a 429.
_NO_CREDIT = (
    "insufficient_quota",
    "insufficient_balance",
    "insufficient_credits",
    "billing_hard_limit_reached",
    "billing_not_active",
    "credit_balance_too_low",
)
_NO_CREDIT_SAID = ("insufficient balance", "credit balance is too low", "insufficient credits")


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """Whom errors are about: the endpoint, the model asked for, the key if one was sent.

    `private` = what is sent there is real people's: servers like to quote what they refuse.
    """

    base_url: str
    model: str
    key: ApiKey | None = None
    key_names: tuple[str, ...] = ()
    private: bool = False

    @property
    def doctor(self) -> str:
        """The command that looks at this endpoint."""
        return f"pco doctor --lm {self.base_url}" + (f"#{self.model}" if self.model else "")

    def clean(self, text: str) -> str:
        """A server's words, without our key and cut to a readable length; none of them where they
        may quote private data."""
        if self.private:
            return f"withheld, since the data are private: {len(text)} characters" if text else ""
        flat = " ".join(text.split())
        scrubbed = self.key.scrub(flat) if self.key is not None else flat
        return scrubbed if len(scrubbed) <= _QUOTED else scrubbed[:_QUOTED] + "…"


def refusal_of(status: int, body: ErrorBody, where: ModelAddress, wait: float = 0.0) -> LMError:
    """The error for an HTTP status that is not 200; `wait` = the Retry-After in seconds."""
    quote = where.clean(body.message)
    what = f"{where.base_url} answered {status}" + (f": {quote}" if quote else "")
    error: LMError
    if _is_empty(status, body):
        error = NoCredit(
            f"the account at {where.base_url} has no credit left" + (f": {quote}" if quote else ""),
            hint=_credit_hint(where),
            model=where.model,
        )
    elif status in (429, 503):
        error = RateLimited(what, hint="lower concurrency in pco.toml, or wait", model=where.model)
        error.incident = Incident.RATE_LIMITED if status == 429 else Incident.UNAVAILABLE
    elif status >= 500 or status in _PASSING:
        error = ServerFault(what, hint="look at the server's own log", model=where.model)
        error.lost = status >= 500
    elif status in (401, 403):
        error = AuthRefused(what, hint=_key_hint(where), model=where.model)
    elif 300 <= status < 400:
        error = RequestRefused(
            f"{where.base_url} redirects elsewhere; the key is not sent there",
            hint="name the final address in --lm",
            model=where.model,
        )
    else:
        error = RequestRefused(what, hint=_request_hint(status, where), model=where.model)
    error.retry_after = wait
    return error


def _is_empty(status: int, body: ErrorBody) -> bool:
    if status == 402 or any(code in (body.code, body.kind) for code in _NO_CREDIT):
        return True
    low = body.message.lower()
    return status in (400, 403, 429) and any(said in low for said in _NO_CREDIT_SAID)


def _credit_hint(where: ModelAddress) -> str:
    other = f", or put another key into {where.key.name}" if where.key is not None else ""
    return f"top up the account{other}; then go on from here"


def _key_hint(where: ModelAddress) -> str:
    if where.key is not None:
        return f"the key in {where.key.name} was refused: set another one"
    if not where.key_names:
        return "set the variable in which this provider's key is looked for"
    return f"no key was sent: export {' or '.join(where.key_names)}=..."


def _request_hint(status: int, where: ModelAddress) -> str:
    if status == 413:
        return "the request is too large for this server"
    if status in (404, 405):
        return f"does the address end where the API begins (often /v1)? {where.doctor}"
    return f"{where.doctor} shows what this endpoint accepts"


def no_embeddings(what: str, request: Request) -> RequestRefused:
    """That there are none where they were asked for, and what to set instead."""
    return RequestRefused(
        what,
        hint="router.features = 'words', or name a model that does in roles.encoder.model",
        role=request.role,
        model=request.model,
    )


def missing_model(where: ModelAddress, known: Sequence[str]) -> ModelNotFound:
    """The error for a model that the endpoint does not know; lists what it does know."""
    name = where.model or "(none named)"
    guess = did_you_mean(name, known)
    listed = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return ModelNotFound(
        f"{where.base_url} does not know the model {name!r}{guess}",
        hint=f"name one that it lists: {listed}" if listed else where.doctor,
        model=where.model,
    )


def fault_of(kind: Incident, where: ModelAddress, detail: str = "") -> LMError:
    """The error for a call without a usable HTTP answer.

    `kind` is REFUSED_CONNECTION, TIMEOUT, DROPPED or MALFORMED_BODY.
    """
    about = f" ({replace(where, private=False).clean(detail)})" if detail else ""  # our words
    error: LMError
    if kind is Incident.REFUSED_CONNECTION:
        error = EndpointDown(
            f"nothing answers at {where.base_url}{about}",
            hint=f"start the server, or correct its address: {where.doctor}",
            model=where.model,
        )
    elif kind is Incident.TIMEOUT:
        error = CallTimeout(
            f"{where.base_url} did not answer in time{about}",
            hint="raise timeout in pco.toml, or lower concurrency",
            model=where.model,
        )
    else:
        malformed = kind is Incident.MALFORMED_BODY
        what = (
            "sent a body that is not a chat completion"
            if malformed
            else "broke the connection in the middle of a call"
        )
        error = ServerFault(
            f"{where.base_url} {what}{about}",
            hint="look at the server's own log",
            model=where.model,
        )
    error.incident = kind
    return error


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error body's message, the parameter it points at, its code and type ('' = none)."""

    message: str = ""
    param: str = ""
    code: str = ""
    kind: str = ""

    @property
    def all(self) -> str:
        return f"{self.message} {self.code}"


def read_error_body(data: bytes) -> ErrorBody:
    """The error in a body, in any of the shapes that servers use; else the body as text."""
    text = data[:20_000].decode("utf-8", "replace")
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return ErrorBody(text)
    if not isinstance(tree, dict):
        return ErrorBody(text)
    fields = cast("dict[str, Any]", tree)
    error = fields.get("error", fields)
    if not isinstance(error, dict):
        return ErrorBody(str(error))
    inner = cast("dict[str, Any]", error)
    message = inner.get("message") or _detail(inner.get("detail")) or text
    param, code, kind = (str(inner.get(name) or "") for name in ("param", "code", "type"))
    return ErrorBody(str(message), param, code, kind)


def _detail(detail: object) -> str:
    if not isinstance(detail, list):
        return str(detail) if detail else ""
    faults: list[str] = []
    for each in cast("list[object]", detail):
        if isinstance(each, dict):
            fault = cast("dict[str, Any]", each)
            loc = fault.get("loc", [])
            parts = cast("list[object]", loc) if isinstance(loc, list) else [loc]
            where = ".".join(str(part) for part in parts)
            faults.append(f"{where}: {fault.get('msg', '')}")
    return "; ".join(faults)


def read_retry_after(value: str | None, now: float | None = None) -> float:
    """Seconds from a Retry-After header, which is a number or a date; 0 = none or unreadable."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value, time.time() if now is None else now)
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _seconds_until(date: str, now: float) -> float:
    try:
        at = parsedate_to_datetime(date)
        # '-0000' and no zone at all mean UTC, not the zone of this machine.
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
