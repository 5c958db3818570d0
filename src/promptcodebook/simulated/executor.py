"""The simulated executor: it obeys the orders in its system prompt, even where they do harm.

Its chance of meeting a demand depends on the orders that apply to it: an order that is needed and
given helps, a contradicted one fails, and every word of the prompt costs a little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from promptcodebook.simulated.answers import outside, perform_stage, write_answer, write_constraints
from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.world import Demand, Problem, World


@dataclass(frozen=True, slots=True)
class Obeyed:
    """What a prompt does to one input: skills it brings out, skills it breaks, numbers it insists
    on by skill, and the words that weigh."""

    told: frozenset[int]
    broken: frozenset[int]
    numbers: Mapping[int, int]
    words: int


def obey(world: World, problem: Problem, prompt: str, weighed: str | None = None) -> Obeyed:
    """The orders of a prompt that apply to the input, and how they get in each other's way.

    `weighed` is the part of the prompt whose words count (None = all of it).
    """
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


def execute(mind: Mind) -> str:
    """The reply to an input under a system prompt."""
    if mind.world.name == "pupa" and not mind.asked.request.system.strip():
        return outside(mind.asked.request.user)
    problem = mind.problem
    obeyed = obey(mind.world, problem, mind.asked.request.system)
    if problem.demands:
        return _written(mind, obeyed)
    right = _is_met(mind, "answer", problem.shown, obeyed)
    return write_answer(problem, right, _variant(mind))


def perform(mind: Mind) -> str:
    """The reply to one stage of a program, in the form it asks for."""
    staged, problem = mind.asked.staged, mind.problem
    assert staged is not None
    obeyed = obey(mind.world, problem, mind.asked.request.system, staged.weighed)
    if problem.demands and staged.kind in ("write", "revise"):
        return staged.reply(_written(mind, obeyed))

    def met(*key: object) -> bool:
        return _is_met(mind, f"{staged.kind}:{key}", problem.shown, obeyed)

    return staged.reply(perform_stage(problem, staged, met, _variant(mind)))


def _is_met(mind: Mind, key: str, about: frozenset[int], obeyed: Obeyed) -> bool:
    """Draws one outcome: for `shared` of the outcomes the same under every prompt, else keyed by
    the prompt."""
    chance = chance_of(about, mind.problem.needs, obeyed, mind.settings)
    common = mind.keyed("common", mind.problem.input, key) / 2**63 < mind.settings.shared
    prompt = () if common else (mind.asked.request.system,)
    return mind.keyed("met", mind.problem.input, key, *prompt) / 2**63 < chance


def _written(mind: Mind, obeyed: Obeyed) -> str:
    """A text in which the demands that come out well are kept and the others broken."""
    demands = mind.problem.demands
    met = frozenset(d.key for d in demands if _keeps(mind, d, obeyed))
    return write_constraints(demands, met, _variant(mind))


def _keeps(mind: Mind, demand: Demand, obeyed: Obeyed) -> bool:
    if demand.skill is None:
        return False
    told, wanted = obeyed.numbers.get(demand.skill), demand.constraint.get("n")
    if told is not None and wanted is not None and told != wanted:
        return False
    return _is_met(mind, demand.key, frozenset((demand.skill,)), obeyed)


def _variant(mind: Mind) -> int:
    return mind.keyed("variant", mind.problem.input) % 997
