"""The local server over an engine that a test steps through."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from promptcodebook.models.local.engine import Engine, Generation, Job, Load
from promptcodebook.models.local.server import LocalServer, ServerOptions

Script = Callable[[Job], str]


def echo(job: Job) -> str:
    """The last message, and which draw it is."""
    return f"{job.messages[-1].content} ({job.seed})"


class ScriptedEngine:
    """Words are tokens. `held` = no job runs before `release` is called; `cancelled` counts the
    jobs that were."""

    model = "Scripted-1"
    context_length = 128

    def __init__(self, script: Script = echo, *, held: bool = False) -> None:
        self.jobs: list[Job] = []
        self.cancelled = self.closed = self.running = 0
        self._script = script
        self._free = asyncio.Event()
        self.release = self._free.set
        if not held:
            self.release()

    @property
    def load(self) -> Load:
        return Load(running=self.running)

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    async def generate(self, job: Job) -> Generation:
        async for piece in self.stream(job):
            if isinstance(piece, Generation):
                return piece
        raise AssertionError("no end")

    async def stream(self, job: Job) -> AsyncGenerator[str | Generation]:
        self.jobs.append(job)
        self.running += 1
        try:
            text = self._script(job)
            first, *rest = text.split(" ")
            yield first
            await self._free.wait()
            for word in rest:
                yield f" {word}"
            yield self._generation(job, text)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    def _generation(self, job: Job, text: str) -> Generation:
        words = text.split()
        read = sum(self.count_tokens(message.content) for message in job.messages)
        cut = job.max_tokens is not None and len(words) >= job.max_tokens
        return Generation(text, "length" if cut else "stop", read, len(words), 1)

    async def close(self) -> None:
        self.closed += 1


CHAT = [{"role": "user", "content": "Count to two."}]


@asynccontextmanager
async def up(
    engine: Engine | None = None, terms: ServerOptions | None = None
) -> AsyncGenerator[str]:
    """The server's address, without /v1."""

    async def load() -> Engine:
        return engine or ScriptedEngine()

    async with LocalServer(terms or ServerOptions()).serving(load) as (address, loading):
        await loading
        yield address.base_url.removesuffix("/v1")
