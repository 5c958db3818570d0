"""A run that is followed while it may still be written, and the screen of one run. The texts of
rollouts are read when a screen needs them; the rest is kept, and only new events are read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from promptcodebook.base.paths import BENCH
from promptcodebook.policy.references import stored_examples
from promptcodebook.report.context import Context
from promptcodebook.report.private import withhold
from promptcodebook.store.events import Event, Stepped
from promptcodebook.store.lock import FILE, holder
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import run_folders
from promptcodebook.types import Evaluation, Example, Step

_MOST_OPEN = 8  # runs kept open; the one viewed longest ago is closed
_AT_REST = "-e"  # how the mark of an idle run ends, which no process writes
GONE = f"gone{_AT_REST}"  # The mark of a run that does not exist.
_BETWEEN = "~"  # replaces '/' in the address of a run in a suite's folder


@dataclass(frozen=True, slots=True)
class Look:
    """A run now: `events` without texts; `mark` changes whenever a page of it would."""

    key: str
    context: Context
    events: Sequence[Event]
    mark: str

    @property
    def steps(self) -> list[Step]:
        return [event.step for event in self.events if isinstance(event, Stepped)]


class FollowedRun:
    """One run, open for reading; `look` from any thread."""

    def __init__(self, path: Path, key: str, *, trust: bool = False) -> None:
        self.key = key
        self._store = RunStore.open(path)
        self.path, self.header = self._store.path, self._store.header
        self.place = _place(path) or (0, 0)
        self.usable = self._store.ours or trust  # the code and the addresses that it names
        self._events: list[Event] = []
        self._last = 0
        self._tests: tuple[int, tuple[Evaluation, ...]] = (-1, ())
        self._examples: Mapping[str, Example] | None = None
        self._lock = threading.RLock()

    def look(self) -> Look:
        """All that happened by now. Raises StoreError."""
        with self._lock:
            later = self._store.numbered_events(after=self._last, full=True, texts=False)
            for number, event in later:
                self._events.append(withhold(event) if self.header.private else event)
                self._last = number
            context = Context.of(self._store, self.examples)
            mark = _mark(self.place, self._last, running=context.running)
            return Look(self.key, context, tuple(self._events), mark)

    def mark(self) -> str:
        running = holder(self.path) is not None
        with self._lock:
            return _mark(self.place, self._store.last_event(), running=running)

    @property
    def examples(self) -> Mapping[str, Example]:
        """By id: of runs that are the user's own, or trusted, and not private."""
        with self._lock:
            if self._examples is None:
                known = self.usable and not self.header.private
                self._examples = stored_examples(self.header) if known else {}
            return self._examples

    def tests(self) -> tuple[Evaluation, ...]:
        """The verdict's rows so far, with their texts."""
        with self._lock:
            last = self._store.last_event()
            if self._tests[0] != last:
                rows = tuple(self._store.test_evaluations())
                self._tests = (last, withhold(rows) if self.header.private else rows)
            return self._tests[1]

    def step(self, index: int) -> Step:
        """One step with the texts of its traces. Raises StoreError where there is none."""
        with self._lock:
            whole = self._store.step_at(index, traces=True)
        return withhold(whole) if self.header.private else whole

    def close(self) -> None:
        with self._lock:
            self._store.close()


class OpenRuns:
    """The runs below one folder, opened as they are viewed."""

    def __init__(self, runs_dir: Path, *, trust: bool = False) -> None:
        self.runs_dir, self._trust = runs_dir, trust
        self._open: dict[str, FollowedRun] = {}
        self._readers: Counter[FollowedRun] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, key: str) -> Generator[FollowedRun | None]:
        """The run of this address, open while the block runs; None = there is none. Raises
        StoreError."""
        with self._lock:
            followed = self._find(key)
            if followed is not None:
                self._readers[followed] += 1
        try:
            yield followed
        finally:
            if followed is not None:
                with self._lock:
                    self._readers[followed] -= 1
                    if self._open.get(key) is not followed:
                        self._put_away(followed)

    def _find(self, key: str) -> FollowedRun | None:
        found = {key_of(self.runs_dir, folder): folder for folder in run_folders(self.runs_dir)}
        folder = found.get(key)
        place = None if folder is None else _place(folder)
        known = self._open.pop(key, None)
        if known is not None and known.place != place:
            self._put_away(known)
            known = None
        if folder is None or place is None:
            return None
        if known is None:
            known = FollowedRun(folder, key, trust=self._trust)
        self._open[key] = known
        while len(self._open) > _MOST_OPEN:  # the latest is last
            self._put_away(self._open.pop(next(iter(self._open))))
        return known

    def _put_away(self, followed: FollowedRun) -> None:
        """Closes it; where somebody reads it, the last of them does."""
        if not self._readers[followed]:
            del self._readers[followed]
            followed.close()

    def close(self) -> None:
        """Closes all that have no reader."""
        with self._lock:
            while self._open:
                self._put_away(self._open.popitem()[1])


def _mark(place: tuple[int, int], last: int, *, running: bool) -> str:
    return f"{place[1]:x}-{last}{'-r' if running else _AT_REST}"


def rests(mark: str) -> bool:
    """Whether a mark is that of an idle run."""
    return mark.endswith(_AT_REST)


def key_of(runs_dir: Path, folder: Path) -> str:
    """What a run is called in addresses: its folder's name, or its path within the suites."""
    parts = folder.relative_to(runs_dir).parts
    return _BETWEEN.join(parts) if parts[0] == BENCH and len(parts) > 1 else folder.name


def root_of(runs_dir: Path, folder: Path) -> Path:
    """The folder whose runs are shown with this one: `runs_dir` if it lies there, else its own."""
    inside = folder.resolve() in [each.resolve() for each in run_folders(runs_dir)]
    return runs_dir if inside else folder.resolve().parent


def find_key(home: Path, folder: Path) -> str:
    """The key below `home` of a run whose folder may be a link, or be named by another path."""
    real = folder.resolve()
    found = (key_of(home, each) for each in run_folders(home) if each.resolve() == real)
    return next(found, folder.name)


def _place(path: Path) -> tuple[int, int] | None:
    """Which file it is: a run that was removed and written again is another. None = it is gone."""
    try:
        stat = (path / FILE).stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
