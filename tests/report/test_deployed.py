"""The report speaks of the state that every other command speaks of, and marks where it stands."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from promptcodebook.policy.references import Reference, resolve
from promptcodebook.report import render_report
from promptcodebook.report.context import Context
from promptcodebook.report.history import FIRST, LAST, REFUSED, HistorySection
from promptcodebook.report.training import CodebookSection
from promptcodebook.store.events import Event, Started, Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.types import Rewrite, Variable
from tests.report.scripted_run import ScriptedRun
from tests.report.strict import flat, section

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


def test_the_top_of_the_page_names_the_deployed_state(write: Write) -> None:
    text = flat(render_report(write(STOPPED)))
    assert "deployed the state after step 20" in text


def test_the_titles_of_the_biographies_are_the_deployed_texts(write: Write) -> None:
    store = write(STOPPED)
    titles = re.findall(r'<span class="text">(.*?)</span>', section(store, HistorySection))
    assert titles == [entry.text for entry in policy_of(store).file.codebook]
    assert titles != list(store.outline().parameters.codebook.texts)  # type: ignore[union-attr]


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
