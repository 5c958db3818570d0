"""One `pco batch`: it opens or continues a checkpoint, answers its rows, and writes OUT."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from promptcodebook.assemble import Sources
from promptcodebook.batch.checkpoint import Checkpoint, checkpoint_of
from promptcodebook.batch.job import Kept, answer_rows
from promptcodebook.batch.results import Added, read_results, write_output
from promptcodebook.batch.rows import Source, file_mark, kind_of, survey
from promptcodebook.calls import Usage
from promptcodebook.config import Config
from promptcodebook.data.table import parse_input_template
from promptcodebook.errors import (
    ConfigError,
    DataError,
    Interrupted,
    RunChanged,
    Stop,
    StoreError,
    did_you_mean,
)
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.policy import Policy, deploy


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for: IN through a policy to OUT. `again` is the command as it was typed;
    `retry` asks the failed rows of a finished OUT; `restart` discards previous results; `ray` = on
    a cluster, whose tasks keep their replies elsewhere."""

    source: Path
    target: Path
    again: str
    prefix: str = ""
    retry: bool = False
    restart: bool = False
    ray: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """What a batch came to. `resumed` rows were there when this session began; calls, tokens, cost
    and seconds are of all sessions, `lost` what attempts without an answer can have cost."""

    rows: int
    failed: int
    resumed: int
    first_error: str
    spent: Usage
    lost: Usage
    seconds: float
    simulated: bool

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "rows": self.rows,
            "answered": self.rows - self.failed,
            "failed": self.failed,
            "first_error": self.first_error or None,
            "resumed": self.resumed,
            "calls": self.spent.calls,
            "tokens": self.spent.tokens,
            "cost": self.spent.cost,
            "lost": asdict(self.lost) if self.lost.calls else None,
            "seconds": round(self.seconds, 3),
            "simulated": self.simulated,
        }


class Batch:
    """A batch whose IN is checked and whose checkpoint is open. `open` makes it."""

    def __init__(self, order: Order, source: Source, checkpoint: Checkpoint) -> None:
        self.order = order
        self.source = source
        self.checkpoint = checkpoint
        self.resumed = checkpoint.count
        self._added = Added(order.prefix)
        self._policy: Policy | None = None

    @classmethod
    def open(cls, order: Order, file: PolicyFile, config: Config) -> Batch:
        """Reads IN once and opens the checkpoint of OUT. Raises DataError, ConfigError, RunBusy,
        RunChanged or StoreError."""
        kind_of(order.target)
        if order.target.exists() and order.source.exists() and order.target.samefile(order.source):
            raise ConfigError(
                f"{order.target} is IN: its rows would be overwritten", hint="name another OUT"
            )
        source, added = survey(order.source), Added(order.prefix)
        added.require_free(source)
        _require_columns(source, file)
        folder = checkpoint_of(order.target)
        old = _old_output(order, source, folder)
        job = {
            "input": source.mark,
            "rows": source.count,
            "policy": hashlib.sha256(file.text().encode("utf-8", "surrogatepass")).hexdigest(),
            "prefix": order.prefix,
            "retry": old,
            "ray": order.ray,
            "settings": config.model_dump(mode="json"),
        }
        checkpoint = Checkpoint.open(folder, job, order.again, restart=order.restart)
        if checkpoint.job["retry"] != old and (checkpoint.count < source.count or not old):
            checkpoint.close()
            begun = "to ask the failed rows of another OUT again" if old else "with --retry"
            raise RunChanged(
                f"{folder} holds a batch that was begun {begun}",
                hint=f"repeat the first command; or {order.again} --restart discards the paid "
                "answers",
            )
        return cls(order, source, checkpoint)

    def rows(self) -> Iterator[Kept]:
        """What is not recorded yet, with what an earlier batch has brought of it."""
        rows = self.source.rows(self.checkpoint.count)
        if not self.order.retry:
            return ((record, None) for record in rows)
        earlier = read_results(self.order.target, self.source, self._added)
        rest = islice(earlier, self.checkpoint.count, None)
        pairs = zip(rows, rest, strict=True)
        return ((record, None if old.error is not None else old) for record, old in pairs)

    async def run(
        self, file: PolicyFile, config: Config, sources: Sources, done: Callable[[], None]
    ) -> Summary:
        """Answers in this process what is missing, and writes OUT. Raises Stop, TooManyFailures,
        StoreError or DiskFull; the same order continues from there."""
        checkpoint, again = self.checkpoint, self.order.again
        policy = deploy(file, config, sources, checkpoint.journal.supplies())
        self._policy = policy
        at_once = max(1, min(config.concurrency, self.source.count - checkpoint.count))
        try:
            if checkpoint.count < self.source.count:
                await answer_rows(policy, self.rows(), checkpoint, at_once, done)
        except (Stop, StoreError) as error:
            more = " --budget MORE" if error.exit_code == 3 else ""
            if isinstance(error, Stop) or more or not error.hint:
                error.hint = f"{again}{more} continues from here"
            raise
        finally:
            await policy.aclose()
        return self.conclude(simulated=policy.simulated)

    def interrupt(self) -> None:
        """No new call starts; those in flight finish and are kept."""
        if self._policy is not None:
            self._policy.stop(Interrupted("interrupted by the user"))

    def conclude(self, *, simulated: bool) -> Summary:
        """Writes OUT and removes the checkpoint. DataError: IN is another file now."""
        if file_mark(self.source.path) != self.source.mark:
            raise DataError(
                f"{self.source.path} was changed while its batch was running",
                hint=f"restore it, then {self.order.again}; or {self.order.again} --restart",
            )
        first = next((r.error for r in self.checkpoint.results() if r.error is not None), "")
        write_output(self.order.target, self.source, self.checkpoint.results(), self._added)
        journal, seconds = self.checkpoint.journal, self.checkpoint.journal.elapsed_s
        spent, lost = (sum(book.values(), Usage()) for book in (journal.paid(), journal.lost()))
        made = self.checkpoint.count, self.checkpoint.failed, self.resumed, first
        self.checkpoint.remove()
        return Summary(*made, spent, lost, seconds, simulated)

    def close(self) -> None:
        """Keeps what there is. Safe to call twice."""
        self.checkpoint.close()


def _require_columns(source: Source, file: PolicyFile) -> None:
    """Raises DataError where no row has what the policy reads."""
    named = (file.input,) if file.input in source.columns else ()
    named = named or parse_input_template(file.input).columns or (file.input,)
    missing = [name for name in named if name not in source.columns]
    if missing:
        there = ", ".join(map(repr, source.columns))
        raise DataError(
            f"{source.path} has no column {missing[0]!r}"
            f"{did_you_mean(missing[0], source.columns)}, which the policy reads; its columns are "
            f"{there}",
            hint='name the column, or a template of several: --input "{title}: {body}"',
        )


def _old_output(order: Order, source: Source, folder: Path) -> str:
    """The mark of the OUT whose failed rows are asked again, '' without --retry."""
    there, resumed = order.target.exists(), folder.exists()
    if not order.retry:
        if there and not resumed and not order.restart:
            raise ConfigError(
                f"{order.target} is there already",
                hint=f"{order.again} --retry asks its failed rows again; --restart discards it",
            )
        return ""
    if not there:
        raise ConfigError(
            f"{order.target} is not there, so it has no failed rows to ask again",
            hint=order.again.replace(" --retry", ""),
        )
    if not resumed:  # its rows are checked before anything is paid for
        for _ in read_results(order.target, source, Added(order.prefix)):
            pass
    return file_mark(order.target)
