"""GGUF models on openvino-genai: one pipeline, one thread that steps it, jobs that join and leave.

`ContinuousBatchingPipeline.step()` makes the next token of every running job; a job that is given
meanwhile joins at the next step, and one that is cancelled leaves there. Equal beginnings of
prompts are computed once (prefix caching). The pipeline is touched by its thread only, and by
nothing while it steps: `step()` holds the interpreter's lock, so that other Python code has its
turn between steps.

What openvino-genai does not tell: how many prompt tokens came from the prefix cache, and
alternatives to a token (its log-probability it tells). The same seed gives another sample in
another batch, since sums are then made in another order.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from promptcodebook.calls import Message
from promptcodebook.errors import PcoError, RequestRefused, ServerFault, import_extra
from promptcodebook.lm.spec import SMOLLM2
from promptcodebook.local.engine import Embedding, Generation, Job, Load, TokenLogprob
from promptcodebook.local.gguf import GgufHeader, read_gguf
from promptcodebook.local.hidden_states import HiddenStates
from promptcodebook.local.schema_grammar import schema_ebnf
from promptcodebook.local.weights import Weights

__all__ = ["AT_ONCE", "OpenVinoEngine", "Runtime", "load_openvino"]

AT_ONCE = 64
"""Jobs that share a step; further ones wait for a place."""
_LEAST_CACHE, _MOST_CACHE = 1, 8
"""Gigabytes for keys and values."""
_CACHED_JOBS = 4
"""Jobs of the context's full length that the cache should hold."""
_SEEDS = 2**31
_LONGEST = 10**7

_Event = str | Generation | PcoError


def load_openvino(weights: Weights) -> OpenVinoEngine:
    """Loads a GGUF file; takes seconds. MissingExtra, ConfigError."""
    genai = import_extra("openvino_genai", f"the model {weights.name}", SMOLLM2)
    header = read_gguf(weights.source)
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.max_num_seqs = AT_ONCE
    scheduler.cache_size = _cache_gigabytes(header)
    pipeline = genai.ContinuousBatchingPipeline(weights.source, scheduler, "CPU", {}, {})
    states = HiddenStates(weights.source, weights.name, header.context_length)
    return OpenVinoEngine(Runtime(genai, _tensor), pipeline, weights.name, header, states)


def _cache_gigabytes(header: GgufHeader) -> int:
    wanted = _CACHED_JOBS * header.context_length * header.cache_bytes
    return max(_LEAST_CACHE, min(_MOST_CACHE, -(-wanted // 2**30)))


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a pipeline's requests are made with: the module, and tensors of token numbers."""

    genai: Any
    tensor: Callable[[list[int]], Any]


class OpenVinoEngine:
    """An Engine over a pipeline, and an Embedder over the same file's hidden states."""

    def __init__(
        self,
        runtime: Runtime,
        pipeline: Any,
        model: str,
        header: GgufHeader,
        states: HiddenStates,
    ) -> None:
        self._runtime = runtime
        self._states = states
        self._tokenizer = pipeline.get_tokenizer()
        self._end = int(self._tokenizer.get_eos_token_id())
        self._marks = header.control_tokens
        self._batch = _Batch(pipeline, self._tokenizer, self._end)
        self.model = model
        self.context_length = header.context_length

    @property
    def load(self) -> Load:
        return self._batch.load

    def count_tokens(self, text: str) -> int:
        return len(self._encode(text))

    async def generate(self, job: Job) -> Generation:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Event] = loop.create_future()

        def tell(event: _Event) -> None:
            if not done.done():
                done.set_result(event)

        place = self._place(job, _in_loop(loop, tell), streams=False)
        self._batch.add(place)
        try:
            event = await done
        finally:
            self._batch.remove(place)
        if isinstance(event, PcoError):
            raise event
        assert isinstance(event, Generation)
        return event

    async def stream(self, job: Job) -> AsyncIterator[str | Generation]:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[_Event] = asyncio.Queue()
        place = self._place(job, _in_loop(loop, events.put_nowait), streams=True)
        self._batch.add(place)
        try:
            while True:
                event = await events.get()
                if isinstance(event, PcoError):
                    raise event
                yield event
                if isinstance(event, Generation):
                    return
        finally:
            self._batch.remove(place)

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        return await asyncio.to_thread(self._states.embed, texts, self._encode)

    async def close(self) -> None:
        await asyncio.to_thread(self._batch.close)
        await asyncio.to_thread(self._states.close)

    def _place(self, job: Job, tell: Callable[[_Event], None], *, streams: bool) -> _Place:
        """The job as the pipeline takes it. RequestRefused."""
        tokens = self._prompt(job.messages)
        room = self.context_length - len(tokens)
        if room <= 0:
            raise RequestRefused(
                f"the prompt has {len(tokens)} tokens, and {self.model} reads {self.context_length}"
                " with its reply",
                hint="shorten the prompt, or choose a model with a longer context",
                model=self.model,
            )
        prompt = self._runtime.tensor(tokens)
        return _Place(prompt, len(tokens), self._settings(job, room), job, tell, streams)

    def _settings(self, job: Job, room: int) -> Any:
        if job.logprobs:
            raise RequestRefused(
                "this engine tells a token's log-probability, and no alternatives to it",
                hint="ask for logprobs without top_logprobs",
                model=self.model,
            )
        drawn = job.temperature > 0
        fields: dict[str, object] = {
            "max_new_tokens": room if job.max_tokens is None else min(room, job.max_tokens),
            "do_sample": drawn,
            "eos_token_id": self._end,
            "stop_token_ids": {self._end},
            "stop_strings": set(job.stop),
            "apply_chat_template": False,
            "presence_penalty": job.presence_penalty,
            "frequency_penalty": job.frequency_penalty,
            "logprobs": int(job.logprobs is not None),
        }
        if drawn:
            fields |= {
                "temperature": job.temperature,
                "top_p": job.top_p,
                "rng_seed": job.seed % _SEEDS,
            }
        if job.schema is not None:
            grammar = schema_ebnf(job.schema)
            fields["structured_output_config"] = self._runtime.genai.StructuredOutputConfig(
                grammar=grammar
            )
        try:
            settings = self._runtime.genai.GenerationConfig(**fields)
            settings.validate()
        except (RuntimeError, TypeError, ValueError) as error:
            raise RequestRefused(
                f"{self.model} takes no such settings: {_first_line(error)}", model=self.model
            ) from None
        return settings

    def _prompt(self, messages: tuple[Message, ...]) -> list[int]:
        """The chat template filled in. What looks like a mark of the template in a message is text:
        it is written in two parts, which the tokenizer does not take for the mark."""
        found = [m for m in self._marks if any(m in each.content for each in messages)]
        stands, texts = _stand_ins(messages, found)
        turns = [{"role": m.role, "content": t} for m, t in zip(messages, texts, strict=True)]
        filled = self._tokenizer.apply_chat_template(turns, True)
        tokens: list[int] = []
        for piece in _split(filled, stands):
            mark = stands.get(piece)
            parts = [piece] if mark is None else [mark[:2], mark[2:]]
            for part in parts:
                tokens += self._encode(part)
        return tokens

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        # It would cut what is longer than the context, and say nothing.
        ids = self._tokenizer.encode(text, add_special_tokens=False, max_length=_LONGEST).input_ids
        return [int(each) for each in ids.data[0]]


def _stand_ins(messages: tuple[Message, ...], marks: list[str]) -> tuple[dict[str, str], list[str]]:
    """By stand-in, the mark it stands for; and the messages' texts with stand-ins in them."""
    texts = [m.content for m in messages]
    stands: dict[str, str] = {}
    code = 0xE000  # private use: characters that mean nothing by themselves
    for mark in sorted(marks, key=len, reverse=True):
        while any(chr(code) in text for text in texts):
            code += 1
        stands[chr(code)] = mark
        texts = [text.replace(mark, chr(code)) for text in texts]
    return stands, texts


def _split(text: str, stands: dict[str, str]) -> list[str]:
    pieces, start = list[str](), 0
    for at, char in enumerate(text if stands else ""):
        if char in stands:
            pieces += [text[start:at], char]
            start = at + 1
    return [*pieces, text[start:]]


def _tensor(tokens: list[int]) -> Any:
    numpy = import_extra("numpy", "a local model", SMOLLM2)
    openvino = import_extra("openvino", "a local model", SMOLLM2)
    return openvino.Tensor(numpy.array([tokens], dtype=numpy.int64))


def _in_loop(
    loop: asyncio.AbstractEventLoop, tell: Callable[[_Event], None]
) -> Callable[[_Event], None]:
    def told(event: _Event) -> None:
        # A loop that has ended has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, event)

    return told


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


@dataclass(eq=False, slots=True)
class _Place:
    """A job on its way through the pipeline."""

    prompt: Any
    prompt_tokens: int
    settings: Any
    job: Job
    tell: Callable[[_Event], None]
    streams: bool
    handle: Any = None
    left: bool = False
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    shown: str = ""


class _Batch:
    """The thread that steps the pipeline while there is something to do."""

    def __init__(self, pipeline: Any, tokenizer: Any, end: int) -> None:
        self._end = end
        self._pipeline: Any = pipeline
        self._tokenizer: Any = tokenizer
        self._change = threading.Condition()
        self._new: list[_Place] = []
        self._running: list[_Place] = []
        self._number = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def load(self) -> Load:
        with self._change:
            waiting, running = len(self._new), len(self._running)
        places = min(running, AT_ONCE)
        return Load(places, waiting + running - places)

    def add(self, place: _Place) -> None:
        with self._change:
            if self._closed:
                raise ServerFault("the local model has been closed")
            self._new.append(place)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="openvino", daemon=True)
                self._thread.start()
            self._change.notify()

    def remove(self, place: _Place) -> None:
        """Drops the job at the next step; nothing happens to one that is finished."""
        with self._change:
            place.left = True
            self._change.notify()

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join()
        # The last reference: its memory goes back here and not whenever it is collected.
        self._pipeline = self._tokenizer = None

    def _work(self) -> None:
        while self._wait():
            fresh = self._admit()
            try:
                if self._pipeline.has_non_finished_requests():
                    self._pipeline.step()
            except RuntimeError as error:
                self._fail(fresh or self._running, error)
            for place in list(self._running):
                self._deliver(place)
        for place in [*self._running, *self._new]:
            place.tell(ServerFault("the local model was closed before it was done"))
            self._drop(place)

    def _wait(self) -> bool:
        """Until there is work; False when closed."""
        with self._change:
            while not (self._closed or self._new or self._running):
                self._change.wait()
            return not self._closed

    def _admit(self) -> list[_Place]:
        """Takes in what is new and lets go of who left; returns the new ones."""
        with self._change:
            fresh = [place for place in self._new if not place.left]
            self._new = []
            gone = [place for place in self._running if place.left]
            self._running = [place for place in self._running if not place.left] + fresh
        for place in gone:
            self._drop(place)
        admitted: list[_Place] = []
        for place in fresh:
            self._number += 1
            try:
                place.handle = self._pipeline.add_request(
                    self._number, place.prompt, place.settings
                )
                admitted.append(place)
            except RuntimeError as error:
                self._fail([place], error)
        return admitted

    def _fail(self, places: list[_Place], error: RuntimeError) -> None:
        """A step that raises is the doing of those that were new in it, if there were any: a
        grammar, for instance, is only then read."""
        for place in list(places):
            place.tell(RequestRefused(f"the local model refused: {_first_line(error)}"))
            self._finish(place)
            self._drop(place)

    def _finish(self, place: _Place) -> None:
        with self._change:
            if place in self._running:
                self._running.remove(place)

    def _drop(self, place: _Place) -> None:
        if place.handle is not None:
            place.handle.cancel()

    def _deliver(self, place: _Place) -> None:
        """Tells what a step made for the job."""
        reason = self._read(place)
        status = place.handle.get_status().name
        if status == "IGNORED":
            self._finish(place)
            place.tell(
                ServerFault(
                    "the local model ran out of memory for keys and values",
                    hint="lower concurrency, or shorten prompts and replies",
                )
            )
            return
        if place.streams:
            self._show(place, last=status != "RUNNING")
        if status != "RUNNING":
            self._finish(place)
            place.tell(self._generation(place, "length" if reason == "LENGTH" else "stop"))

    def _read(self, place: _Place) -> str:
        reason = ""
        while place.handle.can_read():
            for output in place.handle.read().values():
                place.tokens += output.generated_ids
                place.logprobs += output.generated_log_probs
                reason = output.finish_reason.name
        return reason

    def _show(self, place: _Place, *, last: bool) -> None:
        text = self._decode(place.tokens)
        # A character may lie across tokens: its first bytes are no character yet.
        whole = text if last else text.rstrip("\ufffd")
        if len(whole) > len(place.shown) and whole.startswith(place.shown):
            place.tell(whole[len(place.shown) :])
            place.shown = whole

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens)) if tokens else ""

    def _generation(self, place: _Place, finish: Literal["stop", "length"]) -> Generation:
        logprobs = None
        if place.job.logprobs is not None:
            pairs = zip(place.tokens, place.logprobs, strict=False)
            logprobs = tuple(
                TokenLogprob(self._decode([t]), value) for t, value in pairs if t != self._end
            )
        text = self._decode(place.tokens)
        return Generation(text, finish, place.prompt_tokens, len(place.tokens), None, logprobs)
