"""Worlds in which one part of the loop could matter: that each has the property it claims, looked
at directly, through requests and replies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from promptcodebook.paper.simulated.executor import obey
from promptcodebook.paper.simulated.world import World
from tests.build.simulated import (
    BULLETS,
    EXACT,
    ask,
    examples,
    failing,
    filled,
    json_of,
    verdict,
    with_kind,
    world,
)

UPPERCASE = world.skills.names.index("uppercase")
SMALL = [e for e in examples if UPPERCASE not in world.problem(e.input).shown]
# An input with bullets and without capitals.
BULLETED = with_kind(SMALL, "bullets")
UPPER = "Set all of the text in capital letters."


def improved(text: str, gradient: str, settings: Any = EXACT) -> str:
    return ask(filled(BULLETED, "updater", text=text, gradient=f"- {gradient}"), settings)


def test_an_obedient_updater_does_what_it_is_told_even_where_that_is_wrong() -> None:
    told = replace(EXACT, obedient=True)
    advice = "Its text must say: When commas are ruled out, write short clauses without a comma."
    assert BULLETS in improved(BULLETS, advice)
    assert BULLETS not in improved(BULLETS, advice, told)
    assert "without a comma" in improved(BULLETS, advice, told)
    harm = f"It works against such inputs by: {UPPER.lower()}"
    assert improved(BULLETS, harm) == BULLETS
    assert not world.skills.orders(improved(BULLETS, harm, told))


def test_an_anonymous_critic_names_no_culprit_and_attribution_can_still_find_it() -> None:
    own = f"[3] {BULLETS}\n[5] {UPPER}"
    shown = {"instincts": own, "prompt": UPPER, "reference": failing(BULLETED)}
    for anonymous in (False, True):
        settings = replace(EXACT, anonymous=anonymous)
        feedback = json_of(ask(filled(BULLETED, "critic", **shown), settings))["feedback"]
        assert ("Active instinct 5 works against" in feedback) is not anonymous
        found = json_of(ask(filled(BULLETED, "attribution", **shown, verdict=feedback), settings))
        assert "capital" in found["instinct_errors"]["5"]
        assert "3" not in found["instinct_errors"] or "capital" not in found["instinct_errors"]["3"]


def test_a_critic_that_is_not_told_needs_its_rubric_and_only_the_adversary_can_write_it() -> None:
    settings = replace(EXACT, unsaid=1.0)
    here = World("constraints", examples, settings)
    assert len(here.unsaid) == len(here.skills)
    assert not here.skills.orders(verdict(BULLETED, settings, here))
    shown = {"prompt": "Go.", "instincts": "[0] Be kind.", "reference": failing(BULLETED)}
    psi = filled(BULLETED, "adversary", **shown, verdict="score 0.4: ", psi="Judge it.")
    asked = str(json_of(ask(psi, settings, here))["feedback"])
    [order] = here.skills.orders(asked)
    assert order.skill in here.problem(BULLETED.input).shown
    messages = filled(BULLETED, "critic", **shown, psi=f"Judge it.\n{asked}")
    feedback = str(json_of(ask(messages, settings, here))["feedback"])
    assert order.skill in {o.skill for o in here.skills.orders(feedback)}
    rest = filled(BULLETED, "adversary", **shown, verdict="score 0.4: ", psi=asked)
    again = here.skills.orders(str(json_of(ask(rest, settings, here))["feedback"]))
    assert order.skill not in {o.skill for o in again}, "the rubric has it now"


def test_a_misled_encoder_avoids_what_is_needed_until_a_directive_names_it() -> None:
    settings = replace(EXACT, misled=1.0)
    here = World("constraints", examples, settings)
    plain = (f"[{k}] Think about {k} other things." for k in range(1, 9))
    book = "\n".join([f"[0] {BULLETS}", *plain])

    def chosen(theta: str, settings: Any, world: World) -> list[int]:
        values = {"codebook": book, "theta": theta, "select": 2, "size": 9, "last": 8}
        reply = ask(filled(BULLETED, "encoder", **values), settings, world)
        return json_of(reply)["selected_indices"]

    assert 0 in chosen("Choose.", EXACT, world)
    assert 0 not in chosen("Choose.", settings, here)
    assert 0 in chosen(f"Choose. Choose the instinct that says so: {BULLETS}", settings, here)


def test_a_bare_generator_drops_conditions_until_its_directive_keeps_them() -> None:
    settings = replace(EXACT, bare=1.0)
    other = "When capitals are asked for, set all of the text in capital letters."

    def broken(phi: str, settings: Any) -> frozenset[int]:
        values = {"instincts": f"[3] {BULLETS}\n[5] {other}", "phi": phi}
        prompt = ask(filled(BULLETED, "generator", **values), settings)
        return obey(world, world.problem(BULLETED.input), prompt).broken

    keep = "Keep this in the prompt: every order of the chosen strategies with its condition."
    sound = broken("Write.", EXACT)
    assert world.skills[UPPERCASE].breaks - sound
    assert broken("Write.", settings) >= world.skills[UPPERCASE].breaks
    assert broken(f"Write. {keep}", settings) == sound
    shown = {"instincts": f"[3] {BULLETS}\n[5] {other}", "prompt": f"{BULLETS} {UPPER}"}
    shown["reference"] = failing(BULLETED)
    feedback = str(json_of(ask(filled(BULLETED, "critic", **shown), settings))["feedback"])
    found = json_of(ask(filled(BULLETED, "attribution", **shown, verdict=feedback), settings))
    assert keep in found["rendering_errors"]
    assert improved("Write.", keep, settings) == f"Write. {keep}"
