"""A Hugging Face model as an Engine: jobs that wait together are one batch of one `generate`.

bf16 on a CPU; on a GPU bf16, or NF4 with double quantisation (`four_bit`). Every row of a batch has
its own temperature, seed, stops, cap and grammar, and ends by itself. New jobs wait for the end of
the batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property, lru_cache
from typing import Any

from promptcodebook.errors import ConfigError, RequestRefused, ServerFault, import_extra
from promptcodebook.local.engine import Embedding, Generation, Job, Load, Weights
from promptcodebook.local.rows import Piece, Row, Rows, Text
from promptcodebook.local.schema import schema_ebnf

_WHAT = "a Hugging Face model"
_EXTRA = "local"
_ROWS = 32
"""The most jobs of one batch."""
_SETTLE_S = 0.004
"""How long the first job waits for others that come at the same time."""

_log = logging.getLogger(__name__)


def load_transformers(weights: Weights, *, four_bit: bool = False) -> TransformersEngine:
    """A model from its folder, or by its name from the hub and its cache on this machine.

    Raises MissingExtra, and ConfigError for a model that is not there or is not for chats.
    """
    source = weights.source
    torch: Any = import_extra("torch", _WHAT, _EXTRA)
    library: Any = import_extra("transformers", _WHAT, _EXTRA)
    import_extra("llguidance", _WHAT, _EXTRA)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device_map": device}
    if four_bit:
        import_extra("bitsandbytes", "--4bit", _EXTRA)
        options["quantization_config"] = nf4(torch, library)
    import_extra("accelerate", _WHAT, _EXTRA)
    model, tokenizer = from_pretrained(library, source, options)
    return TransformersEngine(model, tokenizer, weights.name)


def from_pretrained(
    library: Any, source: str, options: Mapping[str, Any], **tokenizing: Any
) -> tuple[Any, Any]:
    """The model and its tokenizer. ConfigError for what is not there or is not for chats."""
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(source, **tokenizing)
        model = library.AutoModelForCausalLM.from_pretrained(source, **options)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot load {source}: {str(error).splitlines()[0]}",
            hint="give a folder that save_pretrained wrote, or OWNER/NAME as on the hub",
        ) from error
    if not tokenizer.chat_template:
        raise ConfigError(
            f"{source} has no chat template", hint="take the model's chat or instruct version"
        )
    return model, tokenizer


def nf4(torch: Any, library: Any) -> Any:
    """The settings of NF4 with double quantisation, for `from_pretrained`."""
    return library.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


class TransformersEngine:
    """A causal model and its tokenizer, with one thread that generates."""

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self._torch: Any = import_extra("torch", _WHAT, _EXTRA)
        self._library: Any = import_extra("transformers", _WHAT, _EXTRA)
        self._refusals = import_extra("jinja2", _WHAT, _EXTRA).TemplateError
        self._model: Any = model.eval()
        self._tokenizer = tokenizer
        self._name = name
        given: int | list[int] | None = model.generation_config.eos_token_id
        listed = given if isinstance(given, list) else [given]
        self._ends = frozenset(
            each for each in (*listed, tokenizer.eos_token_id) if each is not None
        )
        self._grammars = lru_cache(maxsize=64)(self._compile)
        self._waiting: deque[Row] = deque()
        self._batch: list[Row] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="pco-transformers", daemon=True)
        self._thread.start()

    @property
    def model(self) -> str:
        return self._name

    @property
    def context_length(self) -> int:
        return self._model.config.get_text_config().max_position_embeddings

    @property
    def load(self) -> Load:
        with self._changed:
            return Load(sum(not row.done for row in self._batch), len(self._waiting))

    def count_tokens(self, text: str) -> int:
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    async def generate(self, job: Job) -> Generation:
        async with aclosing(self._pieces(job, streamed=False)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Generation):
                    return piece
        raise AssertionError("a stream ends with its Generation")

    def stream(self, job: Job) -> AsyncIterator[str | Generation]:
        return self._pieces(job, streamed=True)

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        """The mean of a text's last hidden states, at length 1: it tells likeness, though the model
        was not trained for it."""
        return [await asyncio.to_thread(self._embedding, text) for text in texts]

    async def close(self) -> None:
        error = ServerFault("the model has been closed")
        with self._changed:
            self._is_closed = True
            for row in (*self._batch, *self._waiting):
                row.fail(error)
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)
        self._model = None

    async def _pieces(self, job: Job, *, streamed: bool) -> AsyncGenerator[str | Generation, None]:
        grammar = None
        if job.schema is not None:
            # The first time it may take a second.
            grammar = await asyncio.to_thread(self._grammars, schema_ebnf(job.schema).text)
            grammar = grammar.deep_copy()
        prompt = self._prompt(job)
        room = self._room(len(prompt))
        cap = room if job.max_tokens is None else min(room, job.max_tokens)
        text = Text(self._tokenizer, job.stop)
        row = Row(job, prompt, cap, text, grammar, asyncio.get_running_loop(), streamed)
        with self._changed:
            if self._is_closed:
                raise ServerFault("the model has been closed")
            self._waiting.append(row)
            self._changed.notify()
        try:
            piece: Piece = ""
            while not isinstance(piece, Generation):
                piece = await row.pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            row.done = True

    def _prompt(self, job: Job) -> list[int]:
        turns = [{"role": turn.role, "content": turn.content} for turn in job.messages]
        try:
            return self._tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except self._refusals as error:
            raise RequestRefused(f"the model's chat template says: {error}") from error

    def _room(self, length: int) -> int:
        """Tokens left for a reply. Raises RequestRefused when there are none."""
        if length >= self.context_length:
            raise RequestRefused(
                f"the text has {length} tokens, and the model reads {self.context_length} at most, "
                "its reply included",
                hint="shorten the prompt",
            )
        return self.context_length - length

    def _compile(self, ebnf: str) -> Any:
        """A matcher to copy. Raises RequestRefused."""
        library: Any = import_extra("llguidance", _WHAT, _EXTRA)
        lark = import_extra("llguidance.gbnf_to_lark", _WHAT, _EXTRA).gbnf_to_lark(ebnf)
        matcher = library.LLMatcher(
            self._grammar_tokenizer, library.LLMatcher.grammar_from_lark(lark), log_level=0
        )
        if matcher.is_error():
            raise RequestRefused(f"the schema cannot be enforced: {matcher.get_error()}")
        return matcher

    @cached_property
    def _grammar_tokenizer(self) -> Any:
        library: Any = import_extra("llguidance.hf", _WHAT, _EXTRA)
        size = self._model.get_output_embeddings().weight.shape[0]
        return library.from_tokenizer(self._tokenizer, n_vocab=size, eos_token=sorted(self._ends))

    def _work(self) -> None:
        while rows := self._take():
            try:
                self._run(rows)
            except Exception as error:
                _log.error("a batch failed: %s", type(error).__name__)
                for row in rows:
                    row.fail(ServerFault(f"the model failed: {type(error).__name__}"))

    def _take(self) -> list[Row]:
        """The next batch; none once closed."""
        with self._changed:
            self._batch = []
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            seen = 0
            while seen < len(self._waiting) < _ROWS:  # as long as more come
                seen = len(self._waiting)
                self._changed.wait(_SETTLE_S)
            if not self._is_closed:
                taken = min(_ROWS, len(self._waiting))
                self._batch = [self._waiting.popleft() for _ in range(taken)]
            return self._batch

    def _run(self, rows: Sequence[Row]) -> None:
        torch = self._torch
        width = max(len(row.prompt) for row in rows)
        padding = self._tokenizer.pad_token_id or 0
        ids = torch.full((len(rows), width), padding, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, width - len(row.prompt) :] = torch.tensor(row.prompt)
            mask[index, width - len(row.prompt) :] = 1
        batch = Rows(torch, rows, self._ends, self._tokenizer)
        with torch.inference_mode():
            self._model.generate(
                input_ids=ids.to(self._model.device),
                attention_mask=mask.to(self._model.device),
                # The rows draw; `generate` takes the one token that they leave it.
                generation_config=self._library.GenerationConfig(
                    do_sample=False,
                    max_new_tokens=max(row.cap for row in rows),
                    pad_token_id=padding,
                ),
                logits_processor=self._library.LogitsProcessorList([batch.drawn]),
                stopping_criteria=self._library.StoppingCriteriaList([batch.finished]),
            )

    def _embedding(self, text: str) -> Embedding:
        torch = self._torch
        ids: list[int] = self._tokenizer(text)["input_ids"]
        self._room(len(ids))
        with torch.inference_mode():
            batch = torch.tensor([ids], device=self._model.device)
            states = self._model(batch, output_hidden_states=True).hidden_states[-1]
        vector = torch.nn.functional.normalize(states[0].float().mean(0), dim=0)
        return Embedding(tuple(vector.tolist()), len(ids))
