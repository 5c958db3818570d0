"""The simulated executor: it obeys the orders in its system prompt, even where they do harm. What
comes out well is drawn first; then a text is written that has just that outcome.

An order without a condition is obeyed on every input, and breaks there what it contradicts; one
with a condition where the condition holds. Two contradictory orders both fail, and so does an order
with another number than the input's. A broken demand is hardly ever met. On data whose rows have
`constraints` the text keeps exactly the met demands, and the task's checks score it. Elsewhere it
is the gold answer or a plausible wrong one. In programs each stage has one such outcome, and an
answer can be right only if the shown text holds it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from string import ascii_lowercase
from typing import cast

from promptcodebook.base.randomness import keyed_int
from promptcodebook.paper.simulated.mind import Mind, Staged
from promptcodebook.paper.simulated.orders import content_stems, listed
from promptcodebook.paper.simulated.world import Demand, KnownInput, SimulatedSettings, World


@dataclass(frozen=True, slots=True)
class Obeyed:
    """What a prompt does to one input: skills it brings out or breaks, numbers by skill, words."""

    told: frozenset[int]
    broken: frozenset[int]
    numbers: Mapping[int, int]
    words: int


def obey(world: World, problem: KnownInput, prompt: str, weighed: str | None = None) -> Obeyed:
    """A prompt's orders for the input, and their conflicts. Only words of `weighed` count."""
    orders = [o for o in world.skills.orders(prompt) if o.applies(problem.shown, problem.words)]
    done = {o.skill for o in orders if not o.against}
    contested = {a for a in done for b in done if world.skills.contradict(a, b)}
    broken = contested | {o.skill for o in orders if o.against}
    for skill in done:
        broken |= world.skills[skill].breaks
    numbers = {o.skill: o.number for o in orders if o.number is not None and not o.against}
    words = len((prompt if weighed is None else weighed).split())
    return Obeyed(frozenset(done - broken), frozenset(broken), numbers, words)


def chance_of(
    about: frozenset[int], needs: frozenset[int], obeyed: Obeyed, settings: SimulatedSettings
) -> float:
    """The chance that something about these skills, of which `needs` are lacking, goes right."""
    lacked = needs & about
    chance = settings.able
    if lacked:
        share = len(lacked & obeyed.told) / len(lacked)
        chance = settings.unable + (settings.able - settings.unable) * share
    if about:
        chance *= 1.0 - len(about & obeyed.broken) / len(about)
    heavy = max(0, obeyed.words - settings.free_words) / 100.0
    return min(settings.ceiling, max(settings.floor, chance - settings.load * heavy))


_GENERAL = (
    "Here is a general way to go about it: say what it is for, go through it point by point and "
    "close politely."
)


def execute(mind: Mind) -> str:
    request, problem = mind.asked.request, mind.problem
    if mind.world.name == "pupa" and not request.system.strip():
        # An outside model knows nothing but the request, and takes up its words.
        return f"{_GENERAL} Taking up what was asked: {' '.join(request.user.split()[:400])}"
    obeyed = obey(mind.world, problem, request.system)
    if problem.demands:
        return _written(mind, obeyed)
    right = _is_met(mind, "answer", problem.shown, obeyed)
    return write_answer(problem, right, _variant(mind))


def perform(mind: Mind) -> str:
    staged, problem = mind.asked.staged, mind.problem
    assert staged is not None
    obeyed = obey(mind.world, problem, mind.asked.request.system, staged.weighed)
    if problem.demands and staged.kind in ("write", "revise"):
        return staged.reply(_written(mind, obeyed))

    def met(*key: object) -> bool:
        return _is_met(mind, f"{staged.kind}:{key}", problem.shown, obeyed)

    if (performed := _PERFORMED.get(staged.kind)) is not None:
        return staged.reply(performed(problem, staged, met))
    gold = problem.gold or ""
    if gold and _evident(problem, staged, gold) and met():
        return staged.reply(gold)
    return staged.reply(wrong_answer(gold or "unknown", problem.input, _variant(mind)))


def _is_met(mind: Mind, key: str, about: frozenset[int], obeyed: Obeyed) -> bool:
    chance = chance_of(about, mind.problem.needs, obeyed, mind.settings)
    common = mind.keyed("common", mind.problem.input, key) / 2**63 < mind.settings.shared
    prompt = () if common else (mind.asked.request.system,)
    return mind.keyed("met", mind.problem.input, key, *prompt) / 2**63 < chance


def _written(mind: Mind, obeyed: Obeyed) -> str:
    def keeps(demand: Demand) -> bool:
        if demand.skill is None:
            return False
        told, wanted = obeyed.numbers.get(demand.skill), demand.constraint.get("n")
        if told is not None and wanted is not None and told != wanted:
            return False
        return _is_met(mind, demand.key, frozenset((demand.skill,)), obeyed)

    return write_constraints(mind.problem.demands, keeps, _variant(mind))


def _variant(mind: Mind) -> int:
    return mind.keyed("variant", mind.problem.input) % 997


_OPENING = "Working from what is given, a few steps settle it."
_OTHERS = ("not stated", "none of these", "the other one", "unknown", "both", "no")


def write_answer(problem: KnownInput, right: bool, variant: int) -> str:
    """The gold in the form that is asked for, or a wrong one; without a gold a vague text."""
    gold, text = problem.gold, problem.input
    if gold is None:
        words = " ".join(text.split()[:12])
        return f"On the matter of {words}: settled as asked." if right else f"It depends: {words}."
    answer = gold if right else wrong_answer(gold, text, variant)
    if re.fullmatch(r"[A-Ea-e]", gold) and "five times" in text:
        return f"{_OPENING}\n\n{answer.upper() * 5}"
    if "boxed" in text or re.fullmatch(r"\d{1,3}", gold):
        return f"{_OPENING}\n\nThe answer is \\boxed{{{answer}}}."
    return f"Answer: {answer}" if gold.count(",") > 1 else answer


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


_LEAST = 3  # filler words of a sentence at the least


def write_constraints(
    demands: Iterable[Demand], keeps: Callable[[Demand], bool], variant: int
) -> str:
    kept, broken = dict[str, Mapping[str, object]](), dict[str, Mapping[str, object]]()
    for demand in demands:
        (kept if keeps(demand) else broken)[str(demand.constraint["kind"])] = demand.constraint
    draft = _Draft(kept, broken, variant)
    bare = draft.text(0)
    missing = draft.target() - sum(any(c.isalnum() for c in token) for token in bare.split())
    text = draft.text(missing) if missing > 0 else bare
    if "lowercase" in kept:
        return text.lower()
    return text.upper() if "uppercase" in kept else text


@dataclass(frozen=True, slots=True)
class _Draft:
    kept: Mapping[str, Mapping[str, object]]
    broken: Mapping[str, Mapping[str, object]]
    variant: int

    def target(self) -> int:
        if "max_words" in self.broken:
            return _n(self.broken["max_words"]) + 12
        if "min_words" in self.broken:
            return 0
        low = self._asked("min_words") + 3 if "min_words" in self.kept else 30
        high = self._asked("max_words") - 2
        return min(high, max(low, min(high, 40))) if "max_words" in self.kept else low

    def text(self, more: int) -> str:
        """The text, with `more` filler words spread over its sentences."""
        extras, words = self._extras(), cycle(self._filler())
        keys = _texts(self.kept["json"], "keys") if "json" in self.kept else None
        # Free sentences, without those that end_with and a postscript bring.
        count = max(2, self._paragraphs(), self._asked("headings"))
        if keys is not None:
            count = max(1, len(keys))
        elif wanted := self._number("sentences"):
            closing = str(self.kept.get("end_with", {}).get("text", ""))
            own = sum(closing.count(mark) for mark in ".!?")
            count = max(1, wanted - own - ("postscript" in self.kept))
        body: list[str] = []
        for k in range(count):
            filler = islice(words, _LEAST + more // count + (k < more % count))
            body.append(" ".join((*filler, *extras[k::count])))
        sentences = [f"{b[:1].upper()}{b[1:]}." for b in body]
        if keys is not None:
            return json.dumps(dict(zip(keys or ["answer"], sentences, strict=False)))
        if "start_with" in self.kept:
            sentences[0] = f"{self.kept['start_with']['text']} {body[0]}."
        blocks = self._blocks(sentences)
        if "title" in self.kept:
            blocks[0] = f"<<A note>>\n{blocks[0]}"
        if "end_with" in self.kept:
            joint = "\n" if "\n" in blocks[-1] else " "
            blocks[-1] = f"{blocks[-1]}{joint}{self.kept['end_with']['text']}"
        if "postscript" in self.kept:
            blocks.append("P.S. " + " ".join(islice(cycle(self._filler()), 4)) + ".")
        text = "\n\n".join(blocks)
        return f'"{text}"' if "quoted" in self.kept else text

    def _blocks(self, sentences: list[str]) -> list[str]:
        if "two_versions" in self.kept:
            half = len(sentences) // 2
            return ["\n".join((" ".join(sentences[:half]), "******", " ".join(sentences[half:])))]
        headings, paragraphs = self._asked("headings"), self._paragraphs()
        count = headings or max(1, min(len(sentences), paragraphs))
        size, rest = divmod(len(sentences), count)
        ends = [k * size + min(k, rest) for k in range(count + 1)]
        blocks = [" ".join(sentences[start:end]) for start, end in pairwise(ends)]
        if headings:
            blocks = [f"## {h}\n{p}" for h, p in zip(cycle(listed("heads")), blocks, strict=False)]
        else:
            # A prompt may ask for more paragraphs than sentences; single words then stand alone.
            blocks += ["So"] * (paragraphs - len(blocks))
        blocks[-1] = "\n".join((blocks[-1], *self._list_lines()))
        return blocks

    def _paragraphs(self) -> int:
        wanted = self._number("paragraphs")
        return max(1, wanted - ("postscript" in self.kept)) if wanted else 0

    def _list_lines(self) -> list[str]:
        kept, broken = self.kept, self.broken
        if "alphabetical" in kept or "alphabetical" in broken:
            count = _n(kept.get("alphabetical") or broken["alphabetical"])
            items = sorted(self._items(count), reverse="alphabetical" not in kept)
            return [f"- {w}" for w in items]
        if "bullets" in kept or "bullets" in broken:
            return [f"- {w}" for w in self._items(self._number("bullets"))]
        if "numbered" in kept:
            return [f"{k}. {w}" for k, w in enumerate(self._items(self._asked("numbered")), 1)]
        return [f"({w})" for w in self._items(2)] if "numbered" in broken else []

    def _items(self, count: int) -> list[str]:
        fit = self._plain("items")
        return [w if k < len(fit) else f"{w} again" for k, w in zip(range(count), cycle(fit))]

    def _asked(self, kind: str) -> int:
        """The number of a constraint that is kept; 0 = none is."""
        return _n(self.kept.get(kind, {}))

    def _number(self, kind: str) -> int:
        """The number to write: as asked, or two more to break it; 0 = none is asked."""
        broken = kind in self.broken and kind not in self.kept
        return _n(self.broken[kind]) + 2 if broken else self._asked(kind)

    def _filler(self) -> Sequence[str]:
        """Words without those and the letter that would decide a constraint by accident."""
        taboo = {w.lower() for w in _texts(self.kept.get("avoid", {}), "words")}
        taboo |= {w.lower() for w in _texts(self.broken.get("include", {}), "words")}
        fit = [w for w in self._plain("passage") if w not in taboo] or ["so"]
        start = self.variant % len(fit)
        return fit[start:] + fit[:start]

    def _plain(self, name: str) -> Sequence[str]:
        """A list of words without the letter whose number is to be missed."""
        letter = str(self.broken.get("letter_count", {}).get("letter", "")).lower()
        return [w for w in listed(name) if not (letter and letter in w)]

    def _extras(self) -> Sequence[str]:
        extras = list(_texts(self.kept.get("include", {}), "words"))
        extras += _texts(self.broken.get("avoid", {}), "words")[:1]
        if "letter_count" in self.kept:
            letter = str(self.kept["letter_count"]["letter"]).lower()
            rich = dict(zip(ascii_lowercase, listed("rich"), strict=True)).get(letter, letter)
            extras += [rich] * -(-self._asked("letter_count") // max(1, rich.count(letter)))
        gaps = islice(cycle(listed("gaps")), self._asked("placeholders"))
        extras += [f"[{gap}]" for gap in gaps]
        if "exact_numbers" in self.kept:
            extras += [str(k + 2) for k in range(self._asked("exact_numbers"))]
        elif "no_digits" in self.broken:
            extras += ["24", "7"]
        return [*extras, "calm,", "then"] if "no_commas" in self.broken else extras


def _n(constraint: Mapping[str, object]) -> int:
    return int(float(str(constraint.get("n") or 0)))


def _texts(constraint: Mapping[str, object], name: str) -> list[str]:
    return [str(v) for v in cast("Iterable[object]", constraint.get(name) or ())]


# Whether this stage's outcome, distinguished by the arguments, comes out well.
Met = Callable[..., bool]
_TITLE = re.compile(r"^(?:\W*\[?\d+[\].):]+\s*)?([^|\n]{1,200}?) \| (.*)$", re.MULTILINE)
_LABELS = ("SUPPORTED", "NOT_SUPPORTED")
# Share of the query's content words that an outside answer must take up to be of help.
_ENOUGH = 0.5


def mentions(text: str, name: str) -> bool:
    flat, wanted = " ".join(text.lower().split()), " ".join(name.lower().split())
    if not wanted or wanted not in flat:
        return False
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", flat) is not None


def _titles(problem: KnownInput) -> tuple[str, ...]:
    return tuple(cast("Sequence[str]", problem.fields.get("gold_titles") or ()))


def _bare(title: str) -> str:
    return " ".join(re.findall(r"\w+", title.lower()))


def _evident(problem: KnownInput, staged: Staged, gold: str) -> bool:
    if len(gold) > 3 and mentions(staged.evidence, gold):
        return True
    flat = f" {_bare(staged.evidence)} "
    return all(f" {_bare(t)} " in flat for t in _titles(problem))


def _search(problem: KnownInput, staged: Staged, met: Met) -> str:
    if met(staged.hop):
        missing = (t for t in _titles(problem) if not mentions(staged.evidence, t))
        return next(missing, problem.input.split("\n", 1)[0])
    plain = [w for w in re.findall(r"[a-z]{4,}", problem.input) if content_stems(w)]
    return " ".join(dict.fromkeys(plain[:3])) or "background facts"


def _notes(problem: KnownInput, staged: Staged, met: Met) -> str:
    titles, gold = {_bare(t) for t in _titles(problem)}, problem.gold
    shown = [(m[1].strip(), m[2].strip()) for m in _TITLE.finditer(staged.evidence)]
    if not met(staged.hop):
        others = [t for t, _ in shown if _bare(t) not in titles][:3]
        return f"The passages speak of several things, among them {', '.join(others) or 'little'}."
    facts: list[str] = []
    for title, text in shown:
        if _bare(title) in titles:
            # The opening, and the sentence that holds the gold answer if another does.
            first, *rest = re.split(r"(?<=[.!?])\s+", text)
            holding = [s for s in rest if mentions(s, gold)][:1] if gold else []
            more = [] if gold and mentions(first, gold) else holding
            facts.append(f"{title}: {' '.join([first, *more])}")
    return " ".join(facts) or "None of the passages bears on it."


def _verify(problem: KnownInput, staged: Staged, met: Met) -> str:
    gold = (problem.gold or "NOT_SUPPORTED").strip().upper().replace(" ", "_")
    if not _evident(problem, staged, "") or gold not in _LABELS:
        return _LABELS[keyed_int("guess", problem.input) % 2]
    return gold if met() else wrong_answer(gold, problem.input, 0)


def _redact(problem: KnownInput, _staged: Staged, met: Met) -> str:
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


def _respond(problem: KnownInput, staged: Staged, met: Met) -> str:
    wanted = content_stems(problem.input)
    taken = wanted & content_stems(staged.outside or "")
    if len(taken) >= _ENOUGH * len(wanted) and problem.gold and met():
        return problem.gold
    return "In general it helps to be clear about the purpose and to keep a friendly tone."


_PERFORMED: Mapping[str, Callable[[KnownInput, Staged, Met], str]] = {
    **{"search": _search, "notes": _notes, "verify": _verify},
    **{"redact": _redact, "respond": _respond},
}
