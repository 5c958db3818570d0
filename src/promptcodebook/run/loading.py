"""`pco.load_run`: a run of before, as the Run that `optimize` returned, or would have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from promptcodebook.assemble import OWN_LM, Sources
from promptcodebook.calls import LM, Usage
from promptcodebook.config import Budget, load_config, role_layers
from promptcodebook.data import Dataset
from promptcodebook.errors import BudgetReached, ConfigError, Interrupted
from promptcodebook.lm.stack import uses_simulated
from promptcodebook.policy.policy import Policy, deploy
from promptcodebook.policy.references import Best, Reference, kept_state, require_trust, resolve
from promptcodebook.run.optimize import Run, require_type, sources_of
from promptcodebook.run.verdict import Conclusion, read_rows
from promptcodebook.store.lock import holder
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run
from promptcodebook.types import Executor, Reward

_VERB = "load_run()"


def load_run(  # noqa: PLR0913 - what a run may have taken as objects
    ref: str | Path,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    *,
    roles: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    runs_dir: str | Path = "runs",
    trust: bool = False,
) -> Run:
    """A run that is finished, stopped or still running: its verdict, figures, codebook and policy.

    `ref` is its id, the start of it, its name or its folder, or 'last'. Nothing is called, and no
    model is needed, until its `policy` is asked for: that uses the run's own models, unless `lm` or
    `roles` name others; the model or the agent that it took as objects are handed over again, and
    `data` and `reward` too, if it is to be evaluated. `trust` uses the code and the addresses of a
    run that somebody else made.

    Raises RunNotFound and StoreError; its `policy` raises ConfigError and RunNotTrusted.
    """
    require_type(_VERB, "roles", roles, (Mapping,), "a mapping such as {'critic': 'openai/x'}")
    require_type(_VERB, "ref", ref, (str, Path), "a run's id, name or folder", optional=False)
    require_type(_VERB, "runs_dir", runs_dir, (str, Path), "a folder", optional=False)
    sources = sources_of(_VERB, data, reward, executor, lm)
    path = find_run(Path(runs_dir), str(ref)).resolve()
    store = RunStore.open(path)
    try:
        run = _read(store)
    finally:
        store.close()
    run = replace(run, sources=sources)
    if run.file is None:
        return run
    reference = resolve(Path(runs_dir), str(path), trust=trust)
    opens = _opener(reference, sources, {"lm": lm, "roles": role_layers(roles)})
    return replace(run, learned=opens, file=reference.file)


def _read(store: RunStore) -> Run:
    state = store.outline()
    learned = state.parameters is not None
    concluded = state.conclusion
    conclusion, file, best = None, None, Best(None, state.step)
    if concluded is not None:
        rows = read_rows(concluded.rows)
        conclusion = Conclusion(rows, concluded.text, concluded.worth, concluded.deploy)
    stop = {"budget": BudgetReached, "interrupted": Interrupted}.get(state.ended or "")
    if learned:
        best = kept_state(store)[1]
        file = resolve(store.path.parent, str(store.path)).file
    config = load_config(store.header.settings, where=f"the run {store.header.id}")
    return Run(
        id=store.header.id,
        path=store.path,
        # A run that was killed did not say so.
        ended="running" if holder(store.path) is not None else state.ended or "interrupted",
        verdict=concluded.text if concluded is not None else state.missing,
        worth=concluded.worth if concluded is not None else None,
        best=best,
        usage=store.usage(),
        tallies=store.tallies(),
        learned=None,
        conclusion=conclusion,
        stop=None if stop is None else stop(state.detail, hint=state.hint),
        name=store.header.name,
        lost=sum(store.lost().values(), Usage()),
        budget=config.budget,
        settings=concluded.settings if concluded is not None else {},
        candidates=concluded.candidates if concluded is not None else (),
        file=file,
        simulated=uses_simulated(config),
    )


def _opener(
    reference: Reference, sources: Sources, given: Mapping[str, Any]
) -> Callable[[], Policy]:
    """What makes the policy when it is asked for: without budget and cache, like `load_policy`."""

    def open_policy() -> Policy:
        header = reference.header
        assert header is not None, "a run has one"
        own = given["lm"] if isinstance(given["lm"], str) else OWN_LM
        layer = {"lm": own, "roles": given["roles"]}
        typed = {key: value for key, value in layer.items() if value}
        if header.settings.get("lm") == OWN_LM and not own:
            raise ConfigError(
                f"the run {header.id} was made with an LM object, which is not here",
                hint=f"pco.load_run({header.id!r}, lm=...), with the object or a model's spec",
            )
        require_trust(header, typed, trusted=reference.trusted, ref=reference.ref)
        above = {**typed, "cache": False, "budget": Budget().model_dump()}
        settings = reference.file.settings(
            header.settings, above, _VERB, name=header.id, trusted=reference.trusted
        )
        return deploy(reference.file, settings, replace(sources, base=reference.base))

    return open_policy
