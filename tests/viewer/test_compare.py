"""Two runs on one screen: the figures are those of `pco compare`, and only a result is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from promptcodebook.report.context import render_sections
from promptcodebook.report.judged import JudgedSection
from promptcodebook.run.assessing import Comparison, Side
from promptcodebook.store.events import Compared, Event, Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation, Failure, Rollout
from promptcodebook.units import number
from promptcodebook.viewer.compare import compare_screen
from promptcodebook.viewer.example import example_screen, examples_screen
from promptcodebook.viewer.following import FollowedRun, with_tests
from promptcodebook.viewer.page import page_of
from tests.report.scripted_run import ScriptedRun, events_of, write_run
from tests.viewer.test_screens import flat

_RUN = ScriptedRun(steps=3, size=6, select=2, batch=2, hostile="")


def write(folder: Path, events: Sequence[Event], task: str) -> Path:
    store = write_run(folder, replace(_RUN, steps=0, verdict=False, task=task))
    header = replace(store.header, id="", task=f"{task}-as-told")
    store.close()
    told = RunStore.create(folder, header)
    for event in events:
        told.append(event)
    told.close()
    return told.path


def shown(screen: object) -> str:
    return flat(page_of(screen, "/").decode())  # type: ignore[arg-type]


def judged(name: str, rewards: Sequence[float]) -> Compared:
    rollouts = tuple(
        Rollout(f"t-{i}", prompt="p", output="o", reward=reward) for i, reward in enumerate(rewards)
    )
    return Compared(Evaluation(name, "test", rollouts))


def with_result(rewards: Sequence[float]) -> list[Event]:
    """The scripted run whose learned policy earned these on the test split."""
    events: list[Event] = []
    for event in events_of(_RUN):
        mine = isinstance(event, Compared) and event.evaluation.name == "learned"
        events.append(judged("learned", rewards) if mine else event)
    return events


@pytest.mark.parametrize(
    "second",
    [
        [0.5 + 0.01 * (7 * i % 30) for i in range(40)],  # the exact test, whose subsets go by order
        [0.5] * 38 + [0.9] * 2,  # few values differ: the range decides the width
    ],
)
def test_the_screen_says_what_pco_compare_says(tmp_path: Path, second: Sequence[float]) -> None:
    rewards = [0.5] * 40, second
    paths = [write(tmp_path, with_result(r), f"r{i}") for i, r in enumerate(rewards)]
    sides = [
        Side("", {f"t-{i}": x for i, x in enumerate(r)}, "test", False, (0.0, 1.0)) for r in rewards
    ]
    gain = Comparison.of(sides[1], sides[0]).gain
    mean, low, high = (number(x, signed=True) for x in (gain.mean, gain.low, gain.high))
    first, other = (FollowedRun(path, path.name) for path in paths)
    text = shown(compare_screen(first, other))
    assert f"difference (second − first): {mean} (95 % {low} to {high}, n = 40)" in text
    first.close()
    other.close()


def cut_off(events: Sequence[Event], rows: int) -> list[Event]:
    """All up to the given number of rows of the verdict."""
    at = [i for i, event in enumerate(events) if isinstance(event, Compared)][rows - 1]
    return list(events[: at + 1])


def test_what_was_judged_last_is_no_result_until_there_is_a_verdict(tmp_path: Path) -> None:
    whole = list(events_of(_RUN))
    ended, judging = (
        FollowedRun(write(tmp_path, events, task), task)
        for events, task in ((whole, "whole"), (cut_off(whole, 3), "cut"))
    )
    text = shown(compare_screen(ended, judging))
    assert "The second is not judged to its end yet" in text and "second − first" not in text
    text = shown(examples_screen(judging))
    assert "not judged to its end yet" in text and "the result, " not in text
    assert "the result, learned" in shown(examples_screen(ended))
    for followed, said in ((judging, "not judged to its end yet"), (ended, "learned against")):
        look = followed.look()
        section = render_sections([JudgedSection(look.context)], with_tests(followed, look))
        assert said in flat(section)
    ended.close()
    judging.close()


def test_an_example_that_failed_last_is_said_to_have_failed(tmp_path: Path) -> None:
    events: list[Event] = []
    for event in events_of(_RUN):
        if isinstance(event, Stepped):
            same = [
                replace(t, rollout=replace(t.rollout, example_id="ex", reward=0.25, failure=None))
                for t in event.step.traces
            ]
            if event.step.index == _RUN.steps - 1:
                failed = Failure("execute", "CallTimeout", "no reply")
                broken = replace(same[-1].rollout, reward=None, failure=failed)
                same[-1] = replace(same[-1], rollout=broken)
            event = Stepped(replace(event.step, traces=tuple(same)))
        events.append(event)
    followed = FollowedRun(write(tmp_path, events, "last"), "last")
    markup = page_of(examples_screen(followed), "/").decode()
    row = next(r for r in markup.split("<tr>") if ">ex</a>" in r)
    assert flat(row).split()[:5] == ["ex", "6", "0.25", "failed", "3"]
    test = next(r for r in markup.split("<tr>") if ">test-59</a>" in r)  # always fails
    assert flat(test).split()[:3] == ["test-59", "failed", "failed"]
    page = example_screen(followed, "ex", "9")
    assert page.status == 404 and "it was in step 1 and 2 more" in shown(page)
    assert "pco runs show" in shown(page)
    followed.close()


_OWN = {"reward": "reward.py:reward"}


@pytest.mark.parametrize(
    ("settings", "files", "said"),
    [
        (({"reward": "exact"}, {"reward": "exact"}), ("", ""), ""),
        (({"reward": "exact"}, {"reward": {"kind": "exact"}}), ("", ""), ""),
        (
            ({"reward": "exact"}, {"reward": {"kind": "numeric", "tolerance": 0.5}}),
            ("", ""),
            "scored by different rewards (exact and numeric",
        ),
        (({"task": "hover"}, {"task": "aime"}), ("", ""), "different rewards (hover and aime)"),
        ((_OWN, _OWN), ("ab", "ab"), ""),
        ((_OWN, _OWN), ("ab", "cd"), "scored by reward(), whose code was not the same"),
        ((_OWN, {}), ("ab", ""), "(reward() and a function that Python handed over)"),
        (({}, {}), ("", ""), "whether it was the same one is not known here"),
    ],
)
def test_two_runs_scored_by_different_rewards_say_so(
    tmp_path: Path,
    settings: tuple[dict[str, object], dict[str, object]],
    files: tuple[str, str],
    said: str,
) -> None:
    looked: list[FollowedRun] = []
    for i, (own, mark) in enumerate(zip(settings, files, strict=True)):
        base = write_run(tmp_path, replace(_RUN, steps=0, verdict=False, task=f"r{i}", config=own))
        header = replace(
            base.header, id="", task=f"t{i}", files={"reward.py": mark} if mark else {}
        )
        base.close()
        store = RunStore.create(tmp_path, header)
        for event in with_result([0.5] * 20):
            store.append(event)
        store.close()
        looked.append(FollowedRun(store.path, store.path.name))
    text = shown(compare_screen(*looked))
    assert (said in text) if said else ("scored by" not in text)
    for followed in looked:
        followed.close()
