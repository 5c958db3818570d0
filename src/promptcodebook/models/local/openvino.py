"""GGUF models on openvino-genai: one pipeline whose batch jobs join and leave, and embeddings.

Only one thread uses the pipeline: `step()` makes the next token of every running job and holds the
interpreter's lock. A reply does not depend on what else is in the batch: measured on SmolLM2, under
four conditions that `load_openvino` and `Stepper` keep. States and cache have 32 bits; prompts are
read whole; a step has at least two rows, so a lone job has company; and no prompt's prefix cache
leaves one token in one case and many in another.

An embedding is the mean of a text's last hidden states, at its second reading (Springer et al.
2024, arXiv:2402.15449): on training messages of `houserules` 0.76 against 0.68 of one reading
(ridge, four folds). The graph is loaded a second time for it, without its last product.

What the four conditions are worth (SmolLM2, measured once): with 8 bits 7 of 28 replies differed in
another batch (32 bits cost 10 % of the speed); with steps of one row all of 24 differed when alone
(5 % of a lone job's time); prompts of 32n and 32n + 1 tokens are read twice, else 2 of 28 differed
once the cache was warm; prompts read whole take 170 MB for 6,000 tokens. Switching off the prefix
cache also makes replies equal, but halves the speed where prompts repeat.

Measured once, in November 2026, on two idle cores: 256 tokens/s against 268 of openvino-genai's own
`generate` (36 in flight, AVX2); per CPU second 422 through `pco lm serve` against 433 of the
engine's (32 in flight, AVX-512). A tiny random Llama gave 1,301 tokens/s behind our server and 221
behind `transformers serve`, 32 in flight."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import struct
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

from promptcodebook.calls import Message
from promptcodebook.errors import ConfigError, PcoError, RequestRefused, ServerFault, import_extra
from promptcodebook.lm.spec import SMOLLM2
from promptcodebook.models.local import engine as engines
from promptcodebook.models.local.schema import Grammar, schema_ebnf

AT_ONCE = 64  # jobs that share a step; further ones wait for a place

# Of the grammars that a pipeline keeps: measured, 100 to 240 bytes each, so at most 480 MB.
_MOST_STATES = 2_000_000
_BLOCK = 32  # tokens of a block of the prefix cache on a CPU
# How long after a job another one is of the same moment. Once the pipeline steps, it holds the
# interpreter's lock, so jobs are prepared only between steps.
_MOMENT_S = 0.003


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


@dataclass(eq=False, slots=True)
class PipelineJob:
    """A job on its way through the pipeline."""

    prompt: Any
    prompt_tokens: int
    settings: Any
    caller: engines.Caller
    streams: bool
    grammar: Grammar | None = None
    cached: bool = True  # whether the prefix cache holds all of the prompt that it ever will
    handle: Any = None
    left: bool = False
    tokens: list[int] = field(default_factory=list[int])
    shown: str = ""


class Stepper:
    """The thread that steps the pipeline while there is something to do."""

    def __init__(self, load: Callable[[], Any], runtime: Runtime) -> None:
        self._load = load
        self._pipeline: Any = load()
        self._tokenizer: Any = self._pipeline.get_tokenizer()
        self.end = int(self._tokenizer.get_eos_token_id())
        config = runtime.genai.GenerationConfig
        self._one_token = config(max_new_tokens=1, apply_chat_template=False)
        self._endless = config(
            max_new_tokens=_COMPANY_TOKENS, ignore_eos=True, apply_chat_template=False
        )
        self._greeting = runtime.tensor([self.end, self.end])
        self._company: Any = None
        self._kept: set[str] = set()
        self._states = 0
        self._change = threading.Condition()
        self._new: list[PipelineJob] = []
        self._running: list[PipelineJob] = []
        self._number = 0
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="openvino", daemon=True)
        self._thread.start()

    @property
    def tokenizer(self) -> Any:
        """That of the pipeline, whose grammars it keeps: not to be held. Raises ServerFault."""
        if (tokenizer := self._tokenizer) is None:
            raise ServerFault("the local model has been closed")
        return tokenizer

    @property
    def load(self) -> engines.Load:
        with self._change:
            waiting, running = len(self._new), len(self._running)
        places = min(running, AT_ONCE)
        return engines.Load(places, waiting + running - places)

    def add(self, place: PipelineJob) -> None:
        with self._change:
            if self._closed:
                raise ServerFault("the local model has been closed")
            self._new.append(place)
            self._change.notify()

    def remove(self, place: PipelineJob) -> None:
        """Drops the job at the next step; nothing happens to one that is finished."""
        with self._change:
            place.left = True
            self._change.notify()

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()
        # The last reference: its memory goes back here and not whenever it is collected.
        self._pipeline = self._tokenizer = None

    def _work(self) -> None:
        while self._wait():
            fresh = self._admit()
            try:
                self._keep_company()
                if self._running and self._pipeline.has_non_finished_requests():
                    self._pipeline.step()
            except RuntimeError as error:
                # Those that were new in it are to blame, if there were any: a grammar, for
                # instance, is only then read.
                self._fail(fresh or self._running, _refusal(error))
            for place in self._running:
                self._deliver(place)
            if not self._running:
                self._keep_company()
        closed = ServerFault("the local model was closed before it finished")
        self._fail([*self._running, *self._new], closed)
        with suppress(RuntimeError):  # the pipeline complains of what was cancelled and not dropped
            if self._pipeline is not None and self._pipeline.has_non_finished_requests():
                self._pipeline.step()

    def _keep_company(self) -> None:
        alone, company = len(self._running) == 1, self._company
        if company is not None and not (alone and company.get_status().name == "RUNNING"):
            company.cancel()
            self._company = None
        if alone and self._company is None:
            self._number += 1
            add = self._pipeline.add_request
            self._company = add(self._number, self._greeting, self._endless)

    def _wait(self) -> bool:
        """Until there is work; False when closed. Jobs of one moment begin in one step."""
        with self._change:
            self._change.wait_for(lambda: self._closed or self._new or self._running)
            come = 0
            while not (self._closed or self._running) and come < len(self._new) < AT_ONCE:
                come = len(self._new)
                self._change.wait(_MOMENT_S)
            return not self._closed

    def _admit(self) -> list[PipelineJob]:
        """Takes in what is new and lets go of who left; returns the new ones."""
        with self._change:
            gone = [place for place in self._running if place.left]
            self._running = [place for place in self._running if not place.left]
            self._new = [place for place in self._new if not place.left]
            renews = bool(self._new) and not self._running and self._states > _MOST_STATES
            if renews:
                self._kept.clear()
                self._states = 0
            fresh: list[PipelineJob] = []  # as long as the pipeline has room for their grammars
            while self._new and self._states <= _MOST_STATES:
                place = self._new.pop(0)
                fresh.append(place)
                if place.grammar is not None and place.grammar.text not in self._kept:
                    self._kept.add(place.grammar.text)
                    self._states += place.grammar.states
            self._running += fresh
        for place in gone:
            place.handle.cancel()
        if renews or self._pipeline is None:
            try:
                # Free the old pipeline's memory before the new one is loaded.
                self._pipeline = None
                self._pipeline = self._load()
                self._tokenizer = self._pipeline.get_tokenizer()
            except (RuntimeError, OSError) as error:
                again = "the local model could not be reloaded"
                self._fail(fresh, ServerFault(f"{again}: {_last_line(error)}"))
                return []
        pipeline: Any = self._pipeline
        admitted: list[PipelineJob] = []
        for place in fresh:
            self._number += 1
            settings = place.settings if place.cached else self._one_token
            try:
                place.handle = pipeline.add_request(self._number, place.prompt, settings)
                admitted.append(place)
            except RuntimeError as error:
                self._fail([place], _refusal(error))
        return admitted

    def _fail(self, places: list[PipelineJob], error: PcoError) -> None:
        for place in places:
            place.caller.tell(error)
            self._finish(place)
            if place.handle is not None:
                place.handle.cancel()

    def _finish(self, place: PipelineJob) -> None:
        with self._change:
            self._running = [each for each in self._running if each is not place]

    def _deliver(self, place: PipelineJob) -> None:
        reason = ""
        while place.cached and place.handle.can_read():
            for output in place.handle.read().values():
                place.tokens += output.generated_ids
                reason = output.finish_reason.name
        status = place.handle.get_status().name
        if status == "IGNORED":
            what = "the local model ran out of memory for keys and values"
            hint = "lower concurrency, or shorten prompts and replies"
            self._fail([place], ServerFault(what, hint=hint))
            return
        if not place.cached:
            if status != "RUNNING":
                place.cached = True
                self._finish(place)
                with self._change:
                    self._new.insert(0, place)
            return
        if place.streams:
            last = status != "RUNNING"
            text = self._decode(place.tokens)
            # A character may lie across tokens: its first bytes are no character yet.
            whole = text if last else text.rstrip("\ufffd")
            if len(whole) > len(place.shown) and whole.startswith(place.shown):
                place.caller.tell(whole[len(place.shown) :])
                place.shown = whole
        if status != "RUNNING":
            self._finish(place)
            text, count = self._decode(place.tokens), len(place.tokens)
            finish: Literal["stop", "length"] = "length" if reason == "LENGTH" else "stop"
            place.caller.tell(engines.Generation(text, finish, place.prompt_tokens, count))

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens)) if tokens else ""


def _refusal(error: RuntimeError) -> RequestRefused:
    return RequestRefused(f"the local model refused the request: {_last_line(error)}")


_WHAT = "an embedding"


class HiddenStates:
    """The states of one model file, loaded at the first text; one text at a time, alone."""

    def __init__(self, source: str, model: str, context_length: int) -> None:
        self._source = source
        self._model = model
        self._context_length = context_length
        self._turn = threading.Lock()
        self._graph: Any = None

    def embed(
        self, texts: Sequence[str], encode: Callable[[str], list[int]]
    ) -> Sequence[engines.Embedding]:
        """Raises RequestRefused when a text is empty or too long or the model is unusual,
        MissingExtra without the libraries."""
        with self._turn:
            return [self._embedding(encode(text)) for text in texts]

    def close(self) -> None:
        with self._turn:
            self._graph = None

    def _embedding(self, tokens: list[int]) -> engines.Embedding:
        numpy = import_extra("numpy", _WHAT, SMOLLM2)
        twice = 2 * len(tokens)
        if not 0 < twice <= self._context_length:
            most = f"{self._model} embeds texts of 1 to {self._context_length // 2}"
            message = f"the text has {len(tokens)} tokens, but {most}"
            raise RequestRefused(message, hint="embed a shorter text", model=self._model)
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
        return engines.Embedding(tuple((mean / numpy.linalg.norm(mean)).tolist()), twice)

    def _load(self) -> Any:
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
                message = f"{self._model} offers no embeddings here: its graph ends unexpectedly"
                hint = "choose a different model: roles.encoder.model"
                raise RequestRefused(message, hint=hint, model=self._model)
            graph.add_outputs([product.input_value(0)])
            graph.remove_result(graph.get_results()[0])
            return core.compile_model(graph, "CPU").create_infer_request()


_LEAST_CACHE, _MOST_CACHE = 1, 8  # gigabytes for keys and values
_CACHED_JOBS = 4  # jobs of the context's full length that the cache should hold
_COMPANY_TOKENS = 1000  # after which a lone job gets new company, so that this stays cheap
_EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
_SEEDS = 2**31
_LONGEST = 10**7


def load_openvino(weights: engines.Weights) -> OpenVinoEngine:
    """Load a GGUF file, in seconds. Raises MissingExtra without the library, ConfigError when the
    file is not readable."""
    genai = import_extra("openvino_genai", f"the model {weights.name}", SMOLLM2)
    header = read_gguf(weights.source)
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.max_num_seqs = AT_ONCE
    # What the cache holds is read in one step, so that no prompt is cut in pieces.
    scheduler.max_num_batched_tokens = _CACHED_JOBS * header.context_length
    # `cache_bytes` counts 16 bits for each number, and there are 32.
    wanted = _CACHED_JOBS * header.context_length * header.cache_bytes * 2
    scheduler.cache_size = max(_LEAST_CACHE, min(_MOST_CACHE, -(-wanted // 2**30)))

    def load() -> Any:
        return genai.ContinuousBatchingPipeline(weights.source, scheduler, "CPU", _EXACT, {})

    states = HiddenStates(weights.source, weights.name, header.context_length)
    return OpenVinoEngine(Runtime(genai, _tensor), load, weights.name, header, states)


class Runtime(NamedTuple):
    """What requests are made with: the module, and tensors of token numbers."""

    genai: Any
    tensor: Callable[[list[int]], Any]


class OpenVinoEngine:
    """An Engine over the pipeline that `load` makes, and an Embedder over the file's states."""

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
        self._batch = Stepper(load, runtime)
        self.model = model
        self.context_length = header.context_length

    @property
    def load(self) -> engines.Load:
        return self._batch.load

    async def generate(self, job: engines.Job) -> engines.Generation:
        return await engines.last_of(self._pieces(job, streams=False))

    def stream(self, job: engines.Job) -> AsyncGenerator[str | engines.Generation]:
        return self._pieces(job, streams=True)

    async def _pieces(
        self, job: engines.Job, *, streams: bool
    ) -> AsyncGenerator[str | engines.Generation]:
        caller = engines.Caller()
        place = self._place(job, caller, streams=streams)
        self._batch.add(place)
        try:
            async for event in caller.events():
                yield event
        finally:
            self._batch.remove(place)

    async def embed(self, texts: Sequence[str]) -> Sequence[engines.Embedding]:
        return await asyncio.to_thread(self._states.embed, texts, self._encode)

    async def close(self) -> None:
        await asyncio.to_thread(self._batch.close)
        await asyncio.to_thread(self._states.close)

    def _place(self, job: engines.Job, caller: engines.Caller, *, streams: bool) -> PipelineJob:
        tokens = self._prompt(job.messages)
        room = self.context_length - len(tokens)
        if room <= 0:
            most = f"{self.model} reads up to {self.context_length}, reply included"
            hint = "shorten the prompt, or choose a model with a longer context"
            message = f"the prompt has {len(tokens)} tokens, but {most}"
            raise RequestRefused(message, hint=hint, model=self.model)
        prompt = self._runtime.tensor(tokens)
        grammar = None if job.schema is None else schema_ebnf(job.schema)
        settings = self._settings(job, room, grammar)
        # The cache might hold all but the last token: it is filled first, so that it always does.
        cached = len(tokens) % _BLOCK > 1
        return PipelineJob(prompt, len(tokens), settings, caller, streams, grammar, cached)

    def _settings(self, job: engines.Job, room: int, grammar: Grammar | None) -> Any:
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
        }
        if drawn:
            seed = job.seed % _SEEDS
            fields |= {"temperature": job.temperature, "top_p": job.top_p, "rng_seed": seed}
        genai = self._runtime.genai
        if grammar is not None:
            fields["structured_output_config"] = genai.StructuredOutputConfig(grammar=grammar.text)
        try:
            settings = genai.GenerationConfig(**fields)
            settings.validate()
        except (RuntimeError, TypeError, ValueError) as error:
            message = f"{self.model} does not accept these settings: {_last_line(error)}"
            raise RequestRefused(message, model=self.model) from None
        return settings

    def _prompt(self, messages: tuple[Message, ...]) -> list[int]:
        """The chat template filled in. What looks like a mark of the template in a message is text:
        it is written in two parts, which the tokenizer does not take for the mark."""
        found = [m for m in self._marks if any(m in each.content for each in messages)]
        texts, inserted = [m.content for m in messages], dict[str, str]()
        code = 0xE000  # private use: characters that mean nothing by themselves, as stand-ins
        for mark in sorted(found, key=len, reverse=True):
            while any(chr(code) in text for text in texts):
                code += 1
            inserted[chr(code)] = mark
            texts = [text.replace(mark, chr(code)) for text in texts]
        turns = [{"role": m.role, "content": t} for m, t in zip(messages, texts, strict=True)]
        filled = self._batch.tokenizer.apply_chat_template(turns, True)
        pieces = re.split(f"([{''.join(inserted)}])", filled) if inserted else [filled]
        marks = (inserted.get(piece) for piece in pieces)
        parts = ([m[:2], m[2:]] if m else [p] for p, m in zip(pieces, marks, strict=True))
        return [token for part in parts for text in part for token in self._encode(text)]

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        # It would cut what is longer than the context, and say nothing.
        tokenizer = self._batch.tokenizer
        ids = tokenizer.encode(text, add_special_tokens=False, max_length=_LONGEST).input_ids
        return [int(each) for each in ids.data[0]]


def _tensor(tokens: list[int]) -> Any:
    numpy = import_extra("numpy", "a local model", SMOLLM2)
    openvino = import_extra("openvino", "a local model", SMOLLM2)
    return openvino.Tensor(numpy.array([tokens], dtype=numpy.int64))


# What the header of a GGUF file says of its model: the GGUF specification, version 3 (ggml,
# docs/gguf.md).

_SCALARS: Mapping[int, str] = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CONTROL = 3  # the type of tokens that are marks, and never cut into parts
_WORDS, _KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_LONGEST_FIELD = 1 << 27  # bytes of a field
_MOST = 1 << 24  # values of an array


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`control_tokens` as written; `cache_bytes` of one token at 16 bits, 0 = unknown."""

    context_length: int
    control_tokens: tuple[str, ...]
    cache_bytes: int


def read_gguf(path: str | Path) -> GgufHeader:
    """Raises ConfigError for what is not a GGUF file or breaks off."""
    fields = _read(path)
    kind = str(fields.get("general.architecture", ""))

    def count(name: str) -> int:
        value = fields.get(f"{kind}.{name}")
        return value if isinstance(value, int) and value > 0 else 0

    tokens, kinds = (cast("list[Any]", fields.get(key, [])) for key in (_WORDS, _KINDS))
    heads = count("attention.head_count") or 1
    width = count("attention.key_length") or count("embedding_length") // heads
    return GgufHeader(
        count("context_length") or 2048,
        tuple(word for word, of in zip(tokens, kinds, strict=False) if of == _CONTROL and word),
        4 * count("block_count") * (count("attention.head_count_kv") or heads) * width,
    )


def _read(path: str | Path) -> dict[str, object]:
    """Fields by their keys; of the arrays those of the vocabulary alone."""
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError("it does not begin with GGUF")
            version, _, count = _unpack(file, "IQQ")
            if version not in (2, 3):
                raise ValueError(f"version {version} is not supported")
            fields: dict[str, object] = {}
            for _ in range(count):
                key = _string(file)
                fields[key] = _value(file, _unpack(file, "I")[0], key in (_WORDS, _KINDS))
    except (OSError, struct.error, ValueError, KeyError) as error:
        message = f"{path} cannot be read as a GGUF file: {error}"
        raise ConfigError(message, hint="download it again") from None
    return fields


def _value(file: BinaryIO, kind: int, kept: bool) -> object:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _unpack(file, _SCALARS[kind])[0]
    inner, count = _unpack(file, "IQ")
    if count > _MOST:
        raise ValueError(f"an array of {count} values is longer than any model needs")
    if inner in _SCALARS:
        values = list(_unpack(file, f"{count}{_SCALARS[inner]}"))
    else:
        values = [_value(file, inner, kept) for _ in range(count)]
    return values if kept else None


def _string(file: BinaryIO) -> str:
    return _take(file, _unpack(file, "Q")[0]).decode("utf-8", "replace")


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", _take(file, struct.calcsize(f"<{form}")))


def _take(file: BinaryIO, size: int) -> bytes:
    if size > _LONGEST_FIELD:
        raise ValueError(f"a field of {size} bytes is longer than any model needs")
    data = file.read(size)
    if len(data) < size:
        raise ValueError("it is cut short")
    return data
