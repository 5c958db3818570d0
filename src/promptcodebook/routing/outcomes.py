"""From outcomes to expected rewards: a Bayesian ridge regression over inputs and instincts.

The reward of input x with the instincts Z is modelled as

    r = μ + s(x) + Σ_{k in Z} (g_k(x) + λ·sim(x, c_k)) + κ·(|Z| - 1)⁺ + noise,

with s and each g_k a constant and a linear function of φ(x) (`ranking.py`), all with Gaussian
priors; λ and κ are shared. With n outcomes everything follows from one n x n system, solved exactly
(the dual form; Rasmussen and Williams 2006, ch. 2). A rewritten instinct keeps its outcomes at a
discount: its part before and after a rewrite correlate with `kept`. Blame is an outcome of its own:
-ρ on one instinct's part alone, at a fourth of a reward's weight. The priors' sizes are round
numbers, chosen on training messages of `houserules`.

φ has 2,048 hashed words and 2,048 runs of 4 and 5 letters, weighted by rarity. Blame is minus the
instinct's even share of the codebook's severity. Only the last 2,000 outcomes count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from promptcodebook.errors import import_extra
from promptcodebook.routing.ranking import Features, Vocabulary, whole_numbers
from promptcodebook.types import Outcome, Ranking

# Weights are whole hundredths of the greatest; a fit takes the latest, at their cube's cost.
_DIGITS, MOST = 100, 2000


@dataclass(frozen=True, slots=True)
class Priors:
    """Standard deviations of the parts, in units of the reward."""

    level: float = 0.5
    shared: float = 0.3
    constant: float = 0.2
    own: float = 0.5
    likeness: float = 0.5
    more: float = 0.1
    noise: float = 0.35
    kept: float = 0.5


class OutcomeModel:
    """Fits outcomes of a fixed set of inputs. Beside embeddings (`vectors`) their spelling has the
    share `words`. Of `further` inputs only the buckets and the embedding are known: they do not
    count in the vocabulary. Features are made for the inputs that have outcomes, as needed."""

    def __init__(
        self,
        inputs: Mapping[str, str],
        vectors: Mapping[str, Sequence[float]] | None = None,
        words: float = 1.0,
        priors: Priors = Priors(),
        further: Mapping[str, tuple[Sequence[int], Sequence[float]]] | None = None,
    ) -> None:
        self.inputs, self.priors = inputs, priors
        self.vocabulary = Vocabulary.of(list(inputs.values()))
        if vectors is not None:
            listed = [vectors[name] for name in inputs]
            self.vocabulary = self.vocabulary.with_vectors(listed, words)
        what = "a router that learns from outcomes"
        self.numpy = import_extra("numpy", what, "router")
        self._threads = import_extra("threadpoolctl", what, "router").ThreadpoolController()
        self._vectors, self._further = vectors, further or {}
        # Of a hundred thousand rows a run visits a few hundred, most of them again and again.
        self.features = lru_cache(maxsize=2 * MOST)(self._features_of)

    def one_thread(self) -> AbstractContextManager[object]:
        """Sums in one order, whatever the number of cores; and small systems, which more slow."""
        return self._threads.limit(limits=1, user_api="blas")

    def _features_of(self, example_id: str) -> Features:
        if example_id in self._further:
            return self.vocabulary.read(*self._further[example_id])
        vector = () if self._vectors is None else self._vectors[example_id]
        return self.vocabulary.features(self.inputs[example_id], vector)

    def dense(self, rows: Sequence[Features]) -> Any:
        """A row φ for each."""
        dense = self.numpy.zeros((len(rows), self.vocabulary.width))
        for at, features in zip(dense, rows, strict=True):
            at[list(features)] = list(features.values())
        return dense

    def fit(self, outcomes: Sequence[Outcome], versions: Sequence[int]) -> Posterior:
        with self.one_thread():
            return Posterior(self, list(outcomes)[-MOST:], versions)


class Posterior:
    """What is known of every part after some outcomes."""

    def __init__(
        self, model: OutcomeModel, outcomes: Sequence[Outcome], versions: Sequence[int]
    ) -> None:
        self._model, self._np, self._outcomes = model, model.numpy, outcomes
        self._versions, self._size = tuple(versions), len(versions)
        np, p, n = model.numpy, model.priors, len(outcomes)
        names = list(dict.fromkeys(o.example_id for o in outcomes))
        places = {name: at for at, name in enumerate(names)}
        self._at = np.array([places[o.example_id] for o in outcomes], dtype=int)
        self._dense = model.dense([model.features(name) for name in names])
        self._whole = np.array([0.0 if o.part else 1.0 for o in outcomes])
        self._like = np.array([sum(o.likeness) for o in outcomes])
        self._crowd = np.array([0.0 if o.part else max(0, len(o.indices) - 1) for o in outcomes])
        self._has = np.zeros((n, self._size))
        self._old = np.zeros((n, self._size))
        for i, o in enumerate(outcomes):
            for k, version in zip(o.indices, o.versions, strict=True):
                self._has[i, k] = 1.0
                self._old[i, k] = version
        rewards = np.array([o.reward for o in outcomes])
        weights = np.array([o.weight for o in outcomes])
        total = float((weights * self._whole).sum())
        self._mean = float((weights * self._whole * rewards).sum() / total) if total else 0.5
        y = rewards - self._mean * self._whole
        gram = (self._dense @ self._dense.T)[self._at][:, self._at]
        whole = np.outer(self._whole, self._whole)
        prior = (p.level**2 + p.shared**2 * gram) * whole
        # How much two outcomes have instincts in common: 1 for each, less for older versions.
        shared = self._has @ self._has.T
        for k in range(self._size if (self._old != self._old[:1]).any() else 0):
            has = np.flatnonzero(self._has[:, k])
            apart = np.abs(np.subtract.outer(self._old[has, k], self._old[has, k]))
            shared[np.ix_(has, has)] += p.kept**apart - 1.0
        prior += (p.constant**2 + p.own**2 * gram) * shared
        prior += p.likeness**2 * np.outer(self._like, self._like)
        prior += p.more**2 * np.outer(self._crowd, self._crowd)
        noise = np.diag(p.noise**2 / weights)
        if n:
            self._root = np.linalg.inv(np.linalg.cholesky(prior + noise))
            self._dual = self._root.T @ (self._root @ y)
        else:
            self._root, self._dual = np.zeros((0, 0)), np.zeros(0)

    def _current(self) -> Any:
        """n x K: whether an outcome had the instinct, discounted by the rewrites since."""
        p = self._model.priors
        return self._has * p.kept ** (self._np.array(self._versions) - self._old)

    def ranking(self, least: int = 0) -> Ranking:
        """The means as plain numbers."""
        np, p, model = self._np, self._model.priors, self._model
        current, dual = self._current(), self._dual
        inputs = self._dense[self._at]
        with model.one_thread():
            own = p.own**2 * (current * dual[:, None]).T @ inputs
            shared = p.shared**2 * (self._whole * dual) @ inputs
            constant = p.constant**2 * current.T @ dual
        weights = np.vstack([shared[None, :], own])
        base = self._mean + p.level**2 * float(self._whole @ dual)
        unit, rows = whole_numbers(np, weights, _DIGITS)
        return Ranking(
            rarity=model.vocabulary.rarity,
            unit=unit,
            weights=rows,
            bias=tuple(round(b, 5) for b in [base, *constant.tolist()]),
            likeness=round(p.likeness**2 * float(self._like @ dual), 5),
            more=round(p.more**2 * float(self._crowd @ dual), 5),
            least=least,
            outcomes=len(self._outcomes),
            center=model.vocabulary.center,
            spread=model.vocabulary.spread,
            words=model.vocabulary.words,
            images=model.vocabulary.images,
        )

    def at(self, features: Features, likeness: Sequence[float]) -> Adding:
        """What each instinct adds at an input, whose likeness to their texts is given."""
        np, p, model = self._np, self._model.priors, self._model
        [vector] = model.dense([features])
        like = np.array(likeness)
        with model.one_thread():
            near = (self._dense @ vector)[self._at]
            cross = np.zeros((len(self._outcomes), self._size + 1))
            cross[:, :-1] = self._current() * (p.constant**2 + p.own**2 * near)[:, None]
            cross[:, :-1] += p.likeness**2 * np.outer(self._like, like)
            cross[:, -1] = p.more**2 * self._crowd
            prior = np.zeros((self._size + 1,) * 2)
            alone = p.constant**2 + p.own**2 * float(vector @ vector)
            prior[:-1, :-1] = alone * np.eye(self._size) + p.likeness**2 * np.outer(like, like)
            prior[-1, -1] = p.more**2
            half = self._root @ cross
            return Adding(cross.T @ self._dual, prior - half.T @ half, model)


# What each of the K instincts adds by itself, and what any further one adds beside that.
Marginals = tuple[list[float], float]


class Adding:
    """The posterior of the parts at one input: a Gaussian of K + 1 dimensions."""

    def __init__(self, mean: Any, covariance: Any, model: OutcomeModel) -> None:
        self._mean, self._covariance, self._model = mean, covariance, model

    @property
    def means(self) -> Marginals:
        return self._mean[:-1].tolist(), float(self._mean[-1])

    def draws(self, count: int, seed: int, scale: float) -> list[Marginals]:
        """Joint draws, their spread `scale` times the posterior's."""
        np, size = self._model.numpy, len(self._mean)
        with self._model.one_thread():
            root = np.linalg.cholesky(self._covariance + 1e-9 * np.eye(size))
            noise = np.random.Generator(np.random.PCG64(seed)).standard_normal((count, size))
            drawn = self._mean + scale * noise @ root.T
        return [(row[:-1], row[-1]) for row in drawn.tolist()]
