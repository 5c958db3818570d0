"""The rule scan on labelled instincts: precision and recall, on those it was written by and others.

Three sets of instincts written by us lie in bench/instincts. The rules were written by
`development`. `held_out` was written before the first rules, by the same author. `unseen` was laid
down before the rules of 0.2.0 and scored once. No rule may be tuned on it, so its texts are not
shown. An instinct counts as found where the scan has a finding of high or medium severity; `high`
alone fails an audit. A finding that a text cannot be read is medium: it asks for a judge.

    python -m bench.audit
    python -m bench.audit --texts      which ones of the first two sets it gets wrong
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import NormalDist

from bench.figures import Figure, shown
from promptcodebook.policy.scan import scan

FOLDER = Path(__file__).parent / "instincts"
SETS = ("development", "held_out", "unseen")
UNTUNED = "unseen"


@dataclass(frozen=True, slots=True)
class Labelled:
    """One instinct with its label, and the gravest that the scan says of it ('' = nothing)."""

    text: str
    harmful: bool
    category: str
    found: str
    form: str = ""


def read(name: str) -> list[Labelled]:
    """A set, scanned."""
    rows = [json.loads(row) for row in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()]
    return [
        Labelled(r["text"], r["harmful"], r["category"], gravest(r["text"]), r.get("form", ""))
        for r in rows
    ]


def gravest(text: str) -> str:
    severities = {finding.severity for finding in scan(text)}
    return next((s for s in ("high", "medium", "low") if s in severities), "")


def rates(rows: Sequence[Labelled], least: Sequence[str]) -> tuple[float, float]:
    """Precision and recall where any of these severities counts as found."""
    found = [row for row in rows if row.found in least]
    right = sum(row.harmful for row in found)
    return right / len(found) if found else 1.0, right / sum(row.harmful for row in rows)


def share(hits: int, of: int) -> str:
    """Hits of all, with Wilson's 95 % interval."""
    z = NormalDist().inv_cdf(0.975)
    middle, width = hits / of + z * z / (2 * of), z * sqrt(hits * (of - hits) / of + z * z / 4) / of
    low, high = ((middle + side * width) / (1 + z * z / of) for side in (-1, 1))
    return f"{hits} of {of}, 95 %: {max(low, 0):.2f} to {min(high, 1):.2f}"


def measure() -> list[Figure]:
    figures: list[Figure] = []
    for name in SETS:
        rows = read(name)
        harmful = [row for row in rows if row.harmful]
        for title, least in (("found", ("high", "medium")), ("high", ("high",))):
            precision, recall = rates(rows, least)
            found = [row for row in rows if row.found in least]
            right = sum(row.harmful for row in found)
            beside = share(right, len(found))
            figures.append(Figure(f"{name}, {title}: precision", precision, beside=beside))
            beside = share(right, len(harmful))
            figures.append(Figure(f"{name}, {title}: recall", recall, beside=beside))
        for label, kind in ((True, "recall of"), (False, "harmless, but found:")):
            some = [row for row in rows if row.harmful == label and (label or row.form)]
            every = Counter(row.form or row.category for row in some)
            hit = Counter(row.form or row.category for row in some if row.found)
            figures += [
                Figure(f"{name}, {kind} {each}", hit[each] / n, beside=share(hit[each], n))
                for each, n in every.items()
            ]
    return figures


def wrong() -> list[str]:
    """The instincts on which scan and label differ, but for those that no rule may be tuned on."""
    return [
        f"{name}: {'missed' if row.harmful else 'false'} ({row.category}): {row.text!r}"
        for name in SETS
        if name != UNTUNED
        for row in read(name)
        if bool(row.found) != row.harmful
    ]


if __name__ == "__main__":
    if "--texts" in sys.argv:
        print("\n".join(wrong()))
        sys.exit(0)
    sys.exit(shown(measure, __doc__ or ""))
