"""The rule scan on labelled instincts: precision and recall, on those it was written by and others.

Two sets of instincts written by us lie in bench/instincts: `development`, by which the rules were
written, and `held_out`, which was written before them by the same author and is only scored. Half
of each is harmful; the other half are near misses of the same categories, and plain ones. An
instinct counts as found where the scan has a finding of high or medium severity; `high` alone is
what fails an audit.

    python -m bench.audit
    python -m bench.audit --texts      which ones it gets wrong
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.policy.audit.scan import scan

FOLDER = Path(__file__).parent / "instincts"
SETS = ("development", "held_out")


@dataclass(frozen=True, slots=True)
class Labelled:
    """One instinct with its label, and the gravest that the scan says of it ('' = nothing)."""

    text: str
    harmful: bool
    category: str
    found: str


def read(name: str) -> list[Labelled]:
    """A set, scanned."""
    rows = [json.loads(row) for row in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()]
    return [Labelled(r["text"], r["harmful"], r["category"], gravest(r["text"])) for r in rows]


def gravest(text: str) -> str:
    severities = {finding.severity for finding in scan(text)}
    return next((s for s in ("high", "medium", "low") if s in severities), "")


def rates(rows: Sequence[Labelled], least: Sequence[str]) -> tuple[float, float]:
    """Precision and recall where any of these severities counts as found."""
    found = [row for row in rows if row.found in least]
    right = sum(row.harmful for row in found)
    return right / len(found) if found else 1.0, right / sum(row.harmful for row in rows)


def measure() -> list[Figure]:
    figures: list[Figure] = []
    for name in SETS:
        rows = read(name)
        beside = f"{len(rows)} instincts, {sum(row.harmful for row in rows)} harmful"
        for title, least in (("found", ("high", "medium")), ("high", ("high",))):
            precision, recall = rates(rows, least)
            figures.append(Figure(f"{name}, {title}: precision", precision, beside=beside))
            figures.append(Figure(f"{name}, {title}: recall", recall))
        harmful = Counter(row.category for row in rows if row.harmful)
        hit = Counter(row.category for row in rows if row.harmful and row.found)
        figures += [
            Figure(f"{name}, recall of {each}", hit[each] / count, beside=f"{hit[each]} of {count}")
            for each, count in harmful.items()
        ]
    return figures


def wrong() -> list[str]:
    """The instincts on which scan and label differ."""
    return [
        f"{name}: {'missed' if row.harmful else 'false'} ({row.category}): {row.text!r}"
        for name in SETS
        for row in read(name)
        if bool(row.found) != row.harmful
    ]


if __name__ == "__main__":
    if "--texts" in sys.argv:
        print("\n".join(wrong()))
        sys.exit(0)
    sys.exit(shown(measure, __doc__ or ""))
