"""The learning roles, each through its request and its reply as any caller sees them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.method.templates import load_templates
from promptcodebook.simulated.mind import from_request, understand
from promptcodebook.simulated.model import answer
from promptcodebook.simulated.world import SimulatedSettings, World
from promptcodebook.tasks.constraints.task import constraints_of, reward
from promptcodebook.types import Example
from tests.simulated.made import examples, world
from tests.simulated.test_executor import mean
from tests.simulated.test_recognise import template_values

EXACT = SimulatedSettings(
    encoder_noise=0.0,
    generator_drop=0.0,
    generator_idle=0.0,
    capacity=1.0,
    attribution_error=0.0,
    updater_loss=0.0,
    judge_noise=0.0,
)
BULLETS = "When bullet points are asked for, put each of the bullet points on a line with a dash."


def ask(
    messages: tuple[Message, ...], settings: SimulatedSettings = EXACT, world: World = world
) -> str:
    request = Request("executor", messages, sampling=Sampling(temperature=0.0))
    return answer(understand(from_request(request), world), world, settings)


def filled(example: Example, name: str, **values: Any) -> tuple[Message, ...]:
    return load_templates("default")[name].fill({**template_values(example, "default"), **values})


def json_of(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def failing(example: Example) -> str:
    return f"Feedback of the checker: {reward(example, 'hello').feedback}"


def with_kind(examples: list[Example], kind: str) -> Example:
    return next(e for e in examples if kind in {str(c["kind"]) for c in constraints_of(e)})


def verdict(example: Example, settings: SimulatedSettings = EXACT, world: World = world) -> str:
    """The critic's feedback on a run under "Go." that answered "hello"."""
    values = {"prompt": "Go.", "instincts": "[0] Be kind.", "reference": failing(example)}
    return str(json_of(ask(filled(example, "critic", **values), settings, world))["feedback"])


def test_the_critic_and_all_that_follows_never_see_what_the_executor_lacks() -> None:
    here = World("constraints", examples, SimulatedSettings(world=1))
    there = World("constraints", examples, SimulatedSettings(world=2))
    assert here.lacking != there.lacking
    default = SimulatedSettings()
    for example in examples[:40]:
        found = verdict(example, default, world=here)
        assert found == verdict(example, default, world=there)
        for name in ("attribution", "updater", "adversary", "encoder", "generator"):
            values = {"verdict": found, "gradient": found, "reference": failing(example)}
            messages = filled(example, name, **values)
            assert ask(messages, default, world=here) == ask(messages, default, world=there), name


def test_an_able_critic_reads_order_and_condition_off_report_and_input() -> None:
    right: list[bool] = []
    for example in examples:
        kinds = {str(c["kind"]) for c in constraints_of(example)}
        said = verdict(example)
        for order in world.skills.orders(said):
            assert order.when is not None
            paired = order.when.skills == {order.skill}
            right.append(paired and world.skills.names[order.skill] in kinds)
        request = Request("attribution", filled(example, "attribution", verdict=said))
        read = understand(from_request(request), world).reading
        assert read.sections["verdict"] == said.strip()
    assert sum(right) > 0.9 * len(right) > 200  # some reports speak of two things


def test_advice_of_a_critic_without_capacity_is_wrong_and_does_harm_where_obeyed() -> None:
    dull = replace(EXACT, capacity=0.0)
    some = [e for e in examples if constraints_of(e)]
    for example in some:
        kinds = {str(c["kind"]) for c in constraints_of(example)}
        for order in world.skills.orders(verdict(example, dull)):
            assert world.skills.names[order.skill] not in kinds

    def advised(settings: SimulatedSettings) -> float:
        def prompt(e: Example) -> str:
            orders = world.skills.orders(verdict(e, settings))
            return " ".join(o.text.rsplit(": ", 1)[-1] for o in orders)

        return mean(some, prompt, replace(EXACT, load=0.0))

    nothing = mean(some, "", replace(EXACT, load=0.0))
    assert advised(dull) < nothing - 0.05
    assert advised(EXACT) > nothing + 0.1


def test_a_random_verdict_has_nothing_to_do_with_the_run() -> None:
    noisy = replace(EXACT, verdict_noise=1.0)
    right = told = 0
    for example in examples:
        kinds = {str(c["kind"]) for c in constraints_of(example)}
        for order in world.skills.orders(verdict(example, noisy)):
            told += 1
            right += world.skills.names[order.skill] in kinds
    assert told > 100
    assert right / told < 0.3  # three of 24 kinds stand in an input on average


def test_nothing_is_wrong_with_a_full_reward() -> None:
    messages = filled(examples[0], "critic", reward="1", reference="Fine. It is as asked.")
    assert json_of(ask(messages)) == {"score": 1.0, "feedback": ""}


def test_the_critic_names_an_active_instinct_whose_order_nobody_asked_for() -> None:
    example = with_kind(examples, "sentences")
    order = "Set all of the text in capital letters."
    values = {"prompt": order, "instincts": f"[3] {order}", "reference": failing(example)}
    said = str(json_of(ask(filled(example, "critic", **values)))["feedback"])
    assert "Active instinct 3 works against this input" in said


def blamed(example: Example, settings: SimulatedSettings = EXACT, **values: str):
    advice = f"{BULLETS[:1].lower()}{BULLETS[1:]}"
    verdict = f"The answer breaks a demand; the prompt should have said: {advice}"
    said = {"verdict": verdict, **values}
    return json_of(ask(filled(example, "attribution", **said), settings))


def test_the_adversary_rates_what_the_verdict_missed() -> None:
    example = with_kind(examples, "bullets")
    told = filled(example, "adversary", reference=failing(example), verdict="score 1: fine")
    missed = json_of(ask(told))
    assert missed["feedback"] and 0.0 < float(str(missed["severity"])) <= 1.0
    silent = json_of(ask(filled(example, "adversary", reference="", reward="1")))
    assert silent == {"feedback": "", "severity": 0.0}


def test_attribution_lays_advice_at_the_part_that_lacks_it() -> None:
    example = with_kind(examples, "bullets")
    held = blamed(example, instincts=f"[0] Be kind.\n[2] {BULLETS}")
    assert held["rendering_errors"] and not held["instinct_errors"]
    listed = f"[0] Be kind.\n[1] Be calm.\n[2] {BULLETS}"
    chosen = "[0] Be kind.\n[1] Be calm."
    elsewhere = blamed(example, instincts=chosen, codebook=listed)
    assert "bullet" in elsewhere["routing_errors"]
    assert not elsewhere["instinct_errors"]
    nowhere = blamed(example, instincts=chosen, codebook=chosen)
    ((index, text),) = nowhere["instinct_errors"].items()
    assert index in ("0", "1")
    assert "When bullet points are asked for" in text
    full = f"[0] {world.skills.say(0, 0)}\n[1] {world.skills.say(1, 1)}"
    assert list(blamed(example, instincts=full, codebook=full)["instinct_errors"]) == ["missing"]


def test_an_error_of_attribution_lays_it_anywhere_and_loses_the_condition() -> None:
    wrong = replace(EXACT, attribution_error=1.0)
    parts: set[str] = set()
    for example in examples[:60]:
        found = blamed(example, wrong, instincts="[0] Be kind.\n[2] Be calm.")
        texts = [found["rendering_errors"], found["routing_errors"]]
        texts += list(found["instinct_errors"].values())
        (said,) = filter(None, texts)
        assert "dash" in said and "asked for" not in said
        parts |= {k for k in ("rendering_errors", "routing_errors") if found[k]}
        parts |= set(found["instinct_errors"])
    assert parts == {"rendering_errors", "routing_errors", "0", "2"}


def improved(text: str, feedback: str, cap: int = 25) -> str:
    values = {"text": text, "gradient": feedback, "cap": cap, "others": ""}
    return ask(filled(Example("x", "x"), "updater", **values))


def test_improve_takes_up_advice_within_the_cap_and_drops_what_orders_nothing() -> None:
    told = "- Its text must say: " + BULLETS
    assert BULLETS.split(",")[0] in improved("Be kind.", told)
    vague = "Think of the reader at all times and be sure that nothing is left to be desired."
    found = improved(vague, told)
    assert len(found.split()) <= 25
    assert vague not in found


def test_improve_reads_advice_without_a_condition_as_about_the_texts_own_matter() -> None:
    text = "When a title is asked for, put a title in double angle brackets on the first line."
    found = improved(text, "- Its text must say: Add a postscript to the letter.")
    (first, *more) = world.skills.orders(found)
    assert not more  # an order that nobody complained of stays, and the cap has room for one
    assert world.skills.names[first.skill] == "title"
    short = "When a title is asked for, put a title on top."
    both = improved(short, "- Its text must say: Put one synonym in place of a banned word.", 60)
    names = {world.skills.names[o.skill]: o.when for o in world.skills.orders(both)}
    assert names.keys() == {"title", "avoid"}
    assert names["avoid"] == names["title"]


def test_improve_removes_what_is_said_to_do_harm() -> None:
    text = "Be kind. Put a title on the first line."
    found = improved(text, "- It works against such inputs by: put a title on top.")
    assert found == "Be kind."


def test_improve_copies_nothing_from_an_input() -> None:
    for example in examples[:40]:
        report = reward(example, "hello").feedback
        found = improved("Be kind.", f"- {example.input}\n- {report}")
        assert example.input.split(".")[0] not in found


def test_another_optimizers_reflection_is_the_same_function() -> None:
    """Raw reports instead of advice, fences asked for: the advice must be found, and can be."""
    example = with_kind(examples, "bullets")
    text = (
        "An assistant works under this instruction:\n```\nBe nice.\n```\nHere are runs with "
        f"feedback on each:\n```\n# Example 1\n{reward(example, 'hello').feedback}\n```\n"
        "Write a new instruction for the assistant, within ``` marks."
    )
    found = ask((Message("user", text),))
    assert found.startswith("```\nBe nice.")
    assert world.skills.orders(found.strip("`\n"))
    wrong = ask((Message("user", text),), replace(EXACT, capacity=0.0))
    assert wrong != found


def listing() -> str:
    rows = [world.skills.say(k, k) for k in range(8)]
    return "\n".join(f"[{k}] {text} (success 0.5)" for k, text in enumerate([*rows, "Be kind."]))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_encoder_gives_s_distinct_indices_and_prefers_conditions_that_hold(count: int) -> None:
    fits = chosen = 0
    for example in examples[:60]:
        messages = filled(example, "encoder", select=count, size=9, last=8, codebook=listing())
        found = json_of(ask(messages))["selected_indices"]
        assert len(set(found)) == count
        assert set(found) <= set(range(9))
        wanted = world.problem(example.input).shown & set(range(8))
        chosen += min(count, len(wanted))
        fits += len(wanted & set(found))
    assert fits > 0.9 * chosen


def test_the_generator_says_plainly_what_applies_and_drops_what_does_not() -> None:
    example = with_kind(examples, "bullets")
    title = "When a title is asked for, put a title in double angle brackets on top of it."
    wanted = f"[0] {BULLETS}\n[1] {title}\n[2] Keep all of the text in lower case."
    prompt = ask(filled(example, "generator", instincts=wanted))
    said = {world.skills.names[o.skill]: o.when for o in world.skills.orders(prompt)}
    kinds = {str(c["kind"]) for c in constraints_of(example)}
    assert said["bullets"] is None
    assert said["lowercase"] is None
    assert ("title" in said) == ("title" in kinds)


def test_it_splits_prompts_writes_instincts_and_grades() -> None:
    example = Example("x", "x")
    split = json_of(ask(filled(example, "split", text="Be nice. Be brief.", cap=20)))
    assert split["instincts"] == ["Be nice.", "Be brief."]
    made = json_of(ask(filled(example, "random", size=5, cap=20)))["instincts"]
    assert len(set(made)) == 5
    assert not any(world.skills.orders(text) for text in made)
    asked = 'Grade the answer. JSON: {"score": 0.0, "reason": ""}'
    user = "Question:\nWho?\n\nAnswer:\nMary Shelley\n\nReference:\nMary Shelley"
    good = json_of(ask((Message("system", asked), Message("user", user))))
    assert good["score"] > 0.9
