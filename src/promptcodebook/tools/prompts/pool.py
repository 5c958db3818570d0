"""`update.pool`: candidate sentences take the places of instincts that show no use; with
`instinct.kind = "demo"` the candidates are training examples that the run itself answered well. Use
is what an instinct adds, by the learned router, to the inputs whose best route has it: a mean over
all inputs. Every few batches instincts that were tried often enough give way where their use is
clearly below that of the codebook's best quarter. No model writes or judges. How many places have
changed says which candidates are next, so a resumed run ends alike. Each passes all checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

from promptcodebook.assemble import Assembled
from promptcodebook.base.paths import read_text
from promptcodebook.base.text import parse_json
from promptcodebook.errors import ConfigError
from promptcodebook.method.policy import RoutedCall
from promptcodebook.method.state import State
from promptcodebook.method.train import BatchHooks
from promptcodebook.method.update import AllChecks, NoLeakCheck, Updater, near_copy
from promptcodebook.optimizers.fixed import DEMO
from promptcodebook.policy.scan import safety_check, trace_check
from promptcodebook.routing.ranking import Ranker, chosen
from promptcodebook.routing.router import OutcomeRouter
from promptcodebook.routing.upkeep import tidied
from promptcodebook.types import Example, Rewrite, Trace, variable_name

# Batches between two rounds where the settings do not say; tries after which use is believed.
_EVERY, _TRIES = 2, 16
_MOST_WORDS = 150  # words of a demonstration; longer ones are passed over
# The share of the codebook of most use, and of the mean use that keeps the others in place.
_BEST, _LESS = 0.25, 0.8


def read_pool(path: Path) -> tuple[str, ...]:
    """Read different sentences, one a line or as a JSON list. Raises ConfigError when there are
    none."""
    hint = "write one sentence on each line, or a JSON list of texts"
    try:
        text = read_text(path)
        listed: list[Any] = parse_json(text) if text.lstrip()[:1] == "[" else text.splitlines()
        found = tuple(dict.fromkeys(line.strip() for line in listed if line.strip()))
    except (OSError, ValueError, AttributeError) as error:
        what = f"update.pool: cannot read {path}: {str(error).splitlines()[0]}"
        raise ConfigError(what, hint=hint) from None
    if not found:
        raise ConfigError(f"update.pool: {path} holds no sentence", hint=hint)
    return found


def uses_of(state: State, router: OutcomeRouter, select: int, least: int) -> list[float]:
    """What each instinct adds to a training input, on average, by the routes that rank first."""
    texts, inputs = state.parameters.codebook.texts, router.model.inputs
    total = [0.0] * len(texts)
    if (ranking := state.statistics.ranking) is None:
        return total
    ranker = Ranker(ranking, texts)
    for name in inputs:
        expected = ranker.of(router.model.features(name))
        for k in chosen(expected.marginal, expected.more, select, least):
            total[k] += expected.marginal[k] / len(inputs)
    return total


@dataclass
class Pool:
    """The hooks of a run, and after them the swaps."""

    inner: BatchHooks
    updater: Updater
    router: OutcomeRouter
    pool: Sequence[str]
    less: float = _LESS

    def recall(self, traces: Callable[[int], Sequence[Trace]], step: int) -> None:
        self.inner.recall(traces, step)

    async def before(
        self, state: State, batch: Sequence[Example], epsilon: float
    ) -> tuple[State, Mapping[str, RoutedCall], tuple[Rewrite, ...]]:
        return await self.inner.before(state, batch, epsilon)

    async def after(
        self, before: State, rewrites: Sequence[Rewrite], traces: Sequence[Trace], state: State
    ) -> tuple[State, tuple[Rewrite, ...]]:
        state, tidy = await self.inner.after(before, rewrites, traces, state)
        if state.step % (self.updater.config.update.maintain_every or _EVERY):
            return state, tidy
        swaps = self.swaps(state, self.unused(state))
        return tidied(state, swaps), (*tidy, *swaps)

    def unused(self, state: State) -> list[int]:
        """Instincts to replace, those of the least use first."""
        config = self.updater.config
        book, tries = state.parameters.codebook, state.statistics.selected
        uses = uses_of(state, self.router, config.select, config.router.least)
        order = sorted(range(len(book)), key=lambda k: (uses[k], k))
        best = order[-ceil(_BEST * len(book)) :]
        enough = self.less * sum(uses[k] for k in best) / len(best)
        least = [k for k in order if k not in best and (not uses[k] or uses[k] < enough)]
        return [k for k in least if tries[k] >= _TRIES and not book[k].frozen]

    def swaps(self, state: State, places: Sequence[int]) -> tuple[Rewrite, ...]:
        """The next candidates in these places; one that a check refuses is passed over."""
        texts, made = list(state.parameters.codebook.texts), list[Rewrite]()
        order = list(self.pool)
        self.updater.config.randomness.generator("pool").shuffle(order)
        at = sum(state.versions) % max(1, len(order))
        waiting = [text for text in (*order[at:], *order[:at]) if text not in texts]
        free = list(reversed(places))
        for text in waiting if free else ():
            k = free[-1]
            why = f"{variable_name(k)} was of little use in {state.statistics.selected[k]} tries"
            swap = Rewrite(k, texts[k], text, "", True, why, origin="pool")
            refused = self.updater.check(k, text, "", [*texts[:k], *texts[k + 1 :]])
            made.append(swap if refused is None else self.updater.refuse(swap, refused))
            if refused is None:
                texts[free.pop()] = text
            if not free:
                break
        return tuple(made)


@dataclass
class Demos(Pool):
    """A pool of examples of the training split, each with the output that earned its full reward
    first. None comes from another split, and none shares eight words in a row with one. They take
    only the places of instincts that are of no use at all."""

    train: Mapping[str, Example] = field(default_factory=dict[str, Example])

    def recall(self, traces: Callable[[int], Sequence[Trace]], step: int) -> None:
        super().recall(traces, step)
        for earlier in range(step):
            self._collect(traces(earlier))

    async def after(
        self, before: State, rewrites: Sequence[Rewrite], traces: Sequence[Trace], state: State
    ) -> tuple[State, tuple[Rewrite, ...]]:
        self._collect(traces)
        return await super().after(before, rewrites, traces, state)

    def _collect(self, traces: Sequence[Trace]) -> None:
        solved = [t.rollout for t in traces if t.unit is not None and t.unit >= 1.0]
        demos = [DEMO.format(self.train[r.example_id].input, r.output) for r in solved]
        known = [demo for demo in demos if len(demo.split()) <= _MOST_WORDS]
        self.pool = tuple(dict.fromkeys((*self.pool, *known)))


def with_pool(inner: BatchHooks, updater: Updater, router: object, run: Assembled) -> Pool:
    """The hooks of a run whose settings name a pool, or ask for demonstrations. Raises ConfigError
    when the settings do not fit."""
    path, demos = run.config.update.pool, run.config.instinct.kind == "demo"
    what = "instinct.kind = 'demo'" if demos else "update.pool"
    if not isinstance(router, OutcomeRouter):
        what = f"{what}: use is known only to a router that learns from outcomes"
        raise ConfigError(what, hint="set router.kind = 'outcomes'")
    if not demos:
        return Pool(inner, updater, router, read_pool(run.plan.sources.base / path))
    if path or run.task.private:
        why = "the data are private" if run.task.private else "update.pool names another source"
        raise ConfigError(f"{what}: {why}", hint="leave out instinct.kind")
    held = NoLeakCheck((*run.dataset.val, *run.dataset.test))
    checks = [near_copy, safety_check if run.config.critic.safety else trace_check, held]
    watched = replace(updater, check=AllChecks([(c, None) for c in checks], updater.tally))
    return Demos(inner, watched, router, (), 0.0, {x.id: x for x in run.dataset.train})
