"""A served policy's router, refitted from training and from what users said; its texts stay.

A logged request is one more outcome of the router's model (`routing/outcomes.py`). Its features are
its buckets under the vocabulary of training, and its weight halves with each half-life before the
latest request. Outcomes of training weigh what they weighed there.

Before any traffic the new routes are judged by the last third of the log, by time, under a fit to
all before it. The estimate is doubly robust with normalised weights (Thomas and Brunskill 2016):
the forecast of a route, and over it the weighted mean of what the requests that were served this
route earned more. A weight is 1 / chance, and at most `MOST_WEIGHT` times the least. Requests whose
new route is today's add nothing to the gain. Of the others at least 20, by effective sample size,
must have been served their new route: the forecast alone flatters routes that were chosen by it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from promptcodebook.config import load_config
from promptcodebook.data import Dataset
from promptcodebook.errors import ConfigError, DataError, PcoError, PolicyError, RunNotTrusted
from promptcodebook.intervals import Interval, mean_interval
from promptcodebook.online.log import Logged
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.references import Reference, state_at, stored_dataset
from promptcodebook.registry.log import version_of
from promptcodebook.registry.registry import open_registry
from promptcodebook.routing.outcomes import MOST, MOST_WEIGHT, OutcomeModel, Priors
from promptcodebook.routing.ranking import Ranker, Vocabulary, chosen
from promptcodebook.routing.router import OutcomeRouter, likeness, priors_of, spelled
from promptcodebook.store.run import RunStore
from promptcodebook.types import Expected, Outcome, Ranking
from promptcodebook.units import plural

FEWEST, HELD_OUT = 20, 1 / 3
_Row = tuple[tuple[tuple[int, ...], ...], Expected, Logged]
"""A request: its new route and today's, the forecast, and what came of the route it was served."""


@dataclass(frozen=True, slots=True)
class Worth:
    """Mean reward of the new routes and of today's on `requests` held out, and the difference.
    Routes differ in `differing` of them; `effective` is the effective sample size of those that
    were served their new route."""

    new: Interval
    today: Interval
    gain: Interval
    requests: int
    differing: int
    effective: float

    @property
    def known(self) -> bool:
        """Whether enough was logged for the estimate to mean anything."""
        enough = not self.differing or self.effective >= FEWEST
        return self.requests >= FEWEST and enough

    def text(self) -> str:
        if self.requests < FEWEST:
            return (
                f"not enough logged to say what it is worth: {self.requests} of {FEWEST} requests "
                "with feedback are held out"
            )
        held = f"{plural(self.requests, 'held-out request')}"
        if not self.differing:
            return f"it routes all of {held} as today's version does"
        tried = f"{self.effective:.1f} effective requests"
        if not self.known:
            return (
                f"not enough logged to say what it is worth: {self.differing} of {held} get other "
                f"routes, and {tried} of {FEWEST} were served them; pco serve --explore 0.1 "
                "tries more routes"
            )
        return (
            f"it earns {self.new.text()}, today's version {self.today.text()}: "
            f"{self.gain.text(signed=True)} by {held} ({self.differing} with other routes, "
            f"{tried} served them)"
        )


@dataclass(frozen=True, slots=True)
class Trained:
    """What the run behind a policy taught its router, up to the policy's texts."""

    inputs: Mapping[str, str]
    outcomes: tuple[Outcome, ...]
    versions: tuple[int, ...]
    selected: tuple[int, ...]
    priors: Priors = Priors()


@dataclass(frozen=True, slots=True)
class Learned:
    """The new policy; how many logged requests and outcomes of training it was fitted to; how many
    requests were left out, by reason; and what it is worth."""

    file: PolicyFile
    logged: int
    training: int
    left_out: Mapping[str, int]
    worth: Worth

    def text(self) -> str:
        fitted = f"fitted to {plural(self.logged, 'logged request')} and "
        fitted += plural(self.training, "outcome") + " of training"
        left = ", ".join(f"{count} {why}" for why, count in self.left_out.items() if count)
        return "\n".join([fitted, *([f"left out: {left}"] if left else []), self.worth.text()])

    def as_json(self) -> dict[str, Any]:
        worth = {**asdict(self.worth), "known": self.worth.known}
        counts = {"logged": self.logged, "training": self.training}
        return {**counts, "left_out": dict(self.left_out), "worth": worth}


def require_router(file: PolicyFile) -> Ranking:
    """The router of today. ConfigError where it is not one that learns from the log."""
    if file.router is None or file.router.kind != "outcomes":
        hint = "train with router.kind = 'outcomes' (presets small and lean do)"
        raise ConfigError("this policy has no router that learns from outcomes", hint=hint)
    if file.router.center:
        said = "this policy's router reads embeddings, and the log holds words and letters alone"
        raise ConfigError(said, hint="train with router.features = 'words' to learn from the log")
    return file.router.ranking


def read_training(
    path: Path, file: PolicyFile, data: Dataset | None = None, *, trust: bool = False
) -> Trained:
    """Reads the training of a run back, with its `data` or those that it names. RunNotTrusted where
    they may not be read, ConfigError where it names none, DataError where they are not as they
    were, PolicyError where it did not make the policy."""
    with closing(RunStore.open(path)) as store:
        header = store.header
        if data is None and not (store.ours or trust):
            said = f"the run {header.id} does not bear your mark, and its data would be read"
            raise RunNotTrusted(said, hint="if you trust it, add --trust")
        config = load_config(header.settings, where=f"the run {header.id}")
        inputs = {e.id: e.input for e in (data or stored_dataset(header)).train}
        model = OutcomeModel(inputs, priors=priors_of(config))
        if model.vocabulary.rarity != require_router(file).rarity:
            said = f"the training data of the run {header.id} are not those of this policy's router"
            raise DataError(said, hint="restore them, or name the run that made it: --run RUN")
        router, texts = OutcomeRouter(config.router, config.select, model), file.parameters.codebook
        state = router.begin(state_at(store, -1))
        found = state if state.parameters.codebook.texts == texts.texts else None
        for step in store.steps(traces=True):
            state = router.note(state, step.traces, state.after(step))
            if state.parameters.codebook.texts == texts.texts:
                found = state
    if found is None:
        said = f"the run {header.id} never had the codebook of this policy"
        raise PolicyError(said, hint="name the run that made it: --run RUN")
    selected = found.statistics.selected
    return Trained(inputs, found.outcomes, found.versions, selected, model.priors)


def versions_of(reference: Reference, seen: Collection[str]) -> set[str]:
    """The versions whose prompts are this policy's, whatever their routes: its own, those that it
    was learned from, and of those that a log has `seen` the ones that the registry knows."""

    def prompts(file: PolicyFile) -> object:
        asked = file.templates, file.generator, file.compose, file.base_prompt, file.output_format
        return file.parameters.codebook.texts, asked, file.stages

    file = reference.file
    learned = cast("Mapping[str, Any]", file.about.get("learned") or {})
    names = {reference.version, version_of(reference.text.encode()), *learned.get("versions", ())}
    names.add(version_of(file.text().encode("utf-8", "surrogatepass")))
    with open_registry() as registry:
        for version in set(seen) - names:
            with suppress(PcoError):  # one that is not kept here
                if prompts(registry.policy(version)) == prompts(file):
                    names.add(version)
    return names - {""}


def learn(
    file: PolicyFile,
    trained: Trained,
    logged: Iterable[Logged],
    versions: Collection[str],
    half_life: float,
) -> Learned:
    """The policy with a router fitted to training and to the requests of these versions.
    `half_life` is in seconds. DataError where no request can be learned from."""
    left, kept = Counter[str](), list[Logged]()
    for each in sorted(logged, key=lambda each: each.served.time):
        if each.reward is None:
            left["without feedback"] += 1
        elif each.served.fallback or not each.served.features:
            left["without a route of the router"] += 1
        elif each.served.version not in versions:
            left["of another codebook"] += 1
        else:
            kept.append(each)
    if not kept:
        reasons = ", ".join(f"{count} {why}" for why, count in left.items())
        said = f"no logged request can be learned from ({reasons or 'none is logged'})"
        raise DataError(said, hint="pco serve REF --feedback, and POST /v1/feedback")

    split = len(kept) - max(1, int(len(kept) * HELD_OUT))
    worth = estimate(file, refit(file, trained, kept[:split], half_life)[0], kept[split:])
    ranking, training, new = refit(file, trained, kept, half_life)
    uses = Counter(k for each in kept for k in each.served.route)
    codebook = tuple(
        entry.model_copy(update={"selected": trained.selected[k] + uses[k]})
        for k, entry in enumerate(file.codebook)
    )
    made = file.with_router(ranking).model_copy(update={"codebook": codebook})
    return Learned(made, new, training, dict(left), worth)


def refit(
    file: PolicyFile, trained: Trained, rows: Sequence[Logged], half_life: float
) -> tuple[Ranking, int, int]:
    """The router by training and by requests with feedback, the oldest first; and how many outcomes
    of either it took."""
    known = list(trained.outcomes)[-MOST // 2 :]
    recent = rows[len(known) - MOST :]
    buckets = {f"served {each.served.id}": each.served.features for each in recent}
    model = OutcomeModel(trained.inputs, priors=trained.priors, further=buckets)
    texts = spelled(model, file.parameters.codebook)
    for name, each in zip(buckets, recent, strict=True):
        route, like = each.served.route, likeness(model.features(name), texts)
        age = recent[-1].served.time - each.served.time
        versions = tuple(trained.versions[k] for k in route)
        own = tuple(like[k] for k in route)
        weight = 0.5 ** (age / half_life)
        known.append(Outcome(name, route, versions, own, each.reward or 0.0, weight))
    ranking = model.fit(known, trained.versions).ranking(require_router(file).least)
    return ranking, len(known) - len(recent), len(recent)


def estimate(file: PolicyFile, ranking: Ranking, held: Sequence[Logged]) -> Worth:
    """What the routes of a ranking are worth, and those of the file's router, by requests that the
    ranking was not fitted to."""
    today, texts = require_router(file), file.parameters.codebook.texts
    rankers, vocabulary = (Ranker(ranking, texts), Ranker(today, texts)), Vocabulary(today.rarity)
    routed: dict[tuple[int, ...], tuple[tuple[tuple[int, ...], ...], Expected]] = {}
    for buckets in {each.served.features for each in held}:
        features = vocabulary.weighed(buckets)
        new, old = (ranker.of(features) for ranker in rankers)
        routes = (chosen(e.marginal, e.more, file.select, today.least) for e in (new, old))
        routed[buckets] = tuple(routes), new
    rows: list[_Row] = [(*routed[each.served.features], each) for each in held]
    apart = [row for row in rows if row[0][0] != row[0][1]]
    alike = [row for row in rows if row[0][0] == row[0][1]]
    both, _ = _terms(alike, 0)
    ours, effective = _terms(apart, 0)
    theirs, _ = _terms(apart, 1)
    gains = [a - b for a, b in zip(ours, theirs, strict=True)] + [0.0] * len(alike)
    return Worth(
        mean_interval([*both, *ours]),
        mean_interval([*both, *theirs]),
        mean_interval(gains, (-1.0, 1.0)),
        len(held),
        len(apart),
        effective,
    )


def _terms(rows: Sequence[_Row], side: int) -> tuple[list[float], float]:
    """For each request what its route of that side is worth, and the effective sample size."""
    routes = [row[0][side] for row in rows]
    forecasts = [expected.of(route) for route, (_, expected, _) in zip(routes, rows, strict=True)]
    served = [row[2].served for row in rows]
    pairs = zip(served, routes, strict=True)
    weights = [1.0 / s.propensity if s.route == route else 0.0 for s, route in pairs]
    most = MOST_WEIGHT * min(filter(None, weights), default=0.0)
    weights = [min(weight, most) for weight in weights]
    if not (total := math.fsum(weights)):
        return forecasts, 0.0
    errors = [(row[2].reward or 0.0) - f for row, f in zip(rows, forecasts, strict=True)]
    mean = math.fsum(w * e for w, e in zip(weights, errors, strict=True)) / total
    scale = len(rows) / total
    terms = zip(forecasts, weights, errors, strict=True)
    effective = total**2 / math.fsum(w * w for w in weights)
    return [f + mean + scale * w * (e - mean) for f, w, e in terms], effective
