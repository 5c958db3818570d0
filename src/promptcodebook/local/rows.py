"""The rows of one batch: how each draws its next token, and when it ends.

Draws are by inversion, one uniform number a token, keyed by the row's own seed. So a row's draws do
not depend on the other rows (its logits may, in the last bits of bf16).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from promptcodebook.errors import ServerFault
from promptcodebook.local.engine import Generation, Job, TokenLogprob
from promptcodebook.randomness import keyed_random

_NUCLEUS = 1024
"""So many of the likeliest tokens are searched for a nucleus before all are sorted."""
_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 4
"""Tokens of one byte each."""


class Text:
    """A text as its tokens come: how much of it may be sent, and whether a stop string came."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._ids: list[int] = []
        self._whole, self._read = 0, 0  # tokens told before the last piece, and with it
        self._kept = ""
        self.told = ""

    def add(self, token: int) -> tuple[str, bool]:
        """The next piece, and whether the text has ended with a stop string."""
        self._ids.append(token)
        return self._tell(self._decoded(last=False))

    def end(self) -> str:
        """What had been kept back."""
        piece, stopped = self._tell(self._decoded(last=True))
        if stopped:
            return piece
        kept, self._kept = self._kept, ""
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
        return self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

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


Piece = str | Generation | Exception
"""What a row sends: its text in pieces, and last how it ended."""


@dataclass(slots=True)
class Row:
    """One job under way. `grammar` = a matcher of its own, None without a schema; `done` may be set
    from anywhere, and is seen at the next step."""

    job: Job
    prompt: Sequence[int]
    cap: int
    text: Text
    grammar: Any
    loop: asyncio.AbstractEventLoop
    streamed: bool
    pieces: asyncio.Queue[Piece] = field(default_factory=asyncio.Queue[Piece])
    done: bool = False
    written: int = 0
    seen: Counter[int] = field(default_factory=Counter[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = keyed_random(self.job.seed, "tokens")

    def take(self, token: int, ends: frozenset[int]) -> None:
        """The next token of the reply."""
        self.written += 1
        if token in ends:
            self._finish("stop")
            return
        self.seen[token] += 1
        piece, stopped = self.text.add(token)
        if piece and self.streamed:
            self._post(piece)
        if self.grammar is not None and not self.grammar.consume_token(token):
            raise ServerFault("the grammar lost its place")
        if stopped or (self.grammar is not None and self.grammar.is_stopped()):
            self._finish("stop")
        elif self.written >= self.cap:
            self._finish("length")

    def fail(self, error: Exception) -> None:
        if not self.done:
            self.done = True
            self._post(error)

    def _finish(self, reason: Literal["stop", "length"]) -> None:
        rest = self.text.end()
        if rest and self.streamed:
            self._post(rest)
        told = None if self.job.logprobs is None else tuple(self.logprobs)
        self._post(Generation(self.text.told, reason, len(self.prompt), self.written, None, told))
        self.done = True

    def _post(self, piece: Piece) -> None:
        with suppress(RuntimeError):  # its loop has ended
            self.loop.call_soon_threadsafe(self.pieces.put_nowait, piece)


class Rows:
    """A batch's rows as `generate` calls them at each step: with scores, for the next tokens."""

    def __init__(
        self, torch: Any, rows: Sequence[Row], ends: frozenset[int], tokenizer: Any
    ) -> None:
        self._torch = torch
        self._rows = rows
        self._ends = ends
        self._tokenizer = tokenizer

    def finished(self, ids: Any, _scores: Any, **_more: Any) -> Any:
        """Which rows have ended (bool, one each)."""
        return self._torch.tensor([row.done for row in self._rows], device=ids.device)

    def drawn(self, _ids: Any, scores: Any) -> Any:
        """Scores (float32, rows x vocabulary) that leave each row one token: the one it drew."""
        live = [index for index, row in enumerate(self._rows) if not row.done]
        # The model's own distribution, before temperature, penalties and grammar.
        asked = [index for index in live if self._rows[index].job.logprobs is not None]
        told = {index: scores[index].log_softmax(-1) for index in asked}
        for index in live:
            self._adjust(self._rows[index], scores[index])
        chosen = self._torch.zeros(len(self._rows), dtype=self._torch.long, device=scores.device)
        if live:
            chosen[live] = self._choose([self._rows[i] for i in live], scores[live])
        tokens: list[int] = chosen.tolist()
        for index in live:
            row = self._rows[index]
            if index in told:
                row.logprobs.append(self._token_logprob(row, told[index], tokens[index]))
            try:
                row.take(tokens[index], self._ends)
            except ServerFault as error:
                row.fail(error)
        one = self._torch.full_like(scores, float("-inf"))
        return one.scatter_(1, chosen[:, None], 0.0)

    def _token_logprob(self, row: Row, logprobs: Any, token: int) -> TokenLogprob:
        best = logprobs.topk(row.job.logprobs or 0)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        top = tuple((self._tokenizer.decode([each]), value) for each, value in pairs)
        return TokenLogprob(self._tokenizer.decode([token]), logprobs[token].item(), top)

    def _adjust(self, row: Row, scores: Any) -> None:
        """Penalties and grammar, in place."""
        job = row.job
        if (job.presence_penalty or job.frequency_penalty) and row.seen:
            ids = self._torch.tensor(list(row.seen), device=scores.device)
            times = self._torch.tensor(list(row.seen.values()), device=scores.device)
            scores[ids] -= job.presence_penalty + job.frequency_penalty * times
        if row.grammar is not None:
            bits = self._torch.frombuffer(
                bytearray(row.grammar.compute_bitmask()), dtype=self._torch.uint8
            )
            places = self._torch.arange(8, dtype=self._torch.uint8)
            allowed = ((bits[:, None] >> places) & 1).bool().flatten().to(scores.device)
            scores[~allowed[: len(scores)]] = float("-inf")

    def _choose(self, rows: Sequence[Row], scores: Any) -> Any:
        torch = self._torch
        chosen = scores.argmax(-1)
        for whole in (True, False):
            group = [
                index
                for index, row in enumerate(rows)
                if row.job.temperature > 0 and (row.job.top_p >= 1.0) is whole
            ]
            if not group:
                continue
            jobs = [rows[index].job for index in group]
            numbers = [rows[index].random.random() for index in group]
            warm = torch.tensor([job.temperature for job in jobs], device=scores.device)
            probabilities = (scores[group].double() / warm[:, None]).softmax(-1)
            at = torch.tensor(numbers, dtype=torch.double, device=scores.device)[:, None]
            top_p = torch.tensor([job.top_p for job in jobs], device=scores.device)[:, None]
            if whole:
                chosen[group] = _of_all(torch, probabilities, at)
            else:
                chosen[group] = _of_nucleus(torch, probabilities, at, top_p)
        return chosen


def _of_all(torch: Any, probabilities: Any, at: Any) -> Any:
    mass = probabilities.cumsum(-1)
    found = torch.searchsorted(mass, at * mass[:, -1:], right=True)
    return found.clamp(max=mass.shape[-1] - 1)[:, 0]


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
