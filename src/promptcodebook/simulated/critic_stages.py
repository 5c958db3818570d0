"""What a simulated critic makes of a program's run: at which stage it went wrong, by the report."""

from __future__ import annotations

import re

from promptcodebook.simulated.facts import mentions
from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.problem import Demand, Problem

__all__ = ["failed_stages"]

_NEVER = re.compile(
    r"\b(?:never|not) (?:retrieved|found)\b|\bnothing was retrieved\b", re.IGNORECASE
)
_FOUND = re.compile(r"\bfound ((?:['\"“‘][^\n]*?['\"”’](?:, )?)+)", re.IGNORECASE)
_QUOTED = re.compile(r"(?:^|, )['\"“‘](.+?)['\"”’](?=, |$)")
_NOTE = re.compile(r"(?:^|->)\W*summary\W{1,4}(.+)$", re.MULTILINE | re.IGNORECASE)
_BROKEN = re.compile(
    r"\b(?:not keep|not kept|not met|not followed|fails|broken|violated)\b[^\n]*:\s*\n"
    r"((?:[ \t]*[-*] .*(?:\n|\Z))+)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\s*[-*]\s*(\d{1,2})[.)]")
_WORSE = re.compile(r"\b(?:reference|target) is better|\bquality 0\b|\bworse\b", re.IGNORECASE)


def failed_stages(mind: Mind, problem: Problem, reward: float | None) -> list[Demand]:
    """The demands that failed as far as the report and the stages shown tell; the last one where a
    low reward is all that is known."""
    sections = mind.asked.reading.sections
    report = f"{sections.get('feedback', '')}\n{sections.get('reference', '')}"
    if any(d.constraint is not None for d in problem.demands):
        return _of_instructions(mind, problem)
    if all(d.stage != "search" for d in problem.demands):
        return _of_privacy(problem, report)
    found = _of_hops(mind, problem, report)
    if not found and reward is not None and reward < 1.0:
        found = [d for d in problem.demands if d.stage in ("answer", "verify")]
    return found


def _of_instructions(mind: Mind, problem: Problem) -> list[Demand]:
    """The constraints that the last list of broken ones names, by number, else by their words."""
    lists: list[str] = _BROKEN.findall(mind.asked.request.user)
    found: list[Demand] = []
    for line in lists[-1].strip().split("\n") if lists else []:
        number = _NUMBER.match(line)
        about = mind.world.lexicon.about_in(line)
        for place, demand in enumerate(problem.demands, 1):
            named = int(number[1]) == place if number is not None else demand.topic in about
            if named and demand not in found:
                found.append(demand)
    return found


def _of_hops(mind: Mind, problem: Problem, report: str) -> list[Demand]:
    """Searches when a page was never retrieved; notes when they do not name a page that was."""
    if _NEVER.search(report):
        return [d for d in problem.demands if d.stage == "search"]
    noted = " ".join(_NOTE.findall(mind.asked.request.user))
    titles = [t for said in _FOUND.findall(report) for t in _QUOTED.findall(said)]
    if noted and any(not mentions(noted, title) for title in titles):
        return [d for d in problem.demands if d.stage == "notes"]
    return []


def _of_privacy(problem: Problem, report: str) -> list[Demand]:
    """The private pieces that the report quotes, and the task and the reply when quality lacks."""
    found = [
        d
        for d in problem.demands
        if d.key.startswith("unit:") and mentions(report, d.key.removeprefix("unit:"))
    ]
    if _WORSE.search(report):
        found += [d for d in problem.demands if d.stage]
    return found
