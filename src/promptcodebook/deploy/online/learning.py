"""A served policy's router, refitted from training and from what users said.

A logged request is one more outcome of the router's model (`routing/outcomes.py`). Its features are
its buckets under the vocabulary of training, and its embedding where the router reads one. Its
weight halves with each half-life before the latest request. Outcomes of training weigh what they
weighed there.

Before any traffic the new routes are judged by the last third of the log, by time, under a fit to
all before it. The estimate is doubly robust with normalised weights (Thomas and Brunskill 2016):
the forecast of a route, and over it the weighted mean of what the requests that were served this
route earned more. A weight is 1 / chance, and at most `MOST_WEIGHT` times the least. Requests whose
new route is today's add nothing to the gain. Of the others at least 20, by effective sample size,
must have been served their new route: the forecast alone flatters routes that were chosen by it.

Few requests get feedback, and a gain may be one of who answers. Where explored requests clearly get
it more or less often than the others, no gain is claimed. Else the claim says how unequally content
users must answer until nothing is left of it (`sequences.contrast`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from promptcodebook.base.intervals import Interval, mean_interval
from promptcodebook.base.units import plural
from promptcodebook.data import Dataset
from promptcodebook.deploy.online.canary_decision import KEY_SHARE, most_of_one, unless
from promptcodebook.deploy.online.sequences import MEANS, ValueCounts, rate_ratio
from promptcodebook.deploy.online.served_log import Logged
from promptcodebook.deploy.registry.log import version_of
from promptcodebook.deploy.registry.registry import open_registry
from promptcodebook.errors import ConfigError, DataError, PcoError, PolicyError, RunNotTrusted
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.references import Reference, state_at, stored_dataset
from promptcodebook.routing.outcome_router import OutcomeRouter, likeness
from promptcodebook.routing.outcomes import MOST, OutcomeModel, Priors
from promptcodebook.routing.ranking import Ranker, Vocabulary, chosen, packed, unpacked
from promptcodebook.store.run import RunStore
from promptcodebook.types import Example, Expected, Outcome, Ranking

FEWEST, HELD_OUT, MOST_WEIGHT = 20, 1 / 3, 20.0
_Row = tuple[tuple[tuple[int, ...], ...], Expected, Logged]
"""A request: its new route and today's, the forecast, and what came of the route it was served."""


@dataclass(frozen=True, slots=True)
class Worth:
    """Mean reward of the new routes and of today's on `requests` held out, and the difference.
    Routes differ in `differing` of them; `effective` is the effective sample size of those that
    were served their new route. A gain is one unless content users of these are `factor` times as
    likely to answer. `answered` is the share with feedback of explored requests and of the others,
    none where not counted; are they clearly `unequal`, no gain is claimed."""

    new: Interval
    today: Interval
    gain: Interval
    requests: int
    differing: int
    effective: float
    factor: float = 1.0
    answered: Sequence[float] = field(default_factory=list[float])
    unequal: bool = False

    @property
    def known(self) -> bool:
        """Whether enough was logged for the estimate to mean anything."""
        enough = not self.differing or (self.effective >= FEWEST and not self.unequal)
        return self.requests >= FEWEST and enough

    def text(self) -> str:
        if self.requests < FEWEST:
            return (
                f"not enough logged to say what it is worth: that takes {FEWEST} held-out requests "
                f"with feedback, and there are {self.requests}"
            )
        held = f"{plural(self.requests, 'held-out request')}"
        if not self.differing:
            return f"it gives all {held} the same routes as today's version"
        tried = f"{self.effective:.1f} effective requests"
        if self.unequal:
            explored, others = self.answered
            return (
                f"no gain is claimed: {explored:.1%} of the explored requests got feedback, but "
                f"{others:.1%} of the others, so the gain may only reflect who gives feedback"
            )
        if not self.known:
            return (
                f"not enough logged to say what it is worth: {self.differing} of {held} get new "
                f"routes, served to only {tried} ({FEWEST} are needed); "
                "pco serve --explore 0.1 tries more routes"
            )
        doubt = f"; that is a gain {unless(self.factor, 'some routes')}" * (self.gain.low > 0)
        return (
            f"it earns {self.new.text()}, today's version {self.today.text()}: "
            f"{self.gain.text(signed=True)} on {held} ({self.differing} get different routes, "
            f"served to {tried}){doubt}"
        )


@dataclass(frozen=True, slots=True)
class TrainedRouter:
    """What the run behind a policy taught its router, up to the policy's texts; `versions` are
    those of its last texts. `inputs` and their embeddings, `vectors`, are by example."""

    inputs: Mapping[str, str]
    outcomes: tuple[Outcome, ...]
    versions: tuple[int, ...]
    selected: tuple[int, ...]
    priors: Priors = Priors()
    vectors: Mapping[str, Sequence[float]] | None = None


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
        worth: dict[str, Any] = {**asdict(self.worth), "known": self.worth.known}
        if not self.worth.requests:
            worth |= dict.fromkeys(("new", "today", "gain"))
        counts = {"logged": self.logged, "training": self.training}
        return {**counts, "left_out": dict(self.left_out), "worth": worth}


def require_router(file: PolicyFile) -> Ranking:
    """The router of today. Raises ConfigError where it is not one that learns from the log."""
    if file.router is None or file.router.kind != "outcomes":
        hint = "train with router.kind = 'outcomes' (as preset small does)"
        raise ConfigError("this policy has no router that learns from outcomes", hint=hint)
    return file.router.ranking


Embed = Callable[[Sequence[Example]], Sequence[Sequence[float]]]


def read_training(
    path: Path,
    file: PolicyFile,
    data: Dataset | None = None,
    embed: Embed | None = None,
    *,
    trust: bool = False,
) -> TrainedRouter:
    """Reads the training of a run back, with its `data` or those that it names; `embed` reads them
    where the router does. Raises RunNotTrusted where they may not be read, ConfigError where it
    names none, DataError where they are not as they were, and PolicyError where it did not make the
    policy."""
    today = require_router(file)
    with closing(RunStore.open(path)) as store:
        header = store.header
        if data is None and not (store.ours or trust):
            text = f"the run {header.id} is not marked as yours, so its data is not read"
            raise RunNotTrusted(text, hint="if you trust it, add --trust")
        config = header.configuration
        examples, vectors = (data or stored_dataset(header)).train, None
        inputs = {each.id: each.input for each in examples}
        if Vocabulary.of(list(inputs.values())).rarity != today.rarity:
            text = f"the training data of the run {header.id} does not match this policy's router"
            raise DataError(text, hint="restore it, or name the run that made it: --run RUN")
        if today.center:
            assert embed is not None, "an embedder must be given"
            vectors = dict(zip(inputs, embed(examples), strict=True))
        model = OutcomeModel(inputs, vectors, today.words)
        center = model.vocabulary.center
        rows = zip(center, today.center, today.spread, strict=False)
        apart = any(abs(own - mean) > 0.1 * spread + 1e-6 for own, mean, spread in rows)
        if apart or len(center) != len(today.center):
            text = "this policy's router was trained on embeddings from another model"
            raise ConfigError(text, hint="name that model: --set roles.encoder.model=URL#MODEL")
        router = OutcomeRouter(config.router, config.select, model)
        texts = file.parameters.codebook.texts
        state = router.begin(state_at(store, -1))
        found = state if state.parameters.codebook.texts == texts else None
        for step in store.steps(traces=True):
            state = router.note(state, step.traces, state.after(step))
            if state.parameters.codebook.texts == texts:
                found = state
    if found is None:
        text = f"the run {header.id} never had this policy's codebook"
        raise PolicyError(text, hint="name the run that made it: --run RUN")
    return TrainedRouter(
        inputs,
        outcomes=found.outcomes,
        versions=found.versions,
        selected=found.statistics.selected,
        priors=model.priors,
        vectors=vectors,
    )


def versions_of(reference: Reference, seen: Collection[str]) -> set[str]:
    """Versions whose requests can be learned from: those that the policy was learned from, and
    those with its own prompts, whatever their routes. These are itself, and of those that a log has
    `seen` the ones that the registry knows."""

    def prompts(file: PolicyFile) -> object:
        asked = file.templates, file.generator, file.compose, file.base_prompt, file.output_format
        return file.parameters.codebook.texts, asked, file.stages

    file = reference.file
    learned: Any = file.about.get("learned") or {}
    names = {reference.version, version_of(reference.text.encode()), *learned.get("versions", ())}
    names.add(version_of(file.text().encode("utf-8", "surrogatepass")))
    with open_registry() as registry:
        for version in set(seen) - names:
            with suppress(PcoError):  # one that is not kept here
                if prompts(registry.policy(version)) == prompts(file):
                    names.add(version)
    return names - {""}


def within_share(newest: Iterable[Logged], key_share: float = KEY_SHARE) -> list[Logged]:
    """Requests that a user saw. Of the key that gave most only the newest are left, as many as its
    share of what is learned allows."""
    seen = [each for each in newest if each.served.seen]
    keys, taken, kept = Counter(each.served.caller for each in seen), Counter[str](), list[Logged]()
    most = max(1, int(most_of_one(keys.values(), key_share))) if keys else 0
    for each in seen:
        taken[each.served.caller] += 1
        if taken[each.served.caller] <= most:
            kept.append(each)
    return kept


def sort_out(
    file: PolicyFile, logged: Iterable[Logged], versions: Collection[str]
) -> tuple[list[Logged], dict[str, int]]:
    """The requests that can be learned from, the oldest first; how many cannot, by reason.
    Raises DataError where none can."""
    size = len(packed(require_router(file).center).rstrip("="))
    left, kept = Counter[str](), list[Logged]()
    for each in sorted(logged, key=lambda each: each.served.time):
        served = each.served
        if each.reward is None:
            left["without feedback"] += 1
        elif served.fallback or not served.features:
            left["without a route from the router"] += 1
        elif served.version not in versions:
            left["of another codebook"] += 1
        elif size and len(served.vector.rstrip("=")) != size:
            left["without the embedding that the router reads"] += 1
        else:
            kept.append(each)
    if not kept:
        reasons = ", ".join(f"{count} {why}" for why, count in left.items())
        message = f"no logged request can be used for learning ({reasons or 'none is logged'})"
        raise DataError(message, hint="pco serve REF --feedback, and POST /v1/feedback")
    return kept, dict(left)


def dated(logged: Iterable[Logged], now: float) -> list[Logged]:
    """The requests, those of a clock that was ahead as of now: else all others would be old."""
    return [
        replace(each, served=replace(each.served, time=now)) if each.served.time > now else each
        for each in logged
    ]


def learn(
    file: PolicyFile,
    trained: TrainedRouter,
    logged: Iterable[Logged],
    versions: Collection[str],
    half_life: float,
    answered: tuple[ValueCounts, ValueCounts] | None = None,
) -> Learned:
    """The policy with a router fitted to training and to the requests of these versions
    (`versions_of`). `half_life` is in seconds. `answered` are the explored requests and the other
    ones, with feedback (1) or without (0). Raises DataError where no request can be learned
    from."""
    kept, left = sort_out(file, logged, versions)
    split = len(kept) - max(1, int(len(kept) * HELD_OUT))
    early = refit(file, trained, kept[:split], half_life)[0]
    worth = estimate(file, early, kept[split:], answered)
    ranking, training, new = refit(file, trained, kept, half_life)
    uses = Counter(k for each in kept for k in each.served.route)
    codebook = tuple(
        entry.model_copy(update={"selected": trained.selected[k] + uses[k]})
        for k, entry in enumerate(file.codebook)
    )
    made = file.with_router(ranking).model_copy(update={"codebook": codebook})
    return Learned(made, new, training, left, worth)


def refit(
    file: PolicyFile, trained: TrainedRouter, rows: Sequence[Logged], half_life: float
) -> tuple[Ranking, int, int]:
    """The router by training and by requests with feedback, the oldest first; and how many outcomes
    of either it took."""
    known, today = list(trained.outcomes)[-MOST // 2 :], require_router(file)
    recent = rows[len(known) - MOST :]
    further = {
        f"served {each.served.id}": (each.served.features, unpacked(each.served.vector))
        for each in recent
    }
    model = OutcomeModel(trained.inputs, trained.vectors, today.words, trained.priors, further)
    spelled = [model.vocabulary.spelled(text) for text in file.parameters.codebook.texts]
    for name, each in zip(further, recent, strict=True):
        route, like = each.served.route, likeness(model.features(name), spelled)
        age = recent[-1].served.time - each.served.time
        then = tuple(trained.versions[k] for k in route)
        own = tuple(like[k] for k in route)
        weight = 0.5 ** (age / half_life)
        known.append(Outcome(name, route, then, own, each.reward or 0.0, weight))
    ranking = model.fit(known, trained.versions).ranking(today.least)
    return replace(ranking, images=today.images), len(known) - len(recent), len(recent)


def estimate(
    file: PolicyFile,
    ranking: Ranking,
    held: Sequence[Logged],
    answered: tuple[ValueCounts, ValueCounts] | None = None,
) -> Worth:
    """What the routes of a ranking are worth, and those of the file's router, by requests that the
    ranking was not fitted to; by none it may be anything. `answered` as for `learn`."""
    if not held:
        some = Interval(0.5, 0.0, 1.0, 0)
        return Worth(some, some, Interval(0.0, -1.0, 1.0, 0), 0, 0, 0.0)
    today, texts = require_router(file), file.parameters.codebook.texts
    rankers = Ranker(ranking, texts), Ranker(today, texts)
    routed: dict[tuple[tuple[int, ...], str], tuple[tuple[tuple[int, ...], ...], Expected]] = {}
    for read in {(each.served.features, each.served.vector) for each in held}:
        vector = unpacked(read[1])
        new, old = (r.of(r.known(r.vocabulary.read(read[0], vector))) for r in rankers)
        routes = (chosen(e.marginal, e.more, file.select, today.least) for e in (new, old))
        routed[read] = tuple(routes), new
    rows: list[_Row] = [(*routed[each.served.features, each.served.vector], each) for each in held]
    apart = [row for row in rows if row[0][0] != row[0][1]]
    alike = [row for row in rows if row[0][0] == row[0][1]]
    both, _ = _terms(alike, 0)
    ours, effective = _terms(apart, 0)
    theirs, _ = _terms(apart, 1)
    gains = [a - b for a, b in zip(ours, theirs, strict=True)] + [0.0] * len(alike)
    gain = mean_interval(gains, (-1.0, 1.0))
    usual = math.fsum(theirs) / max(1, len(apart))
    least = usual + gain.low * len(held) / max(1, len(apart))
    m, n = (min(max(mean, 1 / MEANS), 1 - 1 / MEANS) for mean in (least, usual))
    worth = Worth(
        mean_interval([*both, *ours]),
        mean_interval([*both, *theirs]),
        gain,
        len(held),
        len(apart),
        effective,
        m * (1 - n) / ((1 - m) * n),
    )
    if answered is None or not all(each.n for each in answered):
        return worth
    (n, share), (m, other) = ((each.n, each.mean or 0.0) for each in answered)
    low, high = rate_ratio(n * share, m * other, n / (n + m))
    return replace(worth, answered=[share, other], unequal=low > 1 or high < 1)


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
