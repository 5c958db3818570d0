"""A batch on a Ray cluster (extra [ray]): a shard of rows a task, its results recorded in order.

Tasks over shards, and not Ray Data: the rows are read, and OUT is written, by the code of one
process, so that the bytes are the same and memory is bounded by the shards in flight; and a shard
that fails can be told by its rows. A task journals its replies in a folder of its own: within
OUT.part where it works on the machine of the command, else in that machine's cache. A shard that
was interrupted finds them when it comes to the same machine again. Tasks remove what lies there of
shards that are recorded by now and of earlier batches to the same OUT; the end removes the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from promptcodebook.assemble import Sources
from promptcodebook.batch.checkpoint import book_shard, open_journal
from promptcodebook.batch.job import Kept, answer_rows
from promptcodebook.batch.results import Result
from promptcodebook.batch.session import Batch, Summary
from promptcodebook.calls import Role, Usage
from promptcodebook.cluster import join_cluster, machine_name, require_version
from promptcodebook.config import Config, full_config
from promptcodebook.data.table import Record
from promptcodebook.errors import BudgetReached, ConfigError, Interrupted, PcoError
from promptcodebook.lm.stack import uses_simulated
from promptcodebook.paths import cache_folder
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.policy import Policy, deploy
from promptcodebook.store.journal import Journal
from promptcodebook.sync import run_sync

_SHARD = 256
"""Rows of a task. Shards begin at multiples of it, whatever is recorded already."""
_LOOK_UP_S = 0.2
_FORGET_S = 20.0


@dataclass(frozen=True, slots=True)
class OnRay:
    """The rows of a batch on the cluster at `address`. ConfigError for a budget, which processes
    that know nothing of each other could not keep."""

    address: str
    rows: int = _SHARD

    def run(
        self, batch: Batch, file: PolicyFile, config: Config, base: Path, done: Callable[[], None]
    ) -> Summary:
        """Answers what is missing, and writes OUT. Raises Interrupted, or what stopped a shard;
        MissingExtra without ray, ConfigError where no cluster answers."""
        if any(value is not None for value in _limits(config)):
            raise ConfigError(
                "a budget cannot be kept over the processes of a cluster",
                hint="leave out --budget, or leave out --ray",
            )
        here = max(2, os.cpu_count() or 1)
        ray = join_cluster(self.address, here, "answering rows on a cluster")
        try:
            width = max(1, int(ray.cluster_resources().get("CPU", 1)))
            share = max(1, config.concurrency // width)
            shared = config.model_copy(update={"concurrency": share})
            order = _Order(batch, file, shared, base, self.rows)
            _Tasks(ray, order, 2 * width).run(done)
            _forget(ray, batch)
        finally:
            ray.shutdown()
        return batch.conclude(simulated=uses_simulated(config))


def _limits(config: Config) -> tuple[float | None, ...]:
    budget = config.budget
    return budget.calls, budget.tokens, budget.usd, budget.seconds


@dataclass(frozen=True, slots=True)
class _Order:
    """What every task is told beside its rows."""

    batch: Batch
    file: PolicyFile
    config: Config
    base: Path
    size: int = _SHARD

    def job(self, shard: _Shard) -> str:
        """A task, as JSON. Shards below `recorded` are in OUT.part's rows."""
        checkpoint = self.batch.checkpoint
        return json.dumps(
            {
                "number": shard.number,
                "rows": [[record.where, dict(record.values)] for record in shard.records],
                "policy": self.file.text(),
                "config": self.config.model_dump(mode="json"),
                "base": str(self.base.resolve()),
                "folder": str(checkpoint.folder.resolve()),
                "id": checkpoint.job["id"],
                "recorded": checkpoint.count // self.size,
                "answered": checkpoint.answered,
                "machine": machine_name(),
                "version": version("promptcodebook"),
                "again": self.batch.order.again,
            }
        )


@dataclass(slots=True)
class _Shard:
    """Rows that belong together; those that are known already are not sent."""

    number: int
    known: list[Result | None] = field(default_factory=list[Result | None])
    records: list[Record] = field(default_factory=list[Record])
    reference: Any = None

    def merged(self, results: Iterator[Result]) -> list[Result]:
        """All results in the order of the rows."""
        return [next(results) if known is None else known for known in self.known]


def _shards(rows: Iterator[Kept], first: int, size: int) -> Iterator[_Shard]:
    """The rows from number `first` on, cut where numbers are multiples of `size`."""
    shard = _Shard(first // size)
    for number, (record, known) in enumerate(rows, start=first):
        if number // size != shard.number:
            yield shard
            shard = _Shard(number // size)
        shard.known.append(known)
        if known is None:
            shard.records.append(record)
    if shard.known:
        yield shard


class _Tasks:
    """What was handed to the cluster and is not recorded."""

    def __init__(self, ray: Any, order: _Order, most: int) -> None:
        self._ray = ray
        self._order = order
        self._most = most
        batch = order.batch
        self._shards = _shards(batch.rows(), batch.checkpoint.count, order.size)
        # A task that died is begun again by the next command, which finds its journal.
        self._remote = ray.remote(max_retries=0)(answer_shard)
        self._open: deque[_Shard] = deque()

    def run(self, done: Callable[[], None]) -> None:
        """Records shard after shard. Raises Interrupted, or what stopped one."""
        try:
            self._submit()
            while self._open:
                shard = self._open[0]
                if self._ray.wait([shard.reference], timeout=_LOOK_UP_S)[0]:
                    self._record(shard, done)
                    self._open.popleft()
                    self._submit()
        except KeyboardInterrupt:
            self._cancel()
            raise Interrupted(
                "interrupted by the user", hint=f"{self._order.batch.order.again} goes on from here"
            ) from None
        except BaseException:
            self._cancel()
            raise

    def _submit(self) -> None:
        while len(self._open) < self._most and (shard := next(self._shards, None)) is not None:
            shard.reference = self._remote.remote(self._order.job(shard))
            self._open.append(shard)

    def _record(self, shard: _Shard, done: Callable[[], None]) -> None:
        answer = json.loads(self._answer(shard))
        checkpoint = self._order.batch.checkpoint
        self._book(shard, answer)
        if "error" in answer:
            raise _error_of(answer)
        results = (Result.read(line.encode()) for line in answer["results"])
        ready = shard.merged(results)
        checkpoint.append(ready)
        for _ in ready:
            done()
        shutil.rmtree(_home(checkpoint.folder, shard.number), ignore_errors=True)

    def _book(self, shard: _Shard, answer: Mapping[str, Any]) -> None:
        place = f"{shard.number} {answer['machine']}"
        paid, lost = _usage_of(answer["paid"]), _usage_of(answer["lost"])
        book_shard(self._order.batch.checkpoint.journal, place, paid, lost)

    def _answer(self, shard: _Shard) -> str:
        try:
            return self._ray.get(shard.reference)
        except self._ray.exceptions.RayError as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise PcoError(
                f"a task on the cluster was lost: {why}",
                hint=f"{self._order.batch.order.again} goes on from here",
            ) from None

    def _cancel(self) -> None:
        """Tasks bring home what they have asked for; a second Ctrl-C does not wait for that."""
        open_now = [shard.reference for shard in self._open if shard.reference is not None]
        for reference in open_now:
            self._ray.cancel(reference)
        try:
            if open_now:
                count = len(open_now)
                home, _ = self._ray.wait(open_now, num_returns=count, timeout=_PATIENCE_S)
                for shard in self._open:
                    if shard.reference in home:
                        with suppress(PcoError):  # what stopped the batch is what is told
                            self._book(shard, json.loads(self._answer(shard)))
        except KeyboardInterrupt:
            for reference in open_now:
                self._ray.cancel(reference, force=True)


_PATIENCE_S = 60.0
"""What tasks may take to end once they are asked to."""


def _forget(ray: Any, batch: Batch) -> None:
    """Every machine that is there removes what it has journaled of a batch that is recorded."""
    task = ray.remote(max_retries=0, num_cpus=0)(forget_batch)
    told = machine_name(), str(batch.checkpoint.folder.resolve())
    on_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    nodes = [each["NodeID"] for each in ray.nodes() if each["Alive"]]
    asked = [
        task.options(scheduling_strategy=on_node(node, soft=False)).remote(*told) for node in nodes
    ]
    ray.wait(asked, num_returns=len(asked), timeout=_FORGET_S)


def _usage_of(tree: Mapping[str, Any]) -> dict[Role, Usage]:
    return {cast("Role", role): Usage(**sums) for role, sums in tree.items()}


def _error_of(answer: Mapping[str, Any]) -> PcoError:
    kinds: dict[str, type[PcoError]] = {
        kind.__name__: kind for kind in (BudgetReached, ConfigError, Interrupted)
    }
    kind = kinds.get(answer["error"], PcoError)
    return kind(answer["message"], hint=answer["hint"])


def _home(checkpoint: Path, number: int) -> Path:
    """The folder of a shard's journal within OUT.part."""
    return checkpoint / "shards" / str(number)


def _homes_elsewhere(machine: str, folder: str) -> Path:
    """Where another machine than the command's keeps journals of batches to an OUT."""
    mark = hashlib.sha256(f"{machine} {folder}".encode()).hexdigest()[:16]
    return cache_folder() / "batch" / mark


def forget_batch(machine: str, folder: str) -> None:
    """Removes all that this machine has in its cache of batches to an OUT of that machine."""
    shutil.rmtree(_homes_elsewhere(machine, folder), ignore_errors=True)


def _settled_home(told: Mapping[str, Any]) -> Path:
    """The folder of a task's journal here, once what nobody asks for any more is removed."""
    number = told["number"]
    if told["machine"] == machine_name():
        return _home(Path(told["folder"]), number)
    homes = _homes_elsewhere(told["machine"], told["folder"])
    own = homes / told["id"]
    own.mkdir(0o700, parents=True, exist_ok=True)
    gone = [each for each in homes.iterdir() if each != own]
    gone += [each for each in own.iterdir() if int(each.name) < told["recorded"]]
    for each in gone:
        shutil.rmtree(each, ignore_errors=True)
    return own / str(number)


def answer_shard(job: str) -> str:
    """Answers the rows that `OnRay` wrote down, on the machine that they came to: results and what
    they cost, or the error, as JSON."""
    told = json.loads(job)
    answer: dict[str, Any] = {"machine": machine_name(), "paid": {}, "lost": {}}
    try:
        require_version(told["version"])
        folder = _settled_home(told)
        folder.mkdir(0o700, parents=True, exist_ok=True)
        journal = open_journal(folder, told["again"])
    except PcoError as error:
        return json.dumps({**answer, **_told(error)})
    try:
        results = _Results(told["answered"])
        _answer(told, journal, results)
        answer["results"] = [result.line().decode() for result in results.taken]
    except PcoError as error:
        answer |= _told(error)
    finally:
        ledger = journal.ledger
        answer["paid"] = {role: asdict(usage) for role, usage in ledger.usage.items()}
        answer["lost"] = {role: asdict(usage) for role, usage in ledger.lost.items()}
        journal.close()
    return json.dumps(answer)


def _told(error: PcoError) -> dict[str, str]:
    return {"error": type(error).__name__, "message": str(error), "hint": error.hint}


@dataclass
class _Results:
    """A `Sink` in memory; `before` rows were answered when the shard was cut."""

    before: int
    taken: list[Result] = field(default_factory=list[Result])

    @property
    def answered(self) -> int:
        return self.before + sum(result.error is None for result in self.taken)

    def append(self, results: list[Result]) -> None:
        self.taken += results


def _answer(told: Mapping[str, Any], journal: Journal, results: _Results) -> None:
    config = full_config().model_validate(told["config"])
    file = PolicyFile.model_validate_json(told["policy"])
    policy = deploy(file, config, Sources(Path(told["base"])), journal.supplies())
    rows: Iterator[Kept] = ((Record(where, values), None) for where, values in told["rows"])
    run_sync(
        _answered(policy, rows, results, config.concurrency),
        lambda: policy.stop(Interrupted("interrupted by the user")),
    )


async def _answered(policy: Policy, rows: Iterator[Kept], results: _Results, at_once: int) -> None:
    try:
        await answer_rows(policy, rows, results, at_once)
    finally:
        await policy.aclose()
