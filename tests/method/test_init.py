"""The first codebook: expert, random, from_prompt, file, frozen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptcodebook.errors import ConfigError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.init import Earlier, Initialiser, check_seeds, instincts_schema
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.types import Instinct, Parameters
from tests.method.build import World, config, said

NOTHING = Earlier()
GENERAL = "List every explicit requirement of the input before answering"


async def first(
    *replies: str, seeds: tuple[str, ...] = (), file: tuple[Instinct, ...] = (), **tree
) -> tuple[World, Parameters]:
    world, state = await first_state(*replies, seeds=seeds, earlier=Earlier(file), **tree)
    return world, state.parameters


async def first_state(
    *replies: str, seeds: tuple[str, ...] = (), earlier: Earlier = NOTHING, **tree
) -> tuple[World, State]:
    world = World(config(**tree), ScriptedLM().enqueue(*replies))
    init = Initialiser(world.ask, world.templates, world.config)
    return world, await init.first(seeds, earlier)


def instincts(*texts: str) -> str:
    return json.dumps({"instincts": list(texts)})


async def test_a_short_expert_list_is_filled_with_general_instincts():
    """Blank and repeated texts are no entries."""
    world, made = await first(seeds=("Mine.", "", "  ", "mine", "Also mine."))
    assert made.codebook.texts[:2] == ("Mine.", "Also mine.")
    assert made.codebook[2].text.startswith(GENERAL) and all(map(str.strip, made.codebook.texts))
    assert len(made.codebook) == len(set(made.codebook.texts)) == 4
    assert world.lm.history == []
    init = {"kind": "expert", "instincts": ("User a", "User b", "User c", "User d", "User e")}
    _, made = await first(seeds=("Task a",), init=init)
    assert made.codebook.texts == ("User a", "User b", "User c", "User d"), "before the task's"


@pytest.mark.parametrize("templates", ["default", "paper"])
async def test_random_asks_for_a_generic_list(templates: str):
    """What is written around an instinct is no part of it; an empty list is asked for again."""
    world, made = await first(
        instincts("", " "),
        instincts(" A  rule ", '"Another"', "", "**Instinct:** Third", "Fourth", "Fifth"),
        init={"kind": "random"},
        templates=templates,
        seeds=("task knowledge",),
    )
    assert made.codebook.texts == ("A rule", "Another", "Third", "Fourth")
    assert "Write 4 different instincts" in said(world.lm.history[0])
    assert "task knowledge" not in said(world.lm.history[0])
    assert "the list is empty" in world.lm.history[1].messages[-1].content


async def test_what_a_model_is_asked_for_is_a_list_of_k_instincts_from_the_updater():
    """Another seed is another list: one first codebook is not that of every run."""
    samples = set[int]()
    for seed in (0, 1):
        world, _ = await first(instincts("A"), init={"kind": "random"}, seed=seed)
        (request,) = world.lm.history
        assert request.role == "updater"
        assert request.schema == instincts_schema(4, 25)
        samples.add(request.sample)
    assert len(samples) == 2


@pytest.mark.parametrize(("count", "letters"), [(4, 200), (13, 196), (40, 61), (600, 1), (3000, 1)])
def test_many_instincts_are_asked_for_in_fewer_letters_each(count: int, letters: int):
    """All of them together must fit into the updater's cap, down to one letter each."""
    properties = instincts_schema(count, 25).body["properties"]
    text = {"type": "string", "maxLength": letters}
    assert properties == {"instincts": {"type": "array", "maxItems": count, "items": text}}


async def test_from_prompt_splits_the_present_prompt():
    world, made = await first(
        instincts("Be brief.", "Cite sources."),
        init={"kind": "from_prompt", "prompt": "Be brief. Cite {sources}."},
    )
    assert made.codebook.texts[:2] == ("Be brief.", "Cite sources.")
    assert said(world.lm.history[0]).endswith("Be brief. Cite {sources}.")
    with pytest.raises(ConfigError) as error:
        await first(init={"kind": "from_prompt", "prompt": " "})
    assert "init.prompt" in error.value.hint


@pytest.mark.parametrize(("seeds", "frozen", "texts"), [
    (("a", "A.", "b", "c", "d"), (2,), ["b"]),
    (("a", "b", "", "B!", "c"), (3,), ["b"]),
    (("a", "b", "c", "d"), (0, 2), ["a", "c"]),
])  # fmt: skip
async def test_frozen_counts_in_the_list_as_it_was_given(seeds, frozen, texts):
    """A repetition that is dropped moves no mark, and leaves its own to the text that stays."""
    _, made = await first(seeds=seeds, init={"frozen": frozen})
    assert [i.text for i in made.codebook.instincts if i.frozen] == texts


@pytest.mark.parametrize("kind", ["expert", "file"])
async def test_too_few_different_instincts_are_an_error(kind: str):
    """Told before anything is paid for: `check_seeds` finds it without a model."""
    tree = {"size": 40, "init": {"kind": kind, "path": "x.json"}}
    match = "only 19 different instincts for a codebook of size 40"
    with pytest.raises(ConfigError, match=match) as error:
        await first(seeds=("Mine.",), file=(Instinct("Mine."),), **tree)
    assert "init.kind = 'random'" in error.value.hint and "size = 19" in error.value.hint
    world = World(config(**tree))
    with pytest.raises(ConfigError, match=match):
        check_seeds(("Mine.",), Earlier((Instinct("Mine."),)), world.templates, world.config)


FIVE = "Be brief. Be kind. Cite sources. Name the page. Say when you do not know."


@pytest.mark.parametrize(("prompt", "match", "hint"), [
    (FIVE, r"^init\.prompt has 5 sentences, and the codebook 4 instincts", "set size = 5"),
    ("* * *", r"^init\.prompt holds no sentence", "set init.prompt to your prompt"),
])  # fmt: skip
def test_a_prompt_of_too_many_sentences_or_none_is_refused_before_anything_is_paid_for(
    prompt: str, match: str, hint: str
):
    world = World(config(init={"kind": "from_prompt", "prompt": prompt, "split": "sentences"}))
    with pytest.raises(ConfigError, match=match) as error:
        check_seeds((), Earlier(), world.templates, world.config)
    assert error.value.hint.startswith(hint)


@pytest.mark.parametrize("text", [None, "no JSON", '{"codebook": [{"text": ""}]}', "[]"])
def test_a_file_that_holds_no_codebook_is_named_with_the_reason_in_a_line(
    text: str | None, tmp_path: Path
):
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"^init\.path: cannot read a codebook from ") as error:
        Earlier.read(config(init={"kind": "file", "path": "x.json"}).init, tmp_path)
    assert "x.json: " in str(error.value) and "\n" not in str(error.value)
    assert "JSON list" in error.value.hint


@pytest.mark.parametrize("init", [{"kind": "random"}, {"kind": "from_prompt", "prompt": "p"}])
def test_where_a_model_writes_the_first_codebook_nothing_is_missing_yet(init: dict[str, str]):
    world = World(config(size=40, init=init))
    check_seeds((), Earlier(), world.templates, world.config)


async def test_a_whole_policy_goes_on_with_all_it_knew():
    """θ, φ, frozen marks and statistics; an entry that is dropped takes its own along, and one that
    is added has none."""
    book = (Instinct("a"), Instinct("A!"), Instinct("b", frozen=True), Instinct("c"))
    known = RoutingStatistics((0.1, 0.2, 0.3, 0.4), (0.5, 0.6, 0.7, 0.8), (1, 2, 3, 4))
    earlier = Earlier(book, "their theta", "their phi", known)
    settings = {"kind": "file", "path": "x.json"}
    world, state = await first_state(earlier=earlier, init=settings)
    made = state.parameters
    assert (made.encoder, made.generator) == ("their theta", "their phi")
    assert made.critic == world.templates.text("psi")
    assert made.codebook.instincts[:3] == (book[0], book[2], book[3])
    assert state.statistics == RoutingStatistics(
        (0.1, 0.3, 0.4, 0.0), (0.5, 0.7, 0.8, 0.0), (1, 3, 4, 0)
    )
    _, none = await first_state(earlier=earlier, init=settings, encoder={"mode": "none"})
    assert none.parameters.encoder == "" and none.statistics == state.statistics


async def test_an_instinct_over_the_cap_is_asked_for_again_and_then_taken():
    """Decision 24: what a model writes should fit; losing a demand of the prompt would be worse."""
    long = " ".join(["word"] * 26)
    init = {"kind": "random"}
    world, made = await first(instincts(long, "B"), instincts("A", "B"), init=init)
    assert made.codebook.texts[:2] == ("A", "B")
    assert "26 words, over the cap of 25" in world.lm.history[1].messages[-1].content
    _, made = await first(instincts(long, "B"), instincts(long, "B"), init=init)
    assert made.codebook.texts[:2] == (long, "B")


@pytest.mark.parametrize(("mode", "empty"), [("learned", False), ("static", False), ("none", True)])
async def test_theta_phi_and_psi_are_the_template_set_s(mode: str, empty: bool):
    """Decision 19: without an encoder there is no θ."""
    world, made = await first(encoder={"mode": mode})
    assert made.encoder == ("" if empty else world.templates.text("theta"))
    assert made.generator == world.templates.text("phi")
    assert made.critic == world.templates.text("psi")
