"""GGUF models on openvino-genai: one pipeline, whose batch jobs join and leave.

What openvino-genai does not tell: how many prompt tokens came from the prefix cache, and
alternatives to a token (its log-probability it tells). The same seed gives another sample in
another batch, since sums are then made in another order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.calls import Message
from promptcodebook.errors import PcoError, RequestRefused, import_extra
from promptcodebook.lm.spec import SMOLLM2
from promptcodebook.local.batch import AT_ONCE, Batch, Event, Place, first_line
from promptcodebook.local.engine import Embedding, Generation, Job, Load
from promptcodebook.local.gguf import GgufHeader, read_gguf
from promptcodebook.local.hidden_states import HiddenStates
from promptcodebook.local.schema_grammar import Grammar, schema_ebnf
from promptcodebook.local.weights import Weights

_LEAST_CACHE, _MOST_CACHE = 1, 8
"""Gigabytes for keys and values."""
_CACHED_JOBS = 4
"""Jobs of the context's full length that the cache should hold."""
_SEEDS = 2**31
_LONGEST = 10**7


def load_openvino(weights: Weights) -> OpenVinoEngine:
    """Loads a GGUF file; takes seconds. MissingExtra, ConfigError."""
    genai = import_extra("openvino_genai", f"the model {weights.name}", SMOLLM2)
    header = read_gguf(weights.source)
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.max_num_seqs = AT_ONCE
    scheduler.cache_size = _cache_gigabytes(header)

    def load() -> Any:
        return genai.ContinuousBatchingPipeline(weights.source, scheduler, "CPU", {}, {})

    states = HiddenStates(weights.source, weights.name, header.context_length)
    return OpenVinoEngine(Runtime(genai, _tensor), load, weights.name, header, states)


def _cache_gigabytes(header: GgufHeader) -> int:
    wanted = _CACHED_JOBS * header.context_length * header.cache_bytes
    return max(_LEAST_CACHE, min(_MOST_CACHE, -(-wanted // 2**30)))


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a pipeline's requests are made with: the module, and tensors of token numbers."""

    genai: Any
    tensor: Callable[[list[int]], Any]


class OpenVinoEngine:
    """An Engine over the pipeline that `load` makes, and an Embedder over the same file's hidden
    states."""

    def __init__(
        self,
        runtime: Runtime,
        load: Callable[[], Any],
        model: str,
        header: GgufHeader,
        states: HiddenStates,
    ) -> None:
        self._runtime = runtime
        self._states = states
        self._marks = header.control_tokens
        self._batch = Batch(load)
        self.model = model
        self.context_length = header.context_length

    @property
    def load(self) -> Load:
        return self._batch.load

    def count_tokens(self, text: str) -> int:
        return len(self._encode(text))

    async def generate(self, job: Job) -> Generation:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Event] = loop.create_future()

        def tell(event: Event) -> None:
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
        events: asyncio.Queue[Event] = asyncio.Queue()
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

    def _place(self, job: Job, tell: Callable[[Event], None], *, streams: bool) -> Place:
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
        grammar = None if job.schema is None else schema_ebnf(job.schema)
        settings = self._settings(job, room, grammar)
        return Place(prompt, len(tokens), settings, job, tell, streams, grammar)

    def _settings(self, job: Job, room: int, grammar: Grammar | None) -> Any:
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
            "eos_token_id": self._batch.end,
            "stop_token_ids": {self._batch.end},
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
        if grammar is not None:
            fields["structured_output_config"] = self._runtime.genai.StructuredOutputConfig(
                grammar=grammar.text
            )
        try:
            settings = self._runtime.genai.GenerationConfig(**fields)
            settings.validate()
        except (RuntimeError, TypeError, ValueError) as error:
            raise RequestRefused(
                f"{self.model} takes no such settings: {first_line(error)}", model=self.model
            ) from None
        return settings

    def _prompt(self, messages: tuple[Message, ...]) -> list[int]:
        """The chat template filled in. What looks like a mark of the template in a message is text:
        it is written in two parts, which the tokenizer does not take for the mark."""
        found = [m for m in self._marks if any(m in each.content for each in messages)]
        stands, texts = _stand_ins(messages, found)
        turns = [{"role": m.role, "content": t} for m, t in zip(messages, texts, strict=True)]
        filled = self._batch.tokenizer.apply_chat_template(turns, True)
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
        tokenizer = self._batch.tokenizer
        ids = tokenizer.encode(text, add_special_tokens=False, max_length=_LONGEST).input_ids
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
    loop: asyncio.AbstractEventLoop, tell: Callable[[Event], None]
) -> Callable[[Event], None]:
    def told(event: Event) -> None:
        # A loop that has ended has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, event)

    return told
