"""What our engine costs beside openvino-genai's own `generate`: 36 prompts at once, and one alone.

Both run SmolLM2 from the same file in one process, in turn, each on a pipeline of its own with the
same settings: `generate` gets all prompts in one call, our engine as many jobs in flight. The
prompts are messages of `houserules`, each with the house rules that apply to it, greedy. All of
them are in both prefix caches after the first turn, which is not counted; who begins alternates.

    python -m bench.local_engine
    PCO_BENCH_ROUNDS=5 PCO_BENCH_TOKENS=96 python -m bench.local_engine
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.figures import Figure, shown
from promptcodebook.calls import Message
from promptcodebook.errors import import_extra
from promptcodebook.lm.spec import SMOLLM2
from promptcodebook.models.local.engine import Engine, Job, Weights, require_model
from promptcodebook.models.local.lm import load_engine
from promptcodebook.models.local.openvino import AT_ONCE
from promptcodebook.paper.tasks.houserules.task import right_rules
from promptcodebook.tasks.task import load_task

PROMPTS = 36
TOKENS = int(os.environ.get("PCO_BENCH_TOKENS", "24"))
ROUNDS = int(os.environ.get("PCO_BENCH_ROUNDS", "3"))
ONES = 10
GOAL_SHARE = 0.9
GOAL_ADDED_MS = 5.0

Ask = Callable[[Sequence[str], int], Awaitable[int]]
"""Turns of a user and a length cap -> tokens written."""


@dataclass
class Way:
    """One of the two, and what was measured of it."""

    ask: Ask
    speeds: list[float] = field(default_factory=list[float])
    waits: list[float] = field(default_factory=list[float])

    async def all_at_once(self, texts: Sequence[str]) -> None:
        begun = time.perf_counter()
        tokens = await self.ask(texts, TOKENS)
        self.speeds.append(tokens / (time.perf_counter() - begun))

    async def one(self, text: str) -> None:
        begun = time.perf_counter()
        await self.ask([text], 1)
        self.waits.append(1e3 * (time.perf_counter() - begun))


def house_prompts() -> list[str]:
    """As the task's program asks: the message, then the rules that it falls under."""
    examples = load_task("houserules").dataset.train[:PROMPTS]
    return ["\n\n".join([each.input, *right_rules(each)]) for each in examples]


def by_its_own(weights: Weights) -> Ask:
    """Prompts in, replies out, in one call; the chat template is filled in as our engine does."""
    genai = import_extra("openvino_genai", "this bench", SMOLLM2)
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.max_num_seqs = AT_ONCE
    scheduler.cache_size = 1
    pipeline = genai.ContinuousBatchingPipeline(weights.source, scheduler, "CPU", {}, {})
    tokenizer = pipeline.get_tokenizer()

    def generate(texts: Sequence[str], cap: int) -> int:
        turns = [[{"role": "user", "content": text}] for text in texts]
        filled = [tokenizer.apply_chat_template(turn, True) for turn in turns]
        prompts = [tokenizer.encode(each, add_special_tokens=False).input_ids for each in filled]
        settings = genai.GenerationConfig(
            max_new_tokens=cap,
            do_sample=False,
            eos_token_id=tokenizer.get_eos_token_id(),
            stop_token_ids={tokenizer.get_eos_token_id()},
            apply_chat_template=False,
        )
        made = pipeline.generate(prompts, [settings] * len(prompts))
        return sum(len(each.m_generation_ids[0]) for each in made)

    async def ask(texts: Sequence[str], cap: int) -> int:
        return generate(texts, cap)

    return ask


def by_ours(engine: Engine) -> Ask:
    async def ask(texts: Sequence[str], cap: int) -> int:
        jobs = (Job((Message("user", text),), temperature=0.0, max_tokens=cap) for text in texts)
        made = await asyncio.gather(*(engine.generate(job) for job in jobs))
        return sum(each.completion_tokens for each in made)

    return ask


async def compare() -> list[Figure]:
    weights = require_model(SMOLLM2)
    engine = load_engine(weights)
    ways = {"own": Way(by_its_own(weights)), "ours": Way(by_ours(engine))}
    prompts = house_prompts()
    for turn in range(ROUNDS + 1):
        for way in list(ways.values())[:: -1 if turn % 2 else 1]:
            await way.all_at_once(prompts)
    for turn, prompt in enumerate(prompts[: ONES + 1]):
        for way in list(ways.values())[:: -1 if turn % 2 else 1]:
            await way.one(prompt)
    await engine.close()
    return figures(ways)


def figures(ways: Mapping[str, Way]) -> list[Figure]:
    """Without the first of each, which warms up."""
    ours, own = ways["ours"], ways["own"]
    pairs = zip(ours.speeds[1:], own.speeds[1:], strict=True)
    share = statistics.median(mine / theirs for mine, theirs in pairs)
    fast = f"{max(ours.speeds[1:]):.0f} against {max(own.speeds[1:]):.0f} tokens/s"
    mine, theirs = statistics.median(ours.waits[1:]), statistics.median(own.waits[1:])
    alone = f"{mine:.1f} against {theirs:.1f} ms"
    name = f"share of generate's tokens/s, {PROMPTS} in flight"
    return [
        Figure(name, share, "", GOAL_SHARE, True, fast),
        Figure("added to one request, p50", mine - theirs, "ms", GOAL_ADDED_MS, beside=alone),
    ]


def measure() -> list[Figure]:
    return asyncio.run(compare())


if __name__ == "__main__":
    raise SystemExit(shown(measure, __doc__ or ""))
