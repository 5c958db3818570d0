"""What a model on this machine does: one Job in, one Generation out, many at once. And where its
weights are. `openvino.py` and `transformers.py` implement the Protocol; `lm.py` (the library's
`LM`) and the server use it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from promptcodebook.base.paths import sha256_of
from promptcodebook.calls import Message
from promptcodebook.errors import ConfigError, MissingExtra, did_you_mean, require_modules
from promptcodebook.lm.spec import INSTALL_SMOLLM2, SMOLLM2, SMOLLM2_PACKAGE, SMOLLM2_RUNTIME


@dataclass(frozen=True, slots=True)
class Job:
    """One completion to make. Temperature 0 = greedy. `max_tokens` None = up to the context's end.
    `stop` strings end the text and are not part of it. `schema` = the body of a JSON schema."""

    messages: tuple[Message, ...]
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    schema: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished text. `cached_tokens` of the prompt were not computed again, None = unknown."""

    text: str
    finish: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs that are generated now, and those that wait for a place."""

    running: int = 0
    waiting: int = 0


class Engine(Protocol):
    """A loaded model. Jobs given at the same time share its steps; any event loop may give them.
    One that cannot be done raises RequestRefused before it costs anything. A cancelled job frees
    its place at the next step. After `close`, which may come twice, every job raises.
    `context_length` is that of prompt and completion together."""

    @property
    def model(self) -> str: ...

    @property
    def context_length(self) -> int: ...

    @property
    def load(self) -> Load: ...

    async def generate(self, job: Job) -> Generation: ...

    def stream(self, job: Job) -> AsyncGenerator[str | Generation]:
        """Pieces of the text as they come, and last the Generation with the whole of it."""
        ...

    async def close(self) -> None: ...


# What a job's caller gets: text in pieces, then the whole, or the error.
JobEvent = str | Generation | Exception


class Caller:
    """Who waits for a job in a loop of its own, and hears from the thread that generates."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[JobEvent] = asyncio.Queue()

    def tell(self, event: JobEvent) -> None:
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def events(self) -> AsyncGenerator[str | Generation]:
        """Up to the Generation; raises the error that the engine reported."""
        event: JobEvent = ""
        while not isinstance(event, Generation):
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            yield event


async def last_of(pieces: AsyncGenerator[str | Generation]) -> Generation:
    """What a stream of an engine ends with."""
    async with aclosing(pieces):
        async for piece in pieces:
            if isinstance(piece, Generation):
                return piece
    raise AssertionError("a stream must end with its Generation")


@dataclass(frozen=True, slots=True)
class Embedding:
    """One text as a vector of length 1, and how many tokens the text has."""

    vector: tuple[float, ...]
    tokens: int


@runtime_checkable
class EmbeddingEngine(Protocol):
    """An engine whose model makes embeddings. Raises RequestRefused when a text exceeds the
    context."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]: ...


HF = "hf:"  # before the name or the folder of a Hugging Face model
GGUF_NEEDS = (SMOLLM2_RUNTIME,)  # the modules that GGUF files are run by


@dataclass(frozen=True, slots=True)
class Weights:
    """A model to load: `source` is a GGUF file, or the folder or hub name of a Hugging Face one."""

    name: str
    format: Literal["gguf", "hf"]
    source: str


def find_weights(text: str, installed: Callable[[str], Distribution] = distribution) -> Weights:
    """What `smollm2`, `PATH.gguf` or `hf:DIR-or-NAME` means; nothing is loaded or imported. Raises
    MissingExtra for a package that is not installed, ConfigError for what is not there."""
    if text == SMOLLM2:
        # The one GGUF file of the distribution, found without importing its package.
        try:
            files = installed(SMOLLM2_PACKAGE).files or ()
        except PackageNotFoundError:
            files = ()
        for file in files:
            path = Path(str(file.locate()))
            if path.suffix == ".gguf" and path.is_file():
                return Weights(path.stem, "gguf", str(path))
        error = MissingExtra("the model smollm2", SMOLLM2)
        error.hint = INSTALL_SMOLLM2
        raise error
    if text.startswith(HF):
        source = text.removeprefix(HF)
        if not source:
            hint = "write hf:DIR or hf:OWNER/NAME, e.g. hf:Qwen/Qwen3-0.6B"
            raise ConfigError("hf: names no model", hint=hint)
        expanded = os.path.expanduser(source)
        found = expanded if Path(expanded).is_dir() else source
        return Weights(Path(source).name, "hf", found)
    if text.lower().endswith(".gguf"):
        path = Path(text).expanduser()
        if not path.is_file():
            raise ConfigError(f"there is no file {path}", hint="give the path of a .gguf file")
        return Weights(path.stem, "gguf", str(path))
    message = f"unknown local model {text!r}{did_you_mean(text, [SMOLLM2, 'simulated'])}"
    raise ConfigError(message, hint="write smollm2, PATH.gguf, hf:DIR-or-NAME, or simulated")


def require_model(text: str, needs: Sequence[str] = GGUF_NEEDS) -> Weights:
    """As `find_weights`. Raises MissingExtra also for a GGUF file without the modules it
    `needs`."""
    weights = find_weights(text)
    if weights.format == "gguf":
        require_modules(needs, f"the model {text}", SMOLLM2)
    return weights


def identify(weights: Weights) -> str:
    """Tells weights of one name apart: the digest of a GGUF file, or of the names, sizes and times
    of a folder's files; '' for a model of the hub. Raises ConfigError."""
    path = Path(weights.source)
    try:
        if weights.format == "gguf":
            return sha256_of(path)
        if not path.is_dir():
            return ""
        stats = [(each.name, each.stat()) for each in sorted(path.iterdir()) if each.is_file()]
        listed = "\n".join(f"{name} {at.st_size} {at.st_mtime_ns}" for name, at in stats)
        return hashlib.sha256(listed.encode()).hexdigest()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(message, hint="give the path of a file you may read") from None
