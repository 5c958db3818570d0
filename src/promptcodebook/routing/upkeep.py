"""What a run does beside Algorithm 1: the trial of a rewritten θ, and maintenance of the codebook.
Ours; the paper has neither, and `preset: paper` switches both off. method/train.py calls both as
its BatchHooks.

The trial (method decisions 23, 28): a rewritten θ must route a batch's worth of inputs, which takes
no call of its own. Without it θ may drift, rewrite by rewrite, to a directive under which no reply
is a route any more; the best-rated instincts then fill every route, and nothing shows it.

Maintenance, every n steps: split grab-bags, merge twins, revive dead entries. K and the order of
the entries stay: a new text takes the place of an entry that is dead, or whose text another has
too. Each change is a Rewrite that passes all checks; validation judges it, not `update.accept`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations

from promptcodebook.base.incidents import Incident
from promptcodebook.base.text import count_words, long_words, place_in
from promptcodebook.calls import Request
from promptcodebook.config import Config
from promptcodebook.errors import LMError
from promptcodebook.method.failures import attempt, gather_all
from promptcodebook.method.init import InstinctsReply, instincts_schema, texts_of
from promptcodebook.method.policy import RoutedCall, Router
from promptcodebook.method.state import State
from promptcodebook.method.update import PendingUpdate, Updater, apply_rewrites
from promptcodebook.types import Codebook, Example, Rewrite, ThetaTrial, Trace, variable_name

# Fallbacks that count: one of a small batch is no sign (in `online` mode it would be all).
_LEAST = 2
# Dead entries replaced in one round; picks per entry, on average, before one without is dead.
_PLACES, _CHANCES = 2, 4
# Picks after which r̄ is believed, and how far below the mean it is that of a dead entry.
_TRIES, _BELOW = 10, 0.1
# Share of their words that twins have in common; the lower one if they are picked together as often
# as the third says, in at least as many routes as the fourth says.
_ALIKE, _RELATED, _TOGETHER, _PICKS = 0.5, 0.3, 0.8, 5
# Parts of a grab-bag, if the model agrees; letters of a word and words of a part that count.
_THINGS, _WORD_SIZE, _PART_SIZE = 3, 4, 3
_BETWEEN = re.compile(
    r"[.!?;\n。！？；।॥؟؛۔]+|,?\s+(?:and|also|then|plus|as well as)\s+", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Twins:
    """Two entries that say much the same: `stays` takes up what both say, `goes` is free."""

    stays: int
    goes: int
    alike: float


@dataclass
class Upkeep:
    """The trial of θ over its first `routes` routes, and maintenance by the traces since."""

    updater: Updater
    router: Router
    routes: int
    _since: list[Trace] = field(default_factory=list[Trace])

    def recall(self, traces: Callable[[int], Sequence[Trace]], step: int) -> None:
        """Reads back the traces that the next maintenance after `step` looks at."""
        every = rounds_every(self.updater.config)
        earlier = range(step - step % every, step) if every else ()
        self._since = [trace for k in earlier for trace in traces(k)]

    async def before(
        self, state: State, batch: Sequence[Example], epsilon: float
    ) -> tuple[State, Mapping[str, RoutedCall], tuple[Rewrite, ...]]:
        """The state to run a batch under, its routes where θ is on trial, and the rewrite that
        takes θ back: if more than `encoder.max_fallback` of its first routes fall back, at least
        two, and no larger share did before. Then the last θ that passed routes them again."""
        trial, most = state.trial, self.updater.config.encoder.max_fallback
        if trial is None:
            return state, {}, ()
        routed = await self._routes(state, batch, epsilon)
        asked = [call.route for call in routed.values() if not call.route.explored]
        fell = trial.fell + sum(route.fallback for route in asked)
        total = trial.routed + len(asked)
        if fell < _LEAST or fell <= most * total or fell < trial.share_before * total:
            over = total >= self.routes
            kept = None if over else replace(trial, routed=total, fell=fell)
            return replace(state, trial=kept), routed, ()
        # Counted are the routes that inputs were answered along: those of θ' are not.
        for incident, count in (
            (Incident.ENCODER_REFUSED, 1),
            (Incident.ROUTE_FALLBACKS, -sum(route.fallback for route in asked)),
            (Incident.ROUTE_REPAIRS, -sum(route.repaired for route in asked)),
        ):
            self.updater.tally(incident, count)
        reason = f"{fell} of {total} routes fell back with it, more than {most:.0%}"
        theta = state.parameters.encoder
        back = Rewrite("encoder", theta, trial.before, "", True, reason, origin="trial")
        parameters = replace(state.parameters, encoder=trial.before)
        state = replace(state, trial=None, parameters=parameters)
        again = [x for x in batch if x.id in routed and not routed[x.id].route.explored]
        for name, (route, usage) in (await self._routes(state, again, epsilon)).items():
            routed[name] = RoutedCall(route, usage + routed[name].usage)
        return state, routed, (back,)

    async def _routes(
        self, state: State, batch: Sequence[Example], epsilon: float
    ) -> dict[str, RoutedCall]:
        """By example; one whose model cannot be reached tries again by itself."""
        routed: dict[str, RoutedCall] = {}

        async def route(example: Example) -> None:
            draws = self.updater.config.randomness.at(state.step, example.id)
            with suppress(LMError):
                routed[example.id] = await self.router.route(example, state, epsilon, draws)

        await gather_all(route(example) for example in batch)
        return routed

    async def after(
        self, before: State, rewrites: Sequence[Rewrite], traces: Sequence[Trace], state: State
    ) -> tuple[State, tuple[Rewrite, ...]]:
        """`state` with θ on trial where it was rewritten, and tidied every n steps."""
        config = self.updater.config
        rewritten = any(r.kept and r.variable == "encoder" for r in rewrites)
        if rewritten and config.encoder.max_fallback < 1.0:
            routes = [t.rollout.route for t in traces if t.rollout.route is not None]
            asked = [route.fallback for route in routes if not route.explored]
            share = sum(asked) / len(asked) if asked else 0.0
            trial = before.trial or ThetaTrial(before.parameters.encoder, share)
            state = replace(state, trial=trial)
        every = rounds_every(config)
        if not every:
            return state, ()
        self._since += traces
        if state.step % every:
            return state, ()
        recent, self._since = self._since, []
        tidy = await self.maintain(state, recent, before.step)
        return tidied(state, tidy), tidy

    async def maintain(
        self, state: State, recent: Sequence[Trace], step: int
    ) -> tuple[Rewrite, ...]:
        """One round after `step`: new texts for the free places, parts of a grab-bag first; then
        twins merge, if the place of one of them was filled."""
        book, twins = state.parameters.codebook, find_twins(state, recent)
        freed, spared = ([twins.goes], [twins.stays]) if twins is not None else ([], [])
        dead = [k for k in find_dead(state, recent) if k not in (*freed, *spared)]
        places = [*freed, *dead[:_PLACES]]
        if not places:
            return ()
        made = await self._split(book, places, spared, step)
        left = [k for k in places if k not in {r.variable for r in made}]
        if left:
            made += await self._revive(_applied(state, made), left[0], recent, step)
        # The place of a twin is the first that is filled. A frozen twin says it already.
        if twins is not None and any(r.kept for r in made) and not book[twins.stays].frozen:
            texts = _applied(state, made).parameters.codebook.texts
            stays, gone, k = book[twins.stays].text, book[twins.goes].text, twins.stays
            others = (*texts[:k], *texts[k + 1 :])
            alike = f"said much the same ({twins.alike:.0%} of their words)"
            pending = PendingUpdate(k, stays, (gone,), others, "merge")
            made += await self._write(pending, f"{variable_name(twins.goes)} {alike}", step)
        return tuple(made)

    async def _split(
        self, book: Codebook, places: Sequence[int], spared: Sequence[int], step: int
    ) -> list[Rewrite]:
        """A grab-bag by its parts: the first stays where it was, the others take the places."""
        draw = self.updater.config.randomness.at(step, "maintain").generator("split")
        held = (*places, *spared, *(k for k, c in enumerate(book.instincts) if c.frozen))
        bags = [k for k, text in enumerate(book.texts) if count_things(text) >= _THINGS]
        bags = [k for k in bags if k not in held]
        if not bags:
            return []
        bag = draw.choice(bags)
        whole = book[bag].text
        blank = Rewrite(bag, whole, "", "", kept=False, origin="split")
        asked = self._parts(bag, whole, 1 + len(places), step)
        parts, failure = await attempt("update", asked, LMError)
        if parts is None:
            reason = f"{failure.kind}: {failure.message}" if failure is not None else ""
            return [self.updater.refuse(replace(blank, failure=failure), reason)]
        blank = replace(blank, after="\n".join(parts))
        if len(parts) < 2:
            return [self.updater.refuse(blank, "the model holds it to be about one thing")]
        targets = [bag, *places][: len(parts)]
        others = [text for k, text in enumerate(book.texts) if k not in targets]
        for k, part in zip(targets, parts, strict=True):
            # A part may hold what the whole held: that is the text it is made of.
            reason = self.updater.check(k, part, whole, others)
            if reason is not None:
                return [self.updater.refuse(blank, reason)]
            others.append(part)
        reason = f"{variable_name(bag)} held {len(parts)} things"
        return [
            Rewrite(k, book[k].text, part, f"- {whole}", True, reason, origin="split")
            for k, part in zip(targets, parts, strict=True)
        ]

    async def _parts(self, bag: int, text: str, most: int, step: int) -> list[str]:
        """What the model takes the text apart into: one part if it is about one thing."""
        updater = self.updater
        cap = updater.config.update.instinct_words
        request = Request(
            "updater",
            updater.templates["split"].fill({"text": text, "size": most, "cap": cap}),
            instincts_schema(most, cap),
            updater.config.randomness.at(step, variable_name(bag)).sample("split"),
        )

        def fault(reply: InstinctsReply) -> str | None:
            if len(reply.instincts) > most:
                return f"instincts: {len(reply.instincts)} parts, {most} at the most"
            return None if texts_of(reply) else "instincts: none is given"

        reply = (await updater.ask.typed(request, InstinctsReply, fault)).value
        place = place_in(text)  # A tool's own stays with its tool.
        placed = [f"{place}{p.removeprefix(place_in(p))}" for p in texts_of(reply)]
        return list(dict.fromkeys(placed))[:most]

    async def _revive(
        self, state: State, place: int, recent: Sequence[Trace], step: int
    ) -> list[Rewrite]:
        """A new instinct from the failures that no instinct is blamed for, else from all."""
        failed = [t for t in recent if t.unit is not None and t.unit < 1]
        texts = [(t, t.verdict.feedback) for t in failed if t.verdict]
        given = [(t, text) for t, text in texts if text.strip()]
        unblamed = [text for t, text in given if not t.gradients.codebook]
        feedback = tuple(unblamed or [text for _, text in given])
        if not feedback:
            return []
        texts = state.parameters.codebook.texts
        others = (*texts[:place], *texts[place + 1 :])
        why = f"{variable_name(place)} was free, and {len(feedback)} failures spoke for another"
        pending = PendingUpdate(place, texts[place], feedback, others, "revive")
        return await self._write(pending, why, step)

    async def _write(self, pending: PendingUpdate, why: str, step: int) -> list[Rewrite]:
        rewrite = await self.updater.write(pending, step)
        return [replace(rewrite, reason=why) if rewrite.kept else rewrite]


def rounds_every(config: Config) -> int:
    """Steps from one round to the next; 0 = never."""
    update = config.update
    online = update.batch_size if update.mode == "online" else 1
    return update.maintain_every * online if update.text_updates else 0


def tidied(state: State, made: Sequence[Rewrite]) -> State:
    """The state after a round: a new text begins without a past, a merged one keeps half."""
    kept = [r for r in made if r.kept]
    if not kept:
        return state
    fresh = {r.variable for r in kept if r.origin != "merge"}
    origins = [None if k in fresh else k for k in range(len(state.parameters.codebook))]
    merged = {r.variable for r in kept if isinstance(r.variable, int)} - fresh
    statistics = state.statistics.pick(origins).discount(merged)
    return replace(_applied(state, kept), statistics=statistics)


def _applied(state: State, made: Sequence[Rewrite]) -> State:
    return replace(state, parameters=apply_rewrites(state.parameters, made))


def count_things(text: str) -> int:
    """Parts of a text, between stops and words such as "and", that could each be a directive."""
    return sum(count_words(part) >= _PART_SIZE for part in _BETWEEN.split(text))


def find_dead(state: State, recent: Sequence[Trace]) -> list[int]:
    """Entries that a new text could replace: those without a pick in spite of chances, then that
    of lowest r̄ by a margin after tries. A frozen one lives."""
    book, statistics = state.parameters.codebook, state.statistics
    picked = [k for route in _routes(recent) for k in route]
    dead: list[int] = []
    if len(picked) >= _CHANCES * len(book):
        dead = [k for k in range(len(book)) if k not in picked]
    tried = {k: statistics.ema[k] for k, n in enumerate(statistics.selected) if n >= _TRIES}
    worst = min(tried, key=lambda k: (tried[k], k), default=None)
    if worst is not None and tried[worst] <= sum(tried.values()) / len(tried) - _BELOW:
        dead.append(worst)
    return [k for k in dict.fromkeys(dead) if not book[k].frozen]


def find_twins(state: State, recent: Sequence[Trace]) -> Twins | None:
    """The two entries most alike, if they are: near copies, or related and picked together."""
    book, ema = state.parameters.codebook, state.statistics.ema
    routes = _routes(recent)
    words = [long_words(text, _WORD_SIZE) for text in book.texts]
    found: list[Twins] = []
    for a, b in combinations(range(len(book)), 2):
        elsewhere = place_in(book[a].text) != place_in(book[b].text)
        if elsewhere or (book[a].frozen and book[b].frozen):
            continue
        one, other = words[a], words[b]
        alike = len(one & other) / len(one | other) if one and other else 0.0
        # Together = the rarer of the two is hardly ever picked without the other.
        both = sum(a in route and b in route for route in routes)
        rarer = min(sum(k in route for route in routes) for k in (a, b))
        together = both >= _PICKS and both >= _TOGETHER * rarer
        if alike >= (_RELATED if together else _ALIKE):
            # The frozen one stays, else the one that did better, else the first.
            stays = max((a, b), key=lambda k: (book[k].frozen, ema[k], -k))
            found.append(Twins(stays, a + b - stays, alike))
    return max(found, key=lambda t: (t.alike, -t.stays, -t.goes), default=None)


def _routes(recent: Sequence[Trace]) -> list[tuple[int, ...]]:
    return [t.rollout.route.indices for t in recent if t.rollout.route is not None]
