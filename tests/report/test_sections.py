"""What each section keeps of a run, and what it leaves out; whole reports as they were approved."""

import base64
import csv
import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from promptcodebook import types
from promptcodebook.calls import Usage
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.policy.references import resolve
from promptcodebook.report import verdict
from promptcodebook.report.context import Context, facts
from promptcodebook.report.learned import FIRST, LAST, REFUSED, LearnedSection
from promptcodebook.report.page import render_report
from promptcodebook.report.traces import ExamplesSection, parts_of
from promptcodebook.report.training import CurvesSection
from promptcodebook.run.decision import JudgingTerms, RowSource, conclude
from promptcodebook.store.events import Amended, Compared, Concluded, Ended, Event, Started, Stepped
from promptcodebook.store.run import RunStore
from tests.build.cases import table
from tests.build.scripted_run import ScriptedRun
from tests.build.strict import flat, read_page, require_approved, section

Write = Callable[..., RunStore]


_SMALL = ScriptedRun(steps=9, size=6, select=2, batch=4, hostile="")
_PLANNED: dict[str, Any] = {
    "budget": {"calls": 600, "tokens": 400_000, "usd": None},
    "roles": {
        "critic": {"model": "openai/big"},
        "executor": {"top_p": None, "headers": {"A": "hush"}},
    },
    "update": {"epochs": 7, "steps_per_epoch": "all", "batch_size": 15},
}
REPORTS = {
    "judged": _SMALL,
    "planned": replace(_SMALL, simulated=False, config=_PLANNED, lost=Usage(3, 8000, 4000, 0, 0.5)),
    "stopped": replace(_SMALL, steps=25, verdict=False),
    "routed": replace(_SMALL, config={"router": {"kind": "outcomes"}}),
    "otherwise": replace(_SMALL, steps=2, config={"explore": {"policy": "uniform"}}),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_says_word_for_word_what_was_approved(write: Write, name: str) -> None:
    """Figures, prices that are unknown, what was lost, theorems, rewrites on either side of the
    mark, examples of each kind. A person approves a change of words: nothing here computes them."""
    store = write(REPORTS[name], sizes={"train": 40, "val": 20, "test": 60})
    known = {f"test-{i}": types.Example(f"test-{i}", f"Question {i}?", "fine") for i in range(60)}
    source = render_report(store, known)
    assert "hush" not in source
    approved = Path(__file__).with_name("approved")
    beyond = None if name == "judged" else approved / "judged.txt"
    require_approved(approved / f"{name}.txt", source, beyond)


def test_an_example_shows_the_instincts_as_they_were_when_it_was_routed(write: Write) -> None:
    store = write(ScriptedRun(steps=1, size=4, select=4, verdict=False, hostile=""))
    page = read_page(section(store, ExamplesSection))
    assert set(store.parameters_at(-1).codebook.texts) <= set(page.texts)
    assert "above all in step 0" not in page.text


SHORT = ScriptedRun(steps=12, size=4, select=2, verdict=False, hostile="")


def test_an_instinct_that_maintenance_replaced_is_counted_from_there(write: Write) -> None:
    def replaced(event: Event) -> Event:
        if isinstance(event, Stepped) and event.step.index >= 6:
            return Stepped(replace(event.step, selected=(1, *event.step.selected[1:])))
        return event

    assert ": -" not in section(write(SHORT), CurvesSection, change=replaced)


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
    now = r"last 10 steps: from \S+ at 1 to \S+ at 12"
    plain = re.findall(now, section(store, CurvesSection))
    assert len(plain) == 2 and re.findall(now, section(store, CurvesSection, change=begun)) == plain


# In place of the scripted run's header with a key in it, which no command but the report reads.
READABLE: dict[str, Any] = {"roles": {}}
# Validated after steps 10 and 20, better each time, and stopped after step 25.
STOPPED = ScriptedRun(steps=25, verdict=False, hostile="", config=READABLE)


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
    reference = resolve(store.path.parent, store.header.id)
    assert reference.best is not None and reference.best.step == step
    markup = section(store, LearnedSection)
    name = "the untrained state" if step < 0 else f"the state after step {step + 1},"
    assert f"The deployed codebook: {name}" in markup
    cards = re.findall(r'id="instinct-(\d+)">\s*<h3>.*?<span class="text">(.*?)</span>', markup)
    texts = {int(k): html.unescape(text) for k, text in cards}
    assert texts == dict(enumerate(e.text for e in reference.file.codebook))


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


def long_history(store: RunStore, rewrites: int) -> str:
    """Instinct 0 rewritten at every step, and refused as often."""
    made = LearnedSection(Context.of(store, {}))
    events = list(store.events(full=True))
    made.add(next(e for e in events if isinstance(e, Started)))
    stepped = next(e for e in events if isinstance(e, Stepped))
    for index in range(rewrites):
        rewrite = types.Rewrite(0, f"old {index}", f"new {index}", f"gradient {index}", kept=True)
        refused = types.Rewrite(0, "old", "bad", "g", kept=False, reason=f"leak: example {index}")
        made.add(Stepped(replace(stepped.step, index=index, rewrites=(rewrite, refused))))
    return made.render()


def test_history_says_what_a_trial_took_back_and_why_and_marks_the_words(write: Write) -> None:
    back = types.Rewrite(
        0, "a word, b", "a line, b <b>", "g", True, "4 of 5 routes fell back", origin="trial"
    )

    def changed(event: Event) -> Event:
        stepped = isinstance(event, Stepped)
        return Stepped(replace(event.step, rewrites=(back,))) if stepped else event

    markup = section(write(STOPPED), LearnedSection, change=changed)
    assert "trial: 4 of 5 routes fell back" in markup
    diff = "a <del>word</del><ins>line</ins>, b <ins>&lt;b&gt;</ins></blockquote>"
    assert f'<blockquote class="diff">{diff}' in markup


def test_rewrites_left_out_are_counted_on_their_side_of_the_mark(write: Write) -> None:
    store = write(replace(STOPPED, steps=45))  # the best validation is after step 40
    markup = long_history(store, 100)
    for message in (
        "100 rewrites were kept and 100 refused",
        "100 × leak",
        "gradient 0",
        "gradient 99",
    ):
        assert message in flat(markup)
    assert "gradient 50" not in markup and markup.count("refused: leak: example") == REFUSED
    (timeline, *_) = biographies(markup)
    mark = timeline.index("deployed up to here (the state after step 40)")
    before, after = 40 - FIRST - LAST, 60 - FIRST - LAST
    gaps = {place: e for place, e in enumerate(timeline) if e.endswith("left out")}
    assert gaps == {
        1 + FIRST: f"{before} rewrites left out",
        mark + 1 + FIRST: f"{after} rewrites left out",
    }


def evaluation(name: str, *rewards: float | None) -> types.Evaluation:
    return types.Evaluation(
        name, "test", tuple(types.Rollout(f"e{i}", reward=r) for i, r in enumerate(rewards))
    )


def test_failures_that_remain_come_first_and_a_tie_at_nothing_is_one() -> None:
    """A row without a reward earned nothing; an example of one row makes no pair."""
    first = evaluation("present", 0.5, 0.5, 0.0, 1.0, 0.2, None)
    second = evaluation("learned", 0.6, 0.5, 0.0, 0.0, 1.0, None, 1.0)
    pairs = verdict.pairs_of(first, second, (0.0, 1.0))
    assert [(p.second.example_id, p.result, p.change) for p in pairs] == [
        ("e3", "wrong", "worse"),
        ("e2", "wrong", "same"),
        ("e5", "wrong", "same"),
        ("e1", "partly right", "same"),
        ("e0", "partly right", "better"),
        ("e4", "right", "better"),
    ]
    assert verdict.tally(pairs) == "2 better, 1 worse, 3 the same (2 of them wrong both times)"


def test_every_test_input_is_listed_with_reference_answer_and_feedback(
    write: Write,
) -> None:
    store = write(ScriptedRun(steps=2, hostile=""))
    known = {f"test-{i}": types.Example(f"test-{i}", f"Question {i}?", f"-{i}") for i in range(60)}
    markup = section(store, verdict.JudgedSection, known)
    rows = [flat(row) for row in re.findall(r"<tr class=.*?</tr>", markup, re.S)]
    assert len(rows) == 60 and "18 of 60 test inputs wrong" in flat(markup)
    assert "18 better, 0 worse, 42 the same (18 of them wrong both times)" in flat(markup)
    assert [row.split()[0] for row in rows] == ["wrong"] * 18 + ["right"] * 42
    (shown,) = [row for row in rows if "Question 50?" in row]
    assert shown == "wrong Question 50? -50 fine 0.00 0.00"
    [filed] = re.findall(r'base64,([^"]*)" download="test-inputs.csv"', markup)
    table = list(csv.DictReader(base64.b64decode(filed).decode().splitlines()))
    assert len(table) == 60 and list(table[0])[:4] == ["result", "change", "input", "reference"]
    (kept,) = [row for row in table if row["example"] == "test-50"]
    assert kept["reference"] == "'-50"
    assert kept["source"] == f"simulated, run {store.header.id}"


@pytest.mark.parametrize(
    ("row", "message"), [("untrained", "as it began"), ("learned", "as deployed")]
)
def test_a_test_example_shows_the_instincts_that_its_row_was_routed_over(
    write: Write, row: str, message: str
) -> None:
    store = write(ScriptedRun(steps=0, size=2, select=1, verdict=False, hostile=""))
    first = types.Codebook((types.Instinct("as it began"), types.Instinct("b")))
    later = types.Codebook((types.Instinct("as deployed"), types.Instinct("b")))
    rollout = types.Rollout("e0", route=types.Route((0,)), reward=1.0)
    judged = [evaluation("present", 0.0), types.Evaluation(row, "test", (rollout,))]
    for each in judged:
        store.append(Compared(each))
    rows = conclude([RowSource(each.name, each) for each in judged], JudgingTerms()).table.as_json()
    store.append(Concluded("Unclear.", None, rows))
    parameters = replace(store.parameters_at(-1), codebook=later)
    made = verdict.JudgedSection(replace(Context.of(store, {}), deployed=State.first(parameters)))
    made.add(Started(replace(parameters, codebook=first), "expert"))
    for each in judged:
        made.add(Compared(each))
    page = read_page(made.render())
    assert message in page.texts
    assert not ({"as it began", "as deployed"} - {message}) & set(page.texts)


def test_what_was_judged_before_the_run_went_on_is_shown_no_more(write: Write) -> None:
    store = write(ScriptedRun(steps=2, hostile=""))
    store.append(Amended(("epochs: 2 → 4",), "2026-02-01T00:00:00+00:00", extended=True))
    assert section(store, verdict.JudgedSection) == ""


def test_the_fixed_prompts_are_shown_in_full_but_those_of_private_data(write: Write) -> None:
    page = read_page(section(write(ScriptedRun(steps=2, hostile="")), verdict.PromptsSection))
    prompt = "Answer briefly and check the constraints. " * 2
    assert page.texts.count(prompt) == 3 and "concat" in page.texts
    private = flat(section(write(ScriptedRun(steps=2, private=True)), verdict.PromptsSection))
    assert "Left out" in private and "Answer briefly" not in private
    present = write(present="Be <brief>.")  # there is no verdict yet
    assert "Be <brief>." in flat(section(present, verdict.PromptsSection))


@pytest.mark.parametrize(("deploy", "message"), table(__file__, "what_to_type_follows_the_verdict"))
def test_what_to_type_follows_the_verdict(write: Write, deploy: str, message: str) -> None:
    store = write(ScriptedRun(steps=2, hostile="", simulated=False))
    concluded = store.outline().conclusion
    assert concluded is not None
    store.append(replace(concluded, deploy=deploy, worth=deploy == "learned"))
    text = flat(section(store, verdict.VerdictSection))
    assert message.replace("RUN", store.header.id) in text
    decision = {"learned": "Deploy", "": "Undecided"}.get(deploy, "Do not deploy")
    assert text.startswith(f"{decision} the learned policy")
    assert ("pco batch" in text) is (deploy == "learned")


def test_a_run_without_a_verdict_says_what_to_type_unless_it_is_at_work(write: Write) -> None:
    store = write(ScriptedRun(steps=2, verdict=False, hostile=""))
    typed = f"pco train --resume {store.header.id}"
    assert typed not in section(store, verdict.VerdictSection)
    store.close()
    again = RunStore.open(store.path)
    assert typed in section(again, verdict.VerdictSection)
    assert ("ended", "no: it was cut off") in facts(Context.of(again, {}))
    again.close()
    stopped = write(ScriptedRun(steps=2, verdict=False, hostile="", task="other"))
    stopped.append(Ended("budget", hint="pco train --resume it --budget MORE"))
    assert "pco train --resume it --budget MORE" in section(stopped, verdict.VerdictSection)
    assert ("next", "pco train --resume it --budget MORE") in facts(Context.of(stopped, {}))


def test_a_long_trajectory_shows_its_ends_and_counts_the_rest() -> None:
    stages = tuple(types.Stage("agent", f"turn {n}", "") for n in range(12))
    parts = parts_of(types.Rollout("e1", output="done", stages=stages), (), ("", ""))
    shown = [text.partition("\n")[0] for name, text in parts if name.startswith("stage")]
    assert shown == [*(f"turn {n}" for n in range(4)), "(4 stages left out)",
                     *(f"turn {n}" for n in range(8, 12))]  # fmt: skip
