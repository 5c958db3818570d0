"""The user's own functions, named 'file.py:function'.

What user code prints goes to stderr; what a library prints on the way is dropped. So stdout carries
only results, and stderr only our messages.
"""

from __future__ import annotations

import contextvars
import dis
import hashlib
import importlib.util
import inspect
import io
import re
import sys
import threading
import traceback
from asyncio import CancelledError
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from promptcodebook.errors import ConfigError, did_you_mean, message_of

_Place = Literal["", "stderr", "nowhere"]
_prints_to: contextvars.ContextVar[_Place] = contextvars.ContextVar("where prints go", default="")


class _Nowhere(io.TextIOBase):
    """Takes everything and keeps nothing."""

    def write(self, s: str, /) -> int:
        return len(s)


class _Stream:
    """Stands in for a standard stream; where its writes go is decided by who writes."""

    def __init__(self, stream: Any, *, out: bool) -> None:
        self.stream = stream
        self._out = out
        self._nowhere = _Nowhere()

    def __getattr__(self, name: str) -> Any:
        place = _prints_to.get()
        if place == "nowhere":
            return getattr(self._nowhere, name)
        aside = place == "stderr" and self._out and sys.stderr is not None
        return getattr(sys.stderr if aside else self.stream, name)


class _Lent:
    """How many have lent a standard stream away at the moment; the last one puts it back."""

    def __init__(self, name: Literal["stdout", "stderr"]) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._count = 0

    @contextmanager
    def lend(self) -> Generator[None]:
        with self._lock:
            self._count += 1
            stream = getattr(sys, self._name)
            if stream is not None and not isinstance(stream, _Stream):
                setattr(sys, self._name, _Stream(stream, out=self._name == "stdout"))
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                stream = getattr(sys, self._name)
                if self._count == 0 and isinstance(stream, _Stream):
                    setattr(sys, self._name, stream.stream)


_stdout, _stderr = _Lent("stdout"), _Lent("stderr")


@contextmanager
def print_aside() -> Generator[None]:
    """Within it, what this thread or task writes to stdout goes to stderr; what others write, and
    what programs that it starts write, does not."""
    with _stdout.lend(), _printing_to("stderr"):
        yield


@contextmanager
def hush() -> Generator[None]:
    """Within it, what this thread or task writes to stdout or stderr goes nowhere."""
    with _stdout.lend(), _stderr.lend(), _printing_to("nowhere"):
        yield


@contextmanager
def _printing_to(place: _Place) -> Generator[None]:
    before = _prints_to.get()
    _prints_to.set(place)
    try:
        yield
    finally:
        _prints_to.set(before)


def load_function(
    spec: str, base: Path, what: str, arguments: Sequence[str]
) -> Callable[..., object]:
    """The function that 'file.py:function' names, read again each time; paths start at `base`.

    `what` ('reward', 'executor') and `arguments` say what it must be. ConfigError with file and
    line when the file is missing, does not run, lacks the function, or takes other arguments.
    """
    file, colon, name = spec.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise ConfigError(
            f"{what} = {spec!r} does not name a function", hint=f'write {what} = "{what}.py:{what}"'
        )
    path = (base / file).resolve()
    if not path.is_file():
        raise ConfigError(f"no file at {path} for the {what}", hint="check the path, or pco init")
    module = _run(path, what)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ConfigError(
            f"{path} has no function {name!r}{did_you_mean(name, known)}",
            hint=f"its functions: {', '.join(known) or 'none'}",
        )
    code = getattr(function, "__code__", None)
    check_function(function, arguments, f"{path}:{1 if code is None else code.co_firstlineno}")
    return function


def _run(path: Path, what: str) -> ModuleType:
    """The file as a module under a name of its own, so that it hides no other module."""
    name = f"_promptcodebook_user_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be read as Python", hint="check the file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling in the file look themselves up here
    neighbours = str(path.parent)  # importable while the file runs
    sys.path.insert(0, neighbours)
    try:
        with print_aside():
            spec.loader.exec_module(module)
    except (Exception, SystemExit, CancelledError) as error:
        del sys.modules[name]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        message, where = message_of(error), f"{path}:{lines[-1]}" if lines else str(path)
        if isinstance(error, SyntaxError):
            message, where = str(error.msg), f"{error.filename or path}:{error.lineno}"
        raise ConfigError(
            f"the {what} file does not run: {type(error).__name__}: {message} ({where})",
            hint=f"python {path}",
        ) from error
    finally:
        if neighbours in sys.path:
            sys.path.remove(neighbours)
    return module


def check_function(function: Callable[..., object], arguments: Sequence[str], where: str) -> None:
    """Raises ConfigError, which says `where`, for a function that does not take the arguments,
    yields instead of returning, or returns nothing on any of its ways."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{where}: it yields, and must return", hint="return the whole at once")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        raise ConfigError(
            f"{where}: it must take ({', '.join(arguments)})",
            hint=f"def {getattr(function, '__name__', 'it')}({', '.join(arguments)}): ...",
        ) from None
    except ValueError:
        pass  # a builtin without a signature: the call itself will tell
    if _returns_nothing(function):
        raise ConfigError(
            f"{where}: it never returns anything",
            hint="end it with return: a reward its number, an executor its answer",
        )


def _returns_nothing(function: Callable[..., object]) -> bool:
    """Whether every return of a plain function is that of None, and there is one."""
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        return False
    returns = [
        (before, instruction)
        for before, instruction in pairwise(dis.get_instructions(function))
        if instruction.opname in ("RETURN_VALUE", "RETURN_CONST")
    ]
    return bool(returns) and all(_is_none(*pair) for pair in returns)


def _is_none(before: dis.Instruction, returning: dis.Instruction) -> bool:
    """Whether None alone can be returned here: no other way leads to this very instruction."""
    if returning.opname == "RETURN_CONST":
        return returning.argval is None
    loads_none = before.opname == "LOAD_CONST" and before.argval is None
    return loads_none and not returning.is_jump_target


def annotated_as(function: Callable[..., object], position: int, kind: type) -> bool:
    """Whether the function's parameter at `position` is annotated as `kind`, also as a text."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    if position >= len(parameters):
        return False
    annotation = parameters[position].annotation
    if isinstance(annotation, str):
        parts = re.split(r"[|\[\],]", annotation)
        return kind.__name__ in (part.strip(" '\"").rpartition(".")[2] for part in parts)
    return annotation is kind or kind in get_args(annotation)
