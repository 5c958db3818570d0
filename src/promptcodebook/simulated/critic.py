"""The simulated critic: knows only the text it is sent, and says in prose what was missing.

It rests on what the request says of the outcome (reward, checker, reference), never on the hidden
draws; a report that does not fit the input at hand teaches it nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from promptcodebook.simulated.critic_stages import failed_stages
from promptcodebook.simulated.mind import Mind, advice_for
from promptcodebook.simulated.problem import Demand, Problem
from promptcodebook.simulated.reading import numbers_in
from promptcodebook.simulated.world import load

__all__ = ["Judged", "adversary", "claims", "critique", "judged", "negative_claims"]

_NUMBER = re.compile(r"[-+]?\d*\.?\d+")
_TURN = re.compile(
    r"\b(?P<bad>(?:not |un|dis)(?:satisfied|met|fulfilled|kept|passed)|failed|broken|violated|"
    r"missed|wrong|missing)\b\s*:|\b(?P<good>satisfied|met|fulfilled|kept|passed|ok|right)\b\s*:",
    re.IGNORECASE,
)
_FINE = re.compile(
    r"\b(as asked|is satisfied|are satisfied|is met|is fulfilled|was kept|correct|in order)\b|✓",
    re.IGNORECASE,
)
_CLAIM = re.compile(r"(?<=[.!?])\s+(?=[\"'A-Z\[])|\n+")
_DEMANDED = re.compile(
    r"(?<!not )\b(?:at most|at least|exactly|no more than|no fewer than)\s+(\d+)\b"
)
_COUNTED = re.compile(r"\b\d+ (?:of|out of|/) (\d+) (?:constraints|requirements|demands|checks)\b")
_CROWDED = 4.0
"""Load from which on the critic calls a prompt crowded."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A critique before it is put into a reply: score, prose, and the skills it advises."""

    score: float
    feedback: str
    advised: tuple[int, ...] = ()


def critique(mind: Mind) -> str:
    """The reply to a request for a verdict."""
    found = judged(mind)
    values: dict[str, object] = {"score": found.score, "prose": found.feedback}
    return mind.asked.shape.fill(values, f"Score: {found.score}\n{found.feedback}")


def claims(report: str) -> list[tuple[str, bool]]:
    """The sentences of a checker's report, each with whether it tells of something wrong."""
    found: list[tuple[str, bool]] = []
    bad = True
    for line in _CLAIM.split(report):
        turn = _TURN.search(line)
        if turn is not None:
            bad = turn["bad"] is not None
            line = line[turn.end() :]
        if line.strip():
            wrong = bad and (turn is not None or _FINE.search(line) is None)
            found.append((line.strip(), wrong))
    return found


def negative_claims(report: str) -> list[str]:
    """The sentences of a checker's report that tell of something wrong."""
    return [claim for claim, wrong in claims(report) if wrong]


def judged(mind: Mind) -> Judged:
    """What the critic makes of the run that the request shows."""
    reading = mind.asked.reading
    problem = mind.world.problem(mind.asked.input)
    reward = _reward(reading.sections.get("reward", ""))
    failed, fits = _failed(mind, problem, reward)
    if not failed and reward is not None and reward >= 1.0:
        return Judged(1.0, "")
    score = _score(mind, reward, bool(failed))
    if not fits:
        return Judged(score, "The report does not fit this input, so it shows no certain fault.")
    lines: list[str] = []
    advised: list[int] = []
    for demand in failed[:3]:
        line, skill = _complaint(mind, problem, demand)
        lines.append(line)
        advised.extend([] if skill is None else [skill])
    lines.extend(_about_instincts(mind, problem))
    if not lines:
        lines.append("The response falls short, but nothing in the run shows why.")
    return Judged(score, " ".join(lines), tuple(advised))


def _reward(said: str) -> float | None:
    match = _NUMBER.search(said)
    return float(match[0]) if match is not None else None


def _score(mind: Mind, reward: float | None, failed: bool) -> float:
    base = reward if reward is not None else (0.4 if failed else 0.8)
    moved = base + 0.2 * (mind.draw.unit("score") - 0.5)
    return round(min(0.95, max(0.0, moved)), 2)


def _failed(mind: Mind, problem: Problem, reward: float | None) -> tuple[list[Demand], bool]:
    """The demands that went wrong as far as the request tells, and whether its report fits."""
    if mind.world.staged:
        return failed_stages(mind, problem, reward), True
    if all(d.constraint is None for d in problem.demands) and len(problem.demands) == 1:
        wrong, fits = _answer_failed(mind, reward)
        return (list(problem.demands) if wrong else []), fits
    report = mind.asked.reading.sections.get("feedback", "")
    specific = [mind.world.lexicon.about(c) - set(mind.world.general) for c, _ in claims(report)]
    if _strange(report, specific, problem):
        return [], False
    failed = [mind.world.lexicon.about(c) for c in negative_claims(report)]
    found = [d for d in problem.demands if any(d.topic in a for a in failed)]
    if not any(specific) and (reward is None or reward < 1.0):
        found = _guess(mind, problem)
    return found, True


def _strange(report: str, told: list[frozenset[int]], problem: Problem) -> bool:
    """Whether a report speaks of another input: other demands, other numbers, another count."""
    topics = {d.topic for d in problem.demands}
    if any(about and not about & topics for about in told):
        return True
    if not {int(n) for n in _DEMANDED.findall(report)} <= numbers_in(problem.input):
        return True
    counted = _COUNTED.search(report)
    return counted is not None and int(counted[1]) != len(problem.demands)


def _answer_failed(mind: Mind, reward: float | None) -> tuple[bool, bool]:
    """Whether a single answer failed, and whether reward and reference agree on it."""
    sections = mind.asked.reading.sections
    gold = sections.get("reference", "").strip().split("\n")[0]
    right = bool(gold) and gold in sections.get("response", "")
    if reward is None:
        return bool(gold) and not right, True
    return reward < 1.0 and not right, not (right and reward <= 0.0)


def _guess(mind: Mind, problem: Problem) -> list[Demand]:
    """With no report at all: perhaps one demand that the prompt does not speak of."""
    cued = mind.world.lexicon.cued_in(mind.asked.reading.sections.get("prompt", ""))
    open_ = [d for d in problem.demands if not cued & set(d.skills)]
    if not open_ or mind.draw.unit("guess") >= mind.settings.critic_guess:
        return []
    return [open_[int(mind.draw.unit("which") * len(open_))]]


def _complaint(mind: Mind, problem: Problem, demand: Demand) -> tuple[str, int | None]:
    """One sentence on a demand that failed, and the skill it advises (None = it names none)."""
    world = mind.world
    prompt = mind.asked.reading.sections.get("prompt", "")
    cued = world.lexicon.cued_in(prompt)
    # A failed demand is not called by its name: naming it would be half the advice.
    what = "A demand of the input is broken" if len(problem.demands) > 1 else "The answer is wrong"
    missing = [s for s in demand.skills if s not in cued]
    if not missing and load(world, problem, prompt, mind.settings) > _CROWDED:
        return f"{what} although told: the prompt is crowded with what does not bear on it.", None
    missing = missing or [s for s in problem.general if s not in cued]
    if not missing:
        return f"{what} although the prompt says what to do.", None
    skill = missing[int(mind.draw.unit("missing", demand.key) * len(missing))]
    skill_said = _recognised(mind, skill, demand)
    if skill_said is None:
        return f"{what}, and it is not clear what would have helped.", None
    advice = advice_for(mind, skill_said, "critique")
    where = _where(mind, skill_said)
    return f"{what}, {where}: {advice[:1].lower()}{advice[1:]}", skill_said


def _recognised(mind: Mind, skill: int, demand: Demand) -> int | None:
    """The skill the critic names: the right one, a wrong one, or none."""
    accuracy = mind.settings.capacity
    rubric = mind.asked.reading.system_frame + mind.asked.reading.sections.get("rubric", "")
    if skill in mind.world.lexicon.cued_in(rubric):
        accuracy += (1.0 - accuracy) * mind.settings.rubric_bonus
    if mind.draw.unit("recognise", demand.key) < accuracy:
        return skill
    if mind.draw.unit("slip", demand.key) >= mind.settings.critic_slip:
        return None
    return int(mind.draw.unit("wrong", demand.key) * len(mind.world.skills))


def _where(mind: Mind, skill: int) -> str:
    """Where the advice got lost, as far as the request shows the instincts."""
    active = mind.asked.reading.active()
    if not active:
        return "and the prompt does not say what would have helped"
    holders = [e.index for e in active if skill in mind.world.lexicon.cued_in(e.text)]
    if holders:
        return f"and the prompt lost what active instinct {holders[0]} says"
    return "and no active instinct says what would have helped"


def _about_instincts(mind: Mind, problem: Problem) -> list[str]:
    """Words on active instincts that do harm, or bear on nothing here."""
    lexicon = mind.world.lexicon
    said: list[str] = []
    for entry in mind.asked.reading.active():
        harmed = lexicon.against_in(entry.text) & problem.needed
        if harmed:
            said.append(f"Active instinct {entry.index} works against this input.")
        elif not lexicon.cued_in(entry.text) & problem.needed and (
            mind.draw.unit("idle", entry.index) < 0.25
        ):
            said.append(f"Active instinct {entry.index} does not bear on this input.")
    return said


def adversary(mind: Mind) -> str:
    """The reply to: what did the rubric make the critic miss or invent?"""
    sections = mind.asked.reading.sections
    problem = mind.world.problem(mind.asked.input)
    verdict = mind.world.lexicon.cued_in(sections.get("verdict", ""))
    failed, fits = _failed(mind, problem, _reward(sections.get("reward", "")))
    cued = mind.world.lexicon.cued_in(sections.get("prompt", ""))
    said = ""
    for demand in failed if fits else []:
        skill = next((s for s in demand.skills if s not in cued and s not in verdict), None)
        if skill is not None and mind.draw.unit("adversary") < mind.settings.capacity:
            advice = advice_for(mind, skill, "adversary")
            said = f"Look whether the prompt says this where it is needed: {advice}"
            break
    return mind.asked.shape.fill({"prose": said}, said)
