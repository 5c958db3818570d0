"""One module of a compound executor: which stage a request is, and what it makes.

The stage follows from the request: the parts that its last paragraph wants, or the verbs of its
order, and its labelled texts. Names of stages are not seen. A stage makes what one outcome implies:
an answer, for example, can be right only if the material holds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.answers import wrong_answer
from promptcodebook.simulated.orders import content_stems, meaning, patterns, says
from promptcodebook.simulated.request import ChatRequest
from promptcodebook.simulated.world import Problem

Met = Callable[..., bool]
"""Whether this stage's outcome, told apart by the arguments, comes out well."""

_TAGGED = re.compile(r"<([A-Za-z][\w -]{1,40})>\n?(.*?)\n?</\1>", re.DOTALL)
_HASHED = re.compile(r"^\[\[ ## ([\w -]{2,40}) ## \]\]\s*$", re.MULTILINE)
_HELD = re.compile(r"passage|context|summar|note|document|evidence|snippet")
_OUTSIDE = re.compile(r"(llm|model|related|outside|external).*(response|reply|answer)")
_TITLE = re.compile(r"^(?:\W*\[?\d+[\].):]+\s*)?([^|\n]{1,200}?) \| (.*)$", re.MULTILINE)
_THOUGHTS = "Looking at what is given and at what is asked, this follows."
_LABELS = ("SUPPORTED", "NOT_SUPPORTED")
_ENOUGH = 0.5
"""Share of the query's content words that an outside answer must take up to be of help."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A stage as read: its kind (a name among the tables of stages and outputs in `wording.toml`,
    or revise or respond), the fields by name, and the outputs asked for, in order. `weighed` is the
    part of the system message whose words count: all but the stage's own order and form, which are
    the same under every prompt."""

    kind: str
    fields: Mapping[str, str]
    outputs: tuple[str, ...]
    json: bool
    weighed: str

    @property
    def evidence(self) -> str:
        """What the request shows beside the question: passages, context, summaries."""
        return "\n\n".join(v for k, v in self.fields.items() if _HELD.search(k))

    @property
    def hop(self) -> int:
        """Which retrieval it is about: one more than the summaries shown."""
        return 1 + sum(1 for k in self.fields if re.search(r"summar|context|note", k))

    def reply(self, said: str) -> str:
        """The reply in the form asked for."""
        if not self.outputs:
            return said
        values = {name: _THOUGHTS for name in self.outputs[:-1]} | {self.outputs[-1]: said}
        if self.json:
            return json.dumps(values, ensure_ascii=False)
        return "\n\n".join(f"{name}: {value}" for name, value in values.items())


def read_stage(request: ChatRequest, known: str) -> Staged | None:
    """The stage that a request is, or None. `known` is the task input found in it."""
    fields = _fields(request.user)
    if not known or not fields:
        return None
    # The order comes last: anything before it may be any prompt.
    last = max(request.user.rfind(text) + len(text) if text else 0 for text in fields.values())
    tail = re.sub(r"</[\w -]+>", " ", request.user[last:])
    asked = f"{request.system}\n\n{tail}"
    outputs, as_json = _outputs(asked, request.schema)
    kind = _kind(outputs, asked, fields)
    parts = _paragraphs(request.system)
    if outputs and parts and says("part", parts[-1].split("\n")[-1].strip()):
        parts = parts[:-1]
    weighed = "\n\n".join(parts[:-1] if len(parts) > 1 else parts)
    return Staged(kind, fields, outputs, as_json, weighed) if kind else None


def _paragraphs(text: str) -> list[str]:
    return [p for p in re.split(r"\n\s*\n", text) if p.strip()]


def _fields(user: str) -> Mapping[str, str]:
    found = {_name(m[1]): m[2].strip() for m in _TAGGED.finditer(user)}
    if found:
        return found
    marks = list(_HASHED.finditer(user)) or list(patterns("said")["labelled"].finditer(user))
    ends = [mark.start() for mark in marks[1:]] + [len(user)]
    return {_name(m[1]): user[m.end() : end].strip() for m, end in zip(marks, ends, strict=False)}


def _name(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


def _outputs(asked: str, schema: Mapping[str, object] | None) -> tuple[tuple[str, ...], bool]:
    """The parts wanted, in order, and whether as JSON."""
    properties = schema.get("properties") if schema is not None else None
    if isinstance(properties, Mapping):
        return tuple(cast("Mapping[str, object]", properties)), True
    parts = (says("part", line.strip()) for line in asked.split("\n"))
    found = tuple(dict.fromkeys(part[1].strip() for part in parts if part))
    return found, bool(found) and says("json", asked[-600:]) is not None


def _kind(outputs: Sequence[str], asked: str, fields: Mapping[str, str]) -> str:
    # The paragraph that orders is the last one that is not the form of the reply.
    parts = _paragraphs(asked)
    plain = [p for p in parts if not any(says("part", line.strip()) for line in p.split("\n"))]
    order = (plain[-1] if plain else asked).lower()
    kind = meaning("outputs", outputs[-1].lower()) if outputs else ""
    kind = kind or meaning("stages", order)
    if _helped(fields) is not None and (kind in ("answer", "write") or not outputs):
        return "respond"
    if kind == "write" and any(re.match(r"response|draft|reply|answer", k) for k in fields):
        return "revise"
    if kind == "answer" and re.search(r"\bnot[_ ]supported\b", order):
        return "verify"
    return kind


def _helped(fields: Mapping[str, str]) -> str | None:
    """What an outside model said, where that is shown."""
    return next((v for k, v in fields.items() if _OUTSIDE.search(k)), None)


def perform_stage(problem: Problem, staged: Staged, met: Met, variant: int) -> str:
    """The stage's last output."""
    perform = _PERFORMED.get(staged.kind)
    if perform is not None:
        return perform(problem, staged, met)
    gold = problem.gold or ""
    if gold and _evident(problem, staged, gold) and met():
        return gold
    return wrong_answer(gold or "unknown", problem.input, variant)


def _titles(problem: Problem) -> tuple[str, ...]:
    """The titles of the pages that hold the evidence, in the data's order."""
    return tuple(cast("Sequence[str]", problem.fields.get("gold_titles") or ()))


def mentions(text: str, name: str) -> bool:
    """Whether a text names something, ignoring case and white space."""
    flat, wanted = " ".join(text.lower().split()), " ".join(name.lower().split())
    if not wanted or wanted not in flat:
        return False
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", flat) is not None


def _search(problem: Problem, staged: Staged, met: Met) -> str:
    """The first gold page that the notes do not name, else some of the question's plain words."""
    if met(staged.hop):
        missing = (t for t in _titles(problem) if not mentions(staged.evidence, t))
        return next(missing, problem.input.split("\n", 1)[0])
    plain = [w for w in re.findall(r"[a-z]{4,}", problem.input) if content_stems(w)]
    return " ".join(dict.fromkeys(plain[:3])) or "background facts"


def _notes(problem: Problem, staged: Staged, met: Met) -> str:
    """The needed facts of the gold passages shown, or a look at the others."""
    titles = {_plain(t) for t in _titles(problem)}
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
    first, *rest = re.split(r"(?<=[.!?])\s+", text)
    if gold and not mentions(first, gold):
        return " ".join([first, *[s for s in rest if mentions(s, gold)][:1]])
    return first


def _evident(problem: Problem, staged: Staged, gold: str) -> bool:
    """Whether what is shown holds the answer, or names every gold page."""
    if len(gold) > 3 and mentions(staged.evidence, gold):
        return True
    flat = f" {_plain(staged.evidence)} "
    return all(f" {_plain(t)} " in flat for t in _titles(problem))


def _verify(problem: Problem, staged: Staged, met: Met) -> str:
    """The right label when all is shown; without evidence a guess fixed by the claim."""
    gold = (problem.gold or "NOT_SUPPORTED").strip().upper().replace(" ", "_")
    if not _evident(problem, staged, "") or gold not in _LABELS:
        return _LABELS[keyed_int("guess", problem.input) % 2]
    return gold if met() else wrong_answer(gold, problem.input, 0)


def _redact(problem: Problem, _staged: Staged, met: Met) -> str:
    """The query without the pieces that are noticed; vague when the task is not kept."""
    pieces = str(problem.fields.get("pii_units", "")).split("||")
    units = filter(None, (piece.strip() for piece in pieces))
    text = problem.input
    for unit in sorted(dict.fromkeys(units), key=len, reverse=True):
        body = r"\s+".join(re.escape(w) for w in unit.split())
        if met(unit):
            text = re.sub(rf"(?<!\w){body}(?!\w)", "[detail]", text, flags=re.IGNORECASE)
    if met("task"):
        return f"Please help with this request, told in general terms: {text}"
    return "Please help with a piece of writing for somebody."


def _respond(problem: Problem, staged: Staged, met: Met) -> str:
    """What was wanted, if the outside help took up the task; else a general answer."""
    wanted = content_stems(problem.input)
    taken = wanted & content_stems(_helped(staged.fields) or "")
    if len(taken) >= _ENOUGH * len(wanted) and problem.gold and met():
        return problem.gold
    return "In general it helps to be clear about the purpose and to keep a friendly tone."


_PERFORMED: Mapping[str, Callable[[Problem, Staged, Met], str]] = {
    "search": _search,
    "notes": _notes,
    "verify": _verify,
    "redact": _redact,
    "respond": _respond,
}
