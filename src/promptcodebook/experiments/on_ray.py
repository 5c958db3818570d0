"""Cells on a Ray cluster (extra [ray]): one cell a task, and its result comes back to the lab.

A task on the lab's own machine works in the lab's folder. Elsewhere it works in a folder of that
machine's cache, and its run comes back with the result, so that the lab holds them all. Nothing but
text and bytes is handed over; keys are read where the task runs.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from promptcodebook.cluster import join_cluster, machine_name, require_version
from promptcodebook.errors import Interrupted, PcoError
from promptcodebook.experiments.experiment import Order
from promptcodebook.experiments.lab import Cell, Lab, open_lab
from promptcodebook.experiments.reproduce import Crew, Outcome, Progress, experiment_named
from promptcodebook.paths import cache_folder


@dataclass(frozen=True, slots=True)
class OnRay:
    """So many cells at once on the cluster at `address`; each may have its share of `concurrency`
    calls in flight. MissingExtra without ray, ConfigError where no cluster answers."""

    order: Order
    lab: Lab
    address: str
    width: int
    concurrency: int

    def measure(self, cells: Sequence[Cell], progress: Progress) -> None:
        ray = join_cluster(self.address, self.width, "running cells on a cluster")
        try:
            tasks = _Tasks(ray, self.lab.folder)
            crew = Crew(self.width, progress, tasks.interrupt)
            crew.measure(cells, lambda cell: tasks.submit(self._job(cell)))
        finally:
            ray.shutdown()

    def _job(self, cell: Cell) -> str:
        """Which cell, as JSON: there it is made again from its experiment."""
        order = self.order
        cells = {c.name: c for c in order.experiment.cells(order, self.lab.spec)}
        return json.dumps(
            {
                "experiment": order.experiment.name,
                "order": {k: getattr(order, k) for k in _ORDERED},
                "cell": cell.name,
                "needed": {name: self.lab.read(cells[name]) for name in cell.after},
                "spec": self.lab.spec,
                "command": self.lab.command,
                "folder": str(self.lab.folder.resolve()),
                "machine": machine_name(),
                "concurrency": max(1, self.concurrency // self.width),
                "version": version("promptcodebook"),
            }
        )


_STOPS = ("Stop", "Interrupted", "BudgetReached")
_ORDERED = ("preset", "seeds", "task", "data", "independent", "weak")
"""What an order has beside its experiment."""


class _Tasks:
    """What was handed to the cluster and has not come back."""

    def __init__(self, ray: Any, folder: Path) -> None:
        self._ray, self._folder = ray, folder
        # A task that died is begun again by the next command, which finds its run.
        self._remote = ray.remote(max_retries=0)(measure_job)
        self._open: dict[Future[Outcome], Any] = {}
        self._interrupted = False

    def submit(self, job: str) -> Future[Outcome]:
        reference, outcome = self._remote.remote(job), Future[Outcome]()
        self._open[outcome] = reference

        def hand_over(reply: Future[bytes]) -> None:
            self._open.pop(outcome, None)
            try:
                outcome.set_result(self._outcome(reply))
            except BaseException as error:
                outcome.set_exception(error)

        reference.future().add_done_callback(hand_over)
        return outcome

    def interrupt(self) -> None:
        """In order first, and the second time at once."""
        for reference in list(self._open.values()):
            self._ray.cancel(reference, force=self._interrupted)
        self._interrupted = True

    def _outcome(self, reply: Future[bytes]) -> Outcome:
        error = reply.exception()
        if error is None:
            return _unpacked(reply.result(), self._folder)
        if self._interrupted:
            raise Interrupted("interrupted by the user")
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        return PcoError(f"its task on the cluster was lost: {why}")


def measure_job(job: str) -> bytes:
    """Measures the cell that `OnRay` wrote down, on the machine that it came to: a line of JSON
    with its result or its error, and after it the runs that were made there, as a tar."""
    asked, packed = json.loads(job), io.BytesIO()
    away, folder = asked["machine"] != machine_name(), Path(asked["folder"])
    if away:  # the same command finds the same folder on this machine again
        digest = hashlib.sha256(f"{asked['machine']} {folder}".encode()).hexdigest()[:16]
        folder = cache_folder() / "cells" / digest / asked["cell"].replace("/", "-")
    try:
        require_version(asked["version"])
        answer: dict[str, Any] = {"result": _measured(asked, folder)}
    except PcoError as error:
        answer = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
    if away and "result" in answer:
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for run in sorted(folder.iterdir()):
                if run.is_dir() and run.name != "cells":
                    archive.add(run, run.name)
    return json.dumps(answer).encode() + b"\n" + packed.getvalue()


def _measured(told: Mapping[str, Any], folder: Path) -> Any:
    order = Order(experiment_named(told["experiment"]), **told["order"])
    concurrency = told["concurrency"]
    lab = open_lab(folder, told["spec"], told["command"], concurrency=concurrency)
    try:
        cells = {cell.name: cell for cell in order.experiment.cells(order, lab.spec)}
        for name, result in told["needed"].items():
            if result is not None and lab.read(cells[name]) is None:
                lab.keep(cells[name], result)
        return cells[told["cell"]].measure(lab)
    finally:
        lab.close()


def _unpacked(answer: bytes, folder: Path) -> Outcome:
    """The result, whose runs are in the lab's folder from now on. Raises Stop."""
    line, _, runs = answer.partition(b"\n")
    told = json.loads(line)
    if told.get("error") in _STOPS:
        raise Interrupted(told["message"])
    if "error" in told:
        return PcoError(told["message"], hint=told["hint"])
    if runs:
        with tarfile.open(fileobj=io.BytesIO(runs)) as archive:
            new = [m for m in archive if not (folder / Path(m.name).parts[0]).exists()]
            archive.extractall(folder, members=new, filter="data")
    return told["result"]
