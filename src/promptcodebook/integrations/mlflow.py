"""A training run on MLflow (`telemetry = ["mlflow"]`, extra `mlflow`): settings as params, figures
of each step, the verdict's table, the report as an artifact. MLflow's own variables say where it
goes. What fails costs a line in the log.

Each step and validation logs `reward`, `validation`, `best_validation`, `epsilon`, `failed`,
`calls`, `tokens` and `cost_usd`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping
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
_WHAT = 'telemetry = ["mlflow"]'


class Tracker:
    """Middleware that tells a run to MLflow, in a thread of its own: any of its calls may block,
    and the first that fails is the last. Raises MissingExtra."""

    def __init__(self, config: Config, private: bool) -> None:
        require_modules(("mlflow",), _WHAT, "mlflow")
        self._settings = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in leaves(config.model_dump(mode="json"))
            if value not in (None, "", {}, [])
        }
        self._view, self._run = RunView(), Path()
        self._thread: ThreadPoolExecutor | None = None
        self._client: Any = None
        self._id, self._deaf = "", False

    def around(self, inner: LM, budget: BudgetGate, tally: Tally) -> LM:
        """`inner` as it is: this is about runs."""
        return inner

    def hear(self, event: object) -> None:
        match event:
            case Began(run_id=run_id, path=path, models=models, simulated=simulated):
                specs = {f"model.{role}": spec for role, spec in models.items()}
                settings = self._settings | specs | {"simulated": str(simulated)}
                self._run, self._thread = Path(path), ThreadPoolExecutor(1)
                self._do(lambda: self._begin(run_id, settings))
            case StepDone() | ValidationDone() | Spent():
                pass
            case _:
                return
        self._view = view = advance(self._view, event, time.monotonic())
        if isinstance(event, StepDone | ValidationDone):
            self._do(lambda: self._log(view))

    async def close(self) -> None:
        """Hands over the verdict and the report of a run, and waits until all is sent."""
        if self._thread is not None:
            self._do(self._end)
            await asyncio.to_thread(self._thread.shutdown)
            self._thread = None

    def _do(self, work: Callable[[], object]) -> None:
        def tried() -> None:
            if self._deaf:
                return
            try:
                work()
            except Exception as error:
                self._deaf = True
                message = f"{type(error).__name__}: {error}"
                _log.warning("MLflow logs nothing more from this run: %s", message)

        if self._thread is not None:
            self._thread.submit(tried)

    def _begin(self, run_id: str, settings: Mapping[str, str]) -> None:
        """A run of MLflow, found again by its tag when ours is resumed."""
        # A server that is down is noticed soon.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        client = self._client = import_extra("mlflow", _WHAT, "mlflow").MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _HOME
        found = client.get_experiment_by_name(name)
        home = found.experiment_id if found is not None else client.create_experiment(name)
        ours = client.search_runs([home], f"tags.`pco.run` = '{run_id}'", max_results=1)
        if ours:
            self._id = ours[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            return
        tags = {"pco.run": run_id}
        self._id = client.create_run(home, run_name=run_id, tags=tags).info.run_id
        entities: Any = import_extra("mlflow.entities", _WHAT, "mlflow")
        params = [entities.Param(key, value[:_LONGEST]) for key, value in settings.items()]
        for start in range(0, len(params), _AT_ONCE):
            client.log_batch(self._id, params=params[start : start + _AT_ONCE])

    def _log(self, view: RunView) -> None:
        figures = {
            "reward": view.reward,
            "epsilon": view.epsilon,
            "validation": view.validation,
            "best_validation": view.best[1] if view.best is not None else None,
            "failed": view.failed,
            "calls": view.spent.calls,
            "tokens": view.spent.tokens,
            "cost_usd": view.spent.cost,
        }
        entities: Any = import_extra("mlflow.entities", _WHAT, "mlflow")
        now, step = time.time_ns() // 1_000_000, view.step + 1
        known = [(name, float(value)) for name, value in figures.items() if value is not None]
        metrics = [entities.Metric(name, value, now, step) for name, value in known]
        self._client.log_batch(self._id, metrics=metrics)

    def _end(self) -> None:
        client = self._client
        with closing(RunStore.open(self._run)) as store, tempfile.TemporaryDirectory() as folder:
            state, report = store.outline(), Path(folder) / "report.html"
            done = Conclusion.of(state, store.header)
            write_report(store, report, stored_examples(store.header) if store.ours else {})
            client.set_tag(
                self._id, "pco.verdict", state.missing if done is None else done.sentence
            )
            client.set_tag(self._id, "pco.deploy", "" if done is None else done.deploy)
            client.set_tag(self._id, "pco.ended", state.ended or "")
            rows = VerdictTable(done.rows if done is not None else ())
            for row in rows.rows:
                client.log_metric(self._id, f"verdict/{row.name}", row.score.mean)
            if table := rows.cells():  # as MLflow stores and shows a table, without pandas
                columns = list(table[0])
                data = [[row.get(column, "") for column in columns] for row in table]
                client.log_dict(self._id, {"columns": columns, "data": data}, "verdict.json")
                shown = json.dumps([{"path": "verdict.json", "type": "table"}])
                client.set_tag(self._id, "mlflow.loggedArtifacts", shown)
            client.log_artifact(self._id, str(report))
        ended = state.ended not in (None, "failed")
        client.set_terminated(self._id, "FINISHED" if ended else "FAILED")
