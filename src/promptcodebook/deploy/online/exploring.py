"""Routes that a served policy tries, each with its exact chance. With probability ε a request gets
a route to learn from. In half of the cases any route is drawn: where inputs drift, what was learned
before says little of them. Otherwise the route is drawn from what is uncertain of the router: 64
fixed draws of what each instinct adds give 64 routes for an input, the best under each draw, and
one of them is taken. The file of a policy holds the router's means and how often each instinct was
tried, n_k. From these follows the deviation of an instinct's part, √(v / (1 + n_k·v/σ²)), with the
router's own priors v and σ (`outcomes.py`): the posterior of a constant effect. The seed and the
request's key decide, so a log can be replayed."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from promptcodebook.base.randomness import Randomness
from promptcodebook.deploy.registry.registry import AUDIT, open_registry
from promptcodebook.errors import ConfigError, import_extra
from promptcodebook.policy.file import PolicyFile
from promptcodebook.routing.outcome_router import RouteSets
from promptcodebook.routing.outcomes import Priors
from promptcodebook.types import Expected, Route

_DRAWS, _FLOOR = 64, 0.5


class Explorer:
    """Draws routes for one version. Raises ConfigError where the policy has no learned router, or
    an instinct of `never` is none of its."""

    def __init__(
        self, file: PolicyFile, share: float, seed: int = 0, never: Collection[int] = ()
    ) -> None:
        if file.router is None or file.router.kind != "outcomes":
            hint = "train with router.kind = 'outcomes' (as preset small does), or without "
            hint += "--explore"
            raise ConfigError("this policy has no router to explore with", hint=hint)
        if wrong := [k for k in never if not 0 <= k < len(file.codebook)]:
            message = f"serve.never {wrong[0]}: the instincts are 0 to {len(file.codebook) - 1}"
            raise ConfigError(message, hint="pco registry show REF lists them")
        self.share, self._random = share, Randomness(seed)
        self._np: Any = import_extra("numpy", "exploration", "serve")
        self._least = file.router.least
        self._open = [k for k in range(len(file.codebook)) if k not in never]
        if len(self._open) < max(1, self._least):
            raise ConfigError("serve.never leaves no instinct to explore", hint="list fewer")
        priors = Priors()
        spread = priors.constant**2 + priors.own**2
        selected = self._np.array([file.codebook[k].selected for k in self._open])
        deviation = self._np.sqrt(spread / (1 + selected * spread / priors.noise**2))
        generator = self._np.random.Generator(self._np.random.PCG64(seed))
        count = len(self._open)
        self._noise = generator.standard_normal((_DRAWS, count)) * deviation
        self._most = min(file.select, count)
        self._sizes = RouteSets(self._least, self._most, count, frozenset())
        self._wide = [self._sizes.chance(n) for n in range(self._most + 1)]

    def routes(self, expected: Expected) -> Any:
        """The best route under each of the draws, of the instincts that are not barred: a row for
        each, whose numbers are places among the open instincts, sorted; -1 fills it up."""
        np = self._np
        drawn = np.array([expected.marginal[k] for k in self._open]) + self._noise
        order = (-drawn).argsort(axis=1, kind="stable")[:, : self._most]
        gains = np.take_along_axis(drawn, order, axis=1)
        gains[:, 1:] += expected.more
        totals = np.zeros((_DRAWS, self._most + 1))
        gains.cumsum(axis=1, out=totals[:, 1:])
        totals[:, : self._least] = -np.inf
        order[np.arange(self._most) >= totals.argmax(axis=1)[:, None]] = -1
        order.sort(axis=1)
        return order

    def choose(self, best: Route, expected: Expected, key: str) -> tuple[Route, float]:
        """The route of one request, the same for the same key, and its chance."""
        draw, routes = self._random.generator("explore", key), self.routes(expected)
        indices = best.indices
        if draw.random() < self.share:
            if draw.random() < _FLOOR:
                places = self._sizes.draw(draw)
            else:
                row = routes[draw.randrange(_DRAWS)]
                places = [at for at in row.tolist() if at >= 0]
            indices = tuple(self._open[at] for at in places)
        chance = 0.0
        if all(k in self._open for k in indices):
            places = [self._open.index(k) for k in indices]
            row = [-1] * (self._most - len(places)) + places
            same = int((routes == row).all(axis=1).sum())
            chance = (1 - _FLOOR) * same / _DRAWS + _FLOOR * self._wide[len(places)]
        if indices == best.indices:
            return best, self.share * chance + 1 - self.share
        return Route(indices, explored=True), self.share * chance


def barred(version: str) -> frozenset[int]:
    """The instincts that an audit of a stored version found a high fault in. Raises StoreError."""
    with open_registry() as registry:
        reports = registry.attestations(version, AUDIT)
    found = [each for report in reports for each in report.get("findings", ())]
    high = {each["where"] for each in found if each["severity"] == "high"}
    return frozenset(int(where[1:]) for where in high if re.fullmatch(r"c\d+", where))
