"""The simulated critic: knows only the text it is sent, and says in prose what was missing.

It reads the outcome (reward, checker, reference), the prompt and the instincts; which skills the
executor lacks is hidden from it. It is right as far as its `capacity` goes, and wrong advice is
wrong in a way that does harm where it is obeyed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.words import count_words, pattern, says

__all__ = ["Judged", "adversary", "critique", "judged", "wrong_claims"]

_NUMBER = re.compile(r"[-+]?\d*\.?\d+")
_CLAIM = re.compile(r"(?<=[.!?])\s+(?=[\"'A-Z\[])|\n+")
_CROWDED = 150
"""Words from which on the critic calls a prompt crowded when it sees no other fault."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A critique before it is put into a reply."""

    score: float
    feedback: str


def critique(mind: Mind) -> str:
    """The reply to a request for a verdict."""
    found = judged(mind)
    values: dict[str, object] = {"score": found.score, "prose": found.feedback}
    return mind.asked.shape.fill(values, f"Score: {found.score}\n{found.feedback}")


def wrong_claims(report: str) -> list[str]:
    """The sentences of a checker's report that tell of something wrong."""
    found: list[str] = []
    bad = True
    for line in _CLAIM.split(report):
        turn = pattern("turn").search(line)
        if turn is not None:
            bad = turn["bad"] is not None
            line = line[turn.end() :]
        if line.strip() and bad and (turn is not None or not says("fine", line)):
            found.append(line.strip())
    return found


def judged(mind: Mind) -> Judged:
    """What the critic makes of the run that the request shows."""
    if mind.happens(mind.settings.verdict_noise, "noise"):
        return _about_nothing(mind)
    reward = _reward(mind.section("reward"))
    claims = _claims(mind, reward)
    if not claims and reward is not None and reward >= 1.0:
        return Judged(1.0, "")
    base = reward if reward is not None else (0.4 if claims else 0.8)
    score = round(min(0.95, max(0.0, base + 0.2 * (mind.draw.unit("score") - 0.5))), 2)
    lines = [_complaint(mind, claim, n) for n, claim in enumerate(claims[:3])]
    lines += _about_instincts(mind)
    return Judged(score, " ".join(lines) or "It falls short, but nothing in the run shows why.")


def _about_nothing(mind: Mind) -> Judged:
    """A verdict drawn at random: what it says has to do with no run."""
    skills = range(len(mind.world.skills))
    anything = frozenset((mind.pick(skills, "any"),))
    advice = mind.mislead(anything, frozenset(), "any")
    return Judged(
        round(mind.draw.unit("score"), 2),
        f"The answer is at fault; the prompt should have said: {_lower(advice)}",
    )


def _reward(said: str) -> float | None:
    match = _NUMBER.search(said)
    return float(match[0]) if match is not None else None


def _claims(mind: Mind, reward: float | None) -> list[frozenset[int]]:
    """What the request shows to be wrong: for each fault the skills it may be about."""
    report = mind.section("feedback") or mind.section("reference")
    told = [mind.world.skills.shown(claim) for claim in wrong_claims(report)]
    told = [claim for claim in told if claim]
    if mind.world.constrained:
        return list(dict.fromkeys(told))
    gold = mind.section("reference").strip().split("\n")[0].removeprefix("Reference answer: ")
    right = bool(gold) and gold in mind.section("response")
    wrong = reward < 1.0 and not right if reward is not None else bool(gold) and not right
    # A wrong answer shows no cause: any demand of the input that the prompt is silent on may be it.
    silent = mind.problem.shown - mind.given(mind.section("prompt"))
    return [silent] if wrong and silent else []


def _complaint(mind: Mind, claim: frozenset[int], n: int) -> str:
    """One sentence on one fault, with advice where it knows any."""
    prompt = mind.section("prompt")
    if claim <= mind.given(prompt):
        orders = [o.skill for o in mind.orders(prompt)]
        if any(mind.world.skills.contradict(a, b) for a in claim for b in orders):
            return "The answer breaks a demand, since the prompt contradicts itself."
        if count_words(prompt) > _CROWDED:
            return "The answer breaks a demand although told: the prompt is crowded."
        return "The answer breaks a demand although the prompt says what to do."
    rubric = f"{mind.asked.request.system}\n{mind.section('rubric')}"
    if claim & {
        o.skill for o in mind.noted(rubric, "look whether")
    }:  # a rubric that speaks of the matter sharpens the eye
        surer = mind.settings.capacity ** (1.0 - mind.settings.rubric_bonus)
        mind = replace(mind, settings=replace(mind.settings, capacity=surer))
    advice = mind.advise(claim, n)
    return f"The answer breaks a demand; the prompt should have said: {_lower(advice)}"


def _lower(advice: str) -> str:
    return f"{advice[:1].lower()}{advice[1:]}"


def _about_instincts(mind: Mind) -> list[str]:
    """Words on what the prompt orders and the input does not ask for, and who gave it."""
    problem, skills = mind.problem, mind.world.skills
    active = mind.asked.reading.active()
    said: list[str] = []
    for order in mind.orders(mind.section("prompt")):
        if order.skill in problem.shown or not order.applies(problem.shown, problem.words):
            continue
        if not mind.happens(mind.settings.capacity, "harm", order.skill):
            continue
        what = f"works against this input by: {skills[order.skill].do[0]}"
        holders = [e for e in active if any(o.skill == order.skill for o in mind.orders(e.text))]
        said.append(f"Active instinct {holders[0].index} {what}." if holders else f"It {what}.")
    return list(dict.fromkeys(said))


def adversary(mind: Mind) -> str:
    """The reply to: what did the rubric make the critic miss or invent?"""
    verdict = mind.given(mind.section("verdict"))
    said = ""
    for n, claim in enumerate(_claims(mind, _reward(mind.section("reward")))):
        if not claim & verdict:
            said = (
                f"Look whether the prompt says this: {_lower(mind.advise(claim, 'adversary', n))}"
            )
            break
    return mind.asked.shape.fill({"prose": said}, said)
