"""The learning roles, each through its request and its reply as any caller sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.method.templates import load_templates
from promptcodebook.simulated.chat import from_request
from promptcodebook.simulated.model import answer
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.recognise import understand
from promptcodebook.simulated.world import World
from promptcodebook.tasks.constraints.task import constraints_of, reward
from promptcodebook.types import Example

EXACT = SimulatedSettings.from_params(
    {
        "encoder_noise": "0",
        "encoder_jitter": "0",
        "generator_drop": "0",
        "capacity": "1",
        "attribution_error": "0",
        "updater_loss": "0",
        "generator_idle": "0",
    }
)
ADVICE = {
    "max_words": "Treat a word limit as hard.",
    "json": "Return one raw JSON object.",
    "bullets": "Put bullet points on lines of their own.",
    "title": "Wrap the title in double angle brackets.",
    "postscript": "Close with a separate postscript paragraph.",
    "no_commas": "Check that there is no comma anywhere.",
}


def say(
    world: World,
    messages: tuple[Message, ...],
    settings: SimulatedSettings = EXACT,
    temperature: float = 0.0,
    sample: int = 0,
) -> str:
    request = Request("executor", messages, sample=sample, sampling=Sampling(temperature))
    return answer(understand(from_request(request), world), world, settings)


def ask(world: World, system: str, user: str, **more: Any) -> str:
    turns = (Message("system", system),) if system else ()
    return say(world, (*turns, Message("user", user)), **more)


def with_kind(examples: list[Example], kind: str, without: str = "") -> Example:
    return next(
        e
        for e in examples
        if kind in (kinds := {str(c["kind"]) for c in constraints_of(e)}) and without not in kinds
    )


def listing(rates: str = "") -> str:
    texts = [*ADVICE.values(), "Be kind.", "Stay calm."]
    return "\n".join(f"[{k}] {t}{rates}" for k, t in enumerate(texts))


def routed(world: World, example: Example, system: str, **more: Any) -> list[int]:
    reply = json.loads(ask(world, system, example.input, **more))
    return list(reply["selected_indices"])


def encoder(theta: str = "", count: int = 3, listed: str = "") -> str:
    return (
        f"{theta}\nChoose exactly {count} different instincts by index.\n\nCodebook:\n"
        f"{listed or listing()}\n\nAnswer with JSON: "
        '{"constraints": [".."], "selected_indices": [..], "analysis": ".."}'
    )


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_encoder_gives_exactly_s_distinct_listed_indices(
    world: World, examples: list[Example], count: int
) -> None:
    for example in examples[:30]:
        chosen = routed(world, example, encoder(count=count), settings=SimulatedSettings())
        assert len(set(chosen)) == count
        assert set(chosen) <= set(range(8))


def test_the_encoder_prefers_instincts_that_look_like_the_input(
    world: World, examples: list[Example]
) -> None:
    for place, kind in enumerate(ADVICE):
        example = with_kind(examples, kind)
        assert place in routed(world, example, encoder(count=4)), kind


def test_the_encoder_weighs_success_and_low_indices(world: World) -> None:
    alike = "\n".join(f"[{k}] Be kind. (success {0.9 if k == 3 else 0.1})" for k in range(5))
    unknown = Example("u", "Describe a lake.")
    assert routed(world, unknown, encoder(count=1, listed=alike)) == [3]
    untried = "\n".join(f"[{k}] Be kind. (untried)" for k in range(5))
    assert routed(world, unknown, encoder(count=2, listed=untried)) == [0, 1]


def test_the_encoder_obeys_criteria_that_mention_a_skill(world: World) -> None:
    listed = "\n".join(
        ("[0] Stay calm. (success 0.9)", "[1] Stay kind. (success 0.9)", "[2] No comma, ever.")
    )
    unknown = Example("u", "Describe a lake. Write it in a way that has no commas.")
    theta = "Choose the instinct that says: check that there is no comma anywhere."
    loud = SimulatedSettings.from_params({"success_weight": "2", "encoder_jitter": "0"})
    assert routed(world, unknown, encoder(count=1, listed=listed), settings=loud) != [2]
    louder = SimulatedSettings.from_params(
        {"success_weight": "2", "encoder_jitter": "0", "criteria_weight": "3"}
    )
    assert routed(world, unknown, encoder(theta, 1, listed), settings=louder) == [2]


GENERATOR = "Write one system prompt of 2 to 4 sentences that puts the selected strategies to work."


def composed(world: World, example: Example, texts: list[str], **more: Any) -> str:
    chosen = "\n".join(f"[{k}] {t}" for k, t in enumerate(texts))
    user = f"Selected strategies:\n{chosen}\n\nInput:\n{example.input}"
    return ask(world, GENERATOR, user, **more)


def test_the_generator_keeps_what_bears_on_the_input_in_at_most_four_sentences(
    world: World, examples: list[Example]
) -> None:
    example = with_kind(examples, "json")
    texts = [" ".join(ADVICE.values()), "Be kind.", "Stay calm.", "Look around. Breathe. Rest."]
    prompt = composed(world, example, texts)
    assert "JSON" in prompt
    assert "Breathe" not in prompt
    assert 1 <= prompt.count(". ") + 1 <= 4


def test_the_generator_loses_clauses_at_high_temperature(
    world: World, examples: list[Example]
) -> None:
    example = with_kind(examples, "json")
    forgetful = SimulatedSettings.from_params({"generator_drop": "0.5"})
    kept = [
        "JSON"
        in composed(
            world, example, [ADVICE["json"]], settings=forgetful, temperature=heat, sample=s
        )
        for heat in (0.0, 1.0)
        for s in range(30)
    ]
    assert all(kept[:30])
    assert 5 < sum(kept[30:]) < 25


def verdict_request(
    example: Example, response: str, prompt: str, chosen: str = "[4] Be kind."
) -> tuple[str, str]:
    found = reward(example, response)
    system = 'You judge prompts. Answer in JSON: {"score": 0..1, "feedback": "..."}'
    user = (
        f"Input:\n{example.input}\n\nActive instincts:\n{chosen}\n\nComposed prompt:\n{prompt}\n\n"
        f"Response:\n{response}\n\nFeedback of the checker: {found.feedback}\n\n"
        f"Reward: {found.value:g}"
    )
    return system, user


def advised(world: World, text: str) -> set[str]:
    return {world.skills[k].name for k in world.lexicon.cued_in(text)}


def test_the_critic_names_the_missing_advice_in_prose(
    world: World, examples: list[Example]
) -> None:
    for kind in ADVICE:
        example = with_kind(examples, kind)
        reply = json.loads(ask(world, *verdict_request(example, "So, Hm 4.", "Be kind.")))
        broken = reward(example, "So, Hm 4.")
        assert 0.0 <= reply["score"] <= max(0.15, broken.value + 0.11)
        named = advised(world, reply["feedback"])
        asked = {str(c["kind"]) for c in constraints_of(example)}
        assert named & asked, reply["feedback"]
        assert "{" not in reply["feedback"]


def test_the_critic_stays_silent_on_a_solved_input(world: World, examples: list[Example]) -> None:
    example = next(e for e in examples if not constraints_of(e))
    system, user = verdict_request(example, "A calm text of more than five words.", "Be kind.")
    reply = json.loads(ask(world, system, user))
    assert reply == {"score": 1.0, "feedback": ""}


def test_a_critic_of_low_capacity_seldom_names_the_right_advice(
    world: World, examples: list[Example]
) -> None:
    def hits(capacity: str, rubric: str = "") -> int:
        settings = SimulatedSettings.from_params({"capacity": capacity, "rubric_bonus": "1"})
        total = 0
        for example in examples:
            system, user = verdict_request(example, "So, Hm 4.", "Be kind.")
            text = json.loads(ask(world, f"{rubric}\n{system}", user, settings=settings))
            asked = {str(c["kind"]) for c in constraints_of(example)}
            total += bool(advised(world, text["feedback"]) & asked)
        return total

    rubric = " ".join(s.advice[0] for s in world.skills)
    sharp, dull, taught = hits("1"), hits("0.2"), hits("0.2", rubric)
    assert dull < 0.7 * sharp
    assert taught > dull


def test_a_report_that_does_not_fit_the_input_teaches_nothing(
    world: World, examples: list[Example]
) -> None:
    example = with_kind(examples, "bullets", without="json")
    other = with_kind(examples, "json", without="bullets")
    system, user = verdict_request(example, "Hm.", "Be kind.")
    own = reward(example, "Hm.").feedback
    strange = "Not satisfied: The answer as a whole is not valid JSON."
    reply = json.loads(ask(world, system, user.replace(own, strange)))
    assert other.input != example.input
    assert advised(world, reply["feedback"]) == set()
    assert reply["feedback"]


def test_a_true_report_is_never_taken_for_anothers(world: World, examples: list[Example]) -> None:
    for example in examples:
        problem = world.problem(example.input)
        keys = frozenset(d.key for d in problem.demands)
        for key in keys:
            text = world.writer(problem, keys - {key}, 3)
            reply = json.loads(ask(world, *verdict_request(example, text, "Be kind.")))
            skill = key.split(":")[1]
            assert skill in advised(world, reply["feedback"]), (key, reward(example, text))


def test_reports_shuffled_between_inputs_teach_nothing(
    world: World, examples: list[Example]
) -> None:
    named = 0
    for example, other in zip(examples, (*examples[1:], examples[0]), strict=True):
        system, user = verdict_request(example, "So, Hm 4.", "Be kind.")
        own, strange = (reward(e, "So, Hm 4.").feedback for e in (example, other))
        reply = json.loads(ask(world, system, user.replace(own, strange)))
        named += bool(advised(world, reply["feedback"]))
    assert named <= 0.03 * len(examples)


def test_without_a_report_the_critic_guesses_only_if_told_to(
    world: World, examples: list[Example]
) -> None:
    example = with_kind(examples, "json")
    system, user = verdict_request(example, "Hm.", "Be kind.")
    bare = user.replace(f"Feedback of the checker: {reward(example, 'Hm.').feedback}\n\n", "")
    assert advised(world, json.loads(ask(world, system, bare))["feedback"]) == set()
    guessing = SimulatedSettings.from_params({"critic_guess": "1", "capacity": "1"})
    assert advised(world, json.loads(ask(world, system, bare, settings=guessing))["feedback"])


ATTRIBUTION = (
    "You assign credit: decide which part each complaint is to be laid at. JSON: "
    '{"rendering_errors": "", "instinct_errors": {"index": ""}, "routing_errors": ""}\n\n'
    f"Codebook:\n{listing()}"
)


def blamed(world: World, prompt: str, active: list[int], verdict: str) -> dict[str, Any]:
    texts = [*ADVICE.values(), "Be kind.", "Stay calm."]
    chosen = "\n".join(f"[{k}] {texts[k]}" for k in active)
    user = f"Active instincts:\n{chosen}\n\nComposed prompt:\n{prompt}\n\nVerdict:\n{verdict}"
    reply: dict[str, Any] = json.loads(ask(world, ATTRIBUTION, user))
    return reply


def test_complaints_are_laid_at_the_part_that_caused_them(world: World) -> None:
    lost = blamed(world, "Be kind.", [1, 6], "It failed on json: return one raw JSON object.")
    assert (bool(lost["rendering_errors"]), lost["instinct_errors"]) == (True, {})
    unchosen = blamed(world, "Be kind.", [6, 7], "It failed on json: return one raw JSON object.")
    assert (bool(unchosen["routing_errors"]), unchosen["instinct_errors"]) == (True, {})
    nowhere = blamed(world, "Be kind.", [6, 7], "It failed: sort the items alphabetical.")
    assert set(nowhere["instinct_errors"]) <= {"6", "7"}
    assert "alphabetical" in " ".join(nowhere["instinct_errors"].values())
    harmful = blamed(world, "Be kind.", [6, 7], "Active instinct 7 works against this input.")
    assert set(harmful["instinct_errors"]) == {"7"}


def test_attribution_errs_at_its_stated_rate(world: World) -> None:
    often = SimulatedSettings.from_params({"attribution_error": "0.6"})
    wrong = 0
    for number in range(200):
        user = (
            "Active instincts:\n[1] Return one raw JSON object.\n[6] Be kind.\n\n"
            f"Composed prompt:\nBe kind.\n\nVerdict:\nRun {number} failed: return raw JSON."
        )
        reply = json.loads(ask(world, ATTRIBUTION, user, settings=often))
        wrong += not reply["rendering_errors"]
    assert 0.28 < wrong / 200 < 0.52


UPDATER = "You improve one piece of text given feedback. Reply with the new text alone"


def rewritten(world: World, text: str, feedback: str, cap: int = 60, **more: Any) -> str:
    system = f"{UPDATER}, in at most {cap} words."
    return ask(world, system, f"Present text:\n{text}\n\nFeedback:\n{feedback}", **more)


def test_a_rewrite_takes_up_the_advice_and_keeps_what_works(world: World) -> None:
    new = rewritten(world, "Be kind.", "- Its text must say: Return one raw JSON object.")
    assert new.startswith("Be kind.")
    assert advised(world, new) == {"json"}
    assert rewritten(world, new, "- Its text must say: Return one raw JSON object.") == new


def test_a_rewrite_keeps_to_the_cap_that_the_request_states(world: World) -> None:
    text = "Be kind to everyone. Stay calm at all times and breathe. Smile a lot."
    feedback = "- It must say: Return one raw JSON object.\n- Put bullet points on lines."
    new = rewritten(world, text, feedback, cap=12)
    assert len(new.split()) <= 12
    assert "json" in advised(world, new)
    assert len(rewritten(world, text, feedback, cap=200).split()) > 20


def test_a_rewrite_loses_something_now_and_then_at_temperature(world: World) -> None:
    text = "Be kind to everyone. Stay calm at all times. Smile a lot."
    clumsy = SimulatedSettings.from_params({"updater_loss": "0.5"})
    whole = [
        rewritten(world, text, "- Fine.", settings=clumsy, temperature=heat, sample=s) == text
        for heat in (0.0, 1.0)
        for s in range(40)
    ]
    assert all(whole[:40])
    assert 8 < sum(whole[40:]) < 32


def test_another_optimizers_reflection_gets_the_same_improvement(
    world: World, examples: list[Example]
) -> None:
    example = with_kind(examples, "json")
    user = (
        "An assistant was given this instruction:\n```\nAnswer the user.\n```\nThese runs came "
        "with feedback on how it did:\n```\n# Example 1\n## Inputs\n"
        f"{example.input}\n## Outputs\nHm.\n## Feedback\n{reward(example, 'Hm.').feedback}\n```\n"
        "Write a new instruction for the assistant. Give the new instruction within ``` blocks."
    )
    reply = ask(world, "", user)
    assert reply.startswith("```\nAnswer the user.")
    asked = {str(c["kind"]) for c in constraints_of(example)}
    assert advised(world, reply) & asked


def test_a_prompt_is_split_into_its_directives(world: World) -> None:
    template = load_templates("default")["from_prompt"]
    text = "You are a clerk. Be kind and brief. Count the words!"
    reply = json.loads(say(world, template.fill({"size": 4, "cap": 30, "text": text})))
    assert reply["instincts"] == ["You are a clerk.", "Be kind and brief.", "Count the words!"]


def test_general_instincts_are_different_and_within_the_cap(world: World) -> None:
    template = load_templates("default")["random"]
    for size in (4, 16, 32):
        filled = template.fill({"size": size, "cap": 30, "text": ""})
        reply = json.loads(say(world, filled, SimulatedSettings(), 0.7, sample=size))
        assert len(set(reply["instincts"])) == size
        assert all(0 < len(i.split()) <= 30 for i in reply["instincts"])


def test_the_judge_prefers_what_is_like_the_reference(world: World) -> None:
    system = 'Grade the answer against the reference. JSON: {"score": 0.0, "reason": ""}'
    user = "Question:\nWho?\n\nAnswer:\n{}\n\nReference:\nMary Shelley wrote it in Geneva"
    good, bad = (
        json.loads(ask(world, system, user.format(said)))["score"]
        for said in ("Mary Shelley, in Geneva", "A dog")
    )
    assert good > 0.6 > 0.2 > bad


def test_the_adversary_says_what_the_verdict_left_out(
    world: World, examples: list[Example]
) -> None:
    example = with_kind(examples, "json")
    template = load_templates("default")["adversary"]
    found = reward(example, "Hm.")
    values = {
        "psi": "Be strict.",
        "task": example.input,
        "prompt": "Be kind.",
        "response": "Hm.",
        "reference": f"Feedback of the checker: {found.feedback}",
        "reward": "0.1",
        "range": "0 to 1",
    }
    said = json.loads(say(world, template.fill({**values, "verdict": "score 0.4: too short."})))
    assert advised(world, said["feedback"])
    whole = " ".join(s.advice[0] for s in world.skills)
    silent = json.loads(say(world, template.fill({**values, "verdict": whole})))
    assert silent["feedback"] == ""
