"""What the executor does at each stage of a compound program: consequences of what it was cued to.

A search names the missing page only when that demand is met; notes keep the needed facts only
then; an answer can be right only if what is shown holds it; a rewriting for privacy removes a piece
only when that piece's demand is met.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import combinations

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.facts import gold_titles, mentions, private_units, unit_kind
from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.problem import Problem
from promptcodebook.simulated.stages import Staged, StageKind, weighed
from promptcodebook.simulated.words import content_stems
from promptcodebook.simulated.world import chances
from promptcodebook.simulated.writer_answers import wrong_answer
from promptcodebook.types import Example

__all__ = ["BEHAVIOURS", "Behaviour", "outside"]

Behaviour = Callable[[Mind, Problem, Staged, frozenset[str]], str]
"""(mind, problem, stage, keys of the demands met) -> the stage's last output."""

_TITLE = re.compile(r"^(?:\W*\[?\d+[\].):]+\s*)?([^|\n]{1,200}?) \| (.*)$", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_LABELS = ("SUPPORTED", "NOT_SUPPORTED")
_PLACEHOLDERS = {
    "people": "[person]",
    "organisations": "[organisation]",
    "places": "[place]",
    "dates": "[date]",
    "numbers": "[number]",
    "contacts": "[contact]",
    "links": "[link]",
    "titles": "[occupation]",
    "products": "[product]",
    "rare_words": "[detail]",
}
_TRIED = 6
"""Constraints of one example that a revision looks at, at the most."""
_ENOUGH = 0.5
"""Share of the query's content words that an outside answer must take up to be of help."""


def _search(mind: Mind, problem: Problem, staged: Staged, met: frozenset[str]) -> str:
    """The first gold page that the notes do not name, else some of the question's plain words."""
    titles = gold_titles(mind.world.example(problem.input))
    if f"search:{staged.hop}" in met:
        missing = [t for t in titles if not mentions(staged.evidence, t)]
        if missing:
            return missing[0]
        return problem.input.split("\n", 1)[0]
    plain = [w for w in re.findall(r"[a-z]{4,}", problem.input) if content_stems(w)]
    return " ".join(dict.fromkeys(plain[:3])) or "background facts"


def _notes(mind: Mind, problem: Problem, staged: Staged, met: frozenset[str]) -> str:
    """The needed facts of the gold passages shown, or a look at the others."""
    example = mind.world.example(problem.input)
    titles = {_plain(t) for t in gold_titles(example)}
    shown = [(m[1].strip(), m[2].strip()) for m in _TITLE.finditer(staged.evidence)]
    gold = [(t, text) for t, text in shown if _plain(t) in titles]
    if f"notes:{staged.hop}" in met:
        facts = [f"{title}: {_fact(text, problem.gold)}" for title, text in gold]
        return " ".join(facts) or "None of the passages bears on it."
    others = [t for t, _ in shown if _plain(t) not in titles][:3]
    return f"The passages speak of several things, among them {', '.join(others) or 'little'}."


def _plain(title: str) -> str:
    return " ".join(re.findall(r"\w+", title.lower()))


def _fact(text: str, gold: str | None) -> str:
    """The opening of a passage, and the sentence that holds the gold answer if another does."""
    said = _SENTENCE.split(text)
    first = said[0]
    if gold and not mentions(first, gold):
        return " ".join([first, *[s for s in said[1:] if mentions(s, gold)][:1]])
    return first


def _evident(example: Example | None, staged: Staged, gold: str) -> bool:
    """Whether what is shown holds the answer, or names every gold page."""
    shown = staged.evidence
    if len(gold) > 3 and mentions(shown, gold):
        return True
    titles = gold_titles(example)
    flat = f" {_plain(shown)} "
    return all(f" {_plain(t)} " in flat for t in titles)


def _answer(mind: Mind, problem: Problem, staged: Staged, met: frozenset[str]) -> str:
    gold = problem.gold or ""
    example = mind.world.example(problem.input)
    if "answer" in met and gold and _evident(example, staged, gold):
        return gold
    return wrong_answer(gold or "unknown", problem.input, _variant(mind, problem))


def _verify(mind: Mind, problem: Problem, staged: Staged, met: frozenset[str]) -> str:
    """The right label when cued and shown; without evidence it cannot support the claim."""
    example = mind.world.example(problem.input)
    gold = (problem.gold or "NOT_SUPPORTED").strip().upper().replace(" ", "_")
    if not _evident(example, staged, ""):
        return _LABELS[keyed_int("guess", problem.input) % 2]
    if "verify" in met:
        return gold
    return _LABELS[1 - _LABELS.index(gold)] if gold in _LABELS else _LABELS[0]


def _redact(mind: Mind, problem: Problem, _staged: Staged, met: frozenset[str]) -> str:
    """The query without the pieces whose demand is met; vague when the task was not kept."""
    units = private_units(mind.world.example(problem.input))
    text, left = problem.input, list[str]()
    for unit in sorted(units, key=len, reverse=True):
        if f"unit:{unit}" in met:
            hidden = _PLACEHOLDERS.get(unit_kind(unit), "[detail]")
            text = re.sub(_loosely(unit), hidden, text, flags=re.IGNORECASE)
        elif re.search(_loosely(unit), problem.input, re.IGNORECASE):
            left.append(unit)
    if "task" in met:
        return f"Please help with this request, told in general terms: {text}"
    about = f" It concerns {', '.join(left)}." if left else ""
    return f"Please help with a piece of writing for somebody.{about}"


def _loosely(unit: str) -> str:
    body = r"\s+".join(re.escape(w) for w in unit.split())
    return rf"(?<!\w){body}(?!\w)" if unit.isascii() else body


def outside(mind: Mind) -> str:
    """An outside model's answer: it knows nothing but the request, and takes up its words."""
    words = mind.asked.request.user.split()
    return (
        "Here is a general way to go about it: say what it is for, go through it point by "
        f"point and close politely. Taking up what was asked: {' '.join(words[:400])}"
    )


def _respond(mind: Mind, problem: Problem, staged: Staged, met: frozenset[str]) -> str:
    """What was wanted, if the outside help took up the task; else a general answer."""
    wanted = content_stems(problem.input)
    shared = wanted & content_stems(staged.helped)
    helped = len(shared) >= _ENOUGH * len(wanted)
    if "respond" in met and helped and problem.gold:
        return problem.gold
    return "In general it helps to be clear about the purpose and to keep a friendly tone."


def _write(mind: Mind, problem: Problem, _staged: Staged, met: frozenset[str]) -> str:
    return mind.world.writer(problem, met, _turn(mind, problem))


def _revise(mind: Mind, problem: Problem, staged: Staged, _met: frozenset[str]) -> str:
    """The draft, if it keeps every constraint; else a response that keeps what it kept, and what a
    second look mends. A draft from elsewhere is rewritten as if it kept none."""
    request = mind.asked.request
    weighs = weighed(request, staged)
    chance = chances(mind.world, problem, request.system, mind.settings, weighs)
    held = _kept(mind, problem, staged.draft)
    mended = {
        key
        for key, one in chance.items()
        if mind.draw.shared(problem.input, key, "second") < mind.settings.second_look * one
    }
    if held is None:
        return mind.world.writer(problem, frozenset(mended), _turn(mind, problem))
    if mended <= held:
        return staged.draft
    return mind.world.writer(problem, held | mended, _turn(mind, problem))


def _kept(mind: Mind, problem: Problem, draft: str) -> frozenset[str] | None:
    """Which demands the draft was written to keep: the smallest set that gives this very text."""
    keys = [d.key for d in problem.demands][:_TRIED]
    for size in range(len(keys) + 1):
        for chosen in combinations(keys, size):
            found = frozenset(chosen)
            if mind.world.writer(problem, found, _turn(mind, problem)).strip() == draft.strip():
                return found
    return None


def _turn(mind: Mind, problem: Problem) -> int:
    """Which wording: fixed by the input, so that a revision knows the draft again."""
    return keyed_int(mind.draw.world_seed, "variant", problem.input) % 997


def _variant(mind: Mind, problem: Problem) -> int:
    return keyed_int(mind.draw.world_seed, mind.draw.sample, "variant", problem.input) % 997


BEHAVIOURS: Mapping[StageKind, Behaviour] = {
    "search": _search,
    "notes": _notes,
    "answer": _answer,
    "verify": _verify,
    "redact": _redact,
    "respond": _respond,
    "revise": _revise,
    "write": _write,
}
