"""What the executor does at each stage of a compound program: consequences of one outcome a stage.

A search names the missing page only when it comes out well; notes keep the needed facts only then;
an answer can be right only if what is shown holds it; a private piece goes only when it is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.answers import wrong_answer
from promptcodebook.simulated.stages import Staged
from promptcodebook.simulated.words import content_stems
from promptcodebook.simulated.world import Problem
from promptcodebook.types import Example

__all__ = ["gold_titles", "mentions", "perform_stage", "private_units"]

Met = Callable[..., bool]
"""Whether this stage's outcome, told apart by the arguments, comes out well."""

_TITLE = re.compile(r"^(?:\W*\[?\d+[\].):]+\s*)?([^|\n]{1,200}?) \| (.*)$", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_LABELS = ("SUPPORTED", "NOT_SUPPORTED")
_ENOUGH = 0.5
"""Share of the query's content words that an outside answer must take up to be of help."""


def gold_titles(example: Example | None) -> tuple[str, ...]:
    """The titles of the pages that hold the evidence, in the data's order."""
    fields: Mapping[str, object] = example.fields if example is not None else {}
    named = fields.get("gold_titles") or fields.get("titles")
    if isinstance(named, list | tuple):
        return tuple(dict.fromkeys(str(t) for t in cast("Iterable[object]", named)))
    facts = fields.get("supporting_facts")
    if isinstance(facts, list | tuple):
        rows = cast("Iterable[Sequence[object]]", facts)
        return tuple(dict.fromkeys(str(row[0]) for row in rows if row))
    return ()


def private_units(example: Example | None) -> tuple[str, ...]:
    """The distinct private pieces of a query."""
    said = example.fields.get("pii_units") if example is not None else None
    if isinstance(said, str):
        units: Iterable[object] = said.split("||")
    else:
        units = cast("Iterable[object]", said) if isinstance(said, list | tuple) else ()
    return tuple(dict.fromkeys(u for u in (str(x).strip() for x in units) if u))


def mentions(text: str, name: str) -> bool:
    """Whether a text names something, ignoring case and white space."""
    flat, wanted = " ".join(text.lower().split()), " ".join(name.lower().split())
    if not wanted or wanted not in flat:
        return False
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", flat) is not None


def perform_stage(problem: Problem, staged: Staged, met: Met, variant: int) -> str:
    """The stage's last output."""
    match staged.kind:
        case "search":
            return _search(problem, staged, met)
        case "notes":
            return _notes(problem, staged, met)
        case "verify":
            return _verify(problem, staged, met)
        case "redact":
            return _redact(problem, met)
        case "respond":
            return _respond(problem, staged, met)
        case _:
            gold = problem.gold or ""
            if gold and _evident(problem, staged, gold) and met():
                return gold
            return wrong_answer(gold or "unknown", problem.input, variant)


def _search(problem: Problem, staged: Staged, met: Met) -> str:
    """The first gold page that the notes do not name, else some of the question's plain words."""
    if met(staged.hop):
        missing = [t for t in gold_titles(problem.example) if not mentions(staged.evidence, t)]
        return missing[0] if missing else problem.input.split("\n", 1)[0]
    plain = [w for w in re.findall(r"[a-z]{4,}", problem.input) if content_stems(w)]
    return " ".join(dict.fromkeys(plain[:3])) or "background facts"


def _notes(problem: Problem, staged: Staged, met: Met) -> str:
    """The needed facts of the gold passages shown, or a look at the others."""
    titles = {_plain(t) for t in gold_titles(problem.example)}
    shown = [(m[1].strip(), m[2].strip()) for m in _TITLE.finditer(staged.evidence)]
    if met(staged.hop):
        facts = [f"{t}: {_fact(text, problem.gold)}" for t, text in shown if _plain(t) in titles]
        return " ".join(facts) or "None of the passages bears on it."
    others = [t for t, _ in shown if _plain(t) not in titles][:3]
    return f"The passages speak of several things, among them {', '.join(others) or 'little'}."


def _plain(title: str) -> str:
    return " ".join(re.findall(r"\w+", title.lower()))


def _fact(text: str, gold: str | None) -> str:
    """The opening of a passage, and the sentence that holds the gold answer if another does."""
    first, *rest = _SENTENCE.split(text)
    if gold and not mentions(first, gold):
        return " ".join([first, *[s for s in rest if mentions(s, gold)][:1]])
    return first


def _evident(problem: Problem, staged: Staged, gold: str) -> bool:
    """Whether what is shown holds the answer, or names every gold page."""
    if len(gold) > 3 and mentions(staged.evidence, gold):
        return True
    flat = f" {_plain(staged.evidence)} "
    return all(f" {_plain(t)} " in flat for t in gold_titles(problem.example))


def _verify(problem: Problem, staged: Staged, met: Met) -> str:
    """The right label when all is shown; without evidence a guess fixed by the claim."""
    gold = (problem.gold or "NOT_SUPPORTED").strip().upper().replace(" ", "_")
    if not _evident(problem, staged, "") or gold not in _LABELS:
        return _LABELS[keyed_int("guess", problem.input) % 2]
    return gold if met() else wrong_answer(gold, problem.input, 0)


def _redact(problem: Problem, met: Met) -> str:
    """The query without the pieces that are noticed; vague when the task is not kept."""
    text = problem.input
    for unit in sorted(private_units(problem.example), key=len, reverse=True):
        body = r"\s+".join(re.escape(w) for w in unit.split())
        if met(unit):
            text = re.sub(rf"(?<!\w){body}(?!\w)", "[detail]", text, flags=re.IGNORECASE)
    if met("task"):
        return f"Please help with this request, told in general terms: {text}"
    return "Please help with a piece of writing for somebody."


def _respond(problem: Problem, staged: Staged, met: Met) -> str:
    """What was wanted, if the outside help took up the task; else a general answer."""
    wanted = content_stems(problem.input)
    helped = len(wanted & content_stems(staged.helped)) >= _ENOUGH * len(wanted)
    if helped and problem.gold and met():
        return problem.gold
    return "In general it helps to be clear about the purpose and to keep a friendly tone."
