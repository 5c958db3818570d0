"""An Engine without a model: it says what its script makes of a job, and can be held up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from promptcodebook.local.engine import Embedding, Generation, Job, Load, TokenLogprob

Script = Callable[[Job], str]


def echo(job: Job) -> str:
    """The last message, and which draw it is."""
    return f"{job.messages[-1].content} ({job.seed})"


class ScriptedEngine:
    """Words are tokens. `held` = no job goes on before `release` is called; `cancelled` counts the
    jobs that were."""

    model = "Scripted-1"
    context_length = 128

    def __init__(self, script: Script = echo, *, held: bool = False) -> None:
        self.jobs: list[Job] = []
        self.cancelled = 0
        self.closed = 0
        self.running = 0
        self._script = script
        self._free = asyncio.Event()
        if not held:
            self._free.set()

    def release(self) -> None:
        self._free.set()

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

    async def stream(self, job: Job) -> AsyncIterator[str | Generation]:
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
        told = None
        if job.logprobs is not None:
            top = tuple((word, -1.0 - k) for k, word in enumerate(("a", "b", "c")))
            told = tuple(TokenLogprob(word, -0.5, top[: job.logprobs]) for word in words)
        read = sum(self.count_tokens(message.content) for message in job.messages)
        cut = job.max_tokens is not None and len(words) >= job.max_tokens
        return Generation(text, "length" if cut else "stop", read, len(words), 1, told)

    async def close(self) -> None:
        self.closed += 1


class EmbeddingEngine(ScriptedEngine):
    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        return [Embedding((0.6, 0.8), self.count_tokens(text)) for text in texts]
