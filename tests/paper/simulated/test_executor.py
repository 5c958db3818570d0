"""The executor: needed orders help, orders out of place do harm, and words weigh."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from promptcodebook.assemble import Sources, assemble
from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.config import load_config
from promptcodebook.method.executor import roll_out
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.paper.simulated.executor import chance_of, obey, wrong_answer
from promptcodebook.paper.simulated.mind import from_request, understand
from promptcodebook.paper.simulated.model import SimulatedLM, answer
from promptcodebook.paper.simulated.world import SimulatedSettings
from promptcodebook.paper.tasks.constraints.task import reward
from promptcodebook.types import Example
from tests.build.simulated import examples, world

SETTINGS = SimulatedSettings()


def all_advice() -> str:
    """Every lacking skill's order under its own condition, in one prompt."""
    return "\n".join(world.skills.say(k, k) for k in sorted(world.lacking))


def request(prompt: str, example: Example, temperature: float = 0.0, sample: int = 0) -> Request:
    system = (Message("system", prompt),) if prompt else ()
    messages = (*system, Message("user", example.input))
    return Request("executor", messages, sample=sample, sampling=Sampling(temperature))


def mean(
    examples: list[Example],
    prompt: str | Callable[[Example], str],
    settings: SimulatedSettings = SETTINGS,
) -> float:
    total = 0.0
    for example in examples:
        text = prompt if isinstance(prompt, str) else prompt(example)
        asked = understand(from_request(request(text, example)), world)
        total += reward(example, answer(asked, world, settings)).value
    return total / len(examples)


def chance(text: str, prompt: str, kind: str, **more: float) -> float:
    """The chance that a demand of this kind is met under a prompt."""
    skill = world.skills.place(kind)
    assert skill is not None
    problem = world.problem(text)
    settings = replace(SETTINGS, **more)
    return chance_of(frozenset((skill,)), problem.needs, obey(world, problem, prompt), settings)


def oracle(example: Example) -> str:
    """Just the orders that an input needs."""
    return " ".join(world.skills.say(k, None) for k in sorted(world.problem(example.input).needs))


def test_prompts_rank_as_the_documentation_says() -> None:
    nothing = mean(examples, "")
    best = mean(examples, oracle)
    free = mean(examples, all_advice(), replace(SETTINGS, load=0.0))
    assert 0.4 < nothing < 0.65
    assert best > 0.9
    assert nothing < mean(examples, all_advice()) < best - 0.05
    assert abs(free - best) < 0.05  # conditional orders do no harm where they do not apply


def test_an_unconditional_order_is_obeyed_everywhere_and_breaks_what_it_contradicts() -> None:
    asks = "Say it in exactly 4 sentences."
    order = "Put each of the bullet points on a line with a dash."
    assert chance(asks, order, "sentences") == SETTINGS.floor
    assert chance(asks, f"When bullet points are asked for, {order}", "sentences") > 0.2
    assert chance("Use 4 bullets in total.", order, "bullets") > 0.9


def test_contradictory_orders_both_fail() -> None:
    both = "Keep all of the text in lower case. Set all of the text in capital letters."
    lower, upper = "Use only lower case letters.", "Write everything in capital letters."
    for asked, kind in ((lower, "lowercase"), (upper, "uppercase")):
        assert chance(asked, both, kind) == SETTINGS.floor
        assert chance(asked, both.split(". ")[kind == "uppercase"], kind) > 0.9


def test_orders_without_conditions_do_harm_cue_words_nothing_and_words_weigh() -> None:
    orders = " ".join(world.skills.say(k, None) for k in sorted(world.lacking))
    free = replace(SETTINGS, load=0.0)
    assert mean(examples, orders, free) < mean(examples, "", free) - 0.1
    cues = "words limit trim count bullet dash title brackets sentences paragraph quote digits"
    free = replace(SETTINGS, load=0.0, shared=1.0)
    assert mean(examples, cues, free) == mean(examples, "", free)
    asked = "Say it in exactly 4 sentences."
    weights = [chance(asked, "so " * n, "sentences") for n in (10, 60, 400, 800)]
    assert weights[0] == weights[1] > weights[2] > weights[3]


def test_draws_are_shared_between_prompts_in_a_stated_part() -> None:
    """A word that says nothing changes some outcomes, and none where all draws are shared."""
    half, all_ = replace(SETTINGS, load=0.0), replace(SETTINGS, load=0.0, shared=1.0)

    def rewards(prompt: str, settings: SimulatedSettings) -> list[float]:
        return [mean([e], prompt, settings) for e in examples]

    assert rewards("Go.", all_) == rewards("Start.", all_)
    differ = [a != b for a, b in zip(rewards("Go.", half), rewards("Start.", half), strict=True)]
    assert 0.1 < sum(differ) / len(differ) < 0.7


def test_a_sample_seed_counts_only_at_temperature() -> None:
    def reply(example: Example, temperature: float, sample: int) -> str:
        asked = understand(from_request(request("Go.", example, temperature, sample)), world)
        return answer(asked, world, SETTINGS)

    for example in examples[:20]:
        assert reply(example, 0.0, 1) == reply(example, 0.0, 2)
        assert reply(example, 0.6, 1) == reply(example, 0.6, 1)
        assert reply(example, 0.6, 5) == reply(example, 0.6, 5 + 2**31)
    assert len({reply(examples[2], 0.6, seed) for seed in range(12)}) > 3


async def test_a_sample_without_a_seed_is_fresh_and_a_reply_is_cut_at_the_cap() -> None:
    lm = SimulatedLM(world)
    asked = request("Go.", examples[2], 0.6)
    assert len({(await lm.reply(asked, seeded=False)).text for _ in range(12)}) > 3
    assert len({(await lm.reply(asked)).text for _ in range(12)}) == 1
    asked = request("Go.", examples[0])
    capped = replace(asked, sampling=Sampling(temperature=0.0, max_tokens=5))
    whole, cut = await lm(asked), await lm(capped)
    assert whole.finish == "stop"
    assert (cut.finish, cut.usage.completion_tokens) == ("length", 5)
    assert whole.text.startswith(cut.text)


# Programs of several stages, and questions of other forms: right where all outcomes are.


def always(chance: int) -> str:
    return f"able={chance}&unable={chance}&floor={chance}&ceiling={chance}&load=0&judge_noise=0"


@pytest.mark.parametrize(("task", "digests"), [
    ("hotpotqa", ("74bee73295aa", "b87cf6f5c4f3", "0fbfe5b2e980")),
    ("hover", ("ed1b0927ba31", "a88f058a9ee5", "a88f058a9ee5")),
    ("pupa", ("c9970883efd2", "616d764e54e0", "a3a3e906a8ce")),
    ("ifbench", ("cc17e429704a", "cc17e429704a", "cc17e429704a")),
    ("aime", ("86966df5571e", "6e073aed8474", "438db50ef2bf")),
    ("livebench_math", ("d07fd376ef39", "53c570626e19", "f48fbb0a5e21")),
])  # fmt: skip
async def test_what_a_stage_says_follows_its_outcome(
    task: str, digests: tuple[str, str, str]
) -> None:
    rewards: list[list[float | None]] = []
    found: list[str] = []
    for params in (always(1), always(0), "world=1"):
        config = load_config({"task": task, "lm": f"simulated?{params}", "cache": False})
        assembled = assemble(config, Sources())
        trial, outputs = assembled.trial(), list[str]()
        rewards.append([])
        for example in assembled.dataset.test[:6]:
            draws = config.randomness.at(0, example.id)
            rollout = await roll_out(FixedPrompt("Be exact. " * 60), trial, example, draws)
            assert rollout.failure is None
            rewards[-1].append(rollout.reward)
            outputs.append(rollout.output)
        await assembled.models.close()
        found.append(hashlib.sha256("\n".join(outputs).encode()).hexdigest()[:12])
    if task != "ifbench":  # few of its constraints are about a skill
        assert set(rewards[0]) == {1.0} and 1.0 not in rewards[1]
    assert tuple(found) == digests, "figures depend on these texts"


@pytest.mark.parametrize("gold", ["no", "Both", "not stated", "unknown"])
def test_a_wrong_answer_is_never_the_right_one(gold: str) -> None:
    answers = {wrong_answer(gold, f"is it so, {k}?", k) for k in range(40)}
    assert len(answers) > 2 and gold.lower() not in answers
