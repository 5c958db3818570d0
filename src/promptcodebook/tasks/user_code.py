"""The user's own functions: named 'file.py:function', inspected, and run within a time limit. A
synchronous function runs in a thread. An exit, an interrupt or a cancellation of theirs is a
failure like any other. A call that hangs is given up; its daemon thread keeps no process from
ending. Code that never releases the interpreter can be neither limited nor interrupted. What user
code prints goes to stderr, so that stdout carries only results."""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import contextvars
import hashlib
import importlib.util
import inspect
import io
import re
import sys
import threading
import traceback
import weakref
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast, get_args

from pydantic import BaseModel

from promptcodebook.base.paths import read_bytes
from promptcodebook.base.text import shell
from promptcodebook.calls import Chat, Message, Reply, Role, Schema, Tree
from promptcodebook.errors import ConfigError, ExecutorError, did_you_mean, message_of

_GRACE_S = 1.0  # for a coroutine that is out of time to clean up


def load_function(
    spec: str, base: Path, what: str, arguments: Sequence[str]
) -> Callable[..., object]:
    """The function that 'file.py:function' names, read again each time; paths start at `base`.
    `what` ('reward', 'executor') and `arguments` say what it must be. Raises ConfigError with file
    and line when the file is missing, does not run, lacks the function, or takes other
    arguments."""
    file, colon, name = spec.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        message = f"{what} = {spec!r} does not name a function"
        hint = f'write {what} = "{what}.py:{what}"'
        hint += ', or { kind = "judge", rubric = "..." }' if what == "reward" else ""
        raise ConfigError(message, hint=hint)
    path = (base / file).resolve()
    if not path.is_file():
        near = did_you_mean(path.name, [each.name for each in path.parent.glob("*.py")])
        hint = f'correct the key {what}: {what} = "FILE.py:{name}"'
        raise ConfigError(f"no {what} file at {path}{near}", hint=hint)
    module = _run_file(path, what)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        message = f"{path} has no function {name!r}{did_you_mean(name, known)}"
        raise ConfigError(message, hint=f"its functions: {', '.join(known) or 'none'}")
    code = getattr(function, "__code__", None)
    check_function(function, arguments, f"{path}:{1 if code is None else code.co_firstlineno}")
    return function


def _run_file(path: Path, what: str) -> ModuleType:
    """The file as a module under a name of its own, so that it hides no other module."""
    name = f"_promptcodebook_user_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # its name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling in the file look themselves up here
    neighbours = str(path.parent)  # importable while the file runs
    sys.path.insert(0, neighbours)
    try:
        with print_aside():
            spec.loader.exec_module(module)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        del sys.modules[name]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        message, where = message_of(error), f"{path}:{lines[-1]}" if lines else str(path)
        if isinstance(error, SyntaxError):
            message, where = str(error.msg), f"{error.filename or path}:{error.lineno}"
        fault = f"the {what} file does not run: {type(error).__name__}: {message} ({where})"
        raise ConfigError(fault, hint=f"python {shell(path)}") from error
    finally:
        if neighbours in sys.path:
            sys.path.remove(neighbours)
    return module


def files_behind(path: Path) -> tuple[Path, ...]:
    """The file, and those beside it that it imports, and so on. What only a running import finds,
    or lies elsewhere, is not among them."""
    found, waiting = dict[Path, None](), [path]
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found[file] = None
        try:
            tree = ast.parse(read_bytes(file))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # running it says what is wrong
        for node in ast.walk(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            home, start = path.parent, list[str]()
            if isinstance(node, ast.ImportFrom):
                above = file.parents
                home = above[min(node.level, len(above)) - 1] if node.level else home
                start = node.module.split(".") if node.module else []
            for parts in ([*start, *alias.name.split(".")] for alias in node.names):
                for place in (home.joinpath(*parts[:n]) for n in range(1, len(parts) + 1)):
                    waiting += [place / "__init__.py", place.with_name(f"{place.name}.py")]
    return tuple(found)


def check_function(function: Callable[..., object], arguments: Sequence[str], where: str) -> None:
    """Raises ConfigError, which names the place, unless it takes the arguments and can return a
    value."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{where}: it yields, but must return", hint="return the whole value")
    name = getattr(function, "__name__", "")
    usual = "reward" if "output" in arguments else "run"
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        raise ConfigError(
            f"{where}: the function must take ({', '.join(arguments)})",
            hint=f"def {name if name.isidentifier() else usual}({', '.join(arguments)}): ...",
        ) from None
    except ValueError:
        pass  # a builtin without a signature: the call itself will tell


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


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling it gives a coroutine; an object may have an async `__call__`."""
    call = getattr(type(function), "__call__", None)  # noqa: B004 - of the class, as a call looks
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def is_ours(function: Callable[..., object]) -> bool:
    """Whether it is part of this package, and not of the user's code."""
    return (getattr(function, "__module__", None) or "").split(".")[0] == __name__.split(".")[0]


def place_of(error: BaseException) -> str:
    """The file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown place"


class Escape(Exception):
    """User code raised `error`, which no coroutine may raise, or which would end more than that."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {message_of(error)}".removesuffix(": "))
        self.error = error


class Overdue(Exception):
    """User code did not return within its `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no return within {seconds:g} s")
        self.seconds = seconds


class UserCalls:
    """Calls user code: at most `threads` synchronous calls at once, each for `seconds` at most.
    Time that an agent waits for a model, or that a call waits for a thread, does not count. Raises
    what the function raised, Escape for what is no Exception, and Overdue."""

    def __init__(self, threads: int = 32, seconds: float = 600.0) -> None:
        self._most = threads
        self._seconds = seconds
        self._lock = threading.Lock()
        self._slots = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]()

    async def call(self, function: Callable[..., object], *arguments: object) -> object:
        """What the function returns, awaited. What is ours is trusted: it runs here and now."""
        if is_ours(function):
            returned = function(*arguments)
            return await returned if inspect.isawaitable(returned) else returned
        return await self._run(function, arguments, _Allowance(self._seconds))

    async def run_agent(
        self, function: Callable[..., object], prompt: object, example: object, lm: Chat
    ) -> object:
        """What the agent returns. A synchronous one asks `lm` and gets the reply itself."""
        allowance = _Allowance(self._seconds)
        chat = _AgentChat(lm, allowance)
        try:
            return await self._run(function, (prompt, example, chat), allowance)
        finally:
            chat.closed = True

    async def _run(
        self, function: Callable[..., object], arguments: Sequence[object], allowance: _Allowance
    ) -> object:
        try:
            if is_async(function):
                allowance.start()
                called = cast("Callable[..., Awaitable[object]]", function)
                return await _within(allowance, _await_here(lambda: called(*arguments)))
            loop = asyncio.get_running_loop()
            with self._lock:  # each loop has its slots: loops must not wait for each other
                slots = self._slots.setdefault(loop, asyncio.Semaphore(self._most))
            async with slots:
                allowance.start()
                returned = await _within(allowance, _call_in_thread(function, arguments))
            if inspect.isawaitable(returned):
                return await _within(allowance, _await_here(lambda: returned))
            return returned
        finally:
            allowance.stop()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a call came to, as a value: an exit or an interrupt must not pass through the loop."""

    value: object = None
    error: BaseException | None = None


async def _await_here(start: Callable[[], Awaitable[object]]) -> _Outcome:
    with print_aside():
        try:
            return _Outcome(await start())
        except BaseException as error:
            # Signals reach the main thread alone: an interrupt there may be the user's.
            main = threading.current_thread() is threading.main_thread()
            if isinstance(error, KeyboardInterrupt) and main:
                raise
            return _Outcome(error=error)


def _call_in_thread(
    function: Callable[..., object], arguments: Sequence[object]
) -> asyncio.Future[_Outcome]:
    """One call in a daemon thread of its own."""
    done, context = concurrent.futures.Future[_Outcome](), contextvars.copy_context()

    def work() -> None:
        with print_aside():
            try:
                outcome = _Outcome(function(*arguments))
            except BaseException as error:
                outcome = _Outcome(error=error)
        with suppress(concurrent.futures.InvalidStateError):  # it was given up meanwhile
            done.set_result(outcome)

    name = "promptcodebook user code"
    threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()
    return asyncio.wrap_future(done)


class _Allowance:
    """The seconds of its own that one call may take; `over` is done when they are used up."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.seconds = self._left = seconds
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._since = 0.0
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._since = self._loop.time()
        self._timer = self._loop.call_later(self._left, self.over.cancel)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Within it the clock is stopped."""
        if self._waiting == 0:
            self._left -= self._loop.time() - self._since
            self.stop()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0 and not self.over.done():
                self.start()


async def _within(allowance: _Allowance, awaited: Awaitable[_Outcome]) -> object:
    """The work's result, or Overdue: then it is given up, even if it ignores its cancellation."""
    work = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait({work, allowance.over}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not work.done():
            work.cancel()
    if work.cancelled() or not work.done():
        await asyncio.wait({work}, timeout=_GRACE_S)
        raise Overdue(allowance.seconds)
    outcome = work.result()
    if outcome.error is None:
        return outcome.value
    if isinstance(outcome.error, Exception) and not isinstance(outcome.error, StopIteration):
        raise outcome.error
    raise Escape(outcome.error) from outcome.error


class _AgentChat:
    """The chat as an agent sees it: in a thread without a loop it blocks and returns the reply."""

    def __init__(self, inner: Chat, allowance: _Allowance) -> None:
        self.closed = False
        self._inner = inner
        self._allowance = allowance
        self._home = asyncio.get_running_loop()

    def __call__(
        self,
        messages: str | Sequence[Message],
        *,
        system: str = "",
        role: Role = "executor",
        schema: Schema | type[BaseModel] | None = None,
        purpose: str = "",
        extra: Tree | None = None,
    ) -> Awaitable[Reply] | Reply:
        options: Tree = {"system": system, "role": role, "schema": schema, "purpose": purpose}
        asked = self._ask(messages, **options, extra=extra)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(asked, self._home).result()
        if loop is self._home:
            return asked
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._home))

    async def _ask(self, messages: str | Sequence[Message], **options: Any) -> Reply:
        if self.closed:
            raise ExecutorError(
                "the executor called a model after its rollout ended",
                hint="wait for every call before returning; user_code.seconds limits a rollout",
            )
        with self._allowance.waiting():
            return await self._inner(messages, **options)


_prints_to = contextvars.ContextVar[Any]("what prints go to in place of their stream", default=None)
# How many have lent each standard stream away at the moment; the last one puts it back.
_lent = {"stdout": 0, "stderr": 0}
_lending = threading.Lock()


class _Nowhere(io.TextIOBase):
    def write(self, s: str, /) -> int:
        return len(s)


class _Stream:
    """Replaces a standard stream; who writes decides where its writes go."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        target = _prints_to.get()
        return getattr(self.stream if target is None else target, name)


@contextmanager
def print_aside(target: Any = None, streams: Sequence[str] = ("stdout",)) -> Generator[None]:
    """Within it, what this thread or task writes to stdout goes to stderr (or to `target`)."""
    with _lending:
        for name in streams:
            _lent[name] += 1
            stream = getattr(sys, name)
            if stream is not None and not isinstance(stream, _Stream):
                setattr(sys, name, _Stream(stream))
    stderr, before = cast("Any", sys.stderr), _prints_to.get()
    stderr = stderr.stream if isinstance(stderr, _Stream) else stderr
    _prints_to.set(stderr if target is None else target)
    try:
        yield
    finally:
        _prints_to.set(before)
        with _lending:
            for name in streams:
                _lent[name] -= 1
                stream = getattr(sys, name)
                if _lent[name] == 0 and isinstance(stream, _Stream):
                    setattr(sys, name, stream.stream)


def hush() -> AbstractContextManager[None]:
    """Within it, what this thread or task writes to stdout or stderr goes nowhere."""
    return print_aside(_Nowhere(), ("stdout", "stderr"))
