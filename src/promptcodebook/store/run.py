"""A run's folder: `run.sqlite` (events, journal, usage, counts), `lock`, attempts `in-flight`."""

from __future__ import annotations

import logging
import math
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from promptcodebook.base.paths import (
    make_private_folder,
    make_secret,
    read_secret,
    run_reference,
    tighten,
)
from promptcodebook.base.sqlite import Layout, Reader, Write, on_disk, store_os_error
from promptcodebook.calls import Reply, Request, Role, Usage
from promptcodebook.errors import DiskFull, RunNotFound, StoreError
from promptcodebook.lm.cache import unpack_reply
from promptcodebook.store.events import (
    Amended,
    Compared,
    Concluded,
    Event,
    RunState,
    Started,
    Stepped,
    Trained,
    Validated,
    fold,
    pack_event,
    unpack_event,
)
from promptcodebook.store.header import Header, is_sealed, run_id, seal
from promptcodebook.store.journal import FIRST_BOOKS, LATER_BOOKS, Journal, add_count, read_book
from promptcodebook.store.lock import FILE, RunLock, is_blank, refuse_links
from promptcodebook.types import Evaluation, Parameters, Step, Trace

_log = logging.getLogger(__name__)
_E = TypeVar("_E", bound=Event)

LAYOUT = Layout(
    what="run store",
    version=2,  # events of 2 name an instinct by its index, of 1 by 'c<index>'
    since=1,
    script=(Path(__file__).with_suffix(".sql"), FIRST_BOOKS),
    later=(LATER_BOOKS,),
)
_CHUNK = 32  # events read at a time: no read transaction stays open while the caller looks at one
_LIGHT = "SELECT e.seq, e.kind, e.light, NULL FROM events e"
_FULL = "SELECT e.seq, e.kind, e.light, b.blob FROM events e LEFT JOIN bulk b USING (seq)"
_LAST_STEP = "(SELECT MAX(seq) FROM events WHERE kind = 'stepped')"


class RunStore:
    """Made by `create` or `open`; closed by `close`. Reading sees every commit so far. Writing
    takes the run's lock (RunBusy) and may raise DiskFull, after which the store refuses every
    further write; what was committed can be resumed from."""

    def __init__(self, path: Path, reader: Reader, journal: Journal | None) -> None:
        row = reader.row("SELECT json FROM header")
        if row is None:
            raise _never_started(path)
        self.path = path
        self.header = Header.from_json(row[0])
        # Whether this user made the run on this machine: else its header may name anything.
        self.ours = is_sealed(row[0], read_secret())
        self._reader = reader
        self._writing = journal
        self._replayable: dict[str, int] = {}

    @staticmethod
    def create(runs_dir: Path, header: Header) -> RunStore:
        """A new run, open for writing. An empty `header.id` becomes one made of time and task."""
        folder = _new_folder(runs_dir, header)
        text, into = _sealed(replace(header, id=folder.name)), "INSERT INTO header VALUES (1, ?)"
        try:
            return _open_to_write(folder, lambda db: db.execute(into, (text,)))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # made a moment ago, by us
            raise

    @staticmethod
    def open(path: Path, *, write: bool = False) -> RunStore:
        """Raises RunNotFound, StoreTooNew, StoreError and, to write, RunBusy."""
        if not (path / FILE).is_file():
            raise RunNotFound(f"there is no run at {path}", hint="pco runs list")
        refuse_links(path)
        if write:
            return _open_to_write(path)
        try:
            reader = Reader(path / FILE, LAYOUT)
        except StoreError:
            if is_blank(path / FILE, "header"):
                raise _never_started(path) from None
            raise
        try:
            return RunStore(path, reader, None)
        except BaseException:
            reader.close()
            raise

    def append(self, event: Event) -> None:
        """Commits one event, all of it or nothing. Counts of `count_replayable` go with it."""
        counts: dict[str, int] = {}
        if isinstance(event, Stepped | Validated | Compared):
            counts, self._replayable = self._replayable, {}
        self._insert(
            event, lambda db: [add_count(db, name, count) for name, count in counts.items()]
        )

    def amend(self, header: Header, event: Amended) -> None:
        """Writes what changed into the run's header and as an event: both or none."""
        text = _sealed(header) if self.ours else header.to_json()
        self._insert(event, lambda db: db.execute("UPDATE header SET json = ?", (text,)))
        self.header = header

    def _insert(self, event: Event, beside: Write) -> None:
        kind, step, light, bulk = pack_event(event)

        def work(db: sqlite3.Connection) -> None:
            into = "INSERT INTO events (kind, step, light) VALUES (?, ?, ?)"
            seq = db.execute(into, (kind, step, light)).lastrowid
            if bulk is not None:
                db.execute("INSERT INTO bulk VALUES (?, ?)", (seq, bulk))
            beside(db)

        self.journal.writer.write_now(work)

    def events(self, *, full: bool = False) -> Iterator[Event]:
        """All events in order, read as they are consumed: light ones unless `full`."""
        return (event for _, event in self.numbered_events(full=full))

    def numbered_events(
        self, *, where: str = "1", after: int = 0, full: bool = False, texts: bool = True
    ) -> Iterator[tuple[int, Event]]:
        """Events after number `after` (from 1). Without `texts` traces have figures only."""
        query = f"{_FULL if full else _LIGHT} WHERE {where} AND e.seq > ? ORDER BY e.seq LIMIT ?"
        while rows := self._reader.rows(query, (after, _CHUNK)):
            for seq, kind, light, bulk in rows:
                yield seq, unpack_event(kind, light, bulk, texts=texts)
                after = seq

    def last_event(self, kind: str = "") -> int:
        """The number of the latest event, or of the latest of a kind; 0 = there is none."""
        of = f" WHERE kind = '{kind}'" if kind else ""
        row = self._reader.row(f"SELECT MAX(seq) FROM events{of}")
        return int(row[0] or 0) if row is not None else 0

    def steps(self, *, traces: bool = False) -> Iterator[Step]:
        for _, event in self.numbered_events(where="e.kind = 'stepped'", full=traces):
            if isinstance(event, Stepped):
                yield event.step

    def step_at(self, step: int, *, traces: bool = False) -> Step:
        """One step. Raises StoreError if the run has no such step."""
        where = f"e.kind = 'stepped' AND e.step = {step:d}"
        if (found := self._first(where, Stepped, full=traces)) is None:
            raise self._no_step(step)
        return found.step

    def traces(self, step: int) -> tuple[Trace, ...]:
        """The traces of one step. Raises StoreError if the run has no such step."""
        return self.step_at(step, traces=True).traces

    def parameters_at(self, step: int) -> Parameters:
        """Θ after that step, -1 = before the first. Raises StoreError if there is no such step."""
        return (self.step_at(step) if step >= 0 else self.started()).parameters

    def started(self) -> Started:
        """What the run began with. Raises StoreError if it has no first codebook yet."""
        if (found := self._first("e.kind = 'started'", Started)) is None:
            raise self._no_step(-1)
        return found

    def _no_step(self, step: int) -> StoreError:
        return StoreError(f"the run {self.path.name} has no step {step}", hint="pco runs show")

    def last_validation(self) -> Validated | None:
        """The latest one, with slim rollouts; None = there is none."""
        return self._first(f"e.seq = {self.last_event('validated')}", Validated)

    def validation_at(self, step: int) -> Validated | None:
        """The latest of the policy after `step` (-1 = untrained), with whole rollouts."""
        latest = f"(SELECT MAX(seq) FROM events WHERE kind = 'validated' AND step = {step:d})"
        return self._first(f"e.seq = {latest}", Validated, full=True)

    def _first(self, where: str, kind: type[_E], *, full: bool = False) -> _E | None:
        events = (event for _, event in self.numbered_events(where=where, full=full))
        return next((event for event in events if isinstance(event, kind)), None)

    def test_evaluations(self) -> Iterator[Evaluation]:
        """The verdict's rows since the last step, validation or extension, with whole rollouts.
        Of a row that was judged again, on more examples, the latest."""
        found = (event.evaluation for event in self._concluding("judged", Compared))
        return iter({each.name: each for each in found}.values())

    def conclusions(self) -> Iterator[Concluded]:
        """What was concluded of the rows that are judged last, the first one without labels."""
        where, after = "e.kind = 'concluded'", self.last_event("judged")
        found = (event for _, event in self.numbered_events(where=where, after=after))
        return (event for event in found if isinstance(event, Concluded))

    def trained(self, *, chosen: bool = True) -> Usage | None:
        """What was paid before the verdict's first row, or before a state was `chosen`. None before
        that, and in version 0.1."""
        found = self._concluding("trained", Trained)
        return next((event.paid for event in found if event.chosen == chosen), None)

    def _concluding(self, name: str, kind: type[_E]) -> Iterator[_E]:
        """Events of a kind that came after the last step, and after the run was made longer."""
        after = self.last_event("stepped")
        if kind is Compared:  # a finalist that was validated later may be another policy
            after = max(after, self.last_event("validated"))
        for number, event in self.numbered_events(where="e.kind = 'amended'", after=after):
            if isinstance(event, Amended) and event.extended:
                after = number
        found = self.numbered_events(where=f"e.kind = '{name}'", after=after, full=True)
        return (event for _, event in found if isinstance(event, kind))

    def state(self) -> RunState:
        return fold(self.events())

    def outline(self) -> RunState:
        """`state` without reading every step: only the last one, and what is not a step."""
        where = f"(e.kind != 'stepped' OR e.seq = {_LAST_STEP})"
        return fold(event for _, event in self.numbered_events(where=where))

    def usage(self) -> dict[Role, Usage]:
        """What was paid in all sessions of the run, by role."""
        return read_book(self._reader, "usage")

    def lost(self) -> dict[Role, Usage]:
        """The most that attempts lost to failures can have cost, by role."""
        return read_book(self._reader, "lost") if self._reader.has("lost") else {}

    def tallies(self) -> dict[str, int]:
        return dict(self._reader.rows("SELECT name, count FROM tally ORDER BY name"))  # type: ignore[arg-type]

    def count(self, name: str, count: int = 1) -> None:
        """A `Tally` for what happens once: a failed call, a paid reply that was no good."""
        self.journal.writer.send(lambda db: add_count(db, name, count))

    def count_replayable(self, name: str, count: int = 1) -> None:
        """A `Tally` for decisions (a mended route, a refused rewrite). A resumed run takes them
        again, so they are committed with the step or evaluation they belong to, or not at all."""
        self._replayable[name] = self._replayable.get(name, 0) + count

    def forget_replayable(self) -> None:
        """Drops what was counted since the last step or evaluation, which is done again."""
        self._replayable = {}

    @property
    def elapsed_s(self) -> float:
        """Seconds of wall time in all sessions of the run, this one included."""
        if self._writing is not None:
            return self._writing.elapsed_s
        row = self._reader.row("SELECT TOTAL(seconds) FROM sessions")
        seconds = float(row[0]) if row else 0.0
        if not math.isfinite(seconds):
            raise StoreError(f"the stored duration of {self.path.name} is damaged", hint="pco runs")
        return seconds

    def flush(self) -> None:
        self.journal.writer.flush()

    def close(self) -> None:
        """Commits what waits, lets go of the run. Safe to call twice."""
        journal, self._writing = self._writing, None
        if journal is not None:
            journal.close()
        else:
            self._reader.close()

    @property
    def journal(self) -> Journal:
        """Its replies and attempts. Raises StoreError where the run is not open for writing."""
        if self._writing is None:
            raise StoreError(f"the run {self.path.name} is not open for writing")
        return self._writing


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run was answered, as a `ReplyLog` that keeps no other reply."""

    run: Path

    def get(self, key: bytes) -> Reply | None:
        with suppress(StoreError), closing(Reader(self.run / FILE, LAYOUT)) as reader:
            row = reader.row("SELECT reply FROM journal WHERE key = ?", (key,))
            return None if row is None else unpack_reply(row[0])

    async def put(self, key: bytes, request: Request, reply: Reply) -> None:
        pass


def _new_folder(runs_dir: Path, header: Header) -> Path:
    stem = header.id or run_id(header.task, datetime.fromisoformat(header.created))
    folder, again = runs_dir / stem, 1
    while True:
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
            return folder
        except FileExistsError as error:
            if not runs_dir.is_dir():
                message = f"{error.filename} is not a folder, so no run can be kept in it"
                raise StoreError(message, hint="set PCO_RUNS to a folder of your own") from None
            if header.id:
                hint = f"pco train --resume {run_reference(folder)}"
                raise StoreError(f"{error.filename} already exists", hint=hint) from None
            again += 1
            folder = runs_dir / f"{stem}-{again}"
        except OSError as error:
            fault = store_os_error(error, runs_dir)
            if not isinstance(fault, DiskFull):
                fault.hint = "set PCO_RUNS to a writable folder"
            raise fault from error


def _sealed(header: Header) -> str:
    """The header's text with this user's mark; the run does without where none can be made."""
    text = header.to_json()
    try:
        return seal(text, make_secret())
    except OSError as error:
        _log.warning("this run cannot be marked as yours, so opening it needs --trust: %s", error)
        return text


def _open_to_write(path: Path, first: Write = lambda db: None) -> RunStore:
    with on_disk(path):
        make_private_folder(path)
        for file in path.iterdir():
            if file.is_file() and not file.is_symlink():
                tighten(file, 0o600)
    again = f"pco train --resume {run_reference(path)}"
    lock = RunLock(path)
    journal = Journal(path / FILE, LAYOUT, again, lock=lock, first=first)
    try:
        return RunStore(path, journal.reader, journal)
    except BaseException:
        journal.close()
        raise


def _never_started(path: Path) -> StoreError:
    hint = f"pco runs rm {run_reference(path)}"
    return StoreError(f"the run {path.name} was never started", hint=hint)
