"""Every error the library raises, as one tree below `PcoError`.

Each says what failed and where (`str(error)`) and what to type next (`error.hint`)."""

from __future__ import annotations

import difflib
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, wraps
from importlib import import_module, resources
from importlib.util import find_spec
from inspect import iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any

from promptcodebook.base.incidents import Incident
from promptcodebook.calls import Usage

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

    from promptcodebook.types import Trace

_NEXT = "next: "


def message_of(error: BaseException) -> str:
    """An exception's message, even where its class cannot print it."""
    with suppress(Exception):
        return str(error)
    return "its message cannot be read"


_OTHER_LOOP = (
    "different loop",
    "different event loop",
    "event loop is closed",
    "timeout context m",
)


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it came of, and so on to what first went wrong; each once, since errors that
    are raised again may be each other's context."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def loop_hint(error: BaseException) -> str:
    """What to do where a client of the user's was made in another event loop, as those of a
    notebook's are; '' = nothing says so."""
    messages = (message_of(e).lower() for e in causes_of(error) if isinstance(e, RuntimeError))
    if not any(words in message for message in messages for words in _OTHER_LOOP):
        return ""
    return (
        "an async client works only in the event loop that created it: use `await "
        "pco.aoptimize(...)` (or aevaluate, ...) there, or create the client in your function"
    )


class PcoError(Exception):
    """Base of all errors; `hint` is the next thing to type, `exit_code` what `pco` returns, and
    `run` the unfinished `Run`, where the error ended one."""

    exit_code = 1
    retryable = False
    run: Any = None

    def __init_subclass__(cls, **facts: Any) -> None:
        """The facts of a kind of error stand in its head, such as exit_code=2."""
        for name, value in facts.items():
            setattr(cls, name, value)

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def hint(self) -> str:
        return self._hint

    @hint.setter
    def hint(self, text: str) -> None:
        # As a note, so that a script's or a notebook's traceback shows it too.
        kept = [n for n in getattr(self, "__notes__", []) if not n.startswith(_NEXT)]
        self._hint = text
        self.__notes__ = [*kept, f"{_NEXT}{text}"] if text else kept


class ConfigError(PcoError, ValueError, exit_code=2):
    """A setting is unknown, missing or contradicts another."""


class DataError(PcoError, ValueError, exit_code=2):
    """A file, column, line or split is not what was promised."""


class TaskError(PcoError, LookupError, exit_code=2):
    """The task is unknown, or its data cannot be found."""


class PolicyError(PcoError, ValueError, exit_code=2):
    """A policy file cannot be read."""


class MissingExtra(PcoError, ImportError, exit_code=2):
    """An optional dependency is missing; the hint is the exact pip command."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs an optional dependency that is not installed",
            hint=f"pip install 'promptcodebook[{extra}]'",
        )


def registered(group: str) -> EntryPoints:
    """The entry points of a group, read once for each search path: it takes milliseconds."""
    return _registered(group, tuple(sys.path))


@cache
def _registered(group: str, _path: tuple[str, ...]) -> EntryPoints:
    from importlib.metadata import entry_points  # takes a tenth of what `pco --help` may take

    return entry_points(group=group)


def entry_point(group: str, name: str, fault: type[PcoError] = ConfigError) -> EntryPoint | None:
    """What a package registered under a name, None: none did. Raises `fault` where several did:
    which one the search path has first would decide whose code runs."""
    # An installation may list an entry point twice.
    offered = {entry.value: entry for entry in registered(group).select(name=name)}
    if len(offered) > 1:
        listed = ", ".join(sorted(offered))
        hint = "uninstall all but one, or rename it in its package's entry points"
        raise fault(f"several packages offer {name!r}: {listed}", hint=hint)
    return next(iter(offered.values()), None)


def plug_in(
    group: str,
    name: str,
    key: str,
    own: Iterable[str] = (),
    *,
    fault: type[PcoError] = ConfigError,
    hint: str = "",
) -> Any:
    """What a package registered under the value of a setting. Raises `fault` when none did and
    the value is none of our `own` (`hint` lists them at its {}), or when it cannot be loaded."""
    entry = entry_point(group, name, fault)
    if entry is None:
        known = (*own, *sorted(registered(group).names))
        listed = (hint or f"{key} = one of {{}}").format(", ".join(known))
        raise fault(f"unknown {key} {name!r}{did_you_mean(name, known)}", hint=listed)
    try:
        return entry.load()
    except PcoError:
        raise
    except Exception as error:
        message = f"{key} {name!r}: {entry.value} cannot be loaded: {type(error).__name__}: "
        package = entry.dist.name if entry.dist else entry.module
        hint = f"fix or reinstall the package {package}"
        raise fault(message + message_of(error), hint=hint) from error


def import_part(group: str, name: str, what: str, extra: str) -> Any:
    """What a part or a plug-in registered. Raises MissingExtra when it is not installed; `what`
    needs it."""
    entry = entry_point(group, name)
    if entry is None:
        raise MissingExtra(what, extra)
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("promptcodebook."):
            raise  # the part is there, and what it needs is not
        raise MissingExtra(what, extra) from error


def require_modules(modules: Iterable[str], what: str, extra: str) -> None:
    """Raises MissingExtra unless all are installed; imports none, since some take long."""
    if any(find_spec(module) is None for module in modules):
        raise MissingExtra(what, extra)


# Libraries that report their use have these switches. A value that the user set stays.
_SENDS_NOTHING = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches its prices as it is imported
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def import_extra(module: str, what: str, extra: str) -> Any:
    """A module of an optional dependency, with its usage reports switched off. Raises MissingExtra
    when it is not installed."""
    unset = [name for name in _SENDS_NOTHING if not os.environ.get(name)]
    os.environ.update({name: _SENDS_NOTHING[name] for name in unset})
    hub: Any = sys.modules.get("huggingface_hub.constants")
    if hub is not None and "HF_HUB_DISABLE_TELEMETRY" in unset:
        hub.HF_HUB_DISABLE_TELEMETRY = True  # it read the variable as it was imported
    # openvino sends an event as it is imported, unless this package is missing.
    sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]
    try:
        import_module(module.partition(".")[0])
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(what, extra) from error


class PromotionRefused(PcoError):
    """A version has not passed what it must before a ref is moved to it."""


class LMError(PcoError):
    """A model call gave no usable reply; `role` and `model` say whose.

    `incident` is what it is tallied as when it comes off the wire (None = not at all);
    `retry_after` the seconds that the server asked to wait (0 = it did not say);
    `answered` = a reply came and was unusable; `lasting` = waiting will not help;
    `usage` = what the unusable replies took;
    `sent` = a server saw the request; `lost` = it may have done and billed the work all the same.
    """

    incident: Incident | None = None
    retry_after: float = 0.0
    answered = False
    lasting = False
    usage = Usage()
    sent = True
    lost = False

    def __init__(self, message: str, *, hint: str = "", role: str = "", model: str = "") -> None:
        super().__init__(message, hint=hint)
        self.role = role
        self.model = model


class EndpointDown(LMError, ConnectionError, retryable=True, lasting=True, sent=False):
    """The address does not answer."""

    incident = Incident.REFUSED_CONNECTION


class CallTimeout(LMError, TimeoutError, retryable=True, incident=Incident.TIMEOUT, lost=True):
    """The reply did not come in time."""


class RateLimited(LMError, retryable=True, incident=Incident.RATE_LIMITED):
    """429 or 503 after every retry."""


class ServerFault(LMError, retryable=True, incident=Incident.SERVER_ERROR, lost=True):
    """5xx, 408, 409, 425, or a connection that broke."""


class AuthRefused(LMError, PermissionError, lasting=True):
    """401 or 403: the key is wrong or missing."""


class NoCredit(LMError, lasting=True):
    """402, or a 429 that no waiting mends: the account is empty."""


class ModelNotFound(LMError, LookupError, lasting=True):
    """The endpoint does not know the model."""


class RequestRefused(LMError, ValueError, lasting=True):
    """Any other 4xx."""


class ParseError(LMError, ValueError, answered=True):
    """The reply never became the typed value that was requested."""


class TruncatedReply(LMError, answered=True):
    """The reply was cut at its length cap."""


class ReplyWithheld(LMError, answered=True):
    """A filter of the provider kept the reply back."""


class RewardError(PcoError):
    """The user's reward raised, or left its range."""


class ExecutorError(PcoError):
    """The user's agent hung, or tried to end more than its call."""


class TooManyFailures(PcoError, RuntimeError):
    """More than half of a batch failed; `traces` are those of that batch, for the record. `kind` is
    the class of the first failure's error."""

    traces: tuple[Trace, ...] = ()
    kind: str = ""


class StoreError(PcoError, OSError):
    """A run cannot be read or written."""


class RunNotFound(StoreError, exit_code=2):
    """No such run."""


class RunBusy(StoreError, exit_code=2):
    """Another process writes this run."""


class RunChanged(StoreError, exit_code=2):
    """A resumed run's configuration or data differ."""


class RunNotTrusted(StoreError, exit_code=2):
    """A run that was made elsewhere names code or addresses."""


class RefNotFound(StoreError, exit_code=2):
    """The registry has no such ref or version."""


class RegistryDamaged(StoreError):
    """A row of the registry is not what was written."""


class StoreTooNew(StoreError, exit_code=2):
    """A newer version wrote it."""


class DiskFull(StoreError):
    """The disk refused the write."""


class Stop(PcoError):
    """The run ends here on purpose, and can be resumed; everything paid for is on disk."""


class BudgetReached(Stop, exit_code=3):
    """The next call would pass the budget."""


class Interrupted(Stop, exit_code=130):
    """The user asked to stop."""


@cache
def _synonyms() -> dict[str, str]:
    text = (resources.files("promptcodebook") / "synonyms.toml").read_text("utf-8")
    return tomllib.loads(text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean 'x'?)' for what other libraries call so, or the closest known word; or ''."""
    names = {name.lstrip("-").replace("-", "_"): name for name in known}
    bare = word.lstrip("-").replace("-", "_")
    meant = [k for k, words in _synonyms().items() if bare in words.split() and k in names]
    near, far = (difflib.get_close_matches(bare, list(names), 1, cutoff) for cutoff in (0.85, 0.6))
    found = [*near, *meant, *far]
    return f" (did you mean {names[found[0]]!r}?)" if found else ""


@cache
def names_keywords(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose TypeError for an unknown keyword says which one may be meant."""
    known = list[str]()
    for name, parameter in signature(function).parameters.items():
        kind = str(parameter.annotation)  # such as Unpack[Choices]
        table = function.__globals__[kind[7:-1]] if kind.startswith("Unpack[") else None
        known += table.__annotations__ if table else [name]

    def check(given: Mapping[str, Any]) -> None:
        for name in given.keys() - set(known):
            what = f"{function.__name__}(): unknown keyword {name!r}"
            raise TypeError(f"{what}{did_you_mean(name, known)}")

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        check(given)
        return function(*args, **given)

    # It stays what frameworks see as a coroutine function.
    @wraps(function)
    async def acall(*args: Any, **given: Any) -> Any:
        check(given)
        return await function(*args, **given)

    return acall if iscoroutinefunction(function) else call
