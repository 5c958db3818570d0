"""Worlds: which skills an input needs, and writers that the real checks score."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from promptcodebook.simulated.problem import Problem
from promptcodebook.simulated.recipes import build_world
from promptcodebook.simulated.skill import Lexicon, Skill
from promptcodebook.simulated.skills_aime import AIME_SKILLS
from promptcodebook.simulated.skills_constraints import CONSTRAINT_SKILLS
from promptcodebook.simulated.skills_general import GENERAL_SKILLS
from promptcodebook.simulated.skills_hotpotqa import HOTPOTQA_SKILLS
from promptcodebook.simulated.skills_hover import HOVER_SKILLS
from promptcodebook.simulated.skills_ifbench import IFBENCH_SKILLS
from promptcodebook.simulated.skills_livebench import LIVEBENCH_SKILLS
from promptcodebook.simulated.skills_pupa import PUPA_SKILLS

from promptcodebook.simulated.world import World, all_advice, oracle_prompt
from promptcodebook.tasks.aime.score import accuracy
from promptcodebook.tasks.constraints.checks import KINDS, check
from promptcodebook.types import Example

TABLES = {
    "constraints": CONSTRAINT_SKILLS,
    "aime": AIME_SKILLS,
    "general": GENERAL_SKILLS,
    "hotpotqa": HOTPOTQA_SKILLS,
    "hover": HOVER_SKILLS,
    "ifbench": IFBENCH_SKILLS,
    "livebench_math": LIVEBENCH_SKILLS,
    "pupa": PUPA_SKILLS,
}


@pytest.mark.parametrize("skills", TABLES.values(), ids=TABLES)
def test_a_table_has_20_to_30_skills_and_its_advice_cues_them(skills: tuple[Skill, ...]) -> None:
    assert 20 <= len(skills) <= 30
    lexicon = Lexicon(skills)
    for k, skill in enumerate(skills):
        for advice in skill.advice:
            assert k in lexicon.cued_in(advice), advice
            assert k not in lexicon.against_in(advice), advice


def test_each_kind_of_constraint_has_a_skill_of_its_own() -> None:
    assert {s.name for s in CONSTRAINT_SKILLS if not s.general} == set(KINDS)


def test_inputs_need_none_to_eight_skills_and_share_the_general_ones(
    world: World, examples: list[Example]
) -> None:
    needed = [world.problem(e.input).needed for e in examples]
    assert max(map(len, needed)) == 8
    assert min(len(world.problem(e.input).demands) for e in examples) == 0
    counts = Counter(chain.from_iterable(needed))
    general = [k for k, s in enumerate(world.skills) if s.general]
    assert all(counts[k] > len(examples) / 2 for k in general)
    assert all(0 < counts[k] < len(examples) / 2 for k in range(len(world.skills) - len(general)))


def test_cues_are_found_in_paraphrases_and_not_in_other_texts(world: World) -> None:
    def cued(text: str) -> set[str]:
        return {world.skills[k].name for k in world.lexicon.cued_in(text)}

    assert "max_words" in cued("Keep counting words until you are under.")
    assert "max_words" in cued("There is a limit on words: respect it.")
    assert "json" in cued("The reply must be valid as JSON.")
    assert cued("Be helpful. Think about the country and its wordy people.") == set()


def test_all_constraints_hold_when_all_skills_show(world: World, examples: list[Example]) -> None:
    for example in examples:
        problem = world.problem(example.input)
        text = world.writer(problem, frozenset(d.key for d in problem.demands), 5)
        assert text.strip()
        broken = [d.key for d in problem.demands if not _holds(problem, d.key, text)]
        assert not broken, (example.id, broken)


def test_a_constraint_fails_when_its_skill_is_hidden(world: World, examples: list[Example]) -> None:
    tried, held, harmed = Counter[str](), Counter[str](), 0
    for example in examples:
        problem = world.problem(example.input)
        keys = frozenset(d.key for d in problem.demands)
        for key in keys:
            text = world.writer(problem, keys - {key}, 5)
            tried[key.split(":")[1]] += 1
            held[key.split(":")[1]] += _holds(problem, key, text)
            harmed += sum(not _holds(problem, other, text) for other in keys - {key})
    assert set(tried) == set(KINDS)
    assert all(held[kind] <= 0.1 * tried[kind] for kind in KINDS), held
    assert harmed <= 0.02 * sum(tried.values())


def _holds(problem: Problem, key: str, text: str) -> bool:
    constraint = next(d.constraint for d in problem.demands if d.key == key)
    assert constraint is not None
    return check(constraint, problem.input, text).satisfied


def test_the_aime_world_writes_gold_or_a_wrong_integer(problems: list[Example]) -> None:
    world = build_world("aime", problems)
    for example in problems:
        problem = world.problem(example.input)
        gold = example.target or ""
        assert 1 <= len(problem.demands[0].skills) <= 5
        for variant in range(6):
            assert accuracy(world.writer(problem, frozenset({"answer"}), variant), gold) == 1.0
            wrong = world.writer(problem, frozenset(), variant)
            assert accuracy(wrong, gold) == 0.0
            assert "boxed{" in wrong


def test_the_general_world_serves_any_data() -> None:
    rows = [
        Example("a", "Who wrote Frankenstein?", "Mary Shelley"),
        Example("b", "How much is 3 pounds in pence?", "300 pence"),
        Example("c", "My order is late. What can I do?"),
    ]
    world = build_world("", rows)
    for row in rows[:2]:
        problem = world.problem(row.input)
        assert world.writer(problem, frozenset({"answer"}), 0) == row.target
        assert row.target not in world.writer(problem, frozenset(), 0)
    free = world.problem(rows[2].input)
    texts = {world.writer(free, met, 0) for met in (frozenset[str](), frozenset({"answer"}))}
    assert len(texts) == 2
    names = {world.skills[s].name for s in free.demands[0].skills}
    assert "customer" in names


def test_in_a_homogeneous_world_every_input_needs_the_same(examples: list[Example]) -> None:
    world = build_world("constraints", examples, homogeneous=True)
    needs = {d.skills for e in examples for d in world.problem(e.input).demands}
    assert len(needs) == 1
    assert len(needs.pop()) == 4


def test_the_oracle_says_what_is_needed_and_all_advice_says_everything(
    world: World, examples: list[Example]
) -> None:
    for example in examples[:20]:
        cued = world.lexicon.cued_in(oracle_prompt(world, example))
        assert world.problem(example.input).needed <= cued
    assert world.lexicon.cued_in(all_advice(world)) == set(range(len(world.skills)))
