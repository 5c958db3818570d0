"""One `pco batch`: it opens or continues a checkpoint, answers rows, many at once, and writes OUT.
A row that fails is recorded, and the others continue. Where no answer ever came, or no model can be
asked any more, the job stops, and the same command asks for the last failures again."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from promptcodebook import errors
from promptcodebook.assemble import Sources
from promptcodebook.calls import Usage
from promptcodebook.config import Config
from promptcodebook.data.table import SourceRow, parse_input_template
from promptcodebook.deploy.batch.checkpoint import Checkpoint, checkpoint_of
from promptcodebook.deploy.batch.rows import (
    RowFile,
    RowResult,
    added_names,
    file_mark,
    kind_of,
    survey,
    write_output,
)
from promptcodebook.method.failures import gather_all
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.policy import Policy, deploy
from promptcodebook.types import Failure

_ENOUGH = 16  # Rows in a row whose failures stop the job.
_WINDOW = 4  # Rows read and not yet recorded, for each that is being answered.
_MOST_HELD = 1024  # Results that are held back at most, those of rows that were not asked included.


@dataclass(frozen=True, slots=True)
class BatchJob:
    """IN through a policy to OUT. `again` is the command as it was typed; `restart` discards
    previous results; `ray` = on a cluster."""

    source: Path
    target: Path
    again: str
    prefix: str = ""
    restart: bool = False
    ray: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """`resumed` rows were there before; `spent` and `seconds` are of all sessions, `lost` too."""

    rows: int
    failed: int
    resumed: int
    first_error: str
    spent: Usage
    lost: Usage
    seconds: float
    simulated: bool

    def as_json(self) -> dict[str, Any]:
        tree = asdict(self) | {"answered": self.rows - self.failed}
        del tree["spent"]
        tree |= {name: getattr(self.spent, name) for name in ("calls", "tokens", "cost")}
        tree["lost"] = tree["lost"] if self.lost.calls else None
        tree["first_error"] = self.first_error or None
        return tree | {"seconds": round(self.seconds, 3)}


class BatchSession:
    """A batch whose IN is checked and whose checkpoint is open."""

    def __init__(self, order: BatchJob, file: PolicyFile, config: Config) -> None:
        """Reads IN once, opens OUT's checkpoint. Raises DataError, ConfigError, RunBusy or
        StoreError."""
        self._policy: Policy | None = None
        kind = kind_of(order.target)
        if order.target.exists() and order.source.exists() and order.target.samefile(order.source):
            message = f"{order.target} is IN: its rows would be overwritten"
            raise errors.ConfigError(message, hint="name another OUT")
        source = survey(order.source)
        if kind == "parquet" != source.kind:
            message = f"{source.path} has no types, which Parquet needs"
            raise errors.ConfigError(message, hint="name an OUT that ends in .jsonl")
        if taken := [name for name in added_names(order.prefix) if name in source.columns]:
            message = f"{source.path} has a column {taken[0]!r}, which the output would add"
            hint = "--prefix pco_ puts pco_ before the names of the added columns"
            raise errors.ConfigError(message, hint=hint)
        _require_columns(source, file)
        folder = checkpoint_of(order.target)
        if order.target.exists() and not folder.exists() and not order.restart:
            hint = f"{order.again} --restart creates it again; cached replies cost nothing"
            raise errors.ConfigError(f"{order.target} already exists", hint=hint)
        job = {
            "input": source.mark,
            "rows": source.count,
            "policy": hashlib.sha256(file.text().encode("utf-8", "surrogatepass")).hexdigest(),
            "prefix": order.prefix,
            "ray": order.ray,
            "settings": config.model_dump(mode="json"),
        }
        checkpoint = Checkpoint(folder, job, order.again, restart=order.restart)
        self.order, self.source, self.checkpoint = order, source, checkpoint
        self.resumed = checkpoint.count

    def rows(self) -> Iterator[SourceRow]:
        """What is not recorded yet."""
        return self.source.rows(self.checkpoint.count)

    async def run(
        self, file: PolicyFile, config: Config, sources: Sources, done: Callable[[], None]
    ) -> Summary:
        """Answers here what is missing, and writes OUT. After Stop, TooManyFailures, StoreError or
        DiskFull the same order continues."""
        checkpoint, again = self.checkpoint, self.order.again

        def keep(results: list[RowResult]) -> None:
            checkpoint.append(results)
            for _ in results:
                done()

        policy = self._policy = deploy(file, config, sources, checkpoint.journal.supplies())
        at_once = max(1, min(config.concurrency, self.source.count - checkpoint.count))
        try:
            if checkpoint.count < self.source.count:
                answered = checkpoint.count > checkpoint.failed
                await answer_rows(policy, self.rows(), keep, at_once, answered=answered)
        except (errors.Stop, errors.StoreError) as error:
            more = " --budget MORE" if isinstance(error, errors.BudgetReached) else ""
            ours = type(error) in (errors.BudgetReached, errors.Interrupted)
            if ours or not error.hint:
                error.hint = f"{again}{more} continues from here"
            raise
        finally:
            await policy.aclose()
        return self.conclude(simulated=policy.simulated)

    def interrupt(self) -> None:
        if self._policy is not None:
            self._policy.stop(errors.Interrupted("interrupted by the user"))

    def conclude(self, *, simulated: bool) -> Summary:
        """Writes OUT and removes the checkpoint. Raises DataError when IN is another file now."""
        if file_mark(self.source.path) != self.source.mark:
            message, again = "was changed while its batch was running", self.order.again
            hint = f"restore it, then {again}; or {again} --restart"
            raise errors.DataError(f"{self.source.path} {message}", hint=hint)
        made, order = self.checkpoint, self.order
        write_output(order.target, self.source, made.results(), order.prefix)
        summary = Summary(
            rows=made.count,
            failed=made.failed,
            resumed=self.resumed,
            first_error=next((r.error for r in made.results() if r.error is not None), ""),
            spent=sum(made.journal.paid().values(), Usage()),
            lost=sum(made.journal.lost().values(), Usage()),
            seconds=made.journal.elapsed_s,
            simulated=simulated,
        )
        made.close()
        shutil.rmtree(made.folder, ignore_errors=True)
        return summary

    def close(self) -> None:
        """Keeps what there is. Safe to call twice."""
        self.checkpoint.close()


def _require_columns(source: RowFile, file: PolicyFile) -> None:
    named = (file.input,) if file.input in source.columns else ()
    named = named or parse_input_template(file.input).required or (file.input,)
    if missing := [name for name in named if name not in source.columns]:
        there = ", ".join(map(repr, source.columns))
        meant = errors.did_you_mean(missing[0], source.columns)
        lack = f"no column {missing[0]!r}{meant}, which the policy reads; its columns are {there}"
        hint = 'name a column, or combine several in a template: --input "{title}: {body}"'
        raise errors.DataError(f"{source.path} has {lack}", hint=hint)


@dataclass(frozen=True, slots=True)
class _Landed:
    """A result; `failure` is that of a model. Only a row that was `asked` says anything of them."""

    result: RowResult
    asked: bool = False
    failure: Failure | None = None


async def answer_rows(
    policy: Policy,
    rows: Iterator[SourceRow],
    keep: Callable[[list[RowResult]], None],
    at_once: int,
    *,
    answered: bool = False,
) -> None:
    """Answers every row, `at_once` of them at a time, and hands their results to `keep` in order.
    `answered` = an earlier row was. Raises TooManyFailures, Stop, StoreError or DiskFull."""
    policy.require_program()
    order, numbered = _Order(keep, answered), enumerate(rows)
    room, ended = asyncio.Semaphore(_WINDOW * at_once), asyncio.Event()

    async def work() -> None:
        """Takes one row after the other; waits where the window is full."""
        try:
            while not ended.is_set():
                await room.acquire()
                if ended.is_set() or (taken := next(numbered, None)) is None:
                    return
                number, record = taken
                try:
                    rollout = await policy.arun(record.values)
                    landed = _Landed(RowResult.of(rollout), asked=True, failure=rollout.failure)
                except errors.DataError as error:  # the row's own fault: no model was asked
                    landed = _Landed(RowResult(error=f"{type(error).__name__}: {error}"))
                for _ in range(order.land(number, landed)):
                    room.release()
        except errors.PcoError as error:
            policy.stop(error)  # no other row is worth another call
            raise
        finally:
            ended.set()
            room.release()  # one that waits wakes, sees it, and wakes the next

    await gather_all(work() for _ in range(at_once))
    order.finish()


class _Order:
    """Puts results that land in any order into theirs. Holds back those that may stop the job:
    failures until a row was answered, and the last ones for which no model could be reached."""

    def __init__(self, keep: Callable[[list[RowResult]], None], answered: bool) -> None:
        self._keep, self._next = keep, 0
        self._landed: dict[int, _Landed] = {}
        self._held: list[_Landed] = []
        self._answered_before, self._answered_now = answered, False

    def land(self, number: int, landed: _Landed) -> int:
        """How many rows left the window by this. Raises TooManyFailures."""
        self._landed[number] = landed
        before, ready = self._next, list[_Landed]()
        while (each := self._landed.pop(self._next, None)) is not None:
            self._next += 1
            self._answered_now |= each.asked and each.failure is None
            self._held.append(each)
            if self._is_harmless(each):
                ready += self._held
                self._held = []
        self._record(ready)
        if len(self._failures()) >= _ENOUGH:
            raise self._hopeless()
        return self._next - before

    def finish(self) -> None:
        """All rows have landed. Raises TooManyFailures where no model could be reached for any of
        them."""
        failures = self._failures()
        if failures and not self._answered_now and all(each.unreachable for each in failures):
            raise self._hopeless()
        self._record(self._held)

    def _failures(self) -> list[Failure]:
        return [each.failure for each in self._held if each.failure is not None]

    def _is_harmless(self, landed: _Landed) -> bool:
        if not landed.asked:
            return not self._failures() or len(self._held) >= _MOST_HELD
        answered = self._answered_before or self._answered_now
        return landed.failure is None or (answered and not landed.failure.unreachable)

    def _record(self, ready: list[_Landed]) -> None:
        if ready:
            self._keep([each.result for each in ready])

    def _hopeless(self) -> errors.TooManyFailures:
        first, *more = self._failures()
        rows = f"{len(more) + 1} rows" if more else "row"
        message = f"the last {rows} failed, so the batch stops before more rows fail; the "
        message += f"first, at {first.stage}: {first.kind}: {first.message}"
        return errors.TooManyFailures(message, hint=first.hint or "pco doctor")
