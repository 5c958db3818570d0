"""The folder of all runs: finding one by what a person types, listing, removing. Summaries of runs
that have ended are kept, so that a list of a thousand runs opens quickly."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcodebook.base.intervals import Interval
from promptcodebook.base.paths import BENCH, cache_folder, write_whole
from promptcodebook.base.sqlite import on_disk
from promptcodebook.base.text import shell
from promptcodebook.base.units import count_text, duration, money, number
from promptcodebook.calls import Usage
from promptcodebook.errors import RunNotFound, StoreError, did_you_mean
from promptcodebook.store import lock as locks

if TYPE_CHECKING:
    from promptcodebook.store.events import EndReason
    from promptcodebook.store.run import RunStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """`step` is -1 before the first; `writer` is the pid of who writes it. `decision` to `score`
    are the verdict's: what it decides, the row to deploy, the result's gain and test reward.
    `looks` verdicts were made on the test rows with the fingerprint `test`."""

    id: str
    path: Path
    created: str
    task: str
    step: int
    best: float | None
    ended: EndReason | None
    usage: Usage
    elapsed_s: float
    writer: int | None
    name: str = ""
    simulated: bool = False
    decision: str = ""
    deploy: str = ""
    gain: Interval | None = None
    score: Interval | None = None
    test: str = ""
    looks: int = 0

    @property
    def running(self) -> bool:
        return self.writer is not None

    @property
    def levels(self) -> tuple[float, float | None] | None:
        """The result's mean test reward, and the first row's, on the same examples."""
        if self.score is None:
            return None
        return self.score.mean, self.gain and self.score.mean - self.gain.mean

    @property
    def resumable(self) -> bool:
        """Neither finished nor being written."""
        return not self.running and self.ended not in ("finished", "early_stop", "target")

    @property
    def state(self) -> str:
        return "running" if self.running else self.ended or "stopped"


@dataclass(frozen=True, slots=True)
class RunColumn:
    """A column of `pco runs list` and of the viewer's list of runs.

    - `heading`: its heading in the viewer, which sorts by it. '': the viewer does not show it.
    - `brief`: its heading on a terminal. '': a terminal does not show it.
    - `value`: what it shows of a run, and is sorted by. None: the run has none.
    - `write`: a value as text on a terminal. The viewer splits an interval into mean and ends.
    - `words`: it holds words, and is set to the left.
    - `missing`: the text for None. '': a dash.
    """

    heading: str
    brief: str
    value: Callable[[RunSummary], Any]
    write: Callable[[Any], str] = str
    signed: bool = False
    words: bool = False
    missing: str = ""


def _gain(gain: Interval) -> str:
    return gain.text(signed=True, level="", between="..")


def _levels(levels: tuple[float, float | None]) -> str:
    after, before = levels
    return number(after) if before is None else f"{before:.2f}→{after:.2f}"  # 80 columns hold it


# All that shows runs reads this list; a figure that is new needs a field of `RunSummary` as well.
COLUMNS = (
    RunColumn("run", "run", lambda run: (run.created, run.id), itemgetter(1), words=True),
    RunColumn("", "name", lambda run: run.name or None, words=True),
    RunColumn("task", "", lambda run: run.task, lambda task: task or "own data", words=True),
    RunColumn("verdict", "verdict", lambda run: run.decision or None, words=True),
    RunColumn("gain", "gain", lambda run: run.gain, _gain, signed=True),
    RunColumn("test score", "test score", lambda run: run.levels, _levels),
    RunColumn("state", "state", lambda run: run.state, words=True),
    RunColumn("steps", "", lambda run: run.step + 1, "{:,}".format),
    RunColumn("best validation", "best", lambda run: run.best, number),
    RunColumn("calls", "calls", lambda run: run.usage.calls, count_text),
    RunColumn("cost", "cost", lambda run: run.usage.cost, money, missing="unknown"),
    RunColumn("time", "time", lambda run: run.elapsed_s, duration),
)
# Summaries that were kept in another form are made again. A field that is added or renamed is
# another form by itself; raise the number where a field is only read in another way.
_FORM = [5, *(each.name for kind in (RunSummary, Usage, Interval) for each in fields(kind))]
_FIGURES = ("gain", "score")
_LIST = "pco runs list"
# A writer signs the lock as soon as it has it: an unchanged file means that no process wrote.
_WATCHED = (locks.FILE, f"{locks.FILE}-wal", locks.ATTEMPTS, *locks.LOCK_FILES)
# What reading a damaged or foreign file raises.
_MISFITS = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError),
    *(TypeError, ValueError),
)


def list_runs(runs_dir: Path) -> list[RunSummary]:
    """All readable runs, those of suites too, oldest first; an unreadable one is logged."""
    runs, unreadable = read_runs(runs_dir)
    for folder, error in unreadable.items():
        _log.warning("run %s: %s (%s)", folder.name, error, error.hint)
    return runs


def read_runs(runs_dir: Path) -> tuple[list[RunSummary], dict[Path, StoreError]]:
    """All readable runs as `list_runs` has them, and why others cannot be read, by folder. The
    user's cache folder keeps the summaries of those that have ended, with the sizes and times of
    their files: a run that was written to since is read again. A cache that cannot be read or
    written is no reason to fail."""
    place = hashlib.sha256(str(runs_dir.resolve()).encode("utf-8", "surrogateescape"))
    file = cache_folder() / "runs" / f"{place.hexdigest()[:16]}.json"
    kept, seen = dict[str, Any](), dict[str, Any]()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        tree = json.loads(file.read_text("utf-8"))
        kept = dict(tree["runs"]) if tree["form"] == _FORM else {}
    runs: list[RunSummary] = []
    unreadable: dict[Path, StoreError] = {}
    for folder in run_folders(runs_dir):
        name = str(folder.relative_to(runs_dir))
        try:
            summary, line = _summary(folder, kept.get(name))
        except StoreError as error:
            unreadable[folder] = error
            continue
        except _MISFITS as error:
            message = f"its contents are not those of a run ({type(error).__name__})"
            unreadable[folder] = StoreError(message, hint=f"pco runs show {shell(folder.name)}")
            continue
        runs.append(summary)
        if line is not None:
            seen[name] = line
    if seen != kept:  # what was read is kept, and runs that are gone are forgotten
        with contextlib.suppress(OSError):
            file.parent.mkdir(0o700, parents=True, exist_ok=True)
            write_whole(file, json.dumps({"form": _FORM, "runs": seen}))
    return sorted(runs, key=lambda run: (run.created, run.id)), unreadable


def _summary(path: Path, kept: Any) -> tuple[RunSummary, Any]:
    """And what to keep of it (None = nothing): it holds until a file of the run changes."""
    marks = file_marks(path)
    with contextlib.suppress(KeyError, TypeError):  # nothing is kept, or it is damaged
        if kept["mark"] == marks:
            told: dict[str, Any] = {**kept["summary"]}
            told["usage"] = Usage(**told["usage"])
            told |= {name: told[name] and Interval(**told[name]) for name in _FIGURES}
            return RunSummary(**told, path=path, writer=None), kept
    from promptcodebook.store.run import RunStore

    writer = locks.holder(path)
    with closing(RunStore.open(path)) as store:
        state = store.outline()
        verdict = state.conclusion
        row: Mapping[str, Any] = verdict.rows[-1] if verdict and verdict.rows else {}
        summary = RunSummary(
            id=path.name,
            path=path,
            created=store.header.created,
            task=store.header.task,
            step=state.step,
            best=state.best.score if state.best else None,
            ended=state.ended,
            usage=sum((*store.usage().values(), *store.lost().values()), Usage()),
            elapsed_s=store.elapsed_s,
            writer=writer,
            name=store.header.name,
            simulated=store.header.simulated,
            decision=verdict.decision if verdict else "",
            deploy=verdict.deploy if verdict else "",
            test=store.header.fingerprints.get("test", ""),
            looks=state.looks + bool(verdict and verdict.rows),
            **{name: Interval(**row[name]) if row.get(name) else None for name in _FIGURES},
        )
    if writer is not None or summary.ended is None or marks != file_marks(path):
        return summary, None
    told = {k: v for k, v in asdict(summary).items() if k not in ("path", "writer")}
    return summary, {"mark": marks, "summary": told}


def file_marks(path: Path) -> list[list[int] | None]:
    """Size and time of each file that a run's summary is read from; None = it is not there."""
    folder, marks = str(path), list[list[int] | None]()
    for name in _WATCHED:
        try:
            stat = os.stat(f"{folder}/{name}")  # a third faster than Path, and there are thousands
            marks.append([stat.st_size, stat.st_mtime_ns])
        except OSError:
            marks.append(None)
    return marks


def run_folders(runs_dir: Path) -> list[Path]:
    """The folders of runs: those of `runs_dir`, and those of its suites."""
    names = os.listdir(runs_dir) if runs_dir.is_dir() else ()
    alone = [runs_dir / name for name in names if os.path.exists(f"{runs_dir}/{name}/{locks.FILE}")]
    return sorted([*alone, *(file.parent for file in runs_dir.glob(f"{BENCH}/*/*/{locks.FILE}"))])


def earlier_looks(store: RunStore) -> int:
    """Verdicts that other runs beside this one made on the same test rows; an experiment's runs,
    which measure methods and choose none, are not counted."""
    home, mine = store.path.parent, store.header
    if home.parent.name == BENCH:
        return 0
    return sum(
        run.looks
        for run in read_runs(home)[0]
        if run.path.parent == home
        and run.id != mine.id
        and run.test == mine.fingerprints.get("test")
        and run.simulated == mine.simulated
    )


def find_run(runs_dir: Path, ref: str) -> Path:
    """By id or its unique beginning, path, 'last', or name (the latest). Raises RunNotFound."""
    if "/" in ref or ref in (".", ".."):
        if (Path(ref) / locks.FILE).is_file():
            return Path(ref)
        raise RunNotFound(f"there is no run at {ref}", hint=_LIST)
    folders = run_folders(runs_dir)
    if (runs_dir / ref) in folders:
        return runs_dir / ref
    runs = list_runs(runs_dir) if ref else []
    if called := [run for run in runs if ref in ("last", run.name)]:
        return called[-1].path
    if ref == "last":
        if not folders:
            raise RunNotFound(f"there is no run in {runs_dir} yet", hint="pco train")
        hint = f"pco runs show {shell(folders[0].name)}"
        raise RunNotFound(f"no run in {runs_dir} can be read", hint=hint)
    exact = [path for path in folders if path.name == ref]
    matches = exact or [path for path in folders if ref and path.name.startswith(ref)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(str(path) if exact else path.name for path in matches[:5])
        hint = "type its path" if exact else "type more of the id"
        raise RunNotFound(f"{ref!r} matches more than one run: {shown}", hint=hint)
    known = [path.name for path in folders] + [run.name for run in runs if run.name]
    what = f"no run {ref!r} in {runs_dir.resolve()}{did_you_mean(ref, known)}"
    hint = f"{_LIST}; go to the folder with its runs/; or, in the registry, {shell(ref)}@latest"
    hint = hint if folders else "go to the folder that contains runs/, or set PCO_RUNS"
    raise RunNotFound(what, hint=hint)


def remove_run(path: Path) -> None:
    """Deletes a run's folder. Raises RunBusy while it is written or measured, and RunNotFound for a
    folder that is no run's."""
    if not (path / locks.FILE).is_file():
        raise RunNotFound(f"there is no run at {path}", hint=_LIST)
    if path.is_symlink():  # what lies at its other end may be another run
        raise StoreError(f"{path} is a link to a run, not a run", hint=f"rm {shell(path)}")
    if (path / locks.EFFECTS).is_dir():
        locks.lock_effects(path).release()
    lock = locks.RunLock(path)
    with on_disk(path):
        with contextlib.ExitStack() as held:
            held.callback(lock.release)
            for file in path.glob(f"{locks.FILE}*"):
                file.unlink()
        shutil.rmtree(path)  # without the lock: Windows deletes no file that is open
