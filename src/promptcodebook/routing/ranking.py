"""What the words of an input say of each instinct: numbers that rank without a model.

Beyond the paper (method decision 26). An input is the unit vector φ(x) of its hashed words and runs
of letters, either half of its squared length; each instinct's marginal reward is linear in it. With
`router.features` an embedding joins or replaces these: every dimension is centred and scaled by the
training inputs, then scaled to its share of the length.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from operator import add, itemgetter, mul

from promptcodebook.calls import LM, Message, Request, Usage
from promptcodebook.errors import LMError, PolicyError
from promptcodebook.text import words_of
from promptcodebook.types import Codebook, Expected, Ranking, Route

BUCKETS = 4096
"""Hashed features: words fall into the first half, letters into the second."""
_HALF = BUCKETS // 2
_LETTERS = (4, 5)
"""Lengths of the runs of letters that count, word by word."""
_MOST_WORDS = 200
"""Words of an input that are read: the first half of them from its start, the rest its end."""
_MOST_READ = 2**14
"""Characters of an input in which these words are looked for, likewise."""

_MOST_CHARACTERS = 2000
"""Of a text that is embedded: the first half from its start, the rest its end."""

Features = Mapping[int, float]
"""A sparse unit vector: bucket -> value."""


def _runs(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        padded = f" {word} "
        for length in _LETTERS:
            for at in range(len(padded) - length + 1):
                yield padded[at : at + length]


def _buckets(text: str) -> tuple[set[int], set[int]]:
    """Where the text's words fall and where its letters do; how often is not counted."""
    if len(text) > _MOST_READ:
        text = f"{text[: _MOST_READ // 2]} {text[-_MOST_READ // 2 :]}"
    words = words_of(text)
    if len(words) > _MOST_WORDS:
        words = [*words[: _MOST_WORDS // 2], *words[-_MOST_WORDS // 2 :]]
    return {_hashed(word) for word in words}, {_HALF + _hashed(run) for run in set(_runs(words))}


def _hashed(gram: str) -> int:
    return zlib.crc32(gram.encode("utf-8", "surrogatepass")) % _HALF


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How telling each bucket is: its inverse document frequency over the training inputs; and how
    embeddings are scaled, where they count (`types.Ranking`)."""

    rarity: tuple[float, ...]
    center: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    words: float = 1.0

    @property
    def width(self) -> int:
        """How many features there are."""
        return BUCKETS + len(self.center)

    @classmethod
    def of_ranking(cls, ranking: Ranking) -> Vocabulary:
        return cls(ranking.rarity, ranking.center, ranking.spread, ranking.words)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Vocabulary:
        """Smoothed: ln((1 + n) / (1 + n_b)) + 1 of n texts, n_b of which fall into bucket b."""
        seen = [0] * BUCKETS
        for text in texts:
            for bucket in chain(*_buckets(text)):
                seen[bucket] += 1
        n = len(texts)
        return cls(tuple(round(math.log((1 + n) / (1 + c)) + 1, 3) for c in seen))

    def with_vectors(self, vectors: Sequence[Sequence[float]], words: float) -> Vocabulary:
        """The same for inputs that have these embeddings too."""
        columns = list(zip(*vectors, strict=True))
        center = tuple(_significant(math.fsum(c) / len(c)) for c in columns)
        spread = tuple(
            _significant(math.sqrt(math.fsum((v - m) ** 2 for v in c) / len(c)))
            for c, m in zip(columns, center, strict=True)
        )
        return replace(self, center=center, spread=spread, words=words)

    def features(self, text: str, vector: Sequence[float] = ()) -> Features:
        """φ of a text, with its embedding where that counts; {} for one that nothing tells."""
        found: Features = self.spelled(text) if self.words else {}
        if not self.center:
            return found
        share = math.sqrt(self.words)
        told = {bucket: share * value for bucket, value in found.items()}
        return told | self._meant(vector)

    def _meant(self, vector: Sequence[float]) -> dict[int, float]:
        """The embedding's part of φ. PolicyError for one of another model."""
        if len(vector) != len(self.center):
            raise PolicyError(
                f"the router was trained on embeddings of {len(self.center)} numbers, and this "
                f"model makes {len(vector)}",
                hint="name the model that made them in roles.encoder.model",
            )
        rows = zip(vector, self.center, self.spread, strict=True)
        scaled = [(v - m) / s if s else 0.0 for v, m, s in rows]
        length = math.sqrt(math.fsum(v * v for v in scaled))
        part = math.sqrt(1.0 - self.words) / length if length else 0.0
        return {BUCKETS + at: part * v for at, v in enumerate(scaled)}

    def spelled(self, text: str) -> Features:
        """What words and letters say of a text, at length 1; {} for one without words."""
        kinds = [sorted(kind) for kind in _buckets(text) if kind]
        features: dict[int, float] = {}
        for kind in kinds:
            values = [self.rarity[b] for b in kind]
            length = math.sqrt(len(kinds) * math.fsum(v * v for v in values))
            features.update((b, v / length) for b, v in zip(kind, values, strict=True))
        return features


def _significant(value: float) -> float:
    return float(f"{value:.5g}")


def chosen(marginal: Sequence[float], more: float, select: int, least: int = 0) -> tuple[int, ...]:
    """The set of `least` to `select` instincts that promises most, sorted; of equals the fewest."""
    order = sorted(range(len(marginal)), key=lambda k: (-marginal[k], k))[:select]
    size, best, promise = min(least, len(order)), -math.inf if least else 0.0, 0.0
    for count, k in enumerate(order, start=1):
        promise += marginal[k] + (more if count > 1 else 0.0)
        if count >= least and promise > best:
            size, best = count, promise
    return tuple(sorted(order[:size]))


class Ranker:
    """A ranking at work over the texts of a codebook."""

    def __init__(self, ranking: Ranking, instincts: Sequence[str]) -> None:
        self._ranking = ranking
        self._vocabulary = Vocabulary.of_ranking(ranking)
        # By bucket, which instincts' texts fall into it: an input touches few of them.
        self._alike: dict[int, list[tuple[int, float]]] = {}
        for k, text in enumerate(instincts):
            for bucket, value in self._vocabulary.spelled(text).items():
                self._alike.setdefault(bucket, []).append((k, value))

    def expected(self, text: str, vector: Sequence[float] = ()) -> Expected:
        """What an input promises with each of the instincts; `vector` is its embedding."""
        return self.of(self._vocabulary.features(text, vector))

    def of(self, features: Features) -> Expected:
        """The same, for an input whose features are known."""
        ranking = self._ranking
        values = list(ranking.bias)
        if features:
            # Not `sum`, which adds up in another way from Python 3.12 on.
            picked = itemgetter(*features, next(iter(features)))
            amounts = [*features.values(), 0.0]
            for row, weights in enumerate(ranking.weights):
                values[row] += ranking.unit * reduce(add, map(mul, amounts, picked(weights)), 0.0)
        if ranking.likeness:
            for k, likeness in enumerate(self._likeness(features)):
                values[k + 1] += ranking.likeness * likeness
        return Expected(values[0], tuple(values[1:]), ranking.more)

    def _likeness(self, features: Features) -> list[float]:
        """φ(x)·φ(c_k) of every instinct, by the words and letters of its text alone."""
        alike = [0.0] * (len(self._ranking.bias) - 1)
        for bucket, value in features.items():
            for k, own in self._alike.get(bucket, ()):
                alike[k] += value * own
        return alike

    def choose(self, text: str, select: int, vector: Sequence[float] = ()) -> tuple[int, ...]:
        """The route of an input: up to `select` instincts, as long as each promises to add."""
        expected = self.expected(text, vector)
        return chosen(expected.marginal, expected.more, select, self._ranking.least)


def dot(a: Features, b: Features) -> float:
    """φ·φ', in the order of the first."""
    return math.fsum(value * b[bucket] for bucket, value in a.items() if bucket in b)


@dataclass(frozen=True)
class Embedder:
    """Reads inputs by the encoder's model: the vector that it makes of a text."""

    lm: LM

    async def read(self, text: str) -> tuple[tuple[float, ...], Usage]:
        """Raises LMError where the model cannot be reached, or makes no embeddings."""
        if len(text) > _MOST_CHARACTERS:
            text = text[: _MOST_CHARACTERS // 2] + text[-_MOST_CHARACTERS // 2 :]
        # Nobody embeds nothing.
        message = Message("user", text if text.strip() else "-")
        reply = await self.lm(Request(role="encoder", messages=(message,), embeds=True))
        if not reply.vector:
            raise LMError(
                "the model answered a request for an embedding with a text",
                hint="router.features = 'words', or name a model that embeds: roles.encoder.model",
                role="encoder",
            )
        return reply.vector, reply.usage


class RankedRoutes:
    """Routes inputs by a ranking; `embedder` reads them, where the ranking was learned on
    embeddings."""

    def __init__(self, select: int, embedder: Embedder | None = None) -> None:
        self._select = select
        self._embedder = embedder
        self._ready: tuple[Ranking, tuple[str, ...], Ranker] | None = None

    async def rank(
        self, codebook: Codebook, ranking: Ranking, text: str
    ) -> tuple[Route, Expected, Usage]:
        """The route of an input, and what each instinct promises for it."""
        vector: Sequence[float] = ()
        usage = Usage()
        if ranking.center and self._embedder is not None:
            vector, usage = await self._embedder.read(text)
        # The ranker is made once for many inputs.
        texts = codebook.texts
        if self._ready is None or self._ready[0] is not ranking or self._ready[1] != texts:
            self._ready = ranking, texts, Ranker(ranking, texts)
        expected = self._ready[2].expected(text, vector)
        picked = chosen(expected.marginal, expected.more, self._select, ranking.least)
        return Route(picked), expected, usage
