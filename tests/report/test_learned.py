"""What a report opens with: what was learned, where it helped and hurt, and how little of it there
is to read before anything is opened."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from promptcodebook.policy.references import kept_state
from promptcodebook.report.context import Context, facts
from promptcodebook.report.learned import LearnedSection
from promptcodebook.report.page import render_report
from promptcodebook.report.verdict import JudgedSection
from promptcodebook.run.decision import JudgingTerms, RowSource, conclude
from promptcodebook.store.events import Compared, Concluded, Event, Started
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation, Example, Rollout, Route
from tests.build.scripted_run import ScriptedRun, events_of
from tests.build.strict import flat, read_page, section

Write = Callable[..., RunStore]
MOST_VISIBLE = 3_000  # words, for a run with 60 test inputs

_LONG = "Somebody writes at length about a parcel that came late and was broken. " * 20
_WORDY = "Answer in full sentences, name the parcel, say when it came and what comes next, then "
_RUN = ScriptedRun(steps=12, size=16, select=4, batch=4, hostile="")


def judged(rows: Sequence[Evaluation], run: ScriptedRun = _RUN) -> list[Event]:
    """The run's events with these rows in the place of its own."""
    events = [e for e in events_of(replace(run, verdict=False)) if not isinstance(e, Compared)]
    made = conclude([RowSource(f"the {r.name} one", r) for r in rows], JudgingTerms())
    ends = Concluded(made.sentence, made.worth, made.table.as_json(), made.deploy)
    return [*events, *map(Compared, rows), ends]


def row(name: str, rewards: Sequence[float], output: str = "", **routes: Any) -> Evaluation:
    rollouts = [
        Rollout(f"test-{i}", output=output or f"{name} says {i}", reward=reward, **routes)
        for i, reward in enumerate(rewards)
    ]
    return Evaluation(name, "test", tuple(rollouts))


def test_a_report_on_sixty_long_test_inputs_is_read_in_ten_minutes(write: Write) -> None:
    """Inputs and answers of 260 words, 16 long instincts that are all used."""
    present = row("present", [i % 2 for i in range(60)], _LONG)
    learned = row("learned", [(i // 2) % 2 for i in range(60)], _LONG)
    routed = [
        replace(r, route=Route(tuple(sorted({i % 16, (i + 1) % 16, (i + 5) % 16, (i + 9) % 16}))))
        for i, r in enumerate(learned.rollouts)
    ]
    rows = [row("none", [0.0] * 60, _LONG), replace(learned, rollouts=tuple(routed))]
    store = write(None, task="parcels", sizes={"train": 80, "test": 60})
    for event in judged([present, *rows], replace(_RUN, hostile=_WORDY * 2)):
        store.append(event)
    known = {f"test-{i}": Example(f"test-{i}", f"{i} {_LONG}", _LONG) for i in range(60)}
    page = read_page(render_report(store, known))
    assert page.faults == [] and len(page.text.split()) > 20_000
    assert 500 < len(page.visible) <= MOST_VISIBLE
    read = " ".join(page.visible)
    order = ("parcels", "What was learned", "who gets it", "Where it helped", "Helped", "Hurt",
             "What is still wrong", "Training reward")  # fmt: skip
    places = [read.rindex(each) for each in order[1:]]
    assert places == sorted(places) and "parcels · promptcodebook" in page.words[0]


@pytest.mark.parametrize(
    "run",
    [_RUN, replace(_RUN, steps=1, verdict=False), replace(_RUN, steps=0, verdict=False)],
    ids=["judged", "one step", "nothing but a codebook"],
)
def test_no_panel_is_empty(write: Write, run: ScriptedRun) -> None:
    source = render_report(write(run))
    assert not re.search(
        r"Nothing to draw|Nothing was|No step was|No incident|none in this", source
    )
    sections = re.findall(r"<section.*?</section>", source, re.DOTALL)
    assert all(len(flat(each).split()) > 8 for each in sections)
    titles = re.findall(r"<nav.*?</nav>", source, re.DOTALL)[0].count("<a ")
    assert titles == len(sections)


def test_an_instinct_shows_who_gets_it_what_it_earns_and_where_it_came_from(write: Write) -> None:
    first = next(e for e in events_of(_RUN) if isinstance(e, Started)).parameters.codebook
    store = write(_RUN)
    known = {f"test-{i}": Example(f"test-{i}", f"Question {i}?") for i in range(60)}
    markup = section(store, LearnedSection, known)
    [card] = re.findall(r'<article class="instinct" id="instinct-0">.*?</article>', markup, re.S)
    text = flat(card)
    assert "0.712 with it, n = 59, test, simulated 0.407 with the present prompt" in text
    assert "60 of 60 test inputs Question 0? Question 1? Question 2?" in text
    assert "Question 3?" not in text and first[0].text in text
    others = flat(markup.partition("15 more instincts")[2])
    assert others.startswith("15 of them get no test input") and "words that lead" not in others
    assert f"pco registry effect {store.header.id} 0 measures" in others


def test_the_diff_leads_from_the_first_text_to_the_deployed_one(write: Write) -> None:
    run = replace(_RUN, steps=25, verdict=False)  # deployed is the state after step 20
    first = next(e for e in events_of(run) if isinstance(e, Started)).parameters.codebook
    store = write(run)
    last, _ = kept_state(store)
    markup = section(store, LearnedSection)
    cards = markup.split('id="instinct-')[1:]
    found = [re.match(r'(\d+)">.*?<span class="diff">(.*?)</span>', card, re.S) for card in cards]
    diffs = [each.groups() for each in found if each]
    assert len(diffs) > 10
    for k, diff in diffs:
        sides = [re.sub(f"<{tag}>.*?</{tag}>", "", diff, flags=re.S) for tag in ("ins", "del")]
        assert [re.sub("<.*?>", "", side).split() for side in sides] == [
            first[int(k)].text.split(),
            last.parameters.codebook[int(k)].text.split(),
        ]


def test_helped_and_hurt_are_the_greatest_gains_and_losses_side_by_side(write: Write) -> None:
    """Three of each at most, with the answers of both and the instincts."""
    before = [0.0, 0.2, 0.4, 0.6, 1.0, 0.5] + [0.5] * 20
    after = [1.0, 1.0, 1.0, 1.0, 0.0, 0.4] + [0.5] * 20
    rows = [row("present", before), row("learned", after, route=Route((1, 3)))]
    store = write(None, task="parcels")
    for event in judged(rows):
        store.append(event)
    markup = section(store, JudgedSection).partition('<details class="fold">')[0]
    cards = [flat(card) for card in re.findall(r"<article.*?</article>", markup, re.S)]
    assert cards == [
        f"test-{i} the present one: {a:.2f} present says {i} the learned one: {b:.2f} "
        f"learned says {i} with instincts 1 , 3"
        for i, a, b in [(0, 0, 1), (1, 0.2, 1), (2, 0.4, 1), (4, 1, 0), (5, 0.5, 0.4)]
    ]
    assert "No test input earned less" not in markup


def test_an_input_is_called_by_what_is_its_own(write: Write) -> None:
    """A template begins every input alike: titles leave that out, of a single input too few."""
    begins = "A visitor of the museum wrote: "
    context = Context.of(write(_RUN), {n: Example(n, f"{begins}{n}\nSo what?") for n in "abc"})
    assert context.title_of("a") == "… a So what?" and context.title_of("none") == "none"
    apart = replace(context, examples={**context.examples, "d": Example("d", "Another one.")})
    assert apart.title_of("a") == f"{begins}a So what?"
    alone = replace(context, examples={"a": Example("a", begins * 9)})
    assert alone.title_of("a").startswith(begins) and len(alone.title_of("a")) == 120


@pytest.mark.parametrize("metered", [True, False])
def test_a_run_from_the_cache_claims_no_calls_past_the_meter(write: Write, metered: bool) -> None:
    store = write()
    for event in events_of(_RUN):
        if isinstance(event, Concluded):
            event = replace(event, rows=tuple({**row, "metered": metered} for row in event.rows))
        store.append(event)
    spent = dict(facts(Context.of(store, {})))["spent"]
    assert str(spent).startswith("0 calls") and ("not metered" in str(spent)) is not metered
