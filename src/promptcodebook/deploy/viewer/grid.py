"""The grid of a run: test inputs down, prompts across, and in each cell an answer and its score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from promptcodebook.deploy.viewer.following import FollowedRun
from promptcodebook.deploy.viewer.screens import Screen, screen_of
from promptcodebook.policy.file import BEST_FIXED, BEST_SINGLE
from promptcodebook.report.context import Context
from promptcodebook.report.pages import render
from promptcodebook.report.traces import answer_text
from promptcodebook.report.verdict import ComparedExample, pairs_of, result_of
from promptcodebook.run.slices import slices_of
from promptcodebook.types import Evaluation, Rollout

_ON_A_PAGE = 100
_LONG = 60  # characters of an instinct that call it
_GRADES = 5  # colours, from the lowest fifth of the reward's range to the highest
KINDS = ("wrong", "partly right", "right", "worse", "better", "same")


class GridFilter(NamedTuple):
    """Which test inputs: `only` is one of `KINDS`, `slice` such as 'channel = phone', `instinct`
    the index of one that they get, and `words` are in the input or in an answer. '' = all."""

    page: int = 1
    words: str = ""
    only: str = ""
    slice: str = ""
    instinct: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> GridFilter:
        """Of the address."""
        page = query.get("page", "")
        number = int(page) if page.isdecimal() and len(page) < 9 else 1
        names = ("words", "only", "slice", "instinct")
        return cls(max(1, number), *(query.get(name, "") for name in names))

    @property
    def query(self) -> dict[str, str]:
        """What an address says of it, the page left out."""
        return {n: str(text) for n, text in self._asdict().items() if n != "page" and text}


class GridCell(NamedTuple):
    """One answer; `grade` is the fifth of the reward's range that its reward lies in, from 0."""

    rollout: Rollout
    reward: float
    grade: int


def ordered(rows: Sequence[Evaluation], result: Evaluation) -> list[Evaluation]:
    """The columns: the first row, the best single prompt, the result, then the others."""
    names = [row.name for row in rows]
    single = BEST_SINGLE if BEST_SINGLE in names else BEST_FIXED
    first = [rows[0].name, single, result.name]
    return sorted(rows, key=lambda r: first.index(r.name) if r.name in first else len(first))


def grid_screen(followed: FollowedRun, wanted: GridFilter) -> Screen:
    look, rows = followed.look(), followed.tests()
    context = look.context
    result = result_of(context, rows) or (rows[-1] if rows else None)
    pairs = pairs_of(rows[0], result, context.reward_range) if result else ()
    examples = [context.examples.get(pair.second.example_id) for pair in pairs]
    slices = slices_of(filter(None, examples), context.setting("data.slices") or ())
    columns = ordered(rows, result) if result else []
    cells = {row.name: _cells(row, context) for row in columns}
    shown = [
        (pair, [cells[row.name].get(pair.second.example_id) for row in columns])
        for pair in pairs
        if _fits(pair, wanted, slices.get(pair.second.example_id, ()))
    ]
    words = wanted.words.lower().split()
    shown = [each for each in shown if _holds(context, *each, words)]
    pages = max(1, -(-len(shown) // _ON_A_PAGE))
    page = min(wanted.page, pages)
    body = render(
        "deploy/viewer/templates/grid.html.jinja",
        context=context,
        key=look.key,
        wanted=wanted,
        kinds=[(kind, kind) for kind in KINDS],
        slices=sorted({(name, name) for each in slices.values() for name in each}),
        instincts=[
            (str(k), f"{k}: {text if len(text) < _LONG else text[:_LONG] + '…'}")
            for k, text in enumerate(context.codebook.texts)
        ],
        columns=columns,
        known=len(pairs),
        count=len(shown),
        rows=shown[(page - 1) * _ON_A_PAGE : page * _ON_A_PAGE],
        page=page,
        pages=pages,
        answer_text=answer_text,
    )
    return screen_of(look, "Grid", body)


def _cells(row: Evaluation, context: Context) -> dict[str, GridCell]:
    low, high = context.reward_range
    made = dict[str, GridCell]()
    for rollout, reward in zip(row.rollouts, row.rewards, strict=True):
        share = (reward - low) / ((high - low) or 1.0)
        grade = max(0, min(_GRADES - 1, int(share * _GRADES)))
        made[rollout.example_id] = GridCell(rollout, reward, grade)
    return made


def _fits(pair: ComparedExample, wanted: GridFilter, slices: Sequence[str]) -> bool:
    route = pair.second.route
    indices = [str(k) for k in route.indices] if route else []
    return (
        wanted.only in ("", pair.result, pair.change)
        and wanted.slice in ("", *slices)
        and wanted.instinct in ("", *indices)
    )


def _holds(
    context: Context, pair: ComparedExample, cells: Sequence[GridCell | None], words: Sequence[str]
) -> bool:
    if not words:
        return True
    texts = [context.input_of(pair.second.example_id), pair.second.example_id]
    texts += [answer_text(cell.rollout) for cell in cells if cell]
    text = " ".join(texts).lower()
    return all(word in text for word in words)
