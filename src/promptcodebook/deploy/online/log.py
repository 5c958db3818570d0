"""The requests that may get feedback, and what was said of them: one SQLite file. A request is
written in the background: no caller waits for it, or fails for it. Feedback is acknowledged once it
is committed. Of an input only the hashed words and letters are kept, which the router reads; its
text is kept too where the server logs inputs. docs/feedback.md has every field."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from promptcodebook.base.paths import data_folder, make_private_folder
from promptcodebook.base.sqlite import Layout, Packer, Reader, Write, Writer, store_os_error, unpack
from promptcodebook.base.sync import run_sync
from promptcodebook.errors import ConfigError, DataError, StoreError, import_extra
from promptcodebook.policy.references import Reference

_log = logging.getLogger(__name__)
_PREFIX, _DIGITS = "req-", 24
_MOMENT_S = 0.2
_PATIENCE_S, _AGAIN_S = 1.0, 0.1
"""How long feedback waits for a request that is still on its way to the file."""
MOST_ROWS = 900_000
Query = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]  # all that a statement finds
TABLES = (
    "CREATE TABLE IF NOT EXISTS served (id TEXT PRIMARY KEY, time DOUBLE PRECISION NOT NULL, "
    "ref TEXT NOT NULL, version TEXT NOT NULL, caller TEXT NOT NULL, arm TEXT NOT NULL, "
    "status INTEGER NOT NULL, seconds DOUBLE PRECISION NOT NULL, tokens BIGINT, "
    "erased INTEGER NOT NULL, value {bytes} NOT NULL)",
    "CREATE INDEX IF NOT EXISTS served_by_time ON served (ref, time)",
    "CREATE TABLE IF NOT EXISTS feedback (number {number}, id TEXT NOT NULL, key TEXT NOT NULL, "
    "time DOUBLE PRECISION NOT NULL, reward DOUBLE PRECISION NOT NULL, said TEXT NOT NULL, "
    "UNIQUE (id, key))",
)
LAYOUT = Layout(
    "record of requests",
    1,
    (
        "CREATE TABLE requests (number INTEGER PRIMARY KEY, id TEXT NOT NULL, value BLOB NOT NULL)",
        "CREATE INDEX by_id ON requests (id)",
    ),
    later=(
        "CREATE TABLE IF NOT EXISTS spent (caller TEXT, day TEXT, calls INTEGER NOT NULL, "
        "tokens INTEGER NOT NULL, usd REAL NOT NULL, PRIMARY KEY (caller, day))",
        *(each.format(bytes="BLOB", number="INTEGER PRIMARY KEY AUTOINCREMENT") for each in TABLES),
    ),
)


def is_request_id(text: str) -> bool:
    return re.fullmatch(rf"{_PREFIX}[0-9a-f]{{{_DIGITS}}}", text) is not None


def new_request_id() -> str:
    return _PREFIX + os.urandom(_DIGITS // 2).hex()


def records_path() -> Path:
    chosen = os.environ.get("PCO_REQUESTS", "")
    return Path(chosen).expanduser() if chosen else data_folder() / "requests.sqlite"


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
    Several processes may write to one; `what` begins the line that says it failed. StoreError."""

    def __init__(
        self,
        path: Path,
        what: str,
        write: Callable[[sqlite3.Connection, Sequence[Any]], None],
        each_batch: Write | None = None,
    ) -> None:
        if not path.parent.is_dir():
            try:
                path.parent.parent.mkdir(parents=True, exist_ok=True)
                make_private_folder(path.parent)
            except OSError as error:
                raise store_os_error(error, path.parent) from None
        self.writer = Writer(path, LAYOUT, each_batch=each_batch)
        self._what, self._into = what, write
        self._waiting: list[Any] = []
        self.fails = False

    def put(self, item: Any) -> None:
        """Written within a moment, together with all of that moment. Called in an event loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(_MOMENT_S, self._write)
        self._waiting.append(item)

    def _write(self) -> None:
        items, self._waiting = self._waiting, []
        if items:
            self._try(lambda: self.writer.send(lambda db: self._into(db, items)))

    def close(self) -> None:
        self._write()
        self._try(self.writer.close)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StoreError as error:
            if not self.fails:
                _log.error("%s not recorded: %s", self._what, error)
            self.fails = True


Arm = Literal["", "explored", "canary", "named"]
FeedbackStatus = Literal["kept", "unknown", "erased"]


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request. `time` is in seconds since 1970, `caller` the start of its key's
    digest. `propensity` is the exact chance of its route; an "explored" route is not the best one,
    and a "named" request asked for a version by its hash. `features` are the buckets of the input's
    words and letters (`routing/ranking.py`), and `vector` is its embedding where the router reads
    one. `tokens` is None where the model's server did not say. Unless texts are kept, `input` and
    `output` are empty; `prompt` is kept with them where a model composed it."""

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
    prompt: str = ""
    vector: str = ""


_VALUES = ("route", "propensity", "features", "fallback", "input")
_WHERE_KEPT = ("output", "prompt", "vector")  # takes no room in a row without them
_COLUMNS = ("id", "time", "ref", "version", "caller", "arm", "status", "seconds", "tokens")


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a caller says of an answer: a reward in [0, 1] and words. Of several for one request
    the last counts, and all are kept; one that repeats a `key` is the first one again."""

    request_id: str
    reward: float
    said: str = ""
    key: str = ""
    time: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        """The key that it is known by: its own, or one of what it says."""
        said = json.dumps([self.reward, self.said])
        return self.key or hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:16]


_MOST_WORDS, _MOST_KEY = 10_000, 200


class BadFeedback(DataError):
    """Feedback that cannot be kept: the field at fault, and the HTTP status that says so."""

    def __init__(self, name: str, what: str, status: int = 400) -> None:
        super().__init__(f"{name} must be {what}", hint="docs/feedback.md lists the fields")
        self.name, self.status = name, status


def feedback_of(body: Mapping[str, Any], reward_range: tuple[float, float] = (0, 1)) -> Feedback:
    """What a body or a row says. A `score` is in the task's range of rewards. BadFeedback."""
    asked, said, key = body.get("request_id"), body.get("feedback", ""), body.get("key", "")
    if not isinstance(asked, str) or not is_request_id(asked):
        what = "the whole id of a request, as in the answer's x-request-id"
        raise BadFeedback("request_id", what)
    if not isinstance(said, str) or len(said) > _MOST_WORDS:
        status = 413 if isinstance(said, str) else 400
        raise BadFeedback("feedback", f"a text of at most {_MOST_WORDS} characters", status)
    if not isinstance(key, str) or len(key) > _MOST_KEY:
        raise BadFeedback("key", f"a text of at most {_MOST_KEY} characters")
    name, (low, high) = "reward", (0.0, 1.0)
    if "reward" not in body and "score" in body:
        name, (low, high) = "score", reward_range
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFeedback(name, f"a number from {low:g} to {high:g}")
    if not (math.isfinite(value) and low <= value <= high):
        raise BadFeedback(name, f"from {low:g} to {high:g}", 422)
    return Feedback(asked, (value - low) / (high - low), said, key)


@dataclass(frozen=True, slots=True)
class Logged:
    """A request with the feedback that counts; `number` orders feedback by its arrival, and both
    are None where there is none."""

    served: Served
    reward: float | None = None
    said: str = ""
    number: int | None = None


class ServedLog(Protocol):
    """Where requests and their feedback are kept; `logged` is `read_logged`. All raise
    StoreError."""

    fails: bool

    def put(self, item: Served) -> None: ...
    async def give(self, feedback: Feedback, caller: str | None) -> FeedbackStatus: ...
    def logged(
        self, ref: str, since: float = 0.0, *, after: int = -1, most: int = MOST_ROWS
    ) -> list[Logged]: ...
    def refs(self) -> list[str]: ...
    def erase(self, ids: Sequence[str]) -> int: ...
    def expire(self, before: float) -> None: ...
    def close(self) -> None: ...


def row_of(served: Served, packer: Packer) -> tuple[object, ...]:
    tree = {name: getattr(served, name) for name in _VALUES}
    tree |= {name: text for name in _WHERE_KEPT if (text := getattr(served, name))}
    return (*(getattr(served, name) for name in _COLUMNS), 0, packer.pack(tree))


def _logged_of(row: Sequence[Any]) -> Logged:
    *columns, value, reward, said, number = row
    tree: dict[str, Any] = dict(zip(_COLUMNS, columns, strict=True)) | unpack(bytes(value))
    for name in ("route", "features"):
        tree[name] = tuple(tree[name])
    return Logged(Served(**tree), reward, said or "", number)


INSERT = (
    f"INSERT INTO served ({', '.join(_COLUMNS)}, erased, value) "
    f"VALUES ({', '.join('?' * (len(_COLUMNS) + 2))}) ON CONFLICT (id) DO NOTHING"
)
ADD = (
    "INSERT INTO feedback (id, key, time, reward, said) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (id, key) DO NOTHING"
)
REFS = "SELECT DISTINCT ref FROM served ORDER BY ref"
_LOGGED = (
    f"SELECT {', '.join('s.' + name for name in _COLUMNS)}, s.value, f.reward, f.said, f.number "
    "FROM served s {join} JOIN feedback f ON f.id = s.id AND f.number = "
    "(SELECT max(number) FROM feedback WHERE id = s.id) "
    "WHERE s.ref = ? AND s.time >= ? AND s.erased = 0 {more} LIMIT ?"
)


def read_logged(rows: Query, ref: str, since: float, after: int, most: int) -> list[Logged]:
    """The newest `most` requests of a ref, the oldest first; of more a warning says so. With
    `after` those with feedback of a later number, in the order of these: the next ones are read on
    from the last. An erased one is left out."""
    if after >= 0:
        sql = _LOGGED.format(join="", more="AND f.number > ? ORDER BY f.number")
        return list(map(_logged_of, rows(sql, (ref, since, after, most))))
    sql = _LOGGED.format(join="LEFT", more="ORDER BY s.time DESC, s.id DESC")
    found = list(map(_logged_of, reversed(rows(sql, (ref, since, most)))))
    if len(found) == most:
        _log.warning("of %s no more than the newest %s requests are read", ref, f"{most:,}")
    return found


ERASE = "UPDATE served SET erased = 1, value = ?, caller = '' WHERE id = ?"
UNSAY = "UPDATE feedback SET said = '' WHERE id = ?"
EXPIRE = (
    "DELETE FROM feedback WHERE id IN (SELECT id FROM served WHERE time < ?)",
    "DELETE FROM served WHERE time < ?",
)


class SqliteLog(BackgroundFile):
    """The log in a file that servers on one machine share."""

    def __init__(self, path: Path) -> None:
        def write(db: sqlite3.Connection, served: Sequence[Served]) -> None:
            packer = Packer()
            db.executemany(INSERT, [row_of(each, packer) for each in served])

        super().__init__(path, "requests are", write)
        self._path = path

    async def give(self, feedback: Feedback, caller: str | None) -> FeedbackStatus:
        """Commits feedback; `caller` None may speak of any request. What another caller asked is
        unknown to this one."""

        async def once() -> FeedbackStatus:
            found: list[FeedbackStatus] = []

            def work(db: sqlite3.Connection) -> None:
                row = db.execute(OWNER, (feedback.request_id,)).fetchone()
                found[:] = [judged(row, caller)]
                if found[0] == "kept":
                    db.execute(ADD, said(feedback))

            await self.writer.write(work)
            return found[0]

        return await patiently(once)

    def logged(
        self, ref: str, since: float = 0.0, *, after: int = -1, most: int = MOST_ROWS
    ) -> list[Logged]:
        return read_logged(self._rows, ref, since, after, most)

    def refs(self) -> list[str]:
        return [row[0] for row in self._rows(REFS)]

    def _rows(self, sql: str, given: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with closing(Reader(self._path, LAYOUT)) as reader:
            return reader.rows(sql, given) if reader.has("served") else []

    def erase(self, ids: Sequence[str]) -> int:
        """Blanks requests and the words of their feedback: how many there were."""
        found: list[int] = []

        def work(db: sqlite3.Connection) -> None:
            db.executemany("DELETE FROM requests WHERE id = ?", [(each,) for each in ids])
            found[:] = [erase(lambda sql, given: db.execute(sql, given), each) for each in ids]

        self.writer.write_now(work)
        return sum(found)

    def expire(self, before: float) -> None:
        """Deletes what was asked before this time."""
        self.writer.write_now(lambda db: [db.execute(sql, (before,)) for sql in EXPIRE])


Execute = Callable[[str, tuple[object, ...]], Any]  # runs a statement and returns its cursor


OWNER = "SELECT caller, erased FROM served WHERE id = ?"


def judged(row: Sequence[Any] | None, caller: str | None) -> FeedbackStatus:
    """What becomes of feedback from a caller, by the row of OWNER."""
    if row is None or (caller is not None and not row[1] and row[0] != caller):
        return "unknown"
    return "erased" if row[1] else "kept"


def said(feedback: Feedback) -> tuple[object, ...]:
    """What ADD adds. No database keeps lone surrogates, nor Postgres a zero byte."""
    key, words = (
        text.encode("utf-8", "replace").decode().replace("\0", "?")
        for text in (feedback.name, feedback.said)
    )
    return feedback.request_id, key, feedback.time, feedback.reward, words


async def patiently(once: Callable[[], Awaitable[FeedbackStatus]]) -> FeedbackStatus:
    """What becomes of feedback whose request may be on its way to the log still."""
    ends = time.monotonic() + _PATIENCE_S
    while True:
        became = await once()
        if became != "unknown" or time.monotonic() > ends:
            return became
        await asyncio.sleep(_AGAIN_S)


def erase(execute: Execute, request_id: str) -> int:
    empty = {"route": (), "propensity": 1.0, "features": (), "fallback": False}
    execute(UNSAY, (request_id,))
    return int(execute(ERASE, (Packer().pack(empty), request_id)).rowcount)


def open_log(location: str = "") -> ServedLog:
    """The log at `$PCO_FEEDBACK`, or else in the record of requests."""
    place = location or os.environ.get("PCO_FEEDBACK", "")
    if place.startswith(("postgresql://", "postgres://")):
        own = import_extra("promptcodebook.deploy.online.postgres", "a log in Postgres", "postgres")
        return own.PostgresLog(place)
    return SqliteLog(Path(place).expanduser() if place else records_path())


def feedback(request_id: str, reward: float, feedback: str = "", *, key: str = "") -> None:
    """Says what became of a served request: a reward in [0, 1], and words. Of several the last
    counts; the same `key` again changes nothing. BadFeedback, also for a request that is not on
    record here (status 404) or was erased (410)."""
    given = feedback_of(
        {"request_id": request_id, "reward": reward, "feedback": feedback, "key": key}
    )
    with closing(open_log()) as log:
        became = run_sync(log.give(given, None))
    if became != "kept":
        what = {"unknown": "of a request on record here", "erased": "of one that is not erased"}
        raise BadFeedback("request_id", what[became], {"unknown": 404, "erased": 410}[became])


def seconds_of(text: str) -> float:
    """A duration such as 30d, 12h or 90m, in seconds. ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is no duration", hint="write e.g. 30d, 12h or 90m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[match[2]]
