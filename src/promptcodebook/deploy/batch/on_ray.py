"""A batch on a Ray cluster (extra [ray]): a shard of rows a task, its results recorded in order, so
the bytes are the same as without a cluster. A task journals its replies, within OUT.part or in its
machine's cache, where an interrupted shard finds them again; later tasks remove them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import shutil
import socket
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import aclosing, closing, suppress
from dataclasses import asdict
from importlib.metadata import version
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from promptcodebook.assemble import Sources
from promptcodebook.base.paths import cache_folder
from promptcodebook.base.sync import Relay, run_sync
from promptcodebook.calls import Usage
from promptcodebook.config import Config
from promptcodebook.config.loading import full_config
from promptcodebook.data.table import SourceRow
from promptcodebook.deploy.batch.checkpoint import book_shard, open_journal
from promptcodebook.deploy.batch.rows import RowResult
from promptcodebook.deploy.batch.session import BatchSession, Summary, answer_rows
from promptcodebook.errors import BudgetReached, ConfigError, Interrupted, PcoError, import_extra
from promptcodebook.lm.stack import uses_simulated
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.policy import deploy
from promptcodebook.store.journal import Journal

LOCAL = "local"  # the address of a Ray that is started here and ends with the command
_KNOCK_S = 5.0
_LEAST_RAY = (2, 60)  # the release whose tokens were tested: an earlier one answers any caller
_SHARD = 256  # Rows of a task. Shards begin at multiples of it, whatever is recorded already.
_LOOK_UP_S = 0.2
_FORGET_S = 20.0
_PATIENCE_S = 60.0  # What tasks may take to end after a cancel.


def answer_on_ray(
    address: str,
    batch: BatchSession,
    file: PolicyFile,
    config: Config,
    base: Path,
    done: Callable[[], None],
) -> Summary:
    """Answers what is missing, and writes OUT. Raises Interrupted, or what stopped a shard;
    Raises MissingExtra without ray, and ConfigError where no cluster answers or for a budget."""
    if any(value is not None for _, value in config.budget):
        message = "a budget cannot be enforced across the processes of a cluster"
        raise ConfigError(message, hint="leave out --budget, or leave out --ray")
    here = max(2, os.cpu_count() or 1)
    ray = join_cluster(address, here)
    try:
        width = max(1, int(ray.cluster_resources().get("CPU", 1)))
        share = max(1, config.concurrency // width)
        shared = config.model_copy(update={"concurrency": share})
        jobs = shard_jobs(batch, file, shared, base, _SHARD)
        _Tasks(ray, batch, jobs, 2 * width).run(done)
        _forget(ray, batch)
    finally:
        ray.shutdown()
    return batch.conclude(simulated=uses_simulated(config))


def shard_jobs(
    batch: BatchSession, file: PolicyFile, config: Config, base: Path, size: int
) -> Iterator[tuple[int, str]]:
    """The rows not recorded yet, cut at multiples of `size`: each shard's number and its job, as
    JSON."""
    checkpoint = batch.checkpoint
    job = {
        "policy": file.text(),
        "config": config.model_dump(mode="json"),
        "base": str(base.resolve()),
        "folder": str(checkpoint.folder.resolve()),
        "id": checkpoint.job["id"],
        "machine": machine_name(),
        "version": version("promptcodebook"),
        "again": batch.order.again,
    }
    rows = enumerate(batch.rows(), start=checkpoint.count)
    for number, numbered in groupby(rows, key=lambda row: row[0] // size):
        sent = [[record.where, dict(record.values)] for _, record in numbered]
        answered = checkpoint.count - checkpoint.failed
        now = {"recorded": checkpoint.count // size, "answered": answered}
        yield number, json.dumps({**job, "number": number, "rows": sent, **now})


class _Tasks:
    """At most `most` shards that were handed to the cluster and are not recorded."""

    def __init__(
        self, ray: Any, batch: BatchSession, jobs: Iterator[tuple[int, str]], most: int
    ) -> None:
        self._ray, self._batch, self._jobs, self._most = ray, batch, jobs, most
        # A task that died is begun again by the next command, which finds its journal.
        self._remote = ray.remote(max_retries=0)(answer_shard)
        # The number of each shard, and what its task will return.
        self._open: deque[tuple[int, Any]] = deque()

    def run(self, done: Callable[[], None]) -> None:
        """Records shard after shard. Raises Interrupted, or what stopped one."""
        try:
            self._submit()
            while self._open:
                number, reference = self._open[0]
                if self._ray.wait([reference], timeout=_LOOK_UP_S)[0]:
                    self._record(number, reference, done)
                    self._open.popleft()
                    self._submit()
        except BaseException as error:
            self._cancel()
            if not isinstance(error, KeyboardInterrupt):
                raise
            hint = f"{self._batch.order.again} continues from here"
            raise Interrupted("interrupted by the user", hint=hint) from None

    def _submit(self) -> None:
        for number, job in islice(self._jobs, self._most - len(self._open)):
            self._open.append((number, self._remote.remote(job)))

    def _record(self, number: int, reference: Any, done: Callable[[], None]) -> None:
        answer, checkpoint = self._booked(number, reference), self._batch.checkpoint
        if "error" in answer:
            kinds = {kind.__name__: kind for kind in (BudgetReached, ConfigError, Interrupted)}
            kind: type[PcoError] = kinds.get(answer["error"], PcoError)
            raise kind(answer["message"], hint=answer["hint"])
        checkpoint.append([RowResult.read(line.encode()) for line in answer["results"]])
        for _ in answer["results"]:
            done()
        shutil.rmtree(_home(checkpoint.folder, number), ignore_errors=True)

    def _booked(self, number: int, reference: Any) -> dict[str, Any]:
        try:
            answer = json.loads(self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            message = f"a task on the cluster was lost: {why}"
            raise PcoError(message, hint=f"{self._batch.order.again} continues from here") from None
        books = (answer["paid"], answer["lost"])
        paid, lost = ({role: Usage(**sums) for role, sums in book.items()} for book in books)
        place = f"{number} {answer['machine']}"
        book_shard(self._batch.checkpoint.journal, place, paid, lost)
        return answer

    def _cancel(self) -> None:
        """Tasks return what they have asked for; a second Ctrl-C does not wait for that."""
        references = [reference for _, reference in self._open]
        for reference in references:
            self._ray.cancel(reference)
        try:
            count, home = len(references), list[Any]()
            if count:
                home, _ = self._ray.wait(references, num_returns=count, timeout=_PATIENCE_S)
            for number, reference in self._open:
                if reference in home:
                    with suppress(PcoError):  # the first error is the one to report
                        self._booked(number, reference)
        except KeyboardInterrupt:
            for reference in references:
                self._ray.cancel(reference, force=True)


def _forget(ray: Any, batch: BatchSession) -> None:
    """Every machine of the cluster removes its journals of a batch that is recorded."""
    task = ray.remote(max_retries=0, num_cpus=0)(forget_batch)
    machine, folder = machine_name(), str(batch.checkpoint.folder.resolve())
    on_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    nodes = [each["NodeID"] for each in ray.nodes() if each["Alive"]]
    asked = [
        task.options(scheduling_strategy=on_node(node, soft=False)).remote(machine, folder)
        for node in nodes
    ]
    ray.wait(asked, num_returns=len(asked), timeout=_FORGET_S)


def _home(checkpoint: Path, number: int) -> Path:
    return checkpoint / "shards" / str(number)


def _homes_elsewhere(machine: str, folder: str) -> Path:
    mark = hashlib.sha256(f"{machine} {folder}".encode()).hexdigest()[:16]
    return cache_folder() / "batch" / mark


def forget_batch(machine: str, folder: str) -> None:
    """Removes what this machine has in its cache of batches to an OUT of that machine."""
    shutil.rmtree(_homes_elsewhere(machine, folder), ignore_errors=True)


def _settled_home(job: Mapping[str, Any]) -> Path:
    """The folder of a task's journal here, made once outdated journals are removed."""
    home = _home(Path(job["folder"]), job["number"])
    if job["machine"] != machine_name():
        homes = _homes_elsewhere(job["machine"], job["folder"])
        own = homes / job["id"]
        own.mkdir(0o700, parents=True, exist_ok=True)
        gone = [each for each in homes.iterdir() if each != own]
        gone += [each for each in own.iterdir() if int(each.name) < job["recorded"]]
        for each in gone:
            shutil.rmtree(each, ignore_errors=True)
        home = own / str(job["number"])
    home.mkdir(0o700, parents=True, exist_ok=True)
    return home


def answer_shard(job: str) -> str:
    """Answers the rows of a job where it came to: results and costs, or the error, as JSON."""
    # A cancel interrupts the main thread, wherever that is: so the work is done in another one, and
    # what was paid always comes home.
    relay = Relay()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(_answered_shard, json.loads(job), relay)
        while True:
            try:
                if wait((answer,), _LOOK_UP_S).done:
                    return answer.result()
            except KeyboardInterrupt:
                relay.interrupt()


def _answered_shard(job: Mapping[str, Any], relay: Relay) -> str:
    answer: dict[str, Any] = {"machine": machine_name(), "paid": {}, "lost": {}}
    try:
        require_version(job["version"])
        with closing(open_journal(_settled_home(job), job["again"])) as journal:
            try:
                results = _answer(job, journal, relay)
                answer["results"] = [result.line().decode() for result in results]
            finally:
                for name, book in (("paid", journal.ledger.usage), ("lost", journal.ledger.lost)):
                    answer[name] = {role: asdict(usage) for role, usage in book.items()}
    except (PcoError, KeyboardInterrupt) as cause:
        error = cause if isinstance(cause, PcoError) else Interrupted("interrupted by the user")
        answer |= {"error": type(error).__name__, "message": str(error), "hint": error.hint}
    return json.dumps(answer)


def _answer(job: Mapping[str, Any], journal: Journal, relay: Relay) -> list[RowResult]:
    config = full_config().model_validate(job["config"])
    file = PolicyFile.model_validate_json(job["policy"])
    policy = deploy(file, config, Sources(Path(job["base"])), journal.supplies())
    rows = (SourceRow(where, values) for where, values in job["rows"])
    results, before = list[RowResult](), job["answered"] > 0

    async def answered() -> None:
        async with aclosing(policy):
            await answer_rows(policy, rows, results.extend, config.concurrency, answered=before)

    run_sync(answered(), lambda: policy.stop(Interrupted("interrupted by the user")), relay)
    return results


def join_cluster(address: str, width: int) -> Any:
    """Ray, joined to the cluster at `address`; a LOCAL one has `width` processors. Raises
    MissingExtra without ray, ConfigError when no cluster answers or this ray is too old."""
    if address == LOCAL:
        # Read as ray is imported: it listens on loopback only, to callers with this token.
        # A token in the environment leaves no file in the user's home folder.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    ray = import_extra("ray", "answering rows on a cluster", "ray")
    if address == LOCAL and tuple(map(int, ray.__version__.split(".")[:2])) < _LEAST_RAY:
        message = f"ray {ray.__version__} is older than 2.60, the oldest that we tested with "
        message += "authentication tokens"
        raise ConfigError(message, hint="pip install 'ray>=2.60'")
    with socket.socket() as taken:
        # Ray's dashboard asks cloud providers' addresses which of them it runs at, whatever its
        # settings say. So it finds its port taken, and is left out.
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        here = {"num_cpus": width, "include_dashboard": False, "dashboard_port": port}
        try:
            host, _, own = address.rpartition("/")[2].rpartition(":")
            if host and own.isdigit():  # Ray itself waits for minutes where nothing answers
                socket.create_connection((host, int(own)), _KNOCK_S).close()
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="critical",
                **(here if address == LOCAL else {}),
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            message = f"cannot join a Ray cluster at {address}: {error}"
            hint = f"run ray start --head, then name the address it prints; or --ray {LOCAL}"
            raise ConfigError(message, hint=hint) from error
    return ray


def machine_name() -> str:
    """A name that no other machine of the cluster has."""
    return f"{platform.node()}-{uuid.getnode():x}"


def require_version(wanted: str) -> None:
    """ConfigError where this machine has another version than the task was written with."""
    if (here := version("promptcodebook")) != wanted:
        message = f"{platform.node()} has promptcodebook {here}, but the batch needs {wanted}"
        raise ConfigError(message, hint=f"run there: pip install promptcodebook=={wanted}")
