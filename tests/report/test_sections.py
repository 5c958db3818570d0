"""What each section keeps of a run, and what it leaves out."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from promptcodebook.calls import Usage
from promptcodebook.method.state import RoutingStatistics, State, utilisation_bound
from promptcodebook.policy.references import Reference, resolve
from promptcodebook.report.context import Context, Section, facts
from promptcodebook.report.history import FIRST, LAST, REFUSED, HistorySection
from promptcodebook.report.page import IncidentsSection, SettingsSection, SpendSection
from promptcodebook.report.traces import ExamplesSection
from promptcodebook.report.training import (
    MOST_COLUMNS,
    WINDOW,
    CodebookSection,
    CurvesSection,
    RoutingSection,
    TheorySection,
)
from promptcodebook.report.verdict import (
    MOST,
    JudgedSection,
    PromptsSection,
    UseSection,
    VerdictSection,
    pairs_of,
)
from promptcodebook.run.verdict import Entry, Terms, conclude
from promptcodebook.store.events import Amended, Compared, Concluded, Ended, Event, Started, Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.types import Codebook, Evaluation, Instinct, Rewrite, Rollout, Route, Variable
from promptcodebook.units import count_text, number
from tests.report.scripted_run import HOSTILE, ScriptedRun
from tests.report.strict import flat, read_page, section

Write = Callable[..., RunStore]


def test_examples_are_few_distinct_and_from_all_kinds(write: Write) -> None:
    text = flat(section(write(ScriptedRun(steps=40, hostile="")), ExamplesSection))
    named = re.findall(r"train-\d+-\d+", text)
    assert len(named) == len(set(named)) == 5
    for kind in ("best", "worst", "failed"):
        assert f"{kind} train-" in text
    for kind, how in (("explored route", "explored"), ("encoder's route", "chosen by the encoder")):
        assert re.search(rf"{kind} train-\S+ step \d+, [\w. ]+ route [\d, ]+ \({how}\)", text)
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
    short = write(ScriptedRun(steps=20, hostile=""))
    times = re.findall(r"instinct \d+, step \d+: (\d+) times", flat(section(short, RoutingSection)))
    assert sum(map(int, times)) == sum(short.outline().selected)


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
    without = write(ScriptedRun(steps=1))
    assert "budget" not in flat(section(without, SpendSection))
    assert dict(facts(Context.of(without, {})))["spent"] == "510 calls, 250k tokens, cost unknown"


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
    other = ScriptedRun(steps=1, config={"explore": {"policy": "uniform"}})
    assert "this run explored otherwise" in flat(section(write(other), TheorySection))


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


Write = Callable[..., RunStore]

READABLE: dict[str, Any] = {"roles": {}}
"""In place of the scripted run's header with a key in it, which no command but the report reads."""
STOPPED = ScriptedRun(steps=25, verdict=False, hostile="", config=READABLE)
"""Validated after steps 10 and 20, better each time, and stopped after step 25."""


def cells(markup: str) -> list[list[str]]:
    """The body rows of a table, as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", markup, re.S)[1:]
    return [
        [html.unescape(re.sub(r"<[^>]*>", "", td)) for td in re.findall(r"<td.*?</td>", row, re.S)]
        for row in rows
    ]


def policy_of(store: RunStore) -> Reference:
    return resolve(store.path.parent, store.header.id)


@pytest.mark.parametrize(
    ("run", "step"),
    [
        (STOPPED, 19),
        (replace(STOPPED, config=READABLE | {"keep": "last"}), 24),
        (replace(STOPPED, steps=5), -1),
        (replace(STOPPED, verdict=True), 19),
    ],
    ids=["best so far", "last", "only the untrained one was validated", "with a verdict"],
)
def test_the_codebook_is_the_one_that_every_other_command_takes(
    write: Write, run: ScriptedRun, step: int
) -> None:
    store = write(run)
    reference = policy_of(store)
    assert reference.best is not None
    assert reference.best.step == step
    rewritten = Counter(
        r.variable for s in store.steps() if s.index <= step for r in s.rewrites if r.kept
    )
    markup = section(store, CodebookSection)
    name = "the untrained state" if step < 0 else f"the state after step {step + 1},"
    assert f"The codebook as it is deployed: {name}" in markup
    for k, (entry, row) in enumerate(zip(reference.file.codebook, cells(markup), strict=True)):
        assert row[0] == str(k)
        assert row[1] == entry.text + ("frozen" if entry.frozen else "")
        assert row[2] == (f"{entry.success:.2f}" if entry.selected else "untried")
        assert row[4] == f"{entry.selected:,}"
        assert row[6] == str(rewritten[k])


def biographies(markup: str) -> list[list[str]]:
    """For each text: its timeline as words, one for each entry."""
    timelines = re.findall(
        r'<details class="history">.*?<ol class="timeline">(.*?)</ol>', markup, re.S
    )
    entries = [re.findall(r"<li.*?</li>", timeline, re.S) for timeline in timelines]
    return [[_first_words(entry) for entry in timeline] for timeline in entries]


def _first_words(entry: str) -> str:
    named = re.search(r'<b class="when">(.*?)</b>', entry)
    return named[1] if named else re.sub(r"<[^>]*>", "", entry)


def test_what_was_rewritten_after_the_deployed_state_stands_below_the_mark(write: Write) -> None:
    store = write(STOPPED)
    kept: dict[Variable, list[int]] = {}
    for step in store.steps():
        for rewrite in step.rewrites:
            if rewrite.kept:
                kept.setdefault(rewrite.variable, []).append(step.index + 1)
    timelines = biographies(section(store, HistorySection))
    variables: tuple[Variable, ...] = (*range(16), "encoder", "generator")
    crossed = 0
    for variable, timeline in zip(variables, timelines, strict=False):
        mark = timeline.index("deployed up to here (the state after step 20)")
        steps = kept.get(variable, [])
        assert timeline[1:mark] == [f"step {n}" for n in steps if n <= 20]
        assert timeline[mark + 1 :] == [f"step {n}" for n in steps if n > 20]
        crossed += mark + 1 < len(timeline)
    assert crossed > 4
    assert timelines[-1] == ["at first"], "no policy carries ψ"


def long_history(store: RunStore, rewrites: int) -> str:
    """Instinct 0 rewritten at every step, and refused as often."""
    made = HistorySection(Context.of(store, {}))
    events = list(store.events(full=True))
    made.add(next(e for e in events if isinstance(e, Started)))
    stepped = next(e for e in events if isinstance(e, Stepped))
    for index in range(rewrites):
        rewrite = Rewrite(0, f"old {index}", f"new {index}", f"gradient {index}", kept=True)
        refused = Rewrite(0, "old", "bad", "g", kept=False, reason=f"leak: example {index}")
        made.add(Stepped(replace(stepped.step, index=index, rewrites=(rewrite, refused))))
    return made.render()


def test_history_says_what_maintenance_did_and_why_and_marks_the_words(write: Write) -> None:
    tidy = Rewrite(0, "a word, b", "a line, b <b>", "g", True, "c5 was a twin", origin="merge")

    def tidied(event: Event) -> Event:
        stepped = isinstance(event, Stepped)
        return Stepped(replace(event.step, rewrites=(tidy,))) if stepped else event

    markup = section(write(STOPPED), HistorySection, change=tidied)
    assert "merge: c5 was a twin" in markup
    diff = "a <del>word</del><ins>line</ins>, b <ins>&lt;b&gt;</ins></blockquote>"
    assert f'<blockquote class="diff">{diff}' in markup


def test_history_counts_all_rewrites_and_shows_the_first_and_the_latest(write: Write) -> None:
    text = flat(long_history(write(STOPPED), 100))
    assert "100 rewrites were kept and 100 refused" in text
    assert "80 rewrites made after it are below the mark" in text
    assert "100 kept (80 not deployed), 100 refused" in text
    assert f"{80 - FIRST - LAST} rewrites left out" in text
    assert "100 × leak" in text
    assert "gradient 0" in text and "gradient 99" in text and "gradient 50" not in text
    assert text.count("refused: leak: example") == REFUSED


def test_rewrites_left_out_are_counted_on_their_side_of_the_mark(write: Write) -> None:
    store = write(replace(STOPPED, steps=45))  # the best validation is after step 40
    (timeline, *_) = biographies(long_history(store, 100))
    mark = timeline.index("deployed up to here (the state after step 40)")
    before, after = 40 - FIRST - LAST, 60 - FIRST - LAST
    gaps = {place: e for place, e in enumerate(timeline) if e.endswith("left out")}
    assert gaps == {
        1 + FIRST: f"{before} rewrites left out",
        mark + 1 + FIRST: f"{after} rewrites left out",
    }


Write = Callable[..., RunStore]


def evaluation(name: str, *rewards: float | None) -> Evaluation:
    return Evaluation(
        name, "test", tuple(Rollout(f"e{i}", reward=r) for i, r in enumerate(rewards))
    )


def test_pairs_come_as_wins_then_losses_then_ties_the_greatest_difference_first() -> None:
    """A row without a reward earned nothing; an example of one row makes no pair."""
    first = evaluation("present", 0.5, 0.5, 0.9, 1.0, 0.2, None)
    second = evaluation("learned", 0.6, 0.5, 0.1, 0.9, 1.0, 0.0, 1.0)
    found = [f"{p.second.example_id} {p.outcome}" for p in pairs_of(first, second)]
    assert found == ["e4 win", "e0 win", "e2 loss", "e3 loss", "e1 tie", "e5 tie"]


def test_test_examples_are_titled_by_their_input_and_say_that_they_are_a_sample(
    write: Write,
) -> None:
    inputs = {f"test-{i}": f"Question {i}?\n{HOSTILE}" for i in range(60)}
    text = flat(section(write(ScriptedRun(steps=2)), JudgedSection, inputs))
    assert "learned against present on 60 test examples: 18 wins, 0 losses, 42 ties" in text
    assert "Shown here, a sample: 12 wins" in text
    titles = re.findall(r"win Question (\d+)\? ", text)
    assert len(titles) == len(set(titles)) == MOST
    assert text.count("0.00 → 1.00") == MOST


@pytest.mark.parametrize(
    ("row", "said"), [("untrained", "as it began"), ("learned", "as deployed")]
)
def test_a_test_example_shows_the_instincts_that_its_row_was_routed_over(
    write: Write, row: str, said: str
) -> None:
    store = write(ScriptedRun(steps=0, size=2, select=1, verdict=False, hostile=""))
    first = Codebook((Instinct("as it began"), Instinct("b")))
    later = Codebook((Instinct("as deployed"), Instinct("b")))
    rollout = Rollout("e0", route=Route((0,)), reward=1.0)
    judged = [evaluation("present", 0.0), Evaluation(row, "test", (rollout,))]
    for each in judged:
        store.append(Compared(each))
    rows = conclude([Entry(each.name, each) for each in judged], Terms(3)).table.as_json()
    store.append(Concluded("Unclear.", None, rows))
    parameters = replace(store.parameters_at(-1), codebook=later)
    made = JudgedSection(replace(Context.of(store, {}), deployed=State.first(parameters)))
    made.add(Started(replace(parameters, codebook=first), "expert"))
    for each in judged:
        made.add(Compared(each))
    page = read_page(made.render())
    assert said in page.texts
    assert not ({"as it began", "as deployed"} - {said}) & set(page.texts)


def test_what_was_judged_before_the_run_went_on_is_shown_no_more(write: Write) -> None:
    store = write(ScriptedRun(steps=2, hostile=""))
    store.append(Amended(("epochs: 2 → 4",), "2026-02-01T00:00:00+00:00", extended=True))
    assert "Nothing was compared" in flat(section(store, JudgedSection))


def test_the_fixed_prompts_are_shown_in_full_but_those_of_private_data(write: Write) -> None:
    page = read_page(section(write(ScriptedRun(steps=2, hostile="")), PromptsSection))
    prompt = "Answer briefly and check the constraints. " * 2
    assert page.texts.count(prompt) == 5 and "concat" in page.texts
    private = flat(section(write(ScriptedRun(steps=2, private=True)), PromptsSection))
    assert "Left out" in private and "Answer briefly" not in private
    present = write(present="Be <brief>.")  # there is no verdict yet
    assert "Be <brief>." in flat(section(present, PromptsSection))


@pytest.mark.parametrize(
    ("deploy", "said"),
    [
        ("learned", "pco serve RUN"),
        ("concat", "pco prompt RUN --row concat"),
        ("x; rm -rf ~", "pco prompt RUN --row 'x; rm -rf ~'"),
        ("untrained", 'pco prompt RUN --row untrained "an input"'),
        ("", "names nothing to deploy. What was learned can be read: pco codebook show RUN"),
    ],
)
def test_what_to_type_follows_the_verdict(write: Write, deploy: str, said: str) -> None:
    store = write(ScriptedRun(steps=2, hostile=""))
    concluded = store.outline().conclusion
    assert concluded is not None
    store.append(replace(concluded, deploy=deploy))
    text = flat(section(store, UseSection))
    assert said.replace("RUN", store.header.id) in text
    others = {"serve": "pco serve", "alone": "prints it, alone", "show": "codebook show"}
    assert sum(words in text for words in others.values()) == (deploy != "untrained")


def test_a_run_without_a_verdict_says_what_to_type_unless_it_is_at_work(write: Write) -> None:
    store = write(ScriptedRun(steps=2, verdict=False, hostile=""))
    typed = f"pco train --resume {store.header.id}"
    assert typed not in section(store, UseSection)
    store.close()
    again = RunStore.open(store.path)
    assert typed in section(again, UseSection)
    assert ("ended", "no: it was cut off") in facts(Context.of(again, {}))
    again.close()
    stopped = write(ScriptedRun(steps=2, verdict=False, hostile="", task="other"))
    stopped.append(Ended("budget", hint="pco train --resume it --budget MORE"))
    for make in (UseSection, VerdictSection):
        assert "pco train --resume it --budget MORE" in section(stopped, make)
    assert ("next", "pco train --resume it --budget MORE") in facts(Context.of(stopped, {}))


def test_the_facts_name_model_budget_plan_and_splits(write: Write) -> None:
    config: dict[str, Any] = {
        "lm": "http://localhost:8000/v1#m",
        "roles": {"critic": {"model": "openai/big"}},
        "budget": {"calls": 900, "tokens": None, "usd": 5},
        "update": {"epochs": 7, "steps_per_epoch": "all", "batch_size": 15},
    }
    store = write(config=config, sizes={"train": 40, "val": 20, "test": 60})
    named = dict(facts(Context.of(store, {})))
    assert named["model"] == "executor: http://localhost:8000/v1#m; critic: openai/big"
    assert named["data"] == "40 train, 20 val, 60 test" and named["steps"] == "0 of 21"
    assert named["budget"] == "900 calls, $5.00"
