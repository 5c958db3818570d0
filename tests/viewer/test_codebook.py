"""What an instinct is said to have earned: over examples that are counted once, by its versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from promptcodebook.intervals import unpaired_interval
from promptcodebook.store.events import Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.types import Rewrite, Rollout, Route, Step, Trace
from promptcodebook.units import number
from promptcodebook.viewer.codebook import biography_screen, codebook_screen
from promptcodebook.viewer.following import FollowedRun
from promptcodebook.viewer.page import page_of
from tests.report.scripted_run import ScriptedRun, events_of, write_run
from tests.viewer.test_screens import flat

_RUN = ScriptedRun(steps=8, size=6, select=2, batch=2, hostile="", verdict=False)


def written(folder: Path, change: Callable[[Step], Step]) -> FollowedRun:
    """The scripted run with its steps changed."""
    first = write_run(folder, replace(_RUN, steps=0))
    store = RunStore.create(folder, replace(first.header, id="", task="changed"))
    first.close()
    for event in events_of(_RUN):
        store.append(Stepped(change(event.step)) if isinstance(event, Stepped) else event)
    store.close()
    return FollowedRun(store.path, store.path.name)


def test_an_example_that_comes_again_counts_once(tmp_path: Path) -> None:
    rewards = [0.1 * i for i in range(1, 11)]

    def same(step: Step) -> Step:
        """Ten examples, the same in every step, five of them with instincts 0 and 1."""
        routes = [Route((0, 1) if i < 5 else (2, 3)) for i in range(10)]
        later = 0.02 * step.index
        rollouts = [
            Rollout(f"ex{i}", route=route, prompt="p", output="o", reward=reward - later)
            for i, (route, reward) in enumerate(zip(routes, rewards, strict=True))
        ]
        return replace(step, traces=tuple(Trace(rollout, rollout.reward) for rollout in rollouts))

    followed = written(tmp_path, same)
    means = [reward - 0.07 for reward in rewards]
    found = unpaired_interval(means[:5], means[5:], 3)
    low, high = (number(x, signed=True) for x in (found.low, found.high))
    said = f"-0.500 ({low} to {high}, n = 5 and 5 examples, 40 and 40 rollouts)"
    for screen in (codebook_screen(followed), biography_screen(followed, "0")):
        assert said in flat(page_of(screen, "/").decode())
    followed.close()


def test_of_two_rewrites_in_one_step_only_the_later_earned_anything(tmp_path: Path) -> None:
    twice = tuple(Rewrite(0, a, b, "g", kept=True) for a, b in (("a", "b"), ("b", "c")))
    followed = written(tmp_path, lambda s: replace(s, rewrites=twice if s.index == 3 else ()))
    routed = [
        step.index
        for step in followed.look().steps
        for trace in step.traces
        if trace.rollout.reward is not None and 0 in (trace.rollout.route or Route(())).indices
    ]
    text = flat(page_of(biography_screen(followed, "0"), "/").decode())
    earned = [int(n) for n in re.findall(r"reward with it \S+ \(n = (\d+)\)", text)]
    assert earned == [sum(i <= 3 for i in routed), 0, sum(i > 3 for i in routed)]
    assert earned[-1] > 0
    followed.close()
