"""The executor: cues help, idle directives and length cost, and the draws are shared."""

from __future__ import annotations

from dataclasses import replace

from promptcodebook.simulated.recipes import build_world

from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.simulated.chat import from_request
from promptcodebook.simulated.model import SimulatedLM, answer
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.recognise import understand
from promptcodebook.simulated.world import World, all_advice, oracle_prompt
from promptcodebook.tasks.constraints.task import reward
from promptcodebook.types import Example

SETTINGS = SimulatedSettings()


def request(prompt: str, example: Example, temperature: float = 0.0, sample: int = 0) -> Request:
    system = (Message("system", prompt),) if prompt else ()
    messages = (*system, Message("user", example.input))
    return Request("executor", messages, sample=sample, sampling=Sampling(temperature))


def mean(
    world: World, settings: SimulatedSettings, examples: list[Example], prompt: object
) -> float:
    total = 0.0
    for example in examples:
        text = prompt(example) if callable(prompt) else str(prompt)
        asked = understand(from_request(request(text, example)), world)
        total += reward(example, answer(asked, world, settings)).value
    return total / len(examples)


def test_prompts_rank_as_the_documentation_says(world: World, examples: list[Example]) -> None:
    diluted, plain = SETTINGS, replace(SETTINGS, dilution=0.0)

    def oracle(example: Example) -> str:
        return oracle_prompt(world, example)

    nothing = mean(world, diluted, examples, "")
    best = mean(world, diluted, examples, oracle)
    crowded = mean(world, diluted, examples, all_advice(world))
    assert 0.42 < nothing < 0.6
    assert best > 0.93
    assert nothing < crowded < best - 0.15
    assert abs(mean(world, plain, examples, all_advice(world)) - best) < 0.03


def test_idle_directives_and_length_lower_the_score(world: World, examples: list[Example]) -> None:
    def padded(example: Example) -> str:
        return oracle_prompt(world, example) + " Be kind to birds." * 15

    def wordy(example: Example) -> str:
        return oracle_prompt(world, example) + " so" * 600

    def oracle(example: Example) -> str:
        return oracle_prompt(world, example)

    best = mean(world, SETTINGS, examples, oracle)
    assert mean(world, SETTINGS, examples, padded) < best - 0.1
    assert mean(world, SETTINGS, examples, wordy) < best - 0.1


def test_a_better_prompt_never_does_worse_on_the_same_input(
    world: World, examples: list[Example]
) -> None:
    plain = replace(SETTINGS, dilution=0.0)
    for example in examples:
        asked = [
            understand(from_request(request(p, example)), world)
            for p in ("", oracle_prompt(world, example))
        ]
        bare, told = (reward(example, answer(a, world, plain)).value for a in asked)
        assert told >= bare - 1e-9 or len(world.problem(example.input).demands) == 0


def test_a_sample_seed_counts_only_at_temperature(world: World, examples: list[Example]) -> None:
    def reply(example: Example, temperature: float, sample: int) -> str:
        asked = understand(from_request(request("Go.", example, temperature, sample)), world)
        return answer(asked, world, SETTINGS)

    for example in examples[:20]:
        assert reply(example, 0.0, 1) == reply(example, 0.0, 2)
        assert reply(example, 0.6, 1) == reply(example, 0.6, 1)
        assert reply(example, 0.6, 5) == reply(example, 0.6, 5 + 2**31)
    drawn = {reply(examples[2], 0.6, seed) for seed in range(12)}
    assert len(drawn) > 3


def test_nothing_but_the_system_prompt_and_the_input_counts(
    world: World, examples: list[Example]
) -> None:
    first = understand(from_request(request("Go.", examples[0])), world)
    other = replace(request("Go.", examples[0]), role="judge", model="another")
    assert answer(first, world, SETTINGS) == answer(
        understand(from_request(other), world), world, SETTINGS
    )


def test_every_input_needs_the_same_in_the_homogeneous_world(examples: list[Example]) -> None:
    same = build_world("constraints", examples, homogeneous=True)
    fixed = oracle_prompt(same, examples[0])

    def oracle(example: Example) -> str:
        return oracle_prompt(same, example)

    some = examples[:80]
    gap = mean(same, SETTINGS, some, oracle) - mean(same, SETTINGS, some, fixed)
    assert abs(gap) < 0.03
    assert mean(same, SETTINGS, some, fixed) > mean(same, SETTINGS, some, "") + 0.2


async def test_a_reply_is_cut_at_the_cap(world: World, examples: list[Example]) -> None:
    lm = SimulatedLM(world)
    whole = await lm(request("Go.", examples[0]))
    cut = await lm(
        replace(request("Go.", examples[0]), sampling=Sampling(temperature=0.0, max_tokens=5))
    )
    assert whole.finish == "stop"
    assert (cut.finish, cut.usage.completion_tokens) == ("length", 5)
    assert whole.text.startswith(cut.text)
