"""What ranks the instincts of a codebook for an input without a model: plain numbers.

Beyond the paper (method decision 26). An input is the unit vector φ(x) of its hashed words and runs
of letters, either half of its squared length; each instinct's marginal reward is linear in it. With
`router.features` an embedding joins or replaces these: every dimension is centred and scaled by the
training inputs, then scaled to its share of the length.

Below it, `distil` makes a ranking that imitates E_θ. For each instinct a ridge regression on φ(x)
predicts whether the encoder chose it, in the dual form, with the penalty of least leave-one-out
error. An example counts once, however many routes it has. The route is the S that rank first."""

from __future__ import annotations

import math
import re
import struct
import zlib
from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import chain
from operator import add, itemgetter, mul
from typing import Any

from promptcodebook.calls import LM, Message, Request, Tree, Usage
from promptcodebook.errors import LMError, PolicyError, import_extra
from promptcodebook.types import Codebook, Example, Expected, Ranking, Route

# Hashed features: words fall into the first half, runs of 4 or 5 letters into the second.
BUCKETS, _HALF = 4096, 2048
_MOST_HALF = 65504.0  # the greatest number in half precision
_ROUNDED = 1e-9  # what rounding may make of a sum that is 0
# Words and characters of an input that are read; and of one embedded: half from either end.
_MOST_WORDS, _MOST_READ, _MOST_CHARACTERS = 200, 2**14, 2000
# How many words of the inputs are tried for what they lead to, and how many of them are named.
_MOST_COMMON, _MOST_LEADING = 2000, 6

# Policy files hold its buckets, so that this cut stays. In a script without blanks, runs of
# letters tell inputs apart.
_WORD = re.compile(r"[^\W_]+")

Features = Mapping[int, float]  # a sparse unit vector: bucket -> value
# `Route.fault` of an input that the router cannot read.
UNSEEN = "its words are new to the router, so it gets the best route for an input without words"


def buckets_of(text: str) -> tuple[int, ...]:
    """All buckets of a text, sorted."""
    return tuple(sorted(chain(*_buckets(text))))


def _buckets(text: str) -> tuple[set[int], set[int]]:
    """Where the text's words fall and where its letters do; how often is not counted."""
    if len(text) > _MOST_READ:
        text = f"{text[: _MOST_READ // 2]} {text[-_MOST_READ // 2 :]}"
    words = _WORD.findall(text.lower())
    if len(words) > _MOST_WORDS:
        words = [*words[: _MOST_WORDS // 2], *words[-_MOST_WORDS // 2 :]]
    places = [_places(word) for word in set(words)]
    return {word for word, _ in places}, set(chain.from_iterable(runs for _, runs in places))


# A large file of text has few words that are new, and hashing is most of what reading it takes.
@lru_cache(maxsize=2**15)
def _places(word: str) -> tuple[int, tuple[int, ...]]:
    """Where a word falls, and where its runs of letters do."""
    padded = f" {word} "
    starts = ((at, length) for length in (4, 5) for at in range(len(padded) - length + 1))
    runs = (_HALF + _hashed(padded[at : at + length]) for at, length in starts)
    return _hashed(word), tuple(runs)


def _hashed(gram: str) -> int:
    return zlib.crc32(gram.encode("utf-8", "surrogatepass")) % _HALF


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How telling each bucket is (its inverse document frequency); how embeddings are scaled."""

    rarity: tuple[float, ...]
    center: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    words: float = 1.0
    images: bool = False

    @property
    def width(self) -> int:
        return BUCKETS + len(self.center)

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
        """The same for inputs that have these embeddings too; five digits of each number count."""
        columns = list(zip(*vectors, strict=True))
        center = tuple(float(f"{math.fsum(c) / len(c):.5g}") for c in columns)
        pairs = zip(columns, center, strict=True)
        variances = (math.fsum((v - m) ** 2 for v in c) / len(c) for c, m in pairs)
        spread = tuple(float(f"{math.sqrt(variance):.5g}") for variance in variances)
        return replace(self, center=center, spread=spread, words=words)

    @property
    def usual(self) -> list[float]:
        """ln of how much likelier than a bucket of its half each one is in a training input."""
        shares = [math.exp(1 - rarity) for rarity in self.rarity]
        halves = [math.log(math.fsum(half) / _HALF) for half in (shares[:_HALF], shares[_HALF:])]
        return [1 - rarity - halves[at >= _HALF] for at, rarity in enumerate(self.rarity)]

    def unlike(self, text: str) -> bool:
        """Whether both its words and its runs of letters are likelier in a text of any other kind
        than in a training input."""
        return _foreign(self.usual, self.spelled(text))

    def features(self, text: str, vector: Sequence[float] = ()) -> Features:
        """φ of a text, with its embedding where that counts. Raises PolicyError when the embedding
        is another model's."""
        return self.read(chain(*_buckets(text)) if self.words else (), vector)

    def read(self, buckets: Iterable[int], vector: Sequence[float] = ()) -> Features:
        """The same of a text whose buckets are known."""
        found: Features = self.weighed(buckets) if self.words else {}
        if not self.center:
            return found
        if len(vector) != len(self.center):
            trained = f"the router was trained on embeddings of length {len(self.center)}"
            hint = "set roles.encoder.model to the model that made them"
            raise PolicyError(f"{trained}, but this model returns {len(vector)}", hint=hint)
        share = math.sqrt(self.words)
        own = {bucket: share * value for bucket, value in found.items()}
        rows = zip(vector, self.center, self.spread, strict=True)
        scaled = [(v - m) / s if s else 0.0 for v, m, s in rows]
        length = math.sqrt(math.fsum(v * v for v in scaled))
        part = math.sqrt(1.0 - self.words) / length if length else 0.0
        return own | {BUCKETS + at: part * v for at, v in enumerate(scaled)}

    def spelled(self, text: str) -> Features:
        """What words and letters say of a text, at length 1; {} for one without words."""
        return self.weighed(chain(*_buckets(text)))

    def weighed(self, buckets: Iterable[int]) -> Features:
        """The same by buckets."""
        found = sorted(buckets)
        halves = [b for b in found if b < _HALF], [b for b in found if b >= _HALF]
        kinds = [half for half in halves if half]
        features: dict[int, float] = {}
        for kind in kinds:
            values = [self.rarity[b] for b in kind]
            length = math.sqrt(len(kinds) * math.fsum(v * v for v in values))
            features.update((b, v / length) for b, v in zip(kind, values, strict=True))
        return features


def _foreign(seen: Sequence[float], features: Features) -> bool:
    """Whether words and letters both speak against a text's being like a training input."""
    words = math.fsum(seen[bucket] for bucket in features if bucket < _HALF)
    letters = math.fsum(seen[bucket] for bucket in features if bucket >= _HALF)
    return max(words, letters) < -_ROUNDED


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
        self._ranking, r = ranking, ranking
        self.vocabulary = Vocabulary(r.rarity, r.center, r.spread, r.words)
        # 0 of what training never saw and feedback alone has taught (`pco learn`).
        never, taught = max(r.rarity), map(any, zip(*r.weights, strict=True))
        rows = zip(r.rarity, self.vocabulary.usual, taught, strict=False)
        self._seen = [0.0 if rarity == never and own else usual for rarity, usual, own in rows]
        # By bucket, which instincts' texts fall into it: an input touches few of them.
        self._alike: dict[int, list[tuple[int, float]]] = {}
        for k, text in enumerate(instincts):
            for bucket, value in self.vocabulary.spelled(text).items():
                self._alike.setdefault(bucket, []).append((k, value))

    def expected(self, text: str, vector: Sequence[float] = ()) -> Expected:
        """What an input promises with each of the instincts; `vector` is its embedding."""
        return self.of(self.vocabulary.features(text, vector))

    def known(self, features: Features) -> Features:
        """The features, or {} where both the words and the runs of letters are likelier in a text
        of any other kind than in a training input. An embedding reads words that are new."""
        if self._ranking.center:
            return features
        return {} if _foreign(self._seen, features) else features

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
        # φ(x)·φ(c_k) of every instinct, by the words and letters of its text alone.
        alike = [0.0] * (len(values) - 1)
        for bucket, value in features.items() if ranking.likeness else ():
            for k, own in self._alike.get(bucket, ()):
                alike[k] += value * own
        for k, likeness in enumerate(alike, start=1):
            values[k] += ranking.likeness * likeness
        return Expected(values[0], tuple(values[1:]), ranking.more, tuple(features))

    def choose(self, text: str, select: int, vector: Sequence[float] = ()) -> tuple[int, ...]:
        """The route of an input: up to `select` instincts, as long as each promises to add."""
        expected = self.expected(text, vector)
        return chosen(expected.marginal, expected.more, select, self._ranking.least)


def leading_words(
    ranking: Ranking, instincts: Sequence[str], inputs: Iterable[str]
) -> list[list[str]]:
    """For each instinct the words of these inputs that lead the router to it, the strongest first:
    those that raise its score by most above the other instincts' mean. A word counts that is in two
    inputs at least, and never by an embedding."""
    counts = Counter(word for text in inputs for word in set(_WORD.findall(text.lower())))
    ranker, usual = Ranker(ranking, instincts), ranking.bias[1:]
    led: list[list[tuple[float, str]]] = [[] for _ in instincts]
    for word, count in counts.most_common(_MOST_COMMON) if ranking.words else ():
        word_buckets, letters = _places(word)
        rarity = ranking.rarity[word_buckets]
        scores = ranker.of(ranker.vocabulary.weighed((word_buckets, *set(letters)))).marginal
        added = [rarity * (score - bias) for score, bias in zip(scores, usual, strict=True)]
        mean = math.fsum(added) / len(added)
        for own, value in zip(led, added, strict=True):
            if count > 1 and len(word) > 2 and value > mean:
                own.append((mean - value, word))
    return [[word for _, word in sorted(own)[:_MOST_LEADING]] for own in led]


def packed(vector: Sequence[float]) -> str:
    """An embedding as text, in half precision: two or three letters a number."""
    try:
        data = struct.pack(f"<{len(vector)}e", *vector)
    except OverflowError:
        within = (max(-_MOST_HALF, min(_MOST_HALF, v)) for v in vector)
        data = struct.pack(f"<{len(vector)}e", *within)
    return b64encode(data).decode()


def unpacked(text: str) -> tuple[float, ...]:
    """What `packed` was given, to three digits."""
    data = b64decode(text)
    return struct.unpack(f"<{len(data) // 2}e", data)


def dot(a: Features, b: Features) -> float:
    """φ·φ', in the order of the first."""
    return math.fsum(value * b[bucket] for bucket, value in a.items() if bucket in b)


@dataclass(frozen=True)
class Embedder:
    """Reads inputs by the encoder's model: the vector that it makes of a text and its images."""

    lm: LM

    async def read(self, text: str, media: Sequence[Tree] = ()) -> tuple[tuple[float, ...], Usage]:
        """Raises LMError where the model cannot be reached, or makes no embeddings."""
        if len(text) > _MOST_CHARACTERS:
            text = text[: _MOST_CHARACTERS // 2] + text[-_MOST_CHARACTERS // 2 :]
        # No endpoint embeds an empty text.
        text = text if text.strip() else "-"
        parts = [{"type": "text", "text": text}, *media]
        message = Message("user", text, {"role": "user", "content": parts} if media else None)
        reply = await self.lm(Request(role="encoder", messages=(message,), embeds=True))
        if not reply.vector:
            what = "the model answered an embedding request with text"
            hint = "router.features = 'words', or choose an embedding model: roles.encoder.model"
            raise LMError(what, hint=hint, role="encoder")
        return reply.vector, reply.usage


class RankedRoutes:
    """Routes inputs by a ranking; `embedder` reads them, where it was learned on embeddings."""

    def __init__(self, select: int, embedder: Embedder | None = None) -> None:
        self._select = select
        self._embedder = embedder
        self._ready: tuple[Ranking, tuple[str, ...], Ranker] | None = None

    async def rank(
        self, codebook: Codebook, ranking: Ranking, example: Example
    ) -> tuple[Route, Expected, Usage]:
        """The route of an input, and what each instinct promises for it."""
        vector, usage = (), Usage()
        if ranking.center and self._embedder is not None:
            media = example.media if ranking.images else ()
            vector, usage = await self._embedder.read(example.input, media)
        # The ranker is made once for many inputs.
        texts = codebook.texts
        if self._ready is None or self._ready[0] is not ranking or self._ready[1] != texts:
            self._ready = ranking, texts, Ranker(ranking, texts)
        ranker = self._ready[2]
        features = ranker.vocabulary.features(example.input, vector)
        known = ranker.known(features)
        expected = replace(ranker.of(known), features=tuple(features), vector=packed(vector))
        picked = chosen(expected.marginal, expected.more, self._select, ranking.least)
        return Route(picked, fault="" if len(known) == len(features) else UNSEEN), expected, usage


def whole_numbers(np: Any, weights: Any, digits: int) -> tuple[float, tuple[tuple[int, ...], ...]]:
    """Weights as whole numbers of a unit, the greatest `digits` of them."""
    unit = float(np.abs(weights).max(initial=0.0)) / digits
    whole = np.rint(weights / unit).astype(int) if unit else np.zeros(weights.shape, dtype=int)
    return float(f"{unit:.4g}"), tuple(tuple(row) for row in whole.tolist())


# The distilled router.

# Weight of a route that the encoder gave when θ or the codebook had other texts.
OLDER = 0.25
# Prior variance of an instinct's own constant, beside φ·φ = 1; weights are whole thousandths.
_CONSTANT, _DIGITS, _RIDGES = 1.0, 1000, (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True, slots=True)
class Imitated:
    """A route that the encoder gave for an input; `weight` is below 1 under other texts."""

    example_id: str
    input: str
    indices: tuple[int, ...]
    weight: float = 1.0


def distil(routes: Sequence[Imitated], size: int, least: int) -> Ranking:
    """The ranking that imitates the routes best, for a codebook of `size`. It takes
    as many instincts as they had on average, and no fewer than `least`; beyond that, what more than
    half of such routes had. Raises MissingExtra without numpy."""
    np = import_extra("numpy", "a distilled router", "router")
    pools = import_extra("threadpoolctl", "a distilled router", "router")
    by_example: defaultdict[str, list[Imitated]] = defaultdict(list)
    for route in routes:
        by_example[route.example_id].append(route)
    least = max(least, round(sum(len(route.indices) for route in routes) / len(routes)))
    vocabulary = Vocabulary.of([own[0].input for own in by_example.values()])
    x, y = np.zeros((len(by_example), BUCKETS)), np.zeros((len(by_example), size))
    weights = np.zeros(len(by_example))
    for i, own in enumerate(by_example.values()):
        features = vocabulary.features(own[0].input)
        x[i, list(features)] = list(features.values())
        weights[i] = max(route.weight for route in own)
        for route in own:
            y[i, list(route.indices)] += route.weight / sum(r.weight for r in own)
    # In one thread the sums do not depend on the number of cores.
    with pools.ThreadpoolController().limit(limits=1, user_api="blas"):
        mean = weights @ y / weights.sum()
        # (Q + λ/w)^-1 y under the λ whose leave-one-out residuals, dual / diag, are least.
        kernel, tried = _CONSTANT + x @ x.T, list[tuple[float, Any]]()
        for ridge in _RIDGES:
            inverse = np.linalg.inv(kernel + ridge * np.diag(1.0 / weights))
            dual = inverse @ (y - mean)
            left_out = dual / np.diag(inverse)[:, None]
            tried.append((float((weights[:, None] * left_out**2).sum()), dual))
        dual = min(tried, key=lambda each: each[0])[1]
        own_weights = dual.T @ x
        constant = mean + _CONSTANT * dual.sum(axis=0)
    unit, rows = whole_numbers(np, own_weights, _DIGITS)
    return Ranking(
        rarity=vocabulary.rarity,
        unit=unit,
        weights=((0,) * BUCKETS, *rows),
        bias=(0.0, *(round(b, 5) for b in constant.tolist())),
        more=-0.5 * any(len(route.indices) > least for route in routes),
        least=least,
        outcomes=len(by_example),
        kind="distilled",
    )
