"""Two runs on one screen: the figures are those of `pco compare`, and only a result is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from promptcodebook.report.context import render_sections
from promptcodebook.report.verdict import JudgedSection
from promptcodebook.run.evaluation import Comparison, Side
from promptcodebook.store.events import Compared, Event, Stepped
from promptcodebook.types import Evaluation, Failure, Rollout
from promptcodebook.units import number
from promptcodebook.viewer.examples import compare_screen, example_screen, examples_screen
from promptcodebook.viewer.following import FollowedRun, with_tests
from promptcodebook.viewer.page import page_of
from tests.report.scripted_run import ScriptedRun, events_of
from tests.report.strict import flat
from tests.viewer.conftest import shown

_RUN = ScriptedRun(steps=3, size=6, select=2, batch=2, hostile="")


Follow = Callable[..., FollowedRun]


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
def test_the_screen_says_what_pco_compare_says(follow: Follow, second: Sequence[float]) -> None:
    rewards = [0.5] * 40, second
    sides = [
        Side("", {f"t-{i}": x for i, x in enumerate(r)}, "test", False, (0.0, 1.0)) for r in rewards
    ]
    gain = Comparison.of(sides[1], sides[0]).gain
    mean, low, high = (number(x, signed=True) for x in (gain.mean, gain.low, gain.high))
    text = shown(compare_screen(*(follow(_RUN, with_result(r)) for r in rewards)))
    assert f"difference (second − first): {mean} (95 % {low} to {high}, n = 40)" in text


def test_what_was_judged_last_is_no_result_until_there_is_a_verdict(follow: Follow) -> None:
    whole = list(events_of(_RUN))
    third = [i for i, event in enumerate(whole) if isinstance(event, Compared)][2]
    ended, judging = follow(_RUN, whole), follow(_RUN, whole[: third + 1])
    text = shown(compare_screen(ended, judging))
    assert "The second is not judged to its end yet" in text and "second − first" not in text
    text = shown(examples_screen(judging))
    assert "not judged to its end yet" in text and "the result, " not in text
    assert "the result, learned" in shown(examples_screen(ended))
    for followed, said in ((judging, "not judged to its end yet"), (ended, "learned against")):
        look = followed.look()
        section = render_sections([JudgedSection(look.context)], with_tests(followed, look))
        assert said in flat(section)


def test_an_example_that_failed_last_is_said_to_have_failed(follow: Follow) -> None:
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
    followed = follow(_RUN, events)
    markup = page_of(examples_screen(followed), "/").decode()
    row = next(r for r in markup.split("<tr>") if ">ex</a>" in r)
    assert flat(row).split()[:5] == ["ex", "6", "0.25", "failed", "3"]
    test = next(r for r in markup.split("<tr>") if ">test-59</a>" in r)  # always fails
    assert flat(test).split()[:3] == ["test-59", "failed", "failed"]
    page = example_screen(followed, "ex", "9")
    assert page.status == 404 and "it was in step 1 and 2 more" in shown(page)
    assert "pco runs show" in shown(page)


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
    follow: Follow,
    settings: tuple[dict[str, object], dict[str, object]],
    files: tuple[str, str],
    said: str,
) -> None:
    looked = [
        follow(
            replace(_RUN, config=own),
            with_result([0.5] * 20),
            files={"reward.py": mark} if mark else {},
        )
        for own, mark in zip(settings, files, strict=True)
    ]
    text = shown(compare_screen(*looked))
    assert (said in text) if said else ("scored by" not in text)
