"""What each section keeps of a run, and what it leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from promptcodebook.calls import Usage
from promptcodebook.method.state import RoutingStatistics, utilisation_bound
from promptcodebook.report.context import Context, Section, facts
from promptcodebook.report.page import IncidentsSection, SettingsSection, SpendSection
from promptcodebook.report.traces import MOST, ExamplesSection
from promptcodebook.report.training import (
    MOST_COLUMNS,
    WINDOW,
    CurvesSection,
    RoutingSection,
    TheorySection,
)
from promptcodebook.store.events import Event, Started, Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.units import count_text, number
from tests.report.scripted_run import ScriptedRun
from tests.report.strict import flat, read_page, section

Write = Callable[..., RunStore]


def test_examples_are_few_distinct_and_from_all_kinds(write: Write) -> None:
    text = flat(section(write(ScriptedRun(steps=40, hostile="")), ExamplesSection))
    named = re.findall(r"train-\d+-\d+", text)
    assert len(named) == len(set(named)) == MOST
    for kind in ("best", "worst", "failed", "explored route", "encoder's route"):
        assert f"{kind} train-" in text
    best = re.search(r"best train-\S+ step \d+, reward (\S+)", text)
    worst = re.search(r"worst train-\S+ step \d+, reward (\S+)", text)
    assert best is not None and worst is not None
    assert float(best[1]) > float(worst[1])


def test_an_example_shows_the_instincts_as_they_were_when_it_was_routed(write: Write) -> None:
    store = write(ScriptedRun(steps=1, size=4, select=4, verdict=False, hostile=""))
    page = read_page(section(store, ExamplesSection))
    assert set(store.parameters_at(-1).codebook.texts) <= set(page.texts)
    assert "above all in step 0" not in page.text


SHORT = ScriptedRun(steps=12, size=4, select=2, verdict=False, hostile="")


@pytest.mark.parametrize("make", [CurvesSection, RoutingSection])
def test_an_instinct_that_maintenance_replaced_is_counted_from_there(
    write: Write, make: type[Section]
) -> None:
    def replaced(event: Event) -> Event:
        if isinstance(event, Stepped) and event.step.index >= 6:
            return Stepped(replace(event.step, selected=(1, *event.step.selected[1:])))
        return event

    assert ": -" not in section(write(SHORT), make, change=replaced)


def test_selections_of_before_the_run_are_no_selections_of_its_first_step(write: Write) -> None:
    """`init.kind = file` begins with the counts of a policy."""

    def begun(event: Event) -> Event:
        zeros = (0.0,) * 4
        if isinstance(event, Started):
            return replace(event, statistics=RoutingStatistics(zeros, zeros, (700,) * 4, zeros))
        if isinstance(event, Stepped):
            counts = tuple(700 + n for n in event.step.selected)
            return Stepped(replace(event.step, selected=counts))
        return event

    store = write(SHORT)
    assert section(store, RoutingSection, change=begun) == section(store, RoutingSection)
    now = r"last 10 steps: from \S+ at 1 to \S+ at 12"
    plain = re.findall(now, section(store, CurvesSection))
    assert len(plain) == 2 and re.findall(now, section(store, CurvesSection, change=begun)) == plain


def test_the_heatmap_of_a_long_run_is_gathered_into_columns(write: Write) -> None:
    text = flat(section(write(ScriptedRun(steps=130, batch=1, hostile="")), RoutingSection))
    assert "a column is 3 steps" in text
    titles = re.findall(r"steps (\d+) to (\d+): (\d+) times", text)
    assert {int(first) for first, _, _ in titles} == set(range(1, 128, 3))
    assert re.search(r"instinct \d+, step 130: \d+ times", text)
    assert len({first for first, _, _ in titles}) < MOST_COLUMNS


def test_the_heatmap_counts_every_selection_once(write: Write) -> None:
    store = write(ScriptedRun(steps=20, hostile=""))
    text = flat(section(store, RoutingSection))
    times = [int(n) for n in re.findall(r"instinct \d+, step \d+: (\d+) times", text)]
    assert sum(times) == sum(store.outline().selected)


def test_incidents_show_counts_failures_and_the_first_traceback(write: Write) -> None:
    store = write(ScriptedRun(hostile=""))
    text = flat(section(store, IncidentsSection))
    failures = sum(
        t.rollout.failure is not None for step in store.steps(traces=True) for t in step.traces
    )
    assert f"training execute ServerFault {failures}" in text
    assert "test execute CallTimeout 5" in text
    assert re.search(r"rate_limited 7 ", text)
    assert "timeout" not in text.lower().replace("calltimeout", "")
    assert " 0 " not in text
    assert "CallTimeout: no reply in 120 s" in text


def test_an_unknown_price_is_never_shown_as_nothing(write: Write) -> None:
    text = flat(section(write(ScriptedRun(steps=1)), SpendSection))
    assert "The price of critic is unknown" in text
    assert "the other roles come to $3.90" in text
    assert re.search(r"all roles .* unknown", text)
    assert "$0 " not in text


def test_what_was_lost_to_failures_stands_apart_from_what_was_paid(write: Write) -> None:
    store = write(ScriptedRun(steps=1))
    plain = flat(section(store, SpendSection))
    log, most = store.attempt_log, Usage(1, 1000, 500, 0, 0.25)
    for _ in range(2):
        log.end(log.begin("executor", most), "executor", most, True)
    store.flush()
    text = flat(section(store, SpendSection))
    told = "Lost to failures, beside the above: 2 calls, up to 3,000 tokens and $0.50."
    assert told in text and "Lost" not in plain
    assert text.replace(f"{told} ", "") == plain


def test_what_was_spent_stands_beside_the_limits_of_the_budget(write: Write) -> None:
    config = {"budget": {"calls": 600, "tokens": 400_000, "usd": None}}
    store = write(ScriptedRun(steps=1, lost=Usage(3, 8000, 4000, 0, 0.5), config=config))
    spent = "513 of 600 calls, 262k of 400k tokens, cost unknown"
    assert f"Of the budget: {spent}." in flat(section(store, SpendSection))
    named = dict(facts(Context.of(store, {})))
    assert (
        f"{spent} (of it lost to failures: 3 calls, up to 12k tokens and $0.50)" == named["spent"]
    )


def test_a_run_without_a_budget_speaks_of_none(write: Write) -> None:
    store = write(ScriptedRun(steps=1))
    assert "budget" not in flat(section(store, SpendSection))
    assert dict(facts(Context.of(store, {})))["spent"] == "510 calls, 250k tokens, cost unknown"


def test_the_bound_of_theorem_3_stands_beside_what_was_measured(write: Write) -> None:
    store = write(ScriptedRun(hostile=""))
    explored = [
        t.rollout.route.indices
        for step in store.steps(traces=True)
        for t in step.traces
        if t.unit is not None and t.rollout.route is not None and t.rollout.route.explored
    ]
    text = flat(section(store, TheorySection))
    assert f"after {len(explored)} explored examples" in text
    for wide in (False, True):
        bound = utilisation_bound(16, 4, len(explored), 0.5, wide=wide)
        assert f"{bound:.2f}" in text
    assert f"explored routes only {len({k for z in explored for k in z})} " in text


def test_the_residual_of_theorem_5_says_whether_the_critic_s_own_is_in_it(write: Write) -> None:
    store = write(ScriptedRun(hostile=""))
    found: dict[bool, list[float]] = {True: [], False: []}
    for step in store.steps(traces=True):
        for t in step.traces:
            if t.residual is not None:
                found["critic" in t.gradients.severity].append(t.residual)
    assert all(found.values())
    text = flat(section(store, TheorySection))
    over = {True: "g φ, g C and g ψ", False: "that of g ψ was not given"}
    for whole, deltas in found.items():
        largest, mean = max(map(abs, deltas)), sum(deltas) / len(deltas)
        assert re.search(
            rf"{over[whole]} {len(deltas)} {number(mean)} [\d.]+ {number(largest)}", text
        )


def test_theorem_3_is_left_out_for_other_exploration(write: Write) -> None:
    run = ScriptedRun(steps=1, config={"explore": {"policy": "uniform"}})
    assert "this run explored otherwise" in flat(section(write(run), TheorySection))


def test_curves_follow_the_steps(write: Write) -> None:
    store = write(ScriptedRun(steps=12, hostile=""))
    first = next(store.steps(traces=True))
    rewards = [t.rollout.reward for t in first.traces if t.rollout.reward is not None]
    markup = section(store, CurvesSection)
    assert f"batch mean: from {sum(rewards) / len(rewards):.3g} at 1 to" in markup
    assert f"last {WINDOW} steps" in markup and ">best 0.675</text>" in markup
    penalties = [t.penalty for t in first.traces if t.verdict is not None]
    assert f"mean ρ: from {sum(penalties) / len(penalties):.3g} at 1 to" in markup
    tokens = sum(t.rollout.usage.tokens for t in first.traces)
    assert f"training: from {count_text(tokens)} at 1 to" in markup
    assert f"ε: from 1 at 1 to {0.94**11:.3g} at 12" in markup


def test_settings_show_each_role_and_what_differs_without_secrets(write: Write) -> None:
    config: dict[str, Any] = {"roles": {"executor": {"top_p": None, "headers": {"A": "hush"}}}}
    text = flat(section(write(ScriptedRun(steps=1, config=config)), SettingsSection))
    assert "encoder simulated?load=0.2 0 1 1024 generator simulated?load=0.2 0.6 0.9 512" in text
    assert "executor simulated?load=0.2 0.6 server's own 4096" in text
    assert "critic.safety true false" in text and "seed 0 3" in text and "hush" not in text
    assert "train abababababababab test cdcdcdcdcdcdcdcd" in text
