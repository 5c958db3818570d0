"""A training run on MLflow (`telemetry = ["mlflow"]`, extra `mlflow`): settings as params, figures
of each step, the verdict's table, the report as an artifact. MLflow's own variables say where it
goes. What fails costs a line in the log."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from promptcodebook.base.incidents import Tally
from promptcodebook.calls import LM
from promptcodebook.config import Config
from promptcodebook.errors import import_extra, require_modules
from promptcodebook.lm.budget import BudgetGate
from promptcodebook.policy.references import stored_examples
from promptcodebook.progress import Began, RunView, Spent, StepDone, ValidationDone, advance
from promptcodebook.report.page import write_report
from promptcodebook.run.verdict import Conclusion, VerdictTable
from promptcodebook.store.header import leaves
from promptcodebook.store.run import RunStore

_log = logging.getLogger(__name__)
_HOME = "promptcodebook"  # the experiment, unless MLFLOW_EXPERIMENT_NAME names another
_LONGEST = 500  # characters of a param, which some servers of MLflow cut or refuse beyond
_AT_ONCE = 100  # params that MLflow takes at a time
Settings = Mapping[str, str]


class Tracker:
    """Middleware that tells a run to MLflow, in a thread of its own. Raises MissingExtra."""

    def __init__(self, config: Config, private: bool) -> None:
        require_modules(("mlflow",), 'telemetry = ["mlflow"]', "mlflow")
        self._settings = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in leaves(config.model_dump(mode="json"))
            if value not in (None, "", {}, [])
        }
        self._view, self._run = RunView(), Path()
        self._sink: _Mlflow | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._deaf = False

    def around(self, inner: LM, budget: BudgetGate, tally: Tally) -> LM:
        """`inner` as it is: this is about runs."""
        return inner

    def hear(self, event: object) -> None:
        match event:
            case Began(run_id=run_id, path=path, models=models, simulated=simulated):
                self._view = advance(self._view, event, time.monotonic())
                specs = {f"model.{role}": spec for role, spec in models.items()}
                settings = self._settings | specs | {"simulated": str(simulated)}
                self._run, self._thread = Path(path), ThreadPoolExecutor(1)

                def begin() -> None:
                    self._sink = _Mlflow(run_id, settings)

                self._do(begin)
            case StepDone() | ValidationDone() | Spent():
                self._view = advance(self._view, event, time.monotonic())
                if not isinstance(event, Spent):
                    self._log(dict(_figures(self._view)), self._view.step + 1)
            case _:
                pass

    async def close(self) -> None:
        """Hands over the verdict and the report of a run, and waits until all is sent."""
        if self._thread is not None:
            self._do(self._finish)
            await asyncio.to_thread(self._thread.shutdown)
            self._thread = None

    def _log(self, figures: Mapping[str, float], step: int) -> None:
        self._do(lambda: self._sink and self._sink.log(figures, step))

    def _finish(self) -> None:
        if self._sink is None:
            return
        with closing(RunStore.open(self._run)) as store, tempfile.TemporaryDirectory() as folder:
            state, report = store.outline(), Path(folder) / "report.html"
            done = Conclusion.of(state, store.header)
            rows = VerdictTable(done.rows if done is not None else ())
            write_report(store, report, stored_examples(store.header) if store.ours else {})
            facts: dict[str, Any] = {
                "verdict": state.missing if done is None else done.sentence,
                "deploy": "" if done is None else done.deploy,
                "ended": state.ended or "",
            }
            for row in rows.rows:
                facts[f"verdict/{row.name}"] = row.score.mean
            ended = state.ended not in (None, "failed")
            self._sink.end(facts, rows.cells(), report, ended)

    def _do(self, work: Callable[[], object]) -> None:
        def tried() -> None:
            if self._deaf:
                return
            try:
                work()
            except Exception as error:
                self._deaf = True
                message = f"{type(error).__name__}: {error}"
                _log.warning("MLflow hears no more of this run: %s", message)

        if self._thread is not None:
            self._thread.submit(tried)


def _figures(view: RunView) -> Iterator[tuple[str, float]]:
    spent, best = view.spent, view.best
    figures = {
        "reward": view.reward,
        "epsilon": view.epsilon,
        "validation": view.validation,
        "best_validation": best[1] if best is not None else None,
        "failed": view.failed,
        "calls": spent.calls,
        "tokens": spent.tokens,
        "cost_usd": spent.cost,
    }
    for name, value in figures.items():
        if value is not None:
            yield name, float(value)


class _Mlflow:
    """A run of MLflow, found again by its tag when ours is resumed. Every method may block, and may
    raise anything."""

    def __init__(self, run_id: str, settings: Settings) -> None:
        # A server that is down is noticed soon.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        library: Any = import_extra("mlflow", 'telemetry = ["mlflow"]', "mlflow")
        self._entities: Any = import_extra("mlflow.entities", "MLflow", "mlflow")
        self._client: Any = library.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _HOME
        found = self._client.get_experiment_by_name(name)
        home = found.experiment_id if found is not None else self._client.create_experiment(name)
        ours = self._client.search_runs([home], f"tags.`pco.run` = '{run_id}'", max_results=1)
        if ours:
            self._id = ours[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"pco.run": run_id}
        self._id = self._client.create_run(home, run_name=run_id, tags=tags).info.run_id
        params = [self._entities.Param(k, v[:_LONGEST]) for k, v in settings.items()]
        for start in range(0, len(params), _AT_ONCE):
            self._client.log_batch(self._id, params=params[start : start + _AT_ONCE])

    def log(self, figures: Mapping[str, float], step: int) -> None:
        now = time.time_ns() // 1_000_000
        made = [self._entities.Metric(name, value, now, step) for name, value in figures.items()]
        self._client.log_batch(self._id, metrics=made)

    def end(
        self, facts: Mapping[str, Any], table: Sequence[Mapping[str, str]], report: Path, ok: bool
    ) -> None:
        for name, value in facts.items():
            if isinstance(value, float):
                self._client.log_metric(self._id, name, value)
            else:
                self._client.set_tag(self._id, f"pco.{name}", value)
        if table:
            # As MLflow stores and shows a table, without pandas.
            columns = list(table[0])
            cells = {"columns": columns, "data": [[r.get(c, "") for c in columns] for r in table]}
            self._client.log_dict(self._id, cells, "verdict.json")
            shown = json.dumps([{"path": "verdict.json", "type": "table"}])
            self._client.set_tag(self._id, "mlflow.loggedArtifacts", shown)
        self._client.log_artifact(self._id, str(report))
        self._client.set_terminated(self._id, "FINISHED" if ok else "FAILED")
