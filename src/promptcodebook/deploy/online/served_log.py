"""The requests that may get feedback, and what was said of them: one SQLite file. A request is
written in the background: no caller waits for it, or fails for it. Feedback is acknowledged once it
is committed. Of an input only the hashed words and letters are kept, which the router reads; its
text is kept too where the server logs inputs.

`id`, `time`, `ref`, `version`: the request, when, and which policy answered. `caller`: the start of
the SHA-256 of its key. `arm`: empty, `explored` or `canary`; `prompt`: it asked /v1/prompt.
`status`, `seconds`, `tokens`: what became of it. `route`, `propensity`: the instincts, and the
exact chance of that route. `features`: hashed words and letters. `fallback`: whether a model that
routes or composes had failed. `vector`: the input's embedding, two bytes a number. `input`,
`output`: the texts (20,000 characters; with `serve.sticky` of the first turn). Feedback: reward,
words, key and time."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from promptcodebook.base.paths import data_folder, make_private_folder, path_from
from promptcodebook.base.sqlite import Layout, Packer, Reader, Write, Writer, on_disk, unpack
from promptcodebook.base.sync import run_sync
from promptcodebook.deploy.online.sequences import ValueCounts
from promptcodebook.errors import ConfigError, DataError, StoreError
from promptcodebook.policy.references import Reference

_log = logging.getLogger(__name__)
_PREFIX, _DIGITS = "req-", 24
_MOMENT_S = 0.2
_PATIENCE_S, _AGAIN_S = 1.0, 0.1
"""How long feedback waits for a request that is still on its way to the file."""
_PAGE = 500  # Requests that are read at once: their texts are in memory together.
_LONG_S = 600.0  # What a statement over a long log may take; this file is ours.
WAITING, _RETRY_S = 50_000, 1.0
"""How many requests wait for a disk that takes none, and how long until it is tried again."""
_SLOW_S = 5.0  # A write that has no answer for so long counts as failed, though it may succeed yet.
LAYOUT = Layout("record of requests", 1, (Path(__file__).with_suffix(".sql"),))


def is_request_id(text: str) -> bool:
    return re.fullmatch(rf"{_PREFIX}[0-9a-f]{{{_DIGITS}}}", text) is not None


def new_request_id() -> str:
    return _PREFIX + os.urandom(_DIGITS // 2).hex()


def records_path() -> Path:
    return path_from("PCO_REQUESTS") or data_folder() / "requests.sqlite"


def served_name(reference: Reference) -> str:
    """The name that callers use: a run's given name, or a file's without its endings."""
    header = reference.header
    called = header.name if header is not None and header.name else reference.name
    name = called.removesuffix(".json").removesuffix(".pco")
    return re.sub(r"[^\w.@-]+", "-", name) or "policy"


def logged_name(ref: str, reference: Reference) -> str:
    """What requests to a policy are logged under: its NAME@REF, else the name that callers use."""
    return ref if "@" in ref else served_name(reference)


class BackgroundFile:
    """A file that is written to in the background: requests do not wait for it, nor fail for it.
    What the disk refuses is written again until it is there. Of more than twice `WAITING` items
    `fewer` makes few; without it the oldest are lost, and the log says so. `lost` counts them, and
    what could not be written at all. Several processes may write to one file; `what` begins the
    line that says it failed. Raises StoreError."""

    lost = 0
    _failed, _began = False, math.inf

    def __init__(
        self,
        path: Path,
        what: str,
        write: Callable[[sqlite3.Connection, Sequence[Any]], None],
        each_batch: Write | None = None,
        fewer: Callable[[list[Any]], list[Any]] | None = None,
    ) -> None:
        if not path.parent.is_dir():
            with on_disk(path.parent):
                path.parent.parent.mkdir(parents=True, exist_ok=True)
                make_private_folder(path.parent)
        self.writer = Writer(path, LAYOUT, each_batch=each_batch, recovers=True)
        self._what, self._into, self._fewer = what, write, fewer
        self._waiting: list[Any] = []
        self._lock = threading.Lock()  # the writer's thread gives back what it could not write
        self._scheduled = False

    @property
    def fails(self) -> bool:
        """Whether nothing is written now: refused, or without an answer for some seconds."""
        return self._failed or time.monotonic() - self._began > _SLOW_S

    def put(self, item: Any) -> None:
        """Written within a moment, together with all of that moment. Called in an event loop."""
        with self._lock:
            self._waiting.append(item)
            if len(self._waiting) > 2 * WAITING and self._fewer is not None:
                self._waiting = self._fewer(self._waiting)
            elif len(self._waiting) > 2 * WAITING:
                self.lost += len(self._waiting) - WAITING
                self._waiting = self._waiting[-WAITING:]
                _log.error("some %s were not recorded: the disk is too slow", self._what)
            begins, self._scheduled = not self._scheduled, True
        if begins:
            loop = asyncio.get_running_loop()
            loop.call_later(_MOMENT_S, self._write, loop)

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            items, self._waiting = self._waiting, []
        self._began = time.monotonic()

        def done(future: Future[None]) -> None:
            error = future.exception()
            if error is not None and not self._failed:
                _log.error("%s were not recorded: %s", self._what, error)
            self._failed, self._began = error is not None, math.inf
            with self._lock:
                if error is not None:
                    self._waiting = [*items, *self._waiting]
                self._scheduled = bool(self._waiting)
            if self._scheduled:
                wait = _MOMENT_S if error is None else _RETRY_S
                with suppress(RuntimeError):  # the loop has ended, and `close` writes the rest
                    loop.call_soon_threadsafe(loop.call_later, wait, self._write, loop)

        with suppress(StoreError):  # it is closed, and `close` wrote what waited
            self.writer.submit(lambda db: self._write_each(db, items)).add_done_callback(done)

    def _write_each(self, db: sqlite3.Connection, items: Sequence[Any]) -> None:
        """One that cannot be written costs no other. A disk or a lock that refuses costs none."""
        db.execute("SAVEPOINT items")
        try:
            self._into(db, items)
        except Exception as error:
            if type(error) in (sqlite3.OperationalError, sqlite3.DatabaseError):
                raise
            db.execute("ROLLBACK TO items")
            if len(items) == 1:
                self.lost += 1
                _log.error("one item was not recorded (%s): %s", self._what, type(error))
            else:
                for item in items:
                    self._write_each(db, [item])
        db.execute("RELEASE items")

    def close(self) -> None:
        items = self._waiting
        try:
            self.writer.write_now(lambda db: None)  # what is under way is back where it failed
            if items := self._waiting:
                self.writer.write_now(lambda db: self._write_each(db, items))
        except StoreError as error:
            _log.error("%d items were not recorded (%s): %s", len(items), self._what, error)
        finally:
            self.writer.close()


Arm = Literal["", "explored", "canary", "prompt"]
FeedbackStatus = Literal["kept", "again", "unknown", "erased", "conflict", "full"]
"""What becomes of feedback: "again" = it was there already; "conflict" = its key was, with other
content; "full" = no more is kept of that request."""


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request. `time` is in seconds since 1970, `caller` the start of its key's
    digest. `propensity` is the exact chance of its route; an "explored" route is not the best one,
    and of a "prompt" no user saw an answer.
    `features` are the buckets of the input's words and letters (`routing/ranking.py`), and
    `vector` is its embedding where the router reads one. `tokens` is None where the model's server
    did not say. Unless texts are kept, `input` and `output` are empty. `slices` are what its
    metadata says, such as "channel = phone"."""

    id: str
    time: float
    ref: str
    version: str
    caller: str
    arm: Arm
    status: int
    seconds: float
    tokens: int | None
    route: tuple[int, ...]
    propensity: float
    features: tuple[int, ...]
    fallback: bool = False
    input: str = ""
    output: str = ""
    vector: str = ""
    slices: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Not one whose caller hung up."""
        return self.status >= 400 and self.status != 499

    @property
    def seen(self) -> bool:
        """Whether a user can have seen an answer: of no other request does feedback count."""
        return self.arm != "prompt" and not self.failed


_VALUES = ("route", "propensity", "features", "fallback", "input")
_WHERE_KEPT = ("output", "vector", "slices")  # takes no room in a row without them
_COLUMNS = ("id", "time", "ref", "version", "caller", "arm", "status", "seconds", "tokens")


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a caller says of an answer: a reward in [0, 1] and words. Of several for one request
    the last counts, and all are kept; one that repeats a `key` is the first one again."""

    request_id: str
    reward: float
    text: str = ""
    key: str = ""
    time: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        """The key that it is known by: its own, or one of what it says."""
        content = json.dumps([self.reward, self.text])
        return self.key or hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


_MOST_WORDS, _MOST_KEY = 10_000, 200
MOST_PIECES, MOST_BYTES = 20, 64 * 1024
"""Pieces of feedback that are kept of one request, and bytes of keys and words."""


class BadFeedback(DataError):
    """Feedback that cannot be kept: the field at fault, and the HTTP status that says so."""

    def __init__(self, name: str, what: str, status: int = 400) -> None:
        super().__init__(f"{name} must be {what}", hint="docs/feedback.md lists the fields")
        self.name, self.status = name, status


def feedback_of(body: Mapping[str, Any]) -> Feedback:
    """What a body or a row says. Raises BadFeedback."""
    asked, words, key = body.get("request_id"), body.get("feedback", ""), body.get("key", "")
    if not isinstance(asked, str) or not is_request_id(asked):
        what = "the full id of a request, as in the response's x-request-id"
        raise BadFeedback("request_id", what)
    if not isinstance(words, str) or len(words) > _MOST_WORDS:
        status = 413 if isinstance(words, str) else 400
        raise BadFeedback("feedback", f"a string of at most {_MOST_WORDS} characters", status)
    if not isinstance(key, str) or len(key) > _MOST_KEY:
        raise BadFeedback("key", f"a string of at most {_MOST_KEY} characters")
    reward = body.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise BadFeedback("reward", "a number from 0 to 1")
    if not 0 <= reward <= 1:  # nor is NaN; a number of 400 digits is no float
        raise BadFeedback("reward", "from 0 to 1", 422)
    return Feedback(asked, float(reward), words, key)


@dataclass(frozen=True, slots=True)
class Logged:
    """A request with the feedback that counts: None where there is none."""

    served: Served
    reward: float | None = None
    text: str = ""


class Traffic(NamedTuple):
    """The requests of one version; `reward` is a sum."""

    version: str
    requests: int
    failed: int
    explored: int
    feedback: int
    reward: float


def add_served(db: sqlite3.Connection, requests: Sequence[Served]) -> None:
    packer, rows = Packer(), list[tuple[object, ...]]()
    for each in requests:
        tree = {name: getattr(each, name) for name in _VALUES}
        tree |= {name: text for name in _WHERE_KEPT if (text := getattr(each, name))}
        rows.append((*(getattr(each, name) for name in _COLUMNS), 0, packer.pack(tree)))
    into = f"INSERT INTO served ({', '.join(_COLUMNS)}, erased, value) "
    marks = ", ".join("?" * (len(_COLUMNS) + 2))
    db.executemany(f"{into} VALUES ({marks}) ON CONFLICT (id) DO NOTHING", rows)


def add_feedback(db: sqlite3.Connection, given: Feedback) -> None:
    row = given.request_id, given.name, given.time, given.reward, given.text
    db.execute("INSERT INTO feedback (id, key, time, reward, said) VALUES (?, ?, ?, ?, ?)", row)


def _logged_of(row: Sequence[Any]) -> Logged:
    *columns, value, reward, words = row
    tree: dict[str, Any] = dict(zip(_COLUMNS, columns, strict=True)) | unpack(bytes(value))
    tree.pop("prompt", None)  # until November 2026 it was kept here, too
    for name in ("route", "features", "slices"):
        tree[name] = tuple(tree.get(name, ()))
    return Logged(Served(**tree), reward, words or "")


_LAST = (
    "JOIN feedback f ON f.id = s.id AND f.number = "
    "(SELECT max(number) FROM feedback WHERE id = s.id) "
    "WHERE s.ref = ? AND s.time >= ? AND s.erased = 0"
)
_PAGE_OF = (
    f"SELECT {', '.join('s.' + name for name in _COLUMNS)}, s.value, f.reward, f.said "
    f"FROM served s {{join}} {_LAST} AND s.time <= ? AND (s.time, s.id) < (?, ?) "
    "AND substr(s.id, 5, 6) <= ? ORDER BY s.time DESC, s.id DESC LIMIT ?"
)
_FAILED = "s.status >= 400 AND s.status <> 499"
_TRAFFIC = (
    f"SELECT s.version, count(*), sum(CASE WHEN {_FAILED} THEN 1 ELSE 0 END), "
    "sum(CASE WHEN s.arm = 'explored' THEN 1 ELSE 0 END), "
    f"count(f.reward), coalesce(sum(f.reward), 0) FROM served s LEFT {_LAST} GROUP BY 1"
)
_ANSWERED = "CASE WHEN f.reward IS NULL THEN 0.0 ELSE 1.0 END"
_MEASURES = {
    "reward": ("f.reward", f"f.reward IS NOT NULL AND NOT ({_FAILED})"),
    "answered": (_ANSWERED, f"NOT ({_FAILED})"),
    "answered, explored": (_ANSWERED, f"NOT ({_FAILED}) AND s.arm = 'explored'"),
    "answered, not explored": (_ANSWERED, f"NOT ({_FAILED}) AND s.arm <> 'explored'"),
    "failed": (f"CASE WHEN {_FAILED} THEN 1.0 ELSE 0.0 END", "1 = 1"),
    "seconds": ("s.seconds", f"NOT ({_FAILED})"),
    "tokens": ("s.tokens", f"s.tokens IS NOT NULL AND NOT ({_FAILED})"),
}
"""Of a request, and which requests have one."""
_SPREAD = (
    "SELECT version, caller, round(60 * x - 0.5), count(*), sum(x) FROM ("
    "SELECT s.version, s.caller, CASE WHEN {value} > ? THEN 1.0 ELSE {value} / ? END AS x "
    f"FROM served s LEFT {_LAST} AND s.time < ? AND s.arm <> 'prompt' AND {{only}}"
    ") AS each_one GROUP BY 1, 2, 3"
)


class ServedLog(BackgroundFile):
    """Where requests and their feedback are kept: a file that servers on one machine share. What is
    read takes memory for a page of requests or for sums, however long the log is. All raise
    StoreError."""

    def __init__(self, path: Path | None = None) -> None:
        """At `path`, else in the record of requests."""
        self._path = path or records_path()
        super().__init__(self._path, "requests are", add_served)

    async def give(self, feedback: Feedback, caller: str | None) -> FeedbackStatus:
        """Commits feedback; `caller` None may speak of any request. What another caller asked is
        unknown to this one. The request itself may be on its way to the log still."""
        key, words = (  # SQLite keeps no lone surrogates
            text.encode("utf-8", "replace").decode() for text in (feedback.name, feedback.text)
        )
        said, found = replace(feedback, key=key, text=words), list[FeedbackStatus]()

        def work(db: sqlite3.Connection) -> None:
            owner = "SELECT caller, erased FROM served WHERE id = ?"
            known = "SELECT key, reward, said FROM feedback WHERE id = ?"
            row = db.execute(owner, (said.request_id,)).fetchone()
            earlier = db.execute(known, (said.request_id,)).fetchall()
            found[:] = [_judged(row, earlier, (key, said.reward, words), caller)]
            if found[0] == "kept":
                add_feedback(db, said)

        ends = time.monotonic() + _PATIENCE_S
        while True:
            await self.writer.write(work)
            if found[0] != "unknown" or time.monotonic() > ends:
                return found[0]
            await asyncio.sleep(_AGAIN_S)

    def erase(self, ids: Sequence[str]) -> int:
        """Blanks requests and the words of their feedback: how many there were."""
        found: list[int] = []

        def work(db: sqlite3.Connection) -> None:
            empty = {"route": (), "propensity": 1.0, "features": (), "fallback": False}
            blank = Packer().pack(empty)
            for each in ids:
                db.execute("DELETE FROM requests WHERE id = ?", (each,))
                db.execute("UPDATE feedback SET said = '' WHERE id = ?", (each,))
                sql = "UPDATE served SET erased = 1, value = ?, caller = '' WHERE id = ?"
                found.append(db.execute(sql, (blank, each)).rowcount)

        self.writer.write_now(work)
        return sum(found)

    def _rows(self, sql: str, given: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with closing(Reader(self._path, LAYOUT, _LONG_S)) as reader:
            return reader.rows(sql, given)

    def refs(self) -> list[str]:
        found, last = list[str](), ""
        while rows := self._rows("SELECT min(ref) FROM served WHERE ref > ?", (last,)):
            if (last := rows[0][0]) is None:
                break
            found.append(last)
        return found

    def newest(
        self,
        ref: str,
        since: float = 0.0,
        until: float = math.inf,
        *,
        share: float = 1.0,
        rewarded: bool = False,
    ) -> Iterator[Logged]:
        """The requests of a span of time, the newest first, or only the `rewarded` ones. A `share`
        of them is drawn by their ids, so that it only grows with the log. An erased one is left
        out."""
        sql = _PAGE_OF.format(join="" if rewarded else "LEFT")
        drawn, at = f"{min(int(share * 16**6), 16**6 - 1):06x}", (until, "")
        while page := self._rows(sql, (ref, since, until, *at, drawn, _PAGE)):
            yield from map(_logged_of, page)
            at = page[-1][1], page[-1][0]

    def traffic(self, ref: str, since: float) -> list[Traffic]:
        """By version."""
        return [Traffic(*row) for row in self._rows(_TRAFFIC, (ref, since))]

    def spread(
        self, name: str, ref: str, since: float, until: float = math.inf, full: float = 1.0
    ) -> dict[tuple[str, str], ValueCounts]:
        """Values of a measure by version and caller, `full` counted as 1. Requests that no user saw
        are left out."""
        value, only = _MEASURES[name]
        sql = _SPREAD.format(value=value, only=only)
        found = dict[tuple[str, str], list[tuple[int, int, float]]]()
        for version, caller, knot, count, total in self._rows(sql, (full, full, ref, since, until)):
            found.setdefault((version, caller), []).append((int(knot), count, total))
        return {key: ValueCounts.counted(rows) for key, rows in found.items()}

    def expire(self, before: float) -> None:
        """Deletes what was asked before this time, a little at a time: feedback comes between."""
        some = "SELECT id FROM served WHERE ref = ? AND time < ? LIMIT ?"
        for ref in self.refs():
            while keys := self._rows(some, (ref, before, _PAGE)):
                self.writer.write_now(partial(_forget, keys=keys))


def _forget(db: sqlite3.Connection, keys: Sequence[Any]) -> None:
    db.executemany("DELETE FROM feedback WHERE id = ?", keys)
    db.executemany("DELETE FROM served WHERE id = ?", keys)


def _judged(
    row: Sequence[Any] | None,
    known: Sequence[Sequence[Any]],
    given: tuple[str, float, str],
    caller: str | None,
) -> FeedbackStatus:
    """What becomes of feedback (key, reward, words) from a caller, by the request's caller and
    whether it is erased, and by the feedback that is there."""
    if row is None or (caller is not None and not row[1] and row[0] != caller):
        return "unknown"
    if row[1]:
        return "erased"
    for each in known:
        if each[0] == given[0]:
            return "again" if tuple(each) == given else "conflict"
    held = sum(len(f"{name}{text}".encode()) for name, _, text in [*known, given])
    return "full" if len(known) >= MOST_PIECES or held > MOST_BYTES else "kept"


REFUSED: Mapping[FeedbackStatus, tuple[str, str, int]] = {
    "unknown": ("request_id", "the id of a request that is on record here", 404),
    "erased": ("request_id", "the id of a request that has not been erased", 410),
    "conflict": ("key", "new for each request: this key was used before with other content", 409),
    "full": ("request_id", "the id of a request with room for more feedback", 413),
}
"""The field at fault, what it must be, and the HTTP status."""


def feedback(request_id: str, reward: float, feedback: str = "", *, key: str = "") -> None:
    """Say what became of a served request. Of several the last counts.

    - `request_id`: the whole id, as in the answer's x-request-id.
    - `reward`: a number in [0, 1].
    - `feedback`: words about the answer ('').
    - `key`: the same key again changes nothing ('': no key).

    Raises BadFeedback when a value cannot be used, and when the request is not on record here
    (status 404), was erased (410), has no room (413), or the key came with another content (409).
    """
    given = feedback_of(
        {"request_id": request_id, "reward": reward, "feedback": feedback, "key": key}
    )
    with closing(ServedLog()) as log:
        became = run_sync(log.give(given, None))
    if became in REFUSED:
        raise BadFeedback(*REFUSED[became])


def seconds_of(text: str) -> float:
    """A duration such as 30d, 12h or 90m, in seconds. Raises ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a duration", hint="write e.g. 30d, 12h or 90m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[match[2]]
