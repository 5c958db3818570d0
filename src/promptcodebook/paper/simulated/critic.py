"""The simulated critic, attribution and judges. The critic knows only the text it is sent.
Attribution reads its prose: advice that an active instinct gives and the prompt lost is a fault of
rendering, advice of another entry one of routing; all other advice is about an instinct: the one
about the same matter, or one that orders nothing, or "missing". The critic takes the order from the
report and the condition from the input; wrong advice (`capacity`) harms where it is obeyed. Judges
grade by likeness to the reference and count the pieces that occur."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import cast

from promptcodebook.base.text import place_in
from promptcodebook.paper.simulated import orders
from promptcodebook.paper.simulated.executor import mentions
from promptcodebook.paper.simulated.mind import ListedItem, Mind

_LONG = 150  # words from which on the critic calls a prompt crowded when it sees no other fault
_RUBRIC = "look whether"  # in a sentence of the rubric that says what to look for
# The channels that can be to blame, with what advice laid there opens with.
_OPENINGS = {
    "rendering": "Keep this in the prompt",
    "instinct": "Its text must say",
    "routing": "Choose the instinct that says so",
}


# What a generator must keep that lost an order or its condition.
_WHOLE = "every order of the chosen strategies with its condition."


def critique(mind: Mind) -> str:
    score, prose = _judged(mind)
    return mind.asked.shape.fill({"score": score, "prose": prose}, f"Score: {score}\n{prose}")


def critique_and_blame(mind: Mind) -> str:
    """The reply to a request for verdict and partition in one (Eq. 8)."""
    score, prose = _judged(mind)
    return blame(mind, prose, {"score": score, "prose": prose})


def adversary(mind: Mind) -> str:
    """The reply to: what did the rubric make the critic miss or invent?"""
    verdict = mind.given(mind.section("verdict"))
    claims = enumerate(_claims(mind, _reward(mind)))
    missed = [(n, claim) for n, claim in claims if not claim & verdict]
    # What no report tells, a look at the input can: a demand that neither prompt nor rubric names.
    silent = mind.world.unsaid & mind.problem.shown - mind.given(mind.section("prompt"))
    silent -= {*mind.noted(mind.section("rubric"), _RUBRIC)}
    missed += [(len(missed) + k, frozenset({k})) for k in sorted(silent)]
    remark = ""
    if missed:
        advice = mind.advise(missed[0][1], "adversary", missed[0][0])
        remark = f"Look whether the prompt says this: {_lower(advice)}"
    return mind.asked.shape.fill({"prose": remark, "severity": 0.2 if missed else 0.0}, remark)


def wrong_claims(report: str) -> list[str]:
    """The sentences of a checker's report that tell of something wrong."""
    found: list[str] = []
    bad = True
    for line in re.split(r"(?<=[.!?])\s+(?=[\"'A-Z\[])|\n+", report):
        turn = orders.says("turn", line)
        if turn is not None:
            bad = turn["bad"] is not None
            line = line[turn.end() :]
        if line.strip() and bad and (turn is not None or not orders.says("fine", line)):
            found.append(line.strip())
    return found


def _lower(advice: str) -> str:
    return f"{advice[:1].lower()}{advice[1:]}"


def _judged(mind: Mind) -> tuple[float, str]:
    if mind.happens(mind.settings.verdict_noise, "noise"):  # what it says has to do with no run
        anything = frozenset((mind.pick(range(len(mind.world.skills)), "any"),))
        advice = mind.mislead(anything, frozenset(), "any")
        remark = f"The answer is at fault; the prompt should have said: {_lower(advice)}"
        return round(mind.unit("score"), 2), remark
    reward = _reward(mind)
    claims = _claims(mind, reward)
    if not claims and reward is not None and reward >= 1.0:
        return 1.0, ""
    base = reward if reward is not None else (0.4 if claims else 0.8)
    score = round(min(0.95, max(0.0, base + 0.2 * (mind.unit("score") - 0.5))), 2)
    lines = [_complaint(mind, claim, n) for n, claim in enumerate(claims[:3])]
    # What the prompt orders and the input does not ask for, and who gave it.
    problem, harmful = mind.problem, list[str]()
    for order in mind.orders(mind.section("prompt")):
        if order.skill in problem.shown or not order.applies(problem.shown, problem.words):
            continue
        if mind.happens(mind.settings.capacity, "harm", order.skill):
            active = mind.asked.reading.active()
            holder = next((e for e in active if order.skill in mind.given(e.text)), None)
            named = holder is not None and not mind.settings.anonymous
            who = f"Active instinct {holder.index}" if holder is not None and named else "It"
            does = mind.world.skills[order.skill].do[0]
            harmful.append(f"{who} works against this input by: {does}.")
    lines += dict.fromkeys(harmful)
    return score, " ".join(lines) or "It falls short, but nothing in the run shows why."


def _reward(mind: Mind) -> float | None:
    match = orders.says("number", mind.section("reward"))
    return float(match[0]) if match is not None else None


def _claims(mind: Mind, reward: float | None) -> list[frozenset[int]]:
    if mind.world.constrained:
        report = mind.section("feedback", "reference")
        unsaid = mind.world.unsaid
        asked = unsaid & mind.problem.shown - mind.given(mind.section("prompt"))
        asked &= {*mind.noted(f"{mind.asked.request.system}\n{mind.section('rubric')}", _RUBRIC)}
        told = (mind.world.skills.shown(claim) - unsaid for claim in wrong_claims(report))
        return [*(frozenset({k}) for k in sorted(asked)), *dict.fromkeys(filter(None, told))]
    gold = mind.section("reference").strip().split("\n")[0].removeprefix("Reference answer: ")
    right = bool(gold) and gold in mind.section("response")
    wrong = reward < 1.0 and not right if reward is not None else bool(gold) and not right
    # A wrong answer shows no cause: any demand of the input that the prompt is silent on may be it.
    silent = mind.problem.shown - mind.given(mind.section("prompt"))
    return [silent] if wrong and silent else []


def _complaint(mind: Mind, claim: frozenset[int], n: int) -> str:
    prompt = mind.section("prompt")
    if claim <= mind.given(prompt):
        if any(mind.world.skills.contradict(a, b) for a in claim for b in mind.ordered(prompt)):
            return "The answer breaks a demand, since the prompt contradicts itself."
        if len(prompt.split()) > _LONG:
            return "The answer breaks a demand although told: the prompt is crowded."
        return "The answer breaks a demand although the prompt says what to do."
    rubric = f"{mind.asked.request.system}\n{mind.section('rubric')}"
    if claim.intersection(mind.noted(rubric, _RUBRIC)):
        # A rubric that speaks of the matter sharpens the eye.
        surer = mind.settings.capacity ** (1.0 - mind.settings.rubric_bonus)
        mind = replace(mind, settings=replace(mind.settings, capacity=surer))
    advice = mind.advise(claim, n)
    place = _maker(mind)
    named = f"the text of {place}" if place else "the prompt"
    return f"The answer breaks a demand; {named} should have said: {_lower(advice)}"


def _maker(mind: Mind) -> str:
    """Where the answer was made, by the trace: "tool:NAME", or "stage:NAME"; "" = unknown, or no
    instinct belongs to such a place."""
    if not any(place_in(e.text) for e in mind.asked.reading.active()):
        return ""
    _, *pieces = re.split(r"^- ([\w.-]+): ", mind.section("stages"), flags=re.MULTILINE)
    for name, text in reversed([*zip(pieces[::2], pieces[1::2], strict=True)]):
        if call := re.search(r"-> ([\w.-]+)\(\{.*\}\)$", text.rstrip(), re.DOTALL):
            return f"tool:{call[1]}"
        if text.rstrip().endswith(mind.section("response").strip()):
            return f"stage:{name}"
    return ""


def blame(mind: Mind, verdict: str = "", values: Mapping[str, object] | None = None) -> str:
    """Lays a verdict (by default the one that is shown) at the channels, beside other `values`."""
    verdict = verdict if values else mind.section("verdict", "feedback") or mind.asked.request.user
    laid: dict[tuple[str, str], list[str]] = {}  # what blames each channel, and which index
    active = mind.asked.reading.active()
    for sentence in orders.sentences(verdict):
        if orders.says("harm", sentence):
            # An active instinct orders it to the harm of an input, else the prompt does.
            does = sentence.rsplit(": ", 1)[-1].rstrip(".")
            remark, skills = f"It works against such inputs by: {does}.", mind.ordered(does)
            named = {str(e.index) for e in active}.intersection(orders.matches("index", sentence))
            if not named:  # the one that orders it here, as far as attribution can read
                holds = (str(e.index) for e in active if skills & mind.given(e.text))
                named = set(islice(holds, 1))
            if not named and any(skills & mind.ordered(e.text) for e in active):
                remark = f"{_OPENINGS['rendering']}: {_WHOLE}"
            places = [("instinct", index) for index in sorted(named)] or [("rendering", "")]
            for place in places:
                laid.setdefault(place, []).append(remark)
        elif orders.says("crowded", sentence):
            remark = "Leave out of the prompt what does not bear on the input."
            laid.setdefault(("rendering", ""), []).append(remark)
        else:
            place = re.search(r"\b(?:tool|stage):[\w.-]*\w", sentence)
            own = [e for e in active if place and place_in(e.text) == f"{place[0]}: "]
            # What belongs elsewhere is not to blame, unless nothing else is there.
            rest = [e for e in active if not place_in(e.text)] or active
            for order in mind.orders(sentence):
                channel, index, advice = _placed(mind, order, active, tuple(own or rest))
                laid.setdefault((channel, index), []).append(f"{_OPENINGS[channel]}: {advice}")
    shape, part = mind.asked.shape, round(0.6 / max(1, len({c for c, _ in laid})), 2)
    texts = {index: " ".join(remark) for (c, index), remark in laid.items() if c == "instinct"}
    instinct: object = " ".join(texts.values())
    wanted = shape.keys.get(shape.meant("instinct"))
    if wanted == "object":
        instinct = dict(sorted(texts.items()))
    elif wanted == "array":
        instinct = [{"index": k, "text": v} for k, v in sorted(texts.items())]
    values = {
        **(values or {}),
        "rendering": " ".join(laid.get(("rendering", ""), ())),
        "instinct": instinct,
        "routing": " ".join(laid.get(("routing", ""), ())),
        "severity": {c: part if any(c == at for at, _ in laid) else 0.0 for c in _OPENINGS},
    }
    return shape.fill(values, "\n".join(f"{c}: {values[c]}" for c in _OPENINGS))


def _placed(
    mind: Mind,
    order: orders.Instruction,
    active: tuple[ListedItem, ...],
    near: tuple[ListedItem, ...],
) -> tuple[str, str, str]:
    if mind.happens(mind.settings.attribution_error, "error", order.skill):
        channel = mind.pick(tuple(_OPENINGS), "channel", order.skill)
        index = mind.pick([str(e.index) for e in active] or ["missing"], "index", order.skill)
        advice = mind.say(order.skill, None, order.skill)
        return channel, index if channel == "instinct" else "", advice

    def gives(entry: ListedItem) -> bool:
        return (order.skill, order.when) in ((o.skill, o.when) for o in mind.orders(entry.text))

    if any(map(gives, near)):
        return "rendering", "", _WHOLE
    advice = mind.say(order.skill, order.about, order.skill)
    if near and any(gives(e) for e in mind.asked.reading.codebook() if e not in active):
        return "routing", "", advice
    # The active instinct about the same matter; else one that orders nothing; else none.
    same = [e.index for e in near if order.skill in mind.ordered(e.text)]
    idle = [e.index for e in near if not mind.orders(e.text)]
    idle = idle or [e.index for e in near if place_in(e.text)]  # it must go there
    if not (same or idle):
        return "instinct", "missing", advice
    index = same[0] if same else mind.pick(idle, "carrier", order.skill)
    return "instinct", str(index), advice


# How much likeness to the known good answer may be missing before an answer counts as worse.
_MARGIN = 0.25


def judge(mind: Mind) -> str:
    """The reply to: grade this answer. By likeness to the reference, else by length alone."""
    score = _likeness(mind.section("response"), mind.section("reference"), 20)
    score = round(min(1.0, max(0.0, score + 0.1 * (mind.unit("judge") - 0.5))), 2)
    reason = f"The answer meets about {round(100 * score)} percent of what was wanted."
    return mind.asked.shape.fill({"score": score, "prose": reason}, f"{score}\n{reason}")


def _likeness(answer: str, reference: str, enough: int) -> float:
    held, wanted = orders.content_stems(answer), orders.content_stems(reference)
    return len(held & wanted) / len(wanted) if wanted else min(1.0, len(held) / enough)


def compare(mind: Mind) -> str:
    """Whether response A is at least as good as B: by likeness to the answer known to be good."""
    user = mind.asked.request.user
    shown = _object(user)
    texts = {k.lower()[-1:]: str(v) for k, v in shown.items() if re.search(r"[_ ][abAB]$", k)}
    if not texts:
        found = orders.patterns("marks")["texts"].finditer(user)
        texts = {(m[1] or m[3]).lower(): m[2] or m[4] or "" for m in found}
    asked = (str(v) for k, v in shown.items() if re.search(r"query|question|input", k))
    wanted = mind.world.problem(mind.asked.input or next(asked, "")).gold or ""
    first, second = (_likeness(texts.get(k, ""), wanted, 40) for k in "ab")
    good = first >= second - _MARGIN
    good ^= mind.happens(mind.settings.judge_noise, "turn")
    reason = "The first holds up." if good else "The second serves the query better."
    return _filled(mind, reason, good, int(good), "yes" if good else "no")


def count_leaks(mind: Mind) -> str:
    user = mind.asked.request.user
    shown = _object(user)
    lists = [cast("list[object]", v) for v in shown.values() if isinstance(v, list)]
    text = next((str(v) for k, v in shown.items() if re.search(r"request|prompt", k)), "")
    units = [str(u).strip() for u in lists[0]] if lists else []
    request = orders.says("request", user)
    if request is not None and not units:
        text, units = request[1], orders.matches("piece", user[: request.start(1)])
    count = sum(mentions(text, u) for u in units)
    if mind.happens(mind.settings.judge_noise, "off"):
        count = min(len(units), max(0, count + (1 if mind.happens(0.5, "up") else -1)))
    return _filled(mind, f"{count} of {len(units)} occur.", count > 0, count, str(count))


def _object(user: str) -> Mapping[str, object]:
    start = user.find("{")
    try:
        tree: object = json.loads(user[start:]) if start >= 0 else None
    except ValueError:
        tree = None
    return cast("Mapping[str, object]", tree) if isinstance(tree, dict) else {}


def _filled(mind: Mind, reason: str, verdict: bool, count: int, plain: str) -> str:
    """The reply in the shape asked for: each key by the type that its schema, or name, tells."""
    shape = mind.asked.shape
    if not shape.json:
        return f"{plain}\n{reason}"
    schemed = mind.asked.request.schema is not None
    guess = "boolean" if mind.asked.kind == "compare" else "integer"
    types: Mapping[str, object] = {"boolean": verdict, "integer": count, "number": count}
    values: dict[str, object] = {}
    for key, kind in shape.keys.items():
        prose = re.search(r"reason|why|explan|comment|thought|analysis", key.lower())
        kind = (kind if schemed else "") or ("string" if prose else guess)
        values[key] = [] if kind == "array" else types.get(kind, reason)
    return json.dumps(values, ensure_ascii=False)
