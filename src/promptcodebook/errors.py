"""Every error the library raises, as one tree.

PcoError
├── ConfigError          a setting is unknown, missing or contradicts another        exit 2
├── DataError            a file, column, line or split is not what was promised      exit 2
├── TaskError            unknown task, or the task's data cannot be found            exit 2
├── PolicyError          a policy file cannot be read                                exit 2
├── MissingExtra         an optional dependency is not installed                     exit 2
├── PromotionRefused     a gate does not let a version through                       exit 1
├── LMError              a model call gave no usable reply                           exit 1
│   ├── EndpointDown     nothing answers at the address                    retryable
│   ├── CallTimeout      the reply did not come in time                    retryable
│   ├── RateLimited      429/503 after every retry                         retryable
│   ├── ServerFault      5xx, 408, 409, 425, or a connection that broke    retryable
│   ├── AuthRefused      401/403: the key is wrong or missing
│   ├── NoCredit         402, or a 429 that no waiting mends: the account is empty
│   ├── ModelNotFound    the endpoint does not know the model
│   ├── RequestRefused   any other 4xx
│   ├── ParseError       the reply never became the typed value asked for
│   └── TruncatedReply   the reply was cut at its length cap
├── RewardError          the user's reward raised, or left its range                 exit 1
├── ExecutorError        the user's agent hung, or tried to end more than its call    exit 1
├── TooManyFailures      more than half of a batch failed                            exit 1
├── StoreError           a run cannot be read or written                             exit 1
│   ├── RunNotFound      no such run                                                 exit 2
│   ├── RunBusy          another process writes this run                             exit 2
│   ├── RunChanged       a resumed run's configuration or data differ                exit 2
│   ├── RunNotTrusted    what was made elsewhere names code or addresses  exit 2
│   ├── RefNotFound      the registry has no such ref or version                     exit 2
│   ├── RegistryDamaged  a row of the registry is not what was written
│   ├── StoreTooNew      written by a newer version                                  exit 2
│   └── DiskFull         the disk refused the write
└── Stop                 not a fault: the run ends early and can be resumed
    ├── BudgetReached    the next call would pass the budget                         exit 3
    └── Interrupted      the user asked to stop                                      exit 130

Each says what failed and where (`str(error)`) and what to type next (`error.hint`).
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from promptcodebook.calls import Usage
from promptcodebook.incidents import Incident

if TYPE_CHECKING:
    from promptcodebook.types import Trace

_NEXT = "next: "


def message_of(error: BaseException) -> str:
    """An exception's message, even where its class cannot print it."""
    try:
        return str(error)
    except Exception:
        return "its message cannot be read"


class PcoError(Exception):
    """Base of all errors; `hint` is the next thing to type, `exit_code` what `pco` returns."""

    exit_code = 1
    retryable = False
    run: Any = None
    """The unfinished `Run`, where the error ended one: its policy, cost, and what its verdict
    lacks."""

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


class ConfigError(PcoError, ValueError):
    exit_code = 2


class DataError(PcoError, ValueError):
    exit_code = 2


class TaskError(PcoError, LookupError):
    exit_code = 2


class PolicyError(PcoError, ValueError):
    exit_code = 2


class MissingExtra(PcoError, ImportError):
    """An optional dependency is missing; the hint is the exact pip command."""

    exit_code = 2

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs an optional dependency that is not installed",
            hint=f"pip install 'promptcodebook[{extra}]'",
        )


def import_part(group: str, name: str, what: str, extra: str) -> Any:
    """What an outer part of this package, or a plug-in, registered as an entry point.

    MissingExtra says that `what` needs the `extra`: the part is not installed.
    """
    from importlib.metadata import entry_points  # takes a tenth of what `pco --help` may take

    entries = entry_points(group=group, name=name)
    try:
        return next(iter(entries)).load()
    except (StopIteration, ModuleNotFoundError) as error:
        own = "" if isinstance(error, StopIteration) else error.name or ""
        if entries and not own.startswith("promptcodebook."):
            raise  # the part is there, and what it needs is not
        raise MissingExtra(what, extra) from error


def require_modules(modules: Iterable[str], what: str, extra: str) -> None:
    """Raises MissingExtra unless all are installed; imports none of them, for some take long."""
    if any(find_spec(module) is None for module in modules):
        raise MissingExtra(what, extra)


_SENDS_NOTHING = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches its prices as it is imported
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Libraries that report their use have these switches. A value that the user set stays."""
_REPORTER = "openvino_telemetry"
"""openvino sends an event as it is imported, and no variable stops it. Without this package it
takes a stub of its own."""


def import_extra(module: str, what: str, extra: str) -> Any:
    """A module of an optional dependency, with its usage reports switched off.

    MissingExtra says that `what` needs the `extra`.
    """
    unset = [name for name in _SENDS_NOTHING if not os.environ.get(name)]
    os.environ.update({name: _SENDS_NOTHING[name] for name in unset})
    hub: Any = sys.modules.get("huggingface_hub.constants")
    if hub is not None and "HF_HUB_DISABLE_TELEMETRY" in unset:
        hub.HF_HUB_DISABLE_TELEMETRY = True  # it read the variable as it was imported
    sys.modules.setdefault(_REPORTER, None)  # pyright: ignore[reportArgumentType]
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
    `retry_after` the seconds the server asked to be left alone (0 = it did not say);
    `answered` = a reply came and was no use, instead of none; `lasting` = waiting will not help;
    `usage` = what the useless replies took;
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


class EndpointDown(LMError, ConnectionError):
    retryable = True
    incident = Incident.REFUSED_CONNECTION
    lasting = True
    sent = False


class CallTimeout(LMError, TimeoutError):
    retryable = True
    incident = Incident.TIMEOUT
    lost = True


class RateLimited(LMError):
    retryable = True
    incident = Incident.RATE_LIMITED


class ServerFault(LMError):
    retryable = True
    incident = Incident.SERVER_ERROR
    lost = True


class AuthRefused(LMError, PermissionError):
    lasting = True


class NoCredit(LMError):
    lasting = True


class ModelNotFound(LMError, LookupError):
    lasting = True


class RequestRefused(LMError, ValueError):
    lasting = True


class ParseError(LMError, ValueError):
    answered = True


class TruncatedReply(LMError):
    answered = True


class RewardError(PcoError):
    pass


class ExecutorError(PcoError):
    pass


class TooManyFailures(PcoError, RuntimeError):
    """`traces` are those of the batch that failed, for the record."""

    traces: tuple[Trace, ...] = ()


class StoreError(PcoError, OSError):
    pass


class RunNotFound(StoreError):
    exit_code = 2


class RunBusy(StoreError):
    exit_code = 2


class RunChanged(StoreError):
    exit_code = 2


class RunNotTrusted(StoreError):
    exit_code = 2


class RefNotFound(StoreError):
    exit_code = 2


class RegistryDamaged(StoreError):
    pass


class StoreTooNew(StoreError):
    exit_code = 2


class DiskFull(StoreError):
    pass


class Stop(PcoError):
    """The run ends here on purpose; everything paid for is on disk."""


class BudgetReached(Stop):
    exit_code = 3


class Interrupted(Stop):
    exit_code = 130


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean 'x'?)' for the closest known word, or ''."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
