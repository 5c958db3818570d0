"""Which state of a run is kept: validation, early stop, and the finalists (decisions 8, 29). Each
batch is an unbiased look at the state it began with. So states are ranked by what their examples
earned with the router's own routes, and a validation goes to the best state that has had none.
Training stops when only a reserve is left for finalists and verdict (`reserve.py`)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import accumulate

from promptcodebook.base.text import shell
from promptcodebook.method.policy import Composer, Deployed
from promptcodebook.method.state import Schedule, State
from promptcodebook.optimizers.base import Problem, evaluate, validation_subset
from promptcodebook.optimizers.fixed import SHORTLIST, baselines, has_best_fixed
from promptcodebook.optimizers.reserve import VerdictReserve
from promptcodebook.policy.references import harm_in, kept_state, state_at
from promptcodebook.progress import Note, ValidationDone
from promptcodebook.store.events import EndReason, Mark, Scope, Stepped, Validated

_OUR_ROWS = 3  # the learned policy and its two rivals (optimizers/pco.py)
# Where routes are learned from outcomes: no instruction, the right ones, the best single one.
_ROUTER_ROWS = 3


def count_selection(problem: Problem) -> int:
    """Rollouts that choose among the states of our optimizer, and judge it beside its rivals."""
    config, plan = problem.assembled.config, problem.assembled.plan
    val, subset = len(plan.validated), config.validation.subset
    chosen = config.validation.every > 0 and config.keep == "best_val"
    # One more finalist where the end lies between two looks.
    finals = (config.validation.finalists + 1) * val if chosen else 0
    rows = len(baselines()) + _OUR_ROWS
    if has_best_fixed(config):
        rows += 1
        finals += (SHORTLIST + 1) * min(val or len(plan.dataset.train), subset)
    if config.learns_routes:
        rows += _ROUTER_ROWS
        finals += SHORTLIST * min(val, subset)
    return finals + rows * len(plan.judged)


_LOOKING = 0.1  # of a budget that looks may take, whatever training took
# Examples of the run's mean that are added to what a state's own earned, as rewards vary much.
_PRIOR = 8


class Selection:
    """Validates promising states on a subset as the run goes, and on the whole split at its end."""

    def __init__(self, problem: Problem, composer: Composer) -> None:
        config, plan = problem.assembled.config, problem.assembled.plan
        self._problem, self._store, self._composer = problem, problem.store, composer
        self._config, self._settings = config, config.validation
        # Concat, the best fixed prompts, and the untrained codebook.
        rivals = (not config.init.whole) + has_best_fixed(config) + config.learns_routes, 1
        self.reserve = VerdictReserve(problem, count_selection(problem), (1, 1), rivals)
        self._examples = {"subset": validation_subset(problem), "full": plan.validated}
        outline = self._store.outline()
        self._marks: list[Mark] = list(outline.validations)
        self._extended_at = outline.extended_at
        online = config.update.mode == "online"
        # In online mode a step is one example: validate as often per example as with batches.
        self._batch = config.update.batch_size if online else 1
        self._every = self._settings.every * self._batch
        self._earned: list[tuple[float, int]] = []
        """By state, the untrained one first: what its training examples earned, and how many."""
        self._read = 0
        self._solved = set[str]()
        self._fresh: list[int] = []
        """By batch: how many training inputs were solved for the first time."""
        self._steps = len(Schedule(plan.dataset.train, config.update, config.randomness).updates())
        self.reserve.measure_stored()

    @property
    def validates(self) -> bool:
        return self._every > 0 and bool(self._examples["full"])

    @property
    def has_looked(self) -> bool:
        return bool(self._marks)

    @property
    def planned(self) -> int:
        """Validations on the way, that of the untrained policy left out."""
        return self._steps // self._every if self.validates else 0

    @property
    def patience(self) -> int:
        """`validation.patience`; unless given, three fifths of the planned, from 2 to 5."""
        given = self._settings.patience
        return given if given is not None else max(2, min(5, math.ceil(0.6 * self.planned)))

    def tell_of_idle_patience(self) -> None:
        """A Note where a patience that was asked for can never end the run."""
        given = self._settings.patience
        if given is not None and 0 < self.planned <= given:
            message = f"validation.patience = {given} never stops this run: only {self.planned} "
            message += "validations are planned; lower it, or validation.every"
            self._problem.tell(Note(message))

    async def validate_if_due(self, step: int) -> None:
        """Validates a state after every `every` steps, and the untrained one before the first."""
        if not self.validates or (step + 1) % self._every or self._too_dear(step):
            return
        if len(self._looks) <= (step + 1) // self._every:
            last = self._config.keep == "last"
            await self._validate(step if last else self._most_promising(step), "subset")
            if not last and -1 not in {m.step for m in self._looks}:  # it was too dear when due
                await self._validate(-1, "subset")

    def _too_dear(self, step: int) -> bool:
        """Whether all looks with one more would take more than a tenth of the budget, and more than
        half as many rollouts as training did."""
        update, look = self._config.update, len(self._examples["subset"])
        trained = (step + 1) * (1 if update.mode == "online" else update.batch_size)
        all_looks = (len(self._looks) + 1) * look
        return 2 * all_looks > trained and self.reserve.share(all_looks) > _LOOKING

    @property
    def _looks(self) -> list[Mark]:
        """Validations on the way, in order: one for each time that one was due. That of the
        untrained policy comes first, though a small budget may have put it off."""
        looks = [m for m in self._marks if m.scope == "subset"]
        return sorted(looks, key=lambda mark: mark.step >= 0)

    def _most_promising(self, step: int) -> int:
        """Of the states that had no look, the harmless one whose examples earned most, of equals
        the latest; else the one after `step`. What neighbours earned counts by half, a batch
        further away by a quarter. Examples of the run's mean keep a few lucky ones from winning."""
        self._read_steps()
        fade = 0.5 ** (1 / self._batch)
        sums, counts = ([pair[k] for pair in self._earned] for k in (0, 1))
        mean = math.fsum(sums) / max(1, sum(counts))
        pairs = zip(_smooth(sums, fade), _smooth(counts, fade), strict=True)
        worth = [round((e + _PRIOR * mean) / (n + _PRIOR), 9) for e, n in pairs]
        seen = {-1, *(m.step for m in self._looks)}
        known = [k for k, n in enumerate(counts) if n and k - 1 not in seen]
        ranked = sorted(known, key=lambda k: (-worth[k], -k))
        return next((k - 1 for k in ranked if not harm_in(self._store, k - 1)), step)

    def _read_steps(self) -> None:
        for number, event in self._store.numbered_events(after=self._read, full=True, texts=False):
            self._read = number
            if isinstance(event, Stepped):
                traces = event.step.traces
                routed = [(t.rollout.route, t.unit or 0.0) for t in traces]
                own = [unit for route, unit in routed if route and not route.explored]
                self._earned.append((math.fsum(own), len(own)))
                solved = {t.rollout.example_id for t in traces if t.unit == 1.0}
                self._fresh.append(len(solved - self._solved))
                self._solved |= solved

    async def _validate(self, step: int, scope: Scope) -> None:
        examples, state = self._examples[scope], state_at(self._store, step)
        deployed = Deployed(self._composer, state.parameters, state.statistics)
        phase = f"validating step {step + 1}"
        begun = time.monotonic()
        evaluation = await evaluate(self._problem, f"step {step + 1}", deployed, examples, phase)
        seconds = time.monotonic() - begun
        self.reserve.measure(evaluation.rollouts, seconds)
        self._store.append(Validated(step, scope, evaluation, seconds))
        earlier = [m.score or 0.0 for m in self._marks if m.scope == scope]
        best = all((evaluation.score or 0.0) > score for score in earlier)
        self._marks.append(Mark.of(evaluation, step, scope))
        self._problem.tell(ValidationDone(step, evaluation, best, finalist=scope == "full"))

    def enough(self, done: int) -> EndReason | None:
        """Early stop: the target is reached, `patience` validations brought no gain, or the last
        `update.stop_when_flat` batches did not."""
        marks, target = self._looks, self._settings.target_score
        reached = [m for m in marks if target is not None and (m.score or 0.0) >= target]
        if any(not harm_in(self._store, mark.step) for mark in reached):
            return "target"
        idle = 0
        if scores := [m.score or 0.0 for m in marks]:
            best = scores.index(max(scores))
            # Who makes a run longer wants to see more of it: patience starts again.
            due = range((best + 1) * self._every - 1, len(marks) * self._every - 1, self._every)
            idle = sum(step > self._extended_at for step in due)
        if done < self._steps and (idle >= self.patience or self._flat(done)):
            return "early_stop"
        return None

    def _flat(self, done: int) -> bool:
        """Whether the last batches gained nothing; a run made longer has as many more of them."""
        batches = self._config.update.stop_when_flat
        if batches is None or done - 1 - self._extended_at < batches * self._batch:
            return False
        self._read_steps()
        flat = is_flat(self._earned, self._fresh, batches * self._batch)
        if flat:
            again = f"pco train --resume {shell(self._store.header.id)}"
            message = f"training ended after {done} of {self._steps} steps: the last {batches} "
            message += "batches solved no new input and earned no more than earlier batches; "
            message += f"to continue: {again} --set update.stop_when_flat=none"
            self._problem.tell(Note(message))
        return flat

    async def best(self) -> State:
        """The state to deploy, by `kept_state`, once the finalists saw the whole split."""
        last = self._store.outline().step
        if self._config.keep != "last" and self.validates:
            harmless = [m for m in self._looks if not harm_in(self._store, m.step)]
            ranked = sorted(harmless, key=lambda m: (-(m.score or 0), m.step))
            finalists = [m.step for m in ranked[: self._settings.finalists]]
            # No look was due since the last ones: the best state of those steps is a finalist too,
            # and where no look was made at all, so is the untrained one.
            since = self._most_promising(last) if (last + 1) % self._every or not ranked else None
            finalists += [] if since is None or harm_in(self._store, since) else [since]
            finalists += [] if ranked or -1 in finalists or harm_in(self._store, -1) else [-1]
            # As the store has them, which forgets at each step what was chosen before: a run that
            # continues after its end chooses as if it had never ended.
            full = [m.step for m in self._store.outline().validations if m.scope == "full"]
            whole = len(self._examples["full"])
            payable = [s for s in finalists if self.reserve.affords(0, whole)]
            # One look alone chooses nothing.
            for step in payable if len(payable) > 1 or ranked else ():
                if step not in full:
                    await self.reserve.within(self._validate(step, "full"), None)
        return kept_state(self._store)[0]


def is_flat(earned: Sequence[tuple[float, int]], fresh: Sequence[int], size: int) -> bool:
    """Whether the last `size` steps solved no input for the first time, and earned no more a
    rollout than any `size` steps that ended before them. Each of `earned` is a sum and a count."""
    if len(earned) < 2 * size or any(fresh[-size:]):
        return False
    sums, counts = ([0.0, *accumulate(pair[k] for pair in earned)] for k in (0, 1))
    means = [
        round((sums[k + size] - sums[k]) / n, 9) if (n := counts[k + size] - counts[k]) else -1.0
        for k in range(len(earned) - size + 1)
    ]
    return 0 <= means[-1] <= max(means[: len(earned) - 2 * size + 1])


def _smooth(values: Sequence[float], fade: float) -> list[float]:
    """The sum of all values around each, weighted by `fade` to the power of their distance."""
    sums = [-value for value in values]  # each is met twice
    for order in (range(len(values)), range(len(values) - 1, -1, -1)):
        run = 0.0
        for k in order:
            run = run * fade + values[k]
            sums[k] += run
    return sums
