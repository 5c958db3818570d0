"""The ifbench world: writers that the benchmark's own checks score, and the revision."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import pytest
from promptcodebook.simulated.recipes import build_world
from promptcodebook.simulated.skills_ifbench import FAMILIES, IFBENCH_SKILLS
from promptcodebook.simulated.writer_ifbench import TEST_WRITERS
from promptcodebook.simulated.writer_ifeval import IFEVAL

from promptcodebook.calls import Message
from promptcodebook.simulated.chat import ChatRequest
from promptcodebook.simulated.model import answer
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.recognise import understand
from promptcodebook.simulated.world import World
from promptcodebook.tasks.ifbench.language import Language
from promptcodebook.tasks.ifbench.score import check
from promptcodebook.types import Example

SHARED = Path(os.environ.get("PCO_SHARED") or Path(__file__).parents[3] / "shared")
NLTK_DATA = SHARED / "data" / "ifbench" / "nltk_data"
GIVEN: dict[str, dict[str, object]] = {
    "keywords:existence": {"keywords": ["lantern", "gull"]},
    "keywords:frequency": {"keyword": "fern", "frequency": 3, "relation": "at least"},
    "keywords:forbidden_words": {"forbidden_words": ["umbrella", "reader"]},
    "keywords:letter_frequency": {"letter": "q", "let_frequency": 4, "let_relation": "at least"},
    "language:response_language": {"language": "de"},
    "length_constraints:number_sentences": {"num_sentences": 6, "relation": "at least"},
    "length_constraints:number_words": {"num_words": 70, "relation": "at least"},
    "length_constraints:number_paragraphs": {"num_paragraphs": 4},
    "length_constraints:nth_paragraph_first_word": {
        "num_paragraphs": 3,
        "nth_paragraph": 2,
        "first_word": "harbour",
    },
    "detectable_content:number_placeholders": {"num_placeholders": 3},
    "detectable_content:postscript": {"postscript_marker": "P.P.S"},
    "detectable_format:number_bullet_lists": {"num_bullets": 4},
    "detectable_format:number_highlighted_sections": {"num_highlights": 3},
    "detectable_format:multiple_sections": {"section_spliter": "PART", "num_sections": 3},
    "combination:repeat_prompt": {"prompt_to_repeat": "Tell me of tides"},
    "startend:end_checker": {"end_phrase": "Talk soon!"},
    "change_case:capital_word_frequency": {"capital_frequency": 5, "capital_relation": "at least"},
    "count:word_count_range": {"min_words": 30.0, "max_words": 60.0},
    "count:unique_word_count": {"N": 200.0},
    "count:conjunctions": {"small_n": 6.0},
    "count:person_names": {"N": 12.0},
    "count:numbers": {"N": 5.0},
    "count:words_japanese": {"N": 4.0},
    "count:pronouns": {"N": 20.0},
    "count:keywords_multiple": {f"keyword{k}": w for k, w in enumerate(
        ("oak", "elm", "fir", "yew", "ash"), 1)},
    "ratio:stop_words": {"percentage": 10.0},
    "words:repeats": {"small_n": 1.0},
    "words:keywords_specific_position": {"keyword": "tide", "n": 3, "m": 4},
    "words:words_position": {"keyword": "moon"},
    "sentence:increment": {"small_n": 3.0},
    "sentence:keyword": {"word": "ferry", "N": 4.0},
    "format:options": {"options": "I know or I don't know"},
    "format:list": {"sep": "!?!?"},
    "repeat:repeat_change": {"prompt_to_repeat": "Tell me of the tides"},
    "repeat:repeat_span": {"prompt_to_repeat": "Tell me of the tides", "n_start": 3, "n_end": 9},
}  # fmt: skip


@pytest.fixture(scope="module")
def language() -> Language:
    if not NLTK_DATA.is_dir():
        pytest.skip(f"no NLTK data at {NLTK_DATA}; set PCO_SHARED to the folder that holds data/")
    return Language(NLTK_DATA)


def example(*ids: str) -> Example:
    kwargs = [GIVEN.get(one, {}) for one in ids]
    held = {"instruction_id_list": list(ids), "kwargs": kwargs}
    return Example("-".join(ids), f"Tell me of tides, and mind {', '.join(ids)}.", fields=held)


def written(ids: tuple[str, ...], kept: frozenset[str]) -> str:
    found = example(*ids)
    world = build_world("ifbench", [found])
    keys = {f"{k}:{one}" for k, one in enumerate(ids) if one in kept}
    return world.writer(world.problem(found.input), frozenset(keys), 5)


def test_every_constraint_has_a_family_and_two_are_not_followed() -> None:
    assert len(FAMILIES) == 25 + 58
    assert set(FAMILIES.values()) == {s.name for s in IFBENCH_SKILLS if not s.general}
    assert len(IFEVAL) == 25
    assert len(TEST_WRITERS) >= 25
    world = build_world("ifbench", [example("ratio:overlap")])
    assert world.unfollowed == ("custom:reverse_newline", "ratio:overlap")


@pytest.mark.parametrize("one", sorted(IFEVAL | TEST_WRITERS.keys()))
def test_a_writer_keeps_its_constraint(one: str, language: Language) -> None:
    text = written((one,), frozenset((one,)))
    assert check(one, GIVEN.get(one, {}), "", text, language=language), text


@pytest.mark.parametrize("one", sorted(IFEVAL | TEST_WRITERS.keys()))
def test_a_constraint_is_broken_when_its_demand_is_not_met(one: str, language: Language) -> None:
    text = written((one,), frozenset())
    assert text.strip()
    assert not check(one, GIVEN.get(one, {}), "", text, language=language), text


@pytest.mark.parametrize(
    "ids",
    [
        ("punctuation:no_comma", "keywords:existence", "startend:quotation"),
        ("detectable_format:title", "detectable_format:number_bullet_lists"),
        ("detectable_format:json_format", "keywords:forbidden_words"),
        ("length_constraints:number_paragraphs", "detectable_format:number_highlighted_sections"),
        ("change_case:english_lowercase", "length_constraints:number_words"),
    ],
)
def test_just_the_demands_that_are_met_hold(ids: tuple[str, ...], language: Language) -> None:
    for size in range(len(ids) + 1):
        for kept in map(frozenset, combinations(ids, size)):
            text = written(ids, kept)
            held = {i for i in ids if check(i, GIVEN.get(i, {}), "", text, language=language)}
            assert held == kept, text


def reply(world: World, query: str, draft: str, prompt: str, **chances: str) -> str:
    settings = SimulatedSettings.from_params(
        {"base": "0", "gain": "1", "dilution": "0", "care": "0", "floor": "0", "ceiling": "1"}
        | chances
    )
    part = "final_response" if draft else "response"
    order = "Make sure that it is correct." if draft else "Respond to the query."
    form = f"Reply with these parts:\nreasoning: (thoughts)\n{part}: (the {part})"
    user = f"<query>\n{query}\n</query>"
    user += f"\n\n<response>\n{draft}\n</response>" if draft else ""
    system = "\n\n".join(filter(None, (prompt, order, form)))
    request = ChatRequest((Message("system", system), Message("user", user)), temperature=0.0)
    understood = understand(request, world)
    assert understood.kind == "stage"
    said = answer(understood, world, settings)
    return said.split(f"{part}: ", 1)[1]


def test_a_revision_keeps_what_holds_and_mends_what_it_is_cued_to() -> None:
    asked = example("punctuation:no_comma", "startend:quotation")
    world = build_world("ifbench", [asked])
    commas = "Check that there is no comma at all."
    draft = reply(world, asked.input, "", "")
    assert "," in draft
    assert not draft.startswith('"')
    assert reply(world, asked.input, draft, "", second_look="1") == draft
    mended = reply(world, asked.input, draft, commas, second_look="1")
    assert "," not in mended
    assert not mended.startswith('"')
    again = reply(
        world, asked.input, mended, "Open and close with a quotation mark.", second_look="1"
    )
    assert "," not in again
    assert again.startswith('"')
    assert reply(world, asked.input, draft, commas, second_look="0") == draft
