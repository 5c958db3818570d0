"""REF -> a policy: a run (id, start of an id, path, 'last'), a policy file, or a version in the
registry (NAME@REF, sha256:DIGITS). Of a run it is the best validated state, or the last, that holds
nothing harmful. The code and the addresses that a run names are used only if it has the mark of
this user (`store/header.py`): its folder is passed on like any file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from promptcodebook import errors
from promptcodebook.assemble import OWN_LM, Assembled, plan_data
from promptcodebook.base.paths import read_bytes, run_reference
from promptcodebook.base.text import shell
from promptcodebook.calls import ROLES
from promptcodebook.config import Config, load_typed
from promptcodebook.config.secrets import beyond_sampling, secret_variables, without_secrets
from promptcodebook.data import Dataset
from promptcodebook.lm.spec import SMOLLM2
from promptcodebook.lm.stack import simulated_here
from promptcodebook.method.policy import Deployed
from promptcodebook.method.state import State
from promptcodebook.method.templates import load_templates
from promptcodebook.policy.file import MEASURED, PolicyFile, parse_policy_file, read_policy_file
from promptcodebook.policy.scan import safety_check
from promptcodebook.store.effects import InstinctReward, instinct_rewards
from promptcodebook.store.events import RunState
from promptcodebook.store.header import Header
from promptcodebook.store.lock import FILE
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run, list_runs
from promptcodebook.tasks.program import SINGLE_CALL
from promptcodebook.types import Example, variable_name

_ADDRESS = ("model", "headers")  # what of a role's settings says whom it asks
DEPLOY, NO_VERDICT = "Deploy", "none"
_VERDICTS = {NO_VERDICT: "none, since it was never judged", "": "none is known"}
POLICY = "policy.json"  # name of the policy file in a run's folder


def require_trust(
    header: Header, typed: Mapping[str, Any], *, trusted: bool, ref: str = ""
) -> None:
    """Raises RunNotTrusted where the run is not trusted and its own settings, `typed` laid over
    them, would run code, call an address or send a body field that was not typed."""
    if trusted:
        return
    config = load_typed(header.settings, typed=typed, where=f"the run {header.id}")
    code = [
        text
        for key in ("reward", "executor")
        if not config.task and not typed.get(key)
        for text in texts_in(header.settings.get(key))
        if ".py" in text or (key == "executor" and text)
    ]
    addresses, fields = _addresses(config, typed), _fields(config, typed)
    acts = {"run": code, "call": addresses, "send": fields}
    if would := [f"{act} {', '.join(what)}" for act, what in acts.items() if what]:
        own = "" if code or fields else ", or name a model of yours: --lm SPEC"
        raise errors.RunNotTrusted(
            f"the run {header.id} is not marked as yours (it is from someone else, another machine "
            f"or version 0.1), and it would {' and '.join(would)}",
            hint=f"pco runs show {ref or shell(header.id)} --json shows its settings; "
            f"if you trust them, add --trust (in Python trust=True){own}",
        )


def texts_in(value: object) -> Iterator[str]:
    """Every text in a setting: a reward may be a sum of others."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        held = cast("Mapping[str, object] | Sequence[object]", value)
        for each in held.values() if isinstance(held, Mapping) else held:
            yield from texts_in(each)


def _addresses(config: Config, typed: Mapping[str, Any]) -> list[str]:
    """The models that would be called and were not typed, and the variables sent along."""
    roles: Mapping[str, Mapping[str, Any]] = typed.get("roles") or {}
    own = {typed.get("lm"), *(role.get("model") for role in roles.values())}
    specs: dict[str, dict[str, None]] = {}
    for role in ROLES:
        spec = config.model_of(role)
        if spec in ("", OWN_LM, SMOLLM2) or simulated_here([spec]):
            continue
        sent: list[str] = []
        if (settings := config.roles.get(role)) is not None:
            given: Mapping[str, Any] = roles.get(role) or {}
            headers: Mapping[str, str] = given.get("headers") or {}
            body = secret_variables(given.get("extra") or {})
            sent += [v for h, v in settings.headers.items() if v[:1] == "$" and h not in headers]
            sent += [v for v in secret_variables(settings.extra) if v not in body]
        if spec not in own or sent:
            specs.setdefault(spec, {}).update(dict.fromkeys(sent))
    return [f"{spec} (with {', '.join(sent)})" if sent else spec for spec, sent in specs.items()]


def _fields(config: Config, typed: Mapping[str, Any]) -> list[str]:
    """Telemetry, and body fields, but for secrets, that decide more than sampling: not typed."""
    roles: Mapping[str, Mapping[str, Any]] = typed.get("roles") or {}
    found = [f"telemetry to {name}" for name in config.telemetry if "telemetry" not in typed]
    for role, settings in config.roles.items():
        given: Mapping[str, Any] = (roles.get(role) or {}).get("extra") or {}
        stored = {k: v for k, v in without_secrets(settings.extra).items() if given.get(k) != v}
        found += [f"roles.{role}.extra.{name}" for name in beyond_sampling(stored)]
    return found


@dataclass(frozen=True, slots=True)
class Best:
    """The kept policy: validation score (None = never validated), step (-1 = untrained), scope."""

    score: float | None
    step: int
    scope: str = ""


@dataclass(frozen=True)
class Reference:
    """What a REF names. `header` and `best` are there when it is a run; `trusted` = the code,
    addresses and body fields that it names may be used; `ref` is what is typed for it. `text` is
    the policy file's, byte for byte; `version` its name in the registry ('' = not from there).
    `verdict` is its run's decision, 'none' where it was never judged, '' where it is unknown."""

    name: str
    file: PolicyFile
    header: Header | None = None
    best: Best | None = None
    trusted: bool = True
    ref: str = ""
    text: str = ""
    version: str = ""
    verdict: str = ""

    @property
    def caution(self) -> str:
        """What speaks against its use, in a line; '' where its verdict is to deploy it."""
        present = self.file.about.get("present")
        before, texts = present if isinstance(present, str) else "", self.file.parameters.texts
        harmful = [
            f"{variable_name(variable)} ({found})"
            for variable, text in texts.items()
            if variable != "critic" and (found := safety_check("generator", text, before))
        ]
        cautions = [] if self.verdict == DEPLOY else [_VERDICTS.get(self.verdict, self.verdict)]
        cautions += [f"the safety rules refuse {harmful[0]}"] if harmful else []
        return f"verdict: {'; '.join(cautions)}: {self.name}" if cautions else ""

    @property
    def title(self) -> str:
        """What people call it: a run by its name, or else by its id."""
        return self.name if self.header is None else self.header.name or self.header.id

    @property
    def base(self) -> Path:
        """The folder that the run's paths start from."""
        return Path(self.header.base or ".") if self.header is not None else Path()

    @property
    def objects(self) -> tuple[str, ...]:
        """What the run was made with that only its program had: of data, reward, executor, lm."""
        own = self.header.settings if self.header is not None else {}
        if self.header is None or own.get("task"):
            return ()
        data: Mapping[str, Any] = own.get("data", {})
        agent = self.file.program not in ("", SINGLE_CALL)
        objects = {
            "data": not (data.get("path") or data.get("train")),
            "reward": not own.get("reward"),
            "executor": agent and not own.get("executor"),
            "lm": own.get("lm") == OWN_LM,
        }
        return tuple(name for name, is_object in objects.items() if is_object)

    @property
    def models(self) -> dict[str, Any]:
        """The run's own models with their headers, as a layer of settings; {} = none to use."""
        if self.header is None or not self.trusted or self.header.settings.get("lm") == OWN_LM:
            return {}
        settings = self.header.settings
        roles: Mapping[str, Mapping[str, Any]] = settings.get("roles") or {}
        kept = {role: {k: s[k] for k in _ADDRESS if s.get(k)} for role, s in roles.items()}
        return {"lm": settings.get("lm"), "roles": {role: s for role, s in kept.items() if s}}


def without_models(layer: Mapping[str, Any]) -> dict[str, Any]:
    """A layer of settings without what it says of whom to ask."""
    roles: Mapping[str, Mapping[str, Any]] = layer.get("roles") or {}
    kept = {role: {k: v for k, v in s.items() if k not in _ADDRESS} for role, s in roles.items()}
    rest = {key: value for key, value in layer.items() if key not in ("lm", "roles")}
    return {**rest, "roles": {role: s for role, s in kept.items() if s}}


def resolve(
    runs_dir: Path, ref: str, *, trust: bool = False, tell: Callable[[str], None] = lambda _: None
) -> Reference:
    """What a REF names; `tell` hears which run 'last' is. Raises RunNotFound, RefNotFound,
    StoreError or PolicyError."""
    path = Path(ref)
    if path.is_file() or (path.suffix == ".json" and not path.is_dir()):
        file, text = read_policy_file(path), read_bytes(path).decode()
        verdict = file.verdict
        if path.name == POLICY and (path.parent / FILE).is_file():
            with suppress(errors.StoreError), closing(RunStore.open(path.parent)) as store:
                verdict = verdict_of(store)
        return Reference(path.name, file, trusted=trust, text=text, verdict=verdict)
    if is_version(ref):
        stored = stored_version(ref)
        file, version = parse_policy_file(stored.text, ref), stored.version
        verdict = stored.verdict or file.verdict
        of_file = Reference(ref, file, trusted=trust, text=stored.text)
        return replace(of_file, version=version, verdict=verdict)
    with closing(RunStore.open(find_policy(runs_dir, ref))) as store:
        state, best = kept_state(store)
        header, trusted = store.header, store.ours or trust
        if ref == "last":
            tell(f"'last' means the run {header.id}")
        file, typed, text = _file(store, state), run_reference(store.path), ""
        # What was read, compared and hashed elsewhere is then the same bytes.
        with suppress(OSError, UnicodeDecodeError, errors.PolicyError):
            written = read_bytes(store.path / POLICY).decode()
            text = written if parse_policy_file(written, POLICY).digest == file.digest else ""
        text, verdict = text or file.text(), verdict_of(store)
        return Reference(header.id, file, header, best, trusted, typed, text, verdict=verdict)


def find_policy(runs_dir: Path, ref: str) -> Path:
    """As `find_run`, but 'last' is the last run that left a policy, where there is one."""
    left = [run.path for run in list_runs(runs_dir)] if ref == "last" else []
    return next((path for path in reversed(left) if (path / POLICY).is_file()), None) or find_run(
        runs_dir, ref
    )


def verdict_of(store: RunStore) -> str:
    """The decision on the run's policy, or NO_VERDICT."""
    concluded = store.outline().conclusion
    return concluded.decision if concluded else NO_VERDICT


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version of a registry, its file and run, and what its ref would be rolled back to."""

    version: str
    text: str
    run: str = ""
    before: str = ""
    verdict: str = ""


# What a registry registers in the group `promptcodebook.versions`. Raises RefNotFound.
VersionLookup = Callable[[str], StoredVersion]


def stored_version(ref: str) -> StoredVersion:
    """The version that a ref of the registry means. Raises RefNotFound when there is none, and
    MissingExtra when no registry is installed."""
    find: VersionLookup = errors.import_part(
        "promptcodebook.versions", "registry", f"the ref {ref}", "serve"
    )
    return find(ref)


WORD = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}"
REF = re.compile(rf"({WORD})@({WORD})")  # NAME@REF
VERSION = re.compile(r"sha256:[0-9a-f]{6,64}")  # a version's name, or the start of it


def is_version(ref: str) -> bool:
    """Whether it means a version in the registry: NAME@REF or sha256:DIGITS, also with a slip, and
    no file."""
    return bool(re.fullmatch(r"[^/\\\s]*[@:][^/\\\s]*", ref)) and not Path(ref).exists()


def read_policy(source: str | Path) -> PolicyFile:
    """The policy of a file, or of a version in the registry. Raises PolicyError, RefNotFound."""
    ref = str(source)
    if is_version(ref):
        return parse_policy_file(stored_version(ref).text, ref)
    return read_policy_file(Path(source))


def run_behind(runs_dir: Path, ref: str) -> Path:
    """The folder of the run that a REF names, or that its policy came from. Raises as `resolve`."""
    path, show = Path(ref), f"pco registry show {shell(ref)}"
    if is_version(ref):
        run = stored_version(ref).run
    elif path.is_file() and (path.parent / FILE).is_file():
        return path.parent
    elif path.is_file():
        run = read_policy_file(path).about.get("run")
    else:
        return find_policy(runs_dir, ref)
    if not (isinstance(run, str) and run):
        raise errors.RunNotFound(f"{ref} does not say which run it came from", hint=show)
    try:
        return find_run(runs_dir, run)
    except errors.RunNotFound:
        message = f"{ref} came from the run {run}, which is not in {runs_dir}"
        raise errors.RunNotFound(message, hint=f"PCO_RUNS=FOLDER names another; {show}") from None


def rewards_of(runs_dir: Path, ref: str, file: PolicyFile) -> tuple[InstinctReward, ...]:
    """The figure of each instinct of a policy, where the run that it came from is at hand."""
    texts = file.parameters.codebook.texts
    with suppress(errors.PcoError), closing(RunStore.open(run_behind(runs_dir, ref))) as store:
        judged = read_policy_file(store.path / POLICY).digest == file.digest
        tests = store.test_evaluations() if judged else ()
        return instinct_rewards(store.path, store.header, file.digest, texts, tests)
    return tuple(InstinctReward(f"pco registry effect {shell(ref)} {k}") for k in range(len(texts)))


def first_policy(runs_dir: Path, ref: str) -> PolicyFile:
    """The policy that a run started from. Raises RunNotFound for anything but a run."""
    with closing(RunStore.open(find_policy(runs_dir, ref))) as store:
        return _file(store, state_at(store, -1))


def kept_state(store: RunStore) -> tuple[State, Best]:
    """The state to deploy as far as the run has come: the best validated one, or the last. A
    harmful state never is (decision 29). Where all are, the harm stood in the first one, and a
    state to which training added none is kept. Raises StoreError before the run's first event."""
    outline = store.outline()
    if outline.parameters is None:
        message = f"the run {store.header.id} stopped before its first codebook was written"
        raise errors.StoreError(message, hint=f"pco train --resume {run_reference(store.path)}")
    last = store.header.config.get("keep") == "last"
    marks = [m for m in outline.validations if m.score is not None and not last]
    marks.sort(key=lambda m: (m.scope != "full", -(m.score or 0.0), m.step))
    bests = [Best(m.score, m.step, m.scope) for m in marks]
    bests += [Best(None, step) for step in range(outline.step, -2, -1)]
    for added in (False, True):
        for best in bests:
            if not harm_in(store, best.step, added=added, known=outline):
                return state_at(store, best.step), best
    raise AssertionError("training added nothing to the first state")


def harm_in(
    store: RunStore, step: int, *, added: bool = False, known: RunState | None = None
) -> str:
    """Why the state after `step` is harmful: by a verdict on one of its texts, or the rule scan;
    `added` = of texts that the first state lacked. '' = it is not, or `critic.safety` is off."""
    if not store.header.settings.get("critic", {}).get("safety", True):
        return ""
    called = (known or store.outline()).harmful
    first = [text for v, text in store.parameters_at(-1).texts.items() if v != "critic"]
    for variable, text in store.parameters_at(step).texts.items():
        if variable == "critic" or (added and text in first):  # ψ reaches no user
            continue
        # The user's own text may hold an address: a trace counts only where training added it.
        found = safety_check("generator", text, "\n".join(first))
        if found or text in called:
            return f"{variable_name(variable)}: {found or 'a verdict called it harmful'}"
    return ""


def state_at(store: RunStore, step: int) -> State:
    """The state that a step left behind; -1 is the untrained one."""
    if step < 0:
        started = store.started()
        return State.first(started.parameters, started.statistics)
    return State.after(store.step_at(step))


def policy_file(assembled: Assembled, state: State) -> PolicyFile:
    """The file of a state that this program is prompted by, with the data it was learned from."""
    plan, program = assembled.plan, assembled.task.program.name
    file = PolicyFile.of(state, assembled.config, plan.templates, program, plan.prompt_stages)
    return file.with_about(data=dict(assembled.dataset.fingerprint()), present=plan.present_prompt)


def stages_of(file: PolicyFile, assembled: Assembled) -> tuple[str, ...]:
    """The stages that get a prompt each; a file of version 0.1 leaves that to the settings."""
    return file.stages if file.program else assembled.plan.prompt_stages


def deployed_of(file: PolicyFile, assembled: Assembled) -> Deployed:
    """A policy file at work on these models."""
    composer = assembled.composer(stages_of(file, assembled), file.template_set)
    return Deployed(composer, file.parameters, file.statistics)


def with_measured(file: PolicyFile, store: RunStore) -> PolicyFile:
    """The file with the prompts that the run's verdict measured, if there is one."""
    concluded = store.outline().conclusion
    rows = (row for row in (concluded.rows if concluded else ()) if row["name"] in MEASURED)
    prompts = {row["name"]: row.get("prompt") for row in rows}
    known = {name: text for name, text in prompts.items() if text is not None}
    return file.with_about(**known, **({"verdict": concluded.decision} if concluded else {}))


def _file(store: RunStore, state: State) -> PolicyFile:
    """The policy file of a run's state, by what the run was started with. The header of a run of
    version 0.1 names no stages: as in a file of then, the settings decide on them."""
    header = store.header
    config = header.configuration
    templates = header.templates or load_templates(config.templates)
    program = "" if config.compose_per_stage and not header.stages else header.program
    file = PolicyFile.of(state, config, templates, program, header.stages)
    present = {} if header.present is None else {"present": header.present}
    return with_measured(file.with_about(data=dict(header.fingerprints), **present), store)


def stored_dataset(header: Header) -> Dataset:
    """The run's data as they are now. Raises ConfigError, DataError, TaskError."""
    return plan_data(header.configuration, Path(header.base or "."))


def stored_examples(header: Header) -> dict[str, Example]:
    """The run's examples by id, if any. It reads files that the run names: ask first."""
    try:
        data = stored_dataset(header)
    except (errors.ConfigError, errors.DataError, errors.TaskError):
        return {}
    return {example.id: example for _, examples in data.items() for example in examples}
