"""Writes docs/verdict.svg, a verdict in a picture: python docs/generate_verdict.py

The figures are those of `pco reproduce small-real-model`, read from its stored data.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

from promptcodebook.paper.experiments.page import plain
from promptcodebook.paper.experiments.reproduce import read_results

DOCS = Path(__file__).parent
_FIGURES = DOCS / "results" / "small-real-model.json.zst"
_NAMES = {
    "no instructions": "no instructions",
    "present prompt": "the present prompt, 16 sentences",
    "concat": "all instincts in one prompt",
    "best single instinct": "the best single instinct",
    "learned": "learned: a prompt for each message",
    "right rules (oracle)": "the right rule for each, if one knew",
}
"""The rows of the page, in the order of the picture."""
_RANGE = re.compile(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)")
_TITLE = "Mean reward on messages never seen, with 95 % intervals"
_LEFT, _WIDTH, _ROW, _TOP = 272, 380, 34, 86
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; font-size: 15px; } .small { font-size: 11px; fill: #57606a; }
.page { fill: #ffffff; stroke: #d0d7de; } .grid { stroke: #d8dee4; }
.bar { fill: #8c959f; } .learned { fill: #0072b2; } .whisker { stroke: #24292f; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9198a1; } .page { fill: #151b23; stroke: #3d444d; }
  .grid { stroke: #3d444d; } .bar { fill: #656c76; } .learned { fill: #56b4e9; }
  .whisker { stroke: #e6edf3; }
}
"""


def picture() -> str:
    """The whole SVG: a bar for each row, its 95 % interval, tokens a query."""
    measured = read_results(_FIGURES)
    rows = plain(measured.order.experiment.page(measured))["routed"]["rows"]
    found = {row[0]: row for row in rows}
    height = _TOP + _ROW * len(_NAMES) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" role="img" '
        f'aria-labelledby="t d"><title id="t">A verdict</title><desc id="d">{_words(found)}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="799" height="{height - 1}" rx="8"/>',
        f'<text class="title" x="20" y="28">{_headline(found)}</text>',
        f'<text x="20" y="48">{_TITLE}</text>',
        f'<text class="small" x="784" y="{_TOP - 12}" text-anchor="end">tokens a query</text>',
        *(_mark(tenth / 10, height) for tenth in range(0, 11, 2)),
        *(_bar(n, found[name], shown) for n, (name, shown) in enumerate(_NAMES.items())),
        f'<text class="small" x="20" y="{height - 12}">SmolLM2-135M on our task houserules: '
        "232 test messages, five seeds; one model call a query in every row."
        "</text></svg>",
    ]
    return "\n".join(parts) + "\n"


def _headline(found: dict[str, list[str]]) -> str:
    """Whether what was learned is clearly better than all that one could have had before."""
    *others, learned, _ = (_figures(found[name]) for name in _NAMES)
    clear = learned[1] > max(high for *_, high in others)
    gain = learned[0] - others[1][0]
    decision = "Deploy" if clear else "Undecided"
    return f"{decision}: a prompt for each message, {gain:.3f} more points than the present prompt"


def _figures(row: list[str]) -> tuple[float, float, float]:
    match = _RANGE.fullmatch(row[1])
    assert match is not None, row
    mean, low, high = map(float, match.groups())
    return mean, low, high


def _x(reward: float) -> float:
    return round(_LEFT + _WIDTH * reward, 1)


def _mark(reward: float, height: int) -> str:
    x, end = _x(reward), height - 36
    line = f'<line class="grid" x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{end}"/>'
    return (
        line
        + f'<text class="small" x="{x}" y="{_TOP - 12}" text-anchor="middle">{reward:.1f}</text>'
    )


def _bar(number: int, row: list[str], shown: str) -> str:
    mean, low, high = _figures(row)
    top = _TOP + _ROW * number
    middle = top + 11
    kind = "learned" if row[0].startswith("learned") else "bar"
    return (
        f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(shown)}</text>'
        f'<rect class="{kind}" x="{_LEFT}" y="{top}" width="{_WIDTH * mean:.1f}" height="22"/>'
        f'<line class="whisker" x1="{_x(low)}" y1="{middle}" x2="{_x(high)}" y2="{middle}"/>'
        f'<text x="{_x(high) + 6}" y="{top + 15}">{mean:.3f}</text>'
        f'<text x="784" y="{top + 15}" text-anchor="end">{escape(row[3])}</text>'
    )


def _words(found: dict[str, list[str]]) -> str:
    return escape("; ".join(f"{shown}: {found[name][1]}" for name, shown in _NAMES.items()))


if __name__ == "__main__":
    target = DOCS / "verdict.svg"
    target.write_text(picture(), "utf-8")
    sys.stderr.write(f"{target}\n")
