"""A Hugging Face model as an Engine: jobs that wait together are one batch of one `generate`, in
bf16, or on a GPU NF4 with double quantisation (`four_bit`). Draws are by inversion, one uniform
number a token, keyed by the row's own seed, not on other rows (logits may)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from random import Random
from typing import Any, Literal

from promptcodebook.base.randomness import keyed_random
from promptcodebook.errors import ConfigError, RequestRefused, ServerFault, import_extra
from promptcodebook.models.local import engine as engines
from promptcodebook.models.local.schema import schema_ebnf

# The number of likeliest tokens that are searched for a nucleus before all are sorted.
_NUCLEUS = 1024
_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 4  # tokens of one byte each


class StreamedText:
    """A text as its tokens come: how much of it may be sent, and whether a stop string came."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._ids: list[int] = []
        self._whole, self._read = 0, 0  # tokens given out before the last piece, and with it
        self._kept = ""
        self.told = ""

    def add(self, token: int) -> tuple[str, bool]:
        """The next piece, and whether the text has ended with a stop string."""
        self._ids.append(token)
        return self._tell(self._decoded(last=False))

    def end(self) -> str:
        """What had been kept back."""
        piece, _ = self._tell(self._decoded(last=True))
        kept, self._kept = self._kept, ""  # nothing, where a stop string came
        self.told += kept
        return piece + kept

    def _decoded(self, *, last: bool) -> str:
        """What the tokens since the last time add; '' in the middle of a character."""
        before = self._decode(self._ids[self._whole : self._read])
        after = self._decode(self._ids[self._whole :])
        open_for = len(self._ids) - self._read
        if not last and after.endswith(_UNFINISHED) and open_for < _LONGEST_CHARACTER:
            return ""
        self._whole, self._read = self._read, len(self._ids)
        return after[len(before) :]

    def _decode(self, ids: Sequence[int]) -> str:
        how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return self._tokenizer.decode(ids, **how)

    def _tell(self, more: str) -> tuple[str, bool]:
        text = self._kept + more
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            piece, self._kept = text[: min(found)], ""
        else:
            # The start of a stop string may still become one.
            sizes = range(min(len(text), max(map(len, self._stop), default=1) - 1), 0, -1)
            held = next((n for n in sizes if any(s.startswith(text[-n:]) for s in self._stop)), 0)
            piece, self._kept = text[: len(text) - held], text[len(text) - held :]
        self.told += piece
        return piece, bool(found)


@dataclass(slots=True)
class BatchRow:
    """One job under way. `grammar` None = no schema; `done` may be set from anywhere."""

    job: engines.Job
    prompt: Sequence[int]
    cap: int
    text: StreamedText
    grammar: Any
    caller: engines.Caller
    streamed: bool
    random: Random
    done: bool = False
    written: int = 0
    seen: Counter[int] = field(default_factory=Counter[int])

    def take(self, token: int, ends: frozenset[int]) -> None:
        """The next token of the reply."""
        self.written += 1
        if token in ends:
            self._finish("stop")
            return
        self.seen[token] += 1
        piece, stopped = self.text.add(token)
        if piece and self.streamed:
            self.caller.tell(piece)
        if self.grammar is not None and not self.grammar.consume_token(token):
            raise ServerFault("the grammar rejected a sampled token")
        if stopped or (self.grammar is not None and self.grammar.is_stopped()):
            self._finish("stop")
        elif self.written >= self.cap:
            self._finish("length")

    def fail(self, error: Exception) -> None:
        if not self.done:
            self.done = True
            self.caller.tell(error)

    def _finish(self, reason: Literal["stop", "length"]) -> None:
        rest = self.text.end()
        if rest and self.streamed:
            self.caller.tell(rest)
        self.caller.tell(engines.Generation(self.text.told, reason, len(self.prompt), self.written))
        self.done = True


@dataclass(frozen=True, slots=True)
class BatchRows:
    """A batch's rows as `generate` calls them at each step: with scores, for the next tokens."""

    _torch: Any
    _rows: Sequence[BatchRow]
    _ends: frozenset[int]

    def finished(self, ids: Any, _scores: Any, **_more: Any) -> Any:
        """Which rows have ended (bool, one each)."""
        return self._torch.tensor([row.done for row in self._rows], device=ids.device)

    def drawn(self, _ids: Any, scores: Any) -> Any:
        """Scores (float32, rows x vocabulary) that leave each row one token: the one it drew."""
        live = [index for index, row in enumerate(self._rows) if not row.done]
        for index in live:
            self._adjust(self._rows[index], scores[index])
        chosen = self._torch.zeros(len(self._rows), dtype=self._torch.long, device=scores.device)
        if live:
            chosen[live] = self._choose([self._rows[i] for i in live], scores[live])
        tokens: list[int] = chosen.tolist()
        for index in live:
            try:
                self._rows[index].take(tokens[index], self._ends)
            except ServerFault as error:
                self._rows[index].fail(error)
        one = self._torch.full_like(scores, float("-inf"))
        return one.scatter_(1, chosen[:, None], 0.0)

    def _adjust(self, row: BatchRow, scores: Any) -> None:
        job = row.job
        if (job.presence_penalty or job.frequency_penalty) and row.seen:
            ids = self._torch.tensor(list(row.seen), device=scores.device)
            times = self._torch.tensor(list(row.seen.values()), device=scores.device)
            scores[ids] -= job.presence_penalty + job.frequency_penalty * times
        if row.grammar is not None:
            mask, byte = bytearray(row.grammar.compute_bitmask()), self._torch.uint8
            bits = self._torch.frombuffer(mask, dtype=byte)
            places = self._torch.arange(8, dtype=byte)
            allowed = ((bits[:, None] >> places) & 1).bool().flatten().to(scores.device)
            scores[~allowed[: len(scores)]] = float("-inf")

    def _choose(self, rows: Sequence[BatchRow], scores: Any) -> Any:
        torch = self._torch
        chosen = scores.argmax(-1)
        for whole in (True, False):
            drawn = (index for index, row in enumerate(rows) if row.job.temperature > 0)
            group = [index for index in drawn if (rows[index].job.top_p >= 1.0) is whole]
            if not group:
                continue
            jobs = [rows[index].job for index in group]
            numbers = [rows[index].random.random() for index in group]
            warm = torch.tensor([job.temperature for job in jobs], device=scores.device)
            probabilities = (scores[group].double() / warm[:, None]).softmax(-1)
            at = torch.tensor(numbers, dtype=torch.double, device=scores.device)[:, None]
            top_p = torch.tensor([job.top_p for job in jobs], device=scores.device)[:, None]
            if whole:
                mass = probabilities.cumsum(-1)
                found = torch.searchsorted(mass, at * mass[:, -1:], right=True)
                chosen[group] = found.clamp(max=mass.shape[-1] - 1)[:, 0]
            else:
                chosen[group] = _of_nucleus(torch, probabilities, at, top_p)
        return chosen


def _of_nucleus(torch: Any, probabilities: Any, at: Any, top_p: Any) -> Any:
    """From the fewest of the likeliest tokens that have a mass of `top_p` together."""
    top, ids = probabilities.topk(min(_NUCLEUS, probabilities.shape[-1]))
    mass = top.cumsum(-1)
    if bool((mass[:, -1:] < top_p).any()):
        top, ids = probabilities.sort(descending=True)
        mass = top.cumsum(-1)
    kept = ((mass - top) < top_p).sum(-1, keepdim=True).clamp(min=1)
    limit = mass.gather(1, kept - 1)
    found = torch.searchsorted(mass, at * limit, right=True)
    return ids.gather(1, torch.minimum(found, kept - 1))[:, 0]


_WHAT = "a Hugging Face model"
_EXTRA = "local"
_ROWS = 32  # the most jobs of one batch
_SETTLE_S = 0.004  # how long the first job waits for others that come at the same time

_log = logging.getLogger(__name__)


def load_transformers(weights: engines.Weights, *, four_bit: bool = False) -> TransformersEngine:
    """A model from its folder, or by its name from the hub and its cache on this machine. Raises
    MissingExtra, and ConfigError for a model that is not there or is not for chats."""
    source = weights.source
    torch: Any = import_extra("torch", _WHAT, _EXTRA)
    library: Any = import_extra("transformers", _WHAT, _EXTRA)
    import_extra("llguidance", _WHAT, _EXTRA)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device_map": device}
    if four_bit:
        import_extra("bitsandbytes", "--4bit", _EXTRA)
        options["quantization_config"] = library.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    import_extra("accelerate", _WHAT, _EXTRA)
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(source)
        model = library.AutoModelForCausalLM.from_pretrained(source, **options)
    except (OSError, ValueError) as error:
        message = f"cannot load {source}: {str(error).splitlines()[0]}"
        hint = "pass a folder that save_pretrained wrote, or OWNER/NAME from the hub"
        raise ConfigError(message, hint=hint) from error
    if not tokenizer.chat_template:
        message = f"{source} has no chat template"
        raise ConfigError(message, hint="use the model's chat or instruct version")
    return TransformersEngine(model, tokenizer, weights.name)


class TransformersEngine:
    """A causal model and its tokenizer, with one thread that generates."""

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self._torch: Any = import_extra("torch", _WHAT, _EXTRA)
        self._library: Any = import_extra("transformers", _WHAT, _EXTRA)
        self._refusals = import_extra("jinja2", _WHAT, _EXTRA).TemplateError
        self._model: Any = model.eval()
        self._tokenizer = tokenizer
        self.model = name
        self.context_length: int = model.config.get_text_config().max_position_embeddings
        given: int | list[int] | None = model.generation_config.eos_token_id
        listed = given if isinstance(given, list) else [given]
        ends = (*listed, tokenizer.eos_token_id)
        self._ends = frozenset(each for each in ends if each is not None)
        self._grammars = lru_cache(maxsize=64)(self._compile)
        self._waiting: deque[BatchRow] = deque()
        self._batch: list[BatchRow] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="pco-transformers", daemon=True)
        self._thread.start()

    @property
    def load(self) -> engines.Load:
        with self._changed:
            return engines.Load(sum(not row.done for row in self._batch), len(self._waiting))

    async def generate(self, job: engines.Job) -> engines.Generation:
        return await engines.last_of(self._pieces(job, streamed=False))

    def stream(self, job: engines.Job) -> AsyncGenerator[str | engines.Generation]:
        return self._pieces(job, streamed=True)

    async def embed(self, texts: Sequence[str]) -> Sequence[engines.Embedding]:
        """The mean of a text's last hidden states, at length 1: likeness, not trained for."""
        return [await asyncio.to_thread(self._embedding, text) for text in texts]

    async def close(self) -> None:
        with self._changed:
            self._is_closed = True
            for row in (*self._batch, *self._waiting):
                row.fail(ServerFault("the model has been closed"))
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)
        self._model = None

    async def _pieces(
        self, job: engines.Job, *, streamed: bool
    ) -> AsyncGenerator[str | engines.Generation, None]:
        grammar = None
        if job.schema is not None:
            # The first time it may take a second.
            grammar = await asyncio.to_thread(self._grammars, schema_ebnf(job.schema).text)
            grammar = grammar.deep_copy()
        turns = [{"role": turn.role, "content": turn.content} for turn in job.messages]
        try:
            fill = self._tokenizer.apply_chat_template
            prompt = fill(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
        except self._refusals as error:
            raise RequestRefused(f"the model's chat template says: {error}") from error
        room = self._room(len(prompt))
        cap = room if job.max_tokens is None else min(room, job.max_tokens)
        text = StreamedText(self._tokenizer, job.stop)
        caller = engines.Caller()
        random = keyed_random(job.seed, "tokens")
        row = BatchRow(job, prompt, cap, text, grammar, caller, streamed, random)
        with self._changed:
            if self._is_closed:
                raise ServerFault("the model has been closed")
            self._waiting.append(row)
            self._changed.notify()
        try:
            async for piece in caller.events():
                yield piece
        finally:
            row.done = True

    def _room(self, length: int) -> int:
        """Tokens left for a reply. Raises RequestRefused when there are none."""
        if length >= self.context_length:
            most = f"the model reads at most {self.context_length}, reply included"
            message = f"the text has {length} tokens, but {most}"
            raise RequestRefused(message, hint="shorten the prompt")
        return self.context_length - length

    def _compile(self, ebnf: str) -> Any:
        matchers: Any = import_extra("llguidance", _WHAT, _EXTRA).LLMatcher
        lark = import_extra("llguidance.gbnf_to_lark", _WHAT, _EXTRA).gbnf_to_lark(ebnf)
        grammar = matchers.grammar_from_lark(lark)
        matcher = matchers(self._grammar_tokenizer, grammar, log_level=0)
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

    def _take(self) -> list[BatchRow]:
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

    def _run(self, rows: Sequence[BatchRow]) -> None:
        torch = self._torch
        width = max(len(row.prompt) for row in rows)
        padding = self._tokenizer.pad_token_id or 0
        ids = torch.full((len(rows), width), padding, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, width - len(row.prompt) :] = torch.tensor(row.prompt)
            mask[index, width - len(row.prompt) :] = 1
        batch = BatchRows(torch, rows, self._ends)
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

    def _embedding(self, text: str) -> engines.Embedding:
        torch = self._torch
        ids: list[int] = self._tokenizer(text)["input_ids"]
        self._room(len(ids))
        with torch.inference_mode():
            batch = torch.tensor([ids], device=self._model.device)
            states = self._model(batch, output_hidden_states=True).hidden_states[-1]
        vector = torch.nn.functional.normalize(states[0].float().mean(0), dim=0)
        return engines.Embedding(tuple(vector.tolist()), len(ids))
