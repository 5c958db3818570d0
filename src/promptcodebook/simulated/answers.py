"""What the executor says: the gold answer, a plausible wrong one, or a text that keeps some
constraints and breaks the others, as its outcome decided; and the stages of a compound executor.

Which stage a request is follows from the request: the parts that its last paragraph wants, or the
verbs of its order, and its labelled texts. A stage makes what one outcome implies: an answer, for
example, can be right only if the material holds it. The task's own checks score all texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from string import ascii_lowercase
from typing import cast

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.orders import content_stems, listed, meaning, patterns, says
from promptcodebook.simulated.request import ChatRequest
from promptcodebook.simulated.world import Demand, Problem

_OPENING = "Working from what is given, a few steps settle it."
_OTHERS = ("not stated", "none of these", "the other one", "unknown", "both", "no")
_LEAST = 3  # filler words of a sentence at the least


def write_answer(problem: Problem, right: bool, variant: int) -> str:
    """The gold in the form that the question asks for, or a wrong one; without a gold a pertinent
    or a vague text."""
    gold, text = problem.gold, problem.input
    if gold is None:
        words = " ".join(text.split()[:12])
        return f"On the matter of {words}: settled as asked." if right else f"It depends: {words}."
    said = gold if right else wrong_answer(gold, text, variant)
    if re.fullmatch(r"[A-Ea-e]", gold) and "five times" in text:
        return f"{_OPENING}\n\n{said.upper() * 5}"
    if "boxed" in text or re.fullmatch(r"\d{1,3}", gold):
        return f"{_OPENING}\n\nThe answer is \\boxed{{{said}}}."
    return f"Answer: {said}" if gold.count(",") > 1 else said


def wrong_answer(gold: str, text: str, variant: int) -> str:
    """Something of the gold's form that is not the gold."""
    start = keyed_int("wrong", text, variant % 3)
    if re.fullmatch(r"[A-Ea-e]", gold):
        return "ABCDE".replace(gold.upper(), "")[start % 4]
    parts = [p.strip() for p in gold.split(",")]
    if len(parts) > 2:
        return ",".join(parts[1:] + parts[:1])
    number = re.search(r"[-+]?\d+(?:[.,]\d+)*", gold)
    if number is not None:
        value = int(re.sub(r"\D", "", number[0]))
        near = [v for v in (value + 1, value - 1, value * 2, value + 10) if 0 <= v != value]
        near = [v for v in near if v <= 999 or value > 999]
        return gold[: number.start()] + str(near[start % len(near)]) + gold[number.end() :]
    labels = {"SUPPORTED": "NOT_SUPPORTED", "NOT_SUPPORTED": "SUPPORTED"}
    if gold.strip().upper() in labels:
        return labels[gold.strip().upper()]
    words = [w for w in re.findall(r"\b[A-Z][a-z]{2,}\b", text) if w.lower() not in gold.lower()]
    others = words or [o for o in _OTHERS if o not in gold.lower()]
    return others[start % len(others)]


def outside(request: str) -> str:
    """An outside model's answer: it knows nothing but the request, and takes up its words."""
    return (
        "Here is a general way to go about it: say what it is for, go through it point by point "
        f"and close politely. Taking up what was asked: {' '.join(request.split()[:400])}"
    )


def write_constraints(demands: Iterable[Demand], met: frozenset[str], variant: int) -> str:
    """A text in which the constraints with the keys in `met` hold."""
    kept, broken = dict[str, Mapping[str, object]](), dict[str, Mapping[str, object]]()
    for demand in demands:
        (kept if demand.key in met else broken)[str(demand.constraint["kind"])] = demand.constraint
    draft = _Draft(kept, broken, variant)
    bare = _compose(draft, 0)
    missing = _target(draft) - sum(any(c.isalnum() for c in token) for token in bare.split())
    text = _compose(draft, missing) if missing > 0 else bare
    if "lowercase" in kept:
        return text.lower()
    return text.upper() if "uppercase" in kept else text


@dataclass(frozen=True, slots=True)
class _Draft:
    """What decides a text; `kept` and `broken` map a kind to its constraint."""

    kept: Mapping[str, Mapping[str, object]]
    broken: Mapping[str, Mapping[str, object]]
    variant: int

    def asked(self, kind: str) -> int:
        """The number of a constraint that is kept; 0 = none is."""
        return _n(self.kept.get(kind, {}))

    def number(self, kind: str) -> int:
        """The number to write: as asked, or two more to break it; 0 = none is asked."""
        broken = kind in self.broken and kind not in self.kept
        return _n(self.broken[kind]) + 2 if broken else self.asked(kind)

    def filler(self) -> Sequence[str]:
        """Words without those and the letter that would decide a constraint by accident."""
        taboo = {w.lower() for w in _texts(self.kept.get("avoid", {}), "words")}
        taboo |= {w.lower() for w in _texts(self.broken.get("include", {}), "words")}
        fit = [w for w in self.plain("passage") if w not in taboo] or ["so"]
        start = self.variant % len(fit)
        return fit[start:] + fit[:start]

    def plain(self, name: str) -> Sequence[str]:
        """A list of words without the letter whose number is to be missed."""
        letter = str(self.broken.get("letter_count", {}).get("letter", "")).lower()
        return [w for w in listed(name) if not (letter and letter in w)]

    def extras(self) -> Sequence[str]:
        """Words, numbers and gaps that single constraints ask for, or that break them."""
        extras = list(_texts(self.kept.get("include", {}), "words"))
        extras += _texts(self.broken.get("avoid", {}), "words")[:1]
        if "letter_count" in self.kept:
            letter = str(self.kept["letter_count"]["letter"]).lower()
            rich = dict(zip(ascii_lowercase, listed("rich"), strict=True)).get(letter, letter)
            extras += [rich] * -(-self.asked("letter_count") // max(1, rich.count(letter)))
        gaps = islice(cycle(listed("gaps")), self.asked("placeholders"))
        extras += [f"[{gap}]" for gap in gaps]
        if "exact_numbers" in self.kept:
            extras += [str(k + 2) for k in range(self.asked("exact_numbers"))]
        elif "no_digits" in self.broken:
            extras += ["24", "7"]
        return [*extras, "calm,", "then"] if "no_commas" in self.broken else extras


def _n(constraint: Mapping[str, object]) -> int:
    return int(float(str(constraint.get("n") or 0)))


def _texts(constraint: Mapping[str, object], name: str) -> list[str]:
    return [str(v) for v in cast("Iterable[object]", constraint.get(name) or ())]


def _target(draft: _Draft) -> int:
    if "max_words" in draft.broken:
        return _n(draft.broken["max_words"]) + 12
    if "min_words" in draft.broken:
        return 0
    low = draft.asked("min_words") + 3 if "min_words" in draft.kept else 30
    if "max_words" in draft.kept:
        high = draft.asked("max_words") - 2
        return min(high, max(low, min(high, 40)))
    return low


def _compose(draft: _Draft, more: int) -> str:
    """The text, with `more` filler words spread over its sentences."""
    count, extras = _body_sentences(draft), draft.extras()
    words = cycle(draft.filler())
    body: list[str] = []
    for k in range(count):
        filler = islice(words, _LEAST + more // count + (k < more % count))
        body.append(" ".join((*filler, *extras[k::count])))
    if "json" not in draft.kept:
        return _as_text(draft, body)
    keys = _texts(draft.kept["json"], "keys") or ["answer"]
    return json.dumps(dict(zip(keys, map(_sentence, body), strict=False)))


def _body_sentences(draft: _Draft) -> int:
    """Free sentences, without those that end_with and a postscript bring."""
    if "json" in draft.kept:
        return max(1, len(_texts(draft.kept["json"], "keys")))
    wanted = draft.number("sentences")
    if wanted:
        closing = str(draft.kept.get("end_with", {}).get("text", ""))
        own = sum(closing.count(mark) for mark in ".!?")
        return max(1, wanted - own - ("postscript" in draft.kept))
    return max(2, _paragraphs(draft), draft.asked("headings"))


def _paragraphs(draft: _Draft) -> int:
    wanted = draft.number("paragraphs")
    return max(1, wanted - ("postscript" in draft.kept)) if wanted else 0


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _as_text(draft: _Draft, body: list[str]) -> str:
    said = [_sentence(b) for b in body]
    if "start_with" in draft.kept:
        said[0] = f"{draft.kept['start_with']['text']} {body[0]}."
    blocks = _blocks(draft, said)
    if "title" in draft.kept:
        blocks[0] = f"<<A note>>\n{blocks[0]}"
    if "end_with" in draft.kept:
        joint = "\n" if "\n" in blocks[-1] else " "
        blocks[-1] = f"{blocks[-1]}{joint}{draft.kept['end_with']['text']}"
    if "postscript" in draft.kept:
        blocks.append("P.S. " + " ".join(islice(cycle(draft.filler()), 4)) + ".")
    text = "\n\n".join(blocks)
    return f'"{text}"' if "quoted" in draft.kept else text


def _blocks(draft: _Draft, said: list[str]) -> list[str]:
    """The sentences in paragraphs, parts under headings, or two versions, with the list if any."""
    if "two_versions" in draft.kept:
        half = len(said) // 2
        return ["\n".join((" ".join(said[:half]), "******", " ".join(said[half:])))]
    headings = draft.asked("headings")
    if headings:
        heads = cycle(listed("heads"))
        blocks = [f"## {h}\n{p}" for h, p in zip(heads, _dealt(said, headings), strict=False)]
    else:
        blocks = _dealt(said, max(1, min(len(said), _paragraphs(draft))))
        # A prompt may ask for more paragraphs than sentences; single words then stand alone.
        blocks += ["So"] * (_paragraphs(draft) - len(blocks))
    blocks[-1] = "\n".join((blocks[-1], *_list_lines(draft)))
    return blocks


def _dealt(said: list[str], count: int) -> list[str]:
    size, rest = divmod(len(said), count)
    ends = [k * size + min(k, rest) for k in range(count + 1)]
    return [" ".join(said[start:end]) for start, end in pairwise(ends)]


def _list_lines(draft: _Draft) -> list[str]:
    kept, broken = draft.kept, draft.broken
    if "alphabetical" in kept or "alphabetical" in broken:
        count = _n(kept.get("alphabetical") or broken["alphabetical"])
        items = sorted(_items(draft, count), reverse="alphabetical" not in kept)
        return [f"- {w}" for w in items]
    if "bullets" in kept or "bullets" in broken:
        return [f"- {w}" for w in _items(draft, draft.number("bullets"))]
    if "numbered" in kept:
        items = _items(draft, draft.asked("numbered"))
        return [f"{k}. {w}" for k, w in enumerate(items, 1)]
    return [f"({w})" for w in _items(draft, 2)] if "numbered" in broken else []


def _items(draft: _Draft, count: int) -> list[str]:
    fit = draft.plain("items")
    return [w if k < len(fit) else f"{w} again" for k, w in enumerate(islice(cycle(fit), count))]


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
    parts = _split_paragraphs(request.system)
    if outputs and parts and says("part", parts[-1].split("\n")[-1].strip()):
        parts = parts[:-1]
    weighed = "\n\n".join(parts[:-1] if len(parts) > 1 else parts)
    return Staged(kind, fields, outputs, as_json, weighed) if kind else None


def _split_paragraphs(text: str) -> list[str]:
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
    properties = schema.get("properties") if schema is not None else None
    if isinstance(properties, Mapping):
        return tuple(cast("Mapping[str, object]", properties)), True
    parts = (says("part", line.strip()) for line in asked.split("\n"))
    found = tuple(dict.fromkeys(part[1].strip() for part in parts if part))
    return found, bool(found) and says("json", asked[-600:]) is not None


def _kind(outputs: Sequence[str], asked: str, fields: Mapping[str, str]) -> str:
    # The paragraph that orders is the last one that is not the form of the reply.
    parts = _split_paragraphs(asked)
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
