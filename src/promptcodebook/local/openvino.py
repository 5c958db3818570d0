"""GGUF models on openvino-genai: one pipeline whose batch jobs join and leave, and embeddings.

openvino-genai reports a token's log-probability, but no alternatives to it, and not how many prompt
tokens the prefix cache held. The same seed gives another sample in another batch, because sums are
made in another order.

An embedding is the mean of a text's last hidden states. A model that reads from left to right does
not know the end of a text while it reads the start. So it reads the text twice, and the second
reading is averaged ("echo embeddings", Springer et al. 2024, arXiv:2402.15449). On training
messages of `houserules` that recognised topics better than one reading: 0.76 against 0.68 (ridge,
four folds). openvino-genai gives no states but saves the graph that it makes of a GGUF file. The
graph is loaded a second time, without its last product (of states and vocabulary).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

from promptcodebook.calls import Message
from promptcodebook.errors import PcoError, RequestRefused, import_extra
from promptcodebook.lm.spec import SMOLLM2
from promptcodebook.local.batch import AT_ONCE, Batch, Event, Place, first_line
from promptcodebook.local.conversion import GgufHeader, read_gguf
from promptcodebook.local.engine import Embedding, Generation, Job, Load, Weights
from promptcodebook.local.schema import Grammar, schema_ebnf

_WHAT = "an embedding"


class HiddenStates:
    """The states of one model file, loaded at the first text. Threads take turns; one text at a
    time, so that its vector does not depend on others."""

    def __init__(self, source: str, model: str, context_length: int) -> None:
        self._source = source
        self._model = model
        self._context_length = context_length
        self._turn = threading.Lock()
        self._graph: Any = None

    def embed(
        self, texts: Sequence[str], encode: Callable[[str], list[int]]
    ) -> Sequence[Embedding]:
        """Raises RequestRefused for an empty text, one that is too long to be read twice, and for
        a model of another build than a GGUF file's usual one; MissingExtra."""
        with self._turn:
            return [self._embedding(encode(text)) for text in texts]

    def close(self) -> None:
        with self._turn:
            self._graph = None

    def _embedding(self, tokens: list[int]) -> Embedding:
        numpy = import_extra("numpy", _WHAT, SMOLLM2)
        twice = 2 * len(tokens)
        if not 0 < twice <= self._context_length:
            raise RequestRefused(
                f"the text has {len(tokens)} tokens, and an embedding of {self._model} takes 1 to "
                f"{self._context_length // 2}",
                hint="embed a shorter text",
                model=self._model,
            )
        if self._graph is None:
            self._graph = self._load()
        self._graph.reset_state()
        states = self._graph.infer(
            {
                "input_ids": numpy.array([tokens + tokens], dtype=numpy.int64),
                "attention_mask": numpy.ones((1, twice), dtype=numpy.int64),
                "position_ids": numpy.arange(twice, dtype=numpy.int64)[None],
                "beam_idx": numpy.zeros(1, dtype=numpy.int32),
            }
        )[0][0, len(tokens) :]
        mean = states.astype(numpy.float64).mean(0)
        return Embedding(tuple((mean / numpy.linalg.norm(mean)).tolist()), twice)

    def _load(self) -> Any:
        """The graph without its last product, ready to run."""
        openvino = import_extra("openvino", _WHAT, SMOLLM2)
        genai = import_extra("openvino_genai", _WHAT, SMOLLM2)
        core = openvino.Core()
        # What was mapped of the files stays readable where they may be deleted at all.
        with tempfile.TemporaryDirectory(prefix="pco-", ignore_cleanup_errors=True) as folder:
            # The graph is saved beside the file: a link to it leaves its own folder as it is.
            link = Path(folder) / "model.gguf"
            try:
                os.symlink(os.path.abspath(self._source), link)
            except OSError:  # not everybody may make one on Windows
                shutil.copyfile(self._source, link)
            genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
            graph = core.read_model(link.with_name("openvino_model.xml"))
            product = graph.get_results()[0].input_value(0).get_node()
            if product.get_type_name() != "MatMul":
                raise RequestRefused(
                    f"{self._model} makes no embeddings here: its graph ends in another way",
                    hint="name another model for them: roles.encoder.model",
                    model=self._model,
                )
            graph.add_outputs([product.input_value(0)])
            graph.remove_result(graph.get_results()[0])
            return core.compile_model(graph, "CPU").create_infer_request()


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
    wanted = _CACHED_JOBS * header.context_length * header.cache_bytes
    scheduler.cache_size = max(_LEAST_CACHE, min(_MOST_CACHE, -(-wanted // 2**30)))

    def load() -> Any:
        return genai.ContinuousBatchingPipeline(weights.source, scheduler, "CPU", {}, {})

    states = HiddenStates(weights.source, weights.name, header.context_length)
    return OpenVinoEngine(Runtime(genai, _tensor), load, weights.name, header, states)


class Runtime(NamedTuple):
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
        async with aclosing(self._pieces(job, streams=False)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Generation):
                    return piece
        raise AssertionError("a stream ends with its Generation")

    def stream(self, job: Job) -> AsyncIterator[str | Generation]:
        return self._pieces(job, streams=True)

    async def _pieces(self, job: Job, *, streams: bool) -> AsyncGenerator[str | Generation]:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()

        def tell(event: Event) -> None:
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(events.put_nowait, event)

        place = self._place(job, tell, streams=streams)
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
        pieces = re.split(f"([{''.join(stands)}])", filled) if stands else [filled]
        marks = (stands.get(piece) for piece in pieces)
        parts = ([m[:2], m[2:]] if m else [p] for p, m in zip(pieces, marks, strict=True))
        return [token for part in parts for text in part for token in self._encode(text)]

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


def _tensor(tokens: list[int]) -> Any:
    numpy = import_extra("numpy", "a local model", SMOLLM2)
    openvino = import_extra("openvino", "a local model", SMOLLM2)
    return openvino.Tensor(numpy.array([tokens], dtype=numpy.int64))
