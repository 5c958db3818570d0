"""`pco.optimize`: the whole method in one call, sync or async; and a run that is there, opened."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypedDict, TypeVar, Unpack

from promptcodebook import errors
from promptcodebook.assemble import OWN_LM, Sources
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import shown_text
from promptcodebook.base.units import number, spent_parts
from promptcodebook.calls import LM, Role, Usage
from promptcodebook.config import Budget, Config, load_config, role_layers
from promptcodebook.config.loading import read_prompt, start_from_prompt
from promptcodebook.data import Dataset
from promptcodebook.lm.stack import StackResources, uses_simulated
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.policy import Explanation, Policy, deploy
from promptcodebook.policy.references import Best, kept_state, require_trust, resolve
from promptcodebook.progress import Listener, watch
from promptcodebook.run.frames import ROLLOUTS, rollout_rows
from promptcodebook.run.opening import IN_PYTHON, Session, Where, open_run
from promptcodebook.run.verdict import Conclusion, VerdictRow
from promptcodebook.store.events import PromptCandidate
from promptcodebook.store.lock import holder
from promptcodebook.store.run import Recorded, RunStore
from promptcodebook.store.runs import find_run, remove_run
from promptcodebook.tasks.rewards import library as ready_made
from promptcodebook.tasks.user_code import check_function
from promptcodebook.types import Codebook, Executor, Reward

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_VERB = "optimize()"
_ROLES = "a mapping such as {'critic': 'openai/x'}"


@dataclass(frozen=True)
class Run:
    """A finished (or resumable) run: its policy, its best score, what it cost.

    - `id`, `path`, `name`: its id, its folder, and the name that it was given ('').
    - `ended`: 'finished', 'early_stop', 'target', 'budget', 'interrupted' or, where the error that
      ended it has the run, 'failed'; while another process writes it, 'running'.
    - `verdict`: the sentence on the test split, or what is missing when the run stopped before it.
    - `worth`: whether the learned policy is worth deploying (None = not known).
    - `best`: the step whose state is deployed, and its score on validation.
    - `usage`, `lost`: what answered calls took by role; what calls without an answer may have cost.
    - `tallies`: how often each incident happened, by name.
    - `learned`, `file`: the policy, opened when asked for, and its file (None = there is none).
    - `conclusion`, `stop`: the figures behind the verdict; what ended the run early, if anything.
    - `budget`, `settings`: its limits; the settings of an optimizer of others, defaults included.
    - `candidates`: the prompts that such an optimizer tried, in order, with validation scores.
    - `sources`: the objects that the run was made with.
    - `simulated`: whether a simulated model answered: figures must say so."""

    id: str
    path: Path
    ended: str
    verdict: str
    worth: bool | None
    best: Best
    usage: Mapping[Role, Usage]
    tallies: Mapping[str, int]
    learned: Policy | Callable[[], Policy] | None
    conclusion: Conclusion | None = None
    stop: errors.Stop | None = None
    name: str = ""
    lost: Usage = Usage()
    budget: Budget = Budget()
    settings: Mapping[str, Any] = field(default_factory=lambda: dict[str, Any]())
    candidates: Sequence[PromptCandidate] = ()
    sources: Sources = field(default=Sources(), repr=False, compare=False)
    file: PolicyFile | None = field(default=None, repr=False)
    simulated: bool = False

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Run cannot be pickled, as it holds a policy with connections and your functions: "
            "pass str(run.path), and call pco.load_run(path) there"
        )

    def __repr__(self) -> str:
        score = number(self.best.score, missing="none")
        return f"Run({self.id!r}, ended={self.ended!r}, best={score}, worth={self.worth})"

    def _repr_html_(self) -> str:
        score = number(self.best.score, missing="none")
        model = "simulated model, " if self.simulated else ""
        facts = f"{model}{self.ended}, best on validation {score}"
        facts = f"{facts}, {self.bill}"
        title = f"run {self.id}" + (f" ({self.name})" if self.name else "")
        verdict = self.conclusion or Conclusion((), self.verdict or "none yet", None)
        return f"<div>{shown_text(title, facts)}{verdict.html(self.id)}</div>"

    @cached_property
    def policy(self) -> Policy:
        """The learned policy, ready to answer. Raises PolicyError when the optimizer leaves
        none."""
        learned = self._required(self.learned)
        return learned if isinstance(learned, Policy) else learned()

    def __await__(self) -> Generator[None, None, Run]:
        """The run itself, so that `await pco.optimize(...)` does not lose what it paid for."""
        yield from ()
        return self

    @property
    def codebook(self) -> Codebook:
        """The instincts of the kept state. Raises PolicyError when there are none."""
        return self._required(self.file).parameters.codebook

    def _required(self, found: _T | None) -> _T:
        if found is None:
            message = "this run has no policy: its optimizer makes none, or it stopped too early"
            hint = "its prompts are in the rows of its verdict: run.rows[...].prompt"
            raise errors.PolicyError(message, hint=hint)
        return found

    @property
    def rows(self) -> Mapping[str, VerdictRow]:
        """The verdict's rows by name; `rows['concat'].prompt` is a prompt that every input gets."""
        return {row.name: row for row in self.conclusion.rows} if self.conclusion else {}

    @property
    def deploy(self) -> str:
        """Name of the row that the verdict recommends; '' where that is unclear."""
        return self.conclusion.deploy if self.conclusion else ""

    @property
    def spent(self) -> Usage:
        """All that was paid, or may have been: `usage` of all roles, and `lost`."""
        return sum(self.usage.values(), self.lost)

    @property
    def bill(self) -> str:
        """What it spent, in words."""
        past = not all(row.metered for row in self.rows.values())
        return ", ".join(spent_parts(self.spent, self.budget.limits, past=past))

    @property
    def cost(self) -> float | None:
        """USD for all roles together, `lost.cost` included. None = some price is unknown."""
        return self.spent.cost

    @property
    def rollouts(self) -> Any:
        """Every rollout on record, of training, validation and the verdict's rows, as a pandas
        DataFrame: the columns of `ROLLOUTS` in `run/frames.py`; without texts where the data are
        private. Raises MissingExtra when pandas is not installed."""
        pandas = errors.import_extra("pandas", "run.rollouts", "pandas")
        with closing(RunStore.open(self.path)) as store:
            return pandas.DataFrame(list(rollout_rows(store)), columns=ROLLOUTS)

    def explain(self, x: str | Mapping[str, object]) -> Explanation:
        """Route, instincts, prompt and reasons for one input; known replies are not asked again."""
        policy = self.policy
        if policy.sources.lm is None or policy is self.learned:
            supplies = StackResources(recorded_replies=Recorded(self.path))
            policy = deploy(policy.file, policy.config, policy.sources, supplies)
        return policy.explain(x)


class Choices(TypedDict, total=False):
    """Keywords that `optimize`, `aoptimize` and `estimate` share: `roles` gives single roles
    another model or settings, `size` is K, `select` S, `samples` the answers by which an example
    is judged, `budget` is such as '5usd' or '2Mtok', `executor` your own agent, `async (prompt,
    example, lm) -> str | Output`; `prompt` is what you have, a text or a file; `config` sets
    everything else."""

    roles: Mapping[str, Any] | None
    size: int | None
    select: int | None
    samples: int | None
    budget: str | None
    seed: int | None
    executor: Executor | None
    prompt: str | Path | None
    config: Config | Mapping[str, Any] | None


def settings_of(verb: str, reward: object, lm: str | LM, choices: Choices) -> Config:
    """The keywords of `optimize` laid over its `config`, over PCO_LM, over the defaults. Raises
    ConfigError."""
    base = check_keywords(verb, choices)
    if isinstance(reward, str | Mapping) and reward:
        base["reward"] = reward
    spec = lm if isinstance(lm, str) else ""
    over: dict[str, Any] = {
        "lm": spec or base.get("lm") or os.environ.get("PCO_LM", ""),
        **{name: choices.get(name) for name in ("size", "select", "samples", "seed")},
        "budget": choices.get("budget") or None,
        "roles": role_layers(choices.get("roles")) or None,
    }
    given = {key: value for key, value in over.items() if value is not None}
    if (prompt := choices.get("prompt")) is not None:
        given["init"] = {"prompt": read_prompt(prompt, "prompt=")}
    return load_config(base, start_from_prompt(base, given), where=verb)


def check_keywords(verb: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `config`. Raises ConfigError for a value of a wrong type."""
    config, kinds = given.get("config"), (Config, Mapping)
    what = "a Config or a mapping, such as tomllib.load returns"
    require_type(verb, "config", config, kinds, what)
    require_type(verb, "roles", given.get("roles"), (Mapping,), _ROLES)
    require_type(verb, "budget", given.get("budget"), (str,), "a string such as '5usd' or '2Mtok'")
    require_type(verb, "prompt", given.get("prompt"), (str, Path), "a string or a file's Path")
    return config.model_dump() if isinstance(config, Config) else dict(config or {})


async def aoptimize(
    data: Dataset,
    reward: Reward | str | Mapping[str, Any],
    lm: str | LM = "",
    *,
    runs_dir: str | Path = "runs",
    resume: str = "",
    listener: Listener | None = None,
    name: str = "",
    progress: bool = True,
    **choices: Unpack[Choices],
) -> Run:
    """`optimize` for code that runs in an event loop: the same arguments, result and errors."""
    settings = settings_of(_VERB, reward, lm, choices)
    sources = sources_of(_VERB, data, reward, choices.get("executor"), lm)
    where = _where(runs_dir, resume, name)
    with watch(listener, sys.stderr if progress else None) as watcher:
        return await finish(open_run(settings, sources, where, watcher))


def optimize(
    data: Dataset,
    reward: Reward | str | Mapping[str, Any],
    lm: str | LM = "",
    *,
    roles: Mapping[str, Any] | None = None,
    size: int | None = None,
    select: int | None = None,
    samples: int | None = None,
    budget: str | None = None,
    seed: int | None = None,
    executor: Executor | None = None,
    prompt: str | Path | None = None,
    config: Config | Mapping[str, Any] | None = None,
    runs_dir: str | Path = "runs",
    resume: str = "",
    listener: Listener | None = None,
    name: str = "",
    progress: bool = True,
) -> Run:
    """Learn a codebook for `data` under `reward`, and say whether it is worth deploying.

    Works inside a notebook. Ctrl-C ends the run in order.

    - `data`: a Dataset with a training split; `pco.load` makes one.
    - `reward`: a function of an example and an output, or a ready-made one as in pco.toml: 'exact',
      {'kind': 'regex', 'pattern': ...}, 'reward.py:reward'. '': the one of `config`.
    - `lm`: a spec (`http://host:8000/v1#model`, `openai/...`, `simulated`) or an LM object. '':
      PCO_LM of the environment.
    - `roles`: another model or settings for single roles. None: `lm` plays all of them.
    - `size`: K, the number of instincts. `select`: S, the number of instincts a prompt gets.
      None: what `config` or its preset says.
    - `samples`: how many answers the mean of which judges an example. None: as `config` says.
    - `budget`: what the run may spend, such as '5usd', '2Mtok' or '500calls'. None: no limit.
    - `seed`: the key of every random draw. None: as `config` says.
    - `executor`: your own agent, `async (prompt, example, lm) -> str | Output`. None: one call.
    - `prompt`: the prompt that you have, a text or a file: what to beat and to start from. A column
      in braces, `{question}`, is filled in. None: no prompt.
    - `config`: a Config, or a mapping such as `read_toml` gives; it sets everything else.
    - `runs_dir`: the folder where the run lives ('runs').
    - `resume`: the run to resume, by its id, the start of it, its name, or 'last'. '': a new one.
    - `listener`: is called with every event, in place of the line on stderr. None: that line.
    - `name`: what to call the run.
    - `progress`: whether a line on stderr says after two seconds how far the run is (True).

    A reached budget is not an error: the Run says `ended == 'budget'` and can be resumed. When an
    error ends a run that has begun, `error.run` has its policy, its cost and what is missing.

    Raises ConfigError when a setting or an argument is wrong, DataError when the data cannot be
    used, LMError when the model gives no usable reply, TooManyFailures when most of a batch fails,
    and StoreError when the run's folder cannot be read or written."""
    choices = Choices(roles=roles, budget=budget, seed=seed, config=config, prompt=prompt)
    choices |= {"size": size, "select": select, "samples": samples}
    settings = settings_of(_VERB, reward, lm, choices)
    sources = sources_of(_VERB, data, reward, executor, lm)
    where = _where(runs_dir, resume, name)
    with watch(listener, sys.stderr if progress else None) as watcher:
        session = open_run(settings, sources, where, watcher)
        return run_sync(finish(session), session.interrupt)


def sources_of(
    verb: str,
    data: Dataset | None,
    reward: Reward | str | Mapping[str, Any] | None,
    executor: Executor | None,
    lm: str | LM,
) -> Sources:
    """The objects that a `verb` of Python was called with. Raises ConfigError when one is of a
    wrong type."""
    require_type(verb, "data", data, (Dataset,), "a Dataset: data = pco.load(...)")
    ready = "a function of an example and an output, or a ready-made reward such as 'exact'"
    require_type(verb, "reward", reward, (Callable, str, Mapping), ready)
    agent = "a function of prompt, example and lm"
    require_type(verb, "executor", executor, (Callable, str), agent)
    model = "a model's spec, or an object that answers Requests"
    require_type(verb, "lm", lm, (Callable, str), model)
    own = None if isinstance(lm, str) else lm
    function = None if isinstance(reward, str | Mapping) else reward
    if getattr(function, "__module__", "") == ready_made.__name__:
        called = f"{getattr(function, '__name__', '')}()"
        message = f"{verb}: the reward is a factory for a ready-made reward"
        raise errors.ConfigError(message, hint=f"call it: {called}")
    if function is not None:
        check_function(function, ("example", "output"), f"{verb}: the reward")
    if callable(executor):
        check_function(executor, ("prompt", "example", "lm"), f"{verb}: the executor")
    return Sources(data=data, reward=function, executor=executor, lm=own)


def require_type(
    verb: str, name: str, given: object, kinds: tuple[Any, ...], what: str, *, optional: bool = True
) -> None:
    """Raises ConfigError for what is not of these kinds, nor None where it is `optional`."""
    if not isinstance(given, kinds) and not (optional and given is None):
        message = f"{verb}: {name} is of type {type(given).__name__}"
        raise errors.ConfigError(message, hint=f"{name} must be {what}")


def _where(runs_dir: str | Path, resume: str, name: str) -> Where:
    """Absolute, so that a Run is found after a change of folder."""
    require_type(_VERB, "runs_dir", runs_dir, (str, Path), "a folder", optional=False)
    require_type(_VERB, "resume", resume, (str,), "a run's id or name, or 'last'", optional=False)
    folder = Path(runs_dir).resolve()
    resumed = find_run(folder, resume).resolve() if resume else None
    return Where(folder, resumed, IN_PYTHON, name)


async def finish(session: Session) -> Run:
    """Runs an opened run to its end and closes it. Raises the Stop of a run that has neither
    codebook nor verdict. A run whose settings make no codebook is removed again."""
    store, empty = session.store, False
    try:
        await session.run()
        run = _result(session)
        if run.stop is not None and run.learned is None and not run.rows:
            run.stop.run = run
            raise run.stop
        if run.stop is not None and store.header.command == IN_PYTHON:
            _log.warning("%s; resume with: %s", run.stop, run.stop.hint)
        return run
    except errors.PcoError as error:
        if isinstance(error, errors.ConfigError | errors.MissingExtra):
            empty = store.outline().parameters is None and not store.usage()
        if session.ended == "failed" and not empty:
            with suppress(errors.PcoError):  # what went wrong may be the disk
                error.run = _result(session)
        raise
    finally:
        await session.close()
        if empty:
            remove_run(store.path)


def _result(session: Session) -> Run:
    ledger, run = session.assembled.models.ledger, _read(session.store)
    learned = session.policy() if session.store.outline().parameters is not None else None
    return replace(
        run,
        ended=session.ended or run.ended,
        usage=dict(ledger.usage),
        lost=ledger.lost_total,
        learned=learned,
        file=None if learned is None else learned.file,
        stop=session.stop,
        budget=session.assembled.config.budget,
        sources=session.assembled.plan.sources,
    )


def _read(store: RunStore) -> Run:
    state, header = store.outline(), store.header
    concluded = state.conclusion
    stop = {"budget": errors.BudgetReached, "interrupted": errors.Interrupted}.get(
        state.ended or ""
    )
    config = header.configuration
    return Run(
        id=header.id,
        path=store.path,
        # A run that was killed did not say so.
        ended="running" if holder(store.path) is not None else state.ended or "interrupted",
        verdict=state.missing if concluded is None else concluded.text,
        worth=None if concluded is None else concluded.worth,
        best=Best(None, state.step) if state.parameters is None else kept_state(store)[1],
        usage=store.usage(),
        tallies=store.tallies(),
        learned=None,
        conclusion=Conclusion.of(state, header),
        stop=None if stop is None else stop(state.detail, hint=state.hint),
        name=header.name,
        lost=sum(store.lost().values(), Usage()),
        budget=config.budget,
        settings={} if concluded is None else concluded.settings,
        candidates=() if concluded is None else concluded.candidates,
        simulated=uses_simulated(config),
    )


def load_run(
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
    """Open a run that is finished, stopped or still running: verdict, figures, codebook, policy.

    Nothing is called, and no model is needed, until the run's `policy` is asked for.

    - `ref`: the run's id, the start of it, its name or its folder, or 'last'.
    - `data`, `reward`: needed to evaluate a run that took them as objects. None: not given.
    - `lm`: another model than the run's own, or the LM object that it took. '': its own.
    - `roles`: other models or settings for single roles. None: the run's own.
    - `executor`: the agent that the run took as an object. None: not given.
    - `runs_dir`: the folder where runs live ('runs').
    - `trust`: whether code and addresses of a run that somebody else made may be used (False).

    Raises RunNotFound when there is no such run, and StoreError when it is damaged. Its `policy`
    raises ConfigError when an object is missing, and RunNotTrusted when the run is not yours."""
    verb, names = "load_run()", (str, Path)
    require_type(verb, "roles", roles, (Mapping,), _ROLES)
    require_type(verb, "ref", ref, names, "a run's id, name or folder", optional=False)
    require_type(verb, "runs_dir", runs_dir, names, "a folder", optional=False)
    sources = sources_of(verb, data, reward, executor, lm)
    path = find_run(Path(runs_dir), str(ref)).resolve()
    with closing(RunStore.open(path)) as store:
        run = replace(_read(store), sources=sources)
        if store.outline().parameters is None:
            return run
    reference = resolve(Path(runs_dir), str(path), trust=trust)
    spec = lm if isinstance(lm, str) else OWN_LM
    layer = {"lm": spec, "roles": role_layers(roles)}
    typed = {key: value for key, value in layer.items() if value}

    def open_policy() -> Policy:
        """Without budget and cache, as `load_policy` does."""
        header = reference.header
        assert header is not None, "a run has one"
        if header.settings.get("lm") == OWN_LM and not spec:
            raise errors.ConfigError(
                f"the run {header.id} was made with an LM object, which is missing here",
                hint=f"pco.load_run({header.id!r}, lm=...), with the object or a model's spec",
            )
        require_trust(header, typed, trusted=reference.trusted, ref=reference.ref)
        above = {**typed, "cache": False, "budget": Budget().model_dump()}
        settings = reference.file.settings(
            header.settings, above, verb, name=header.id, trusted=reference.trusted
        )
        return deploy(reference.file, settings, replace(sources, base=reference.base))

    return replace(run, learned=open_policy, file=reference.file)
