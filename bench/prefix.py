"""How much of a prompt is a prefix that a server has read before, so that it caches it.

Of the encoder's prompt, over all inputs: K = 16, the untrained codebook (training makes instincts,
and so the prefix, longer). Short inputs are those of the shipped `constraints` task up to 40 words;
all of them stand below for comparison. Counted twice: on the messages themselves, and as the
simulated server's prefix cache reports it while the encoder routes every input over HTTP.

Of a conversation behind `pco serve`, over its turns 2 to 10: each turn is about something else, and
an earlier request of the conversation counts as read, an answer does not. K = 16, S = 4.

    python -m bench.prefix
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from bench.figures import Figure, shown
from bench.proxy import policy
from promptcodebook.base.randomness import Draws
from promptcodebook.calls import Message
from promptcodebook.config import load_config
from promptcodebook.lm.stack import Models
from promptcodebook.method.init import Initialiser
from promptcodebook.method.policy import Composer
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.method.templates import load_templates
from promptcodebook.paper.simulated.orders import tokens
from promptcodebook.routing.ranking import RankedRoutes
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example, Parameters
from tests.build.proof_server import Served, served
from tests.build.proxied import Setup, up

SIZE = 16
SHORT_WORDS = 40
GOAL = 0.90
TURNS = 10
LEAST, FEW = 1024, 300
"""Tokens of the caller's own system text: the fewest that OpenAI caches a prompt from, and few."""
ANSWER = 50


def stream(messages: Sequence[Message]) -> list[str]:
    """A chat as the tokens a prefix cache compares."""
    return [t for m in messages for t in (f"<{m.role}>", *tokens(m.content))]


def shared(
    composer: Composer, parameters: Parameters, examples: Sequence[Example]
) -> tuple[float, float]:
    """Share of all prompt tokens that lies in the common prefix; mean tokens of an input."""
    fresh, inputs = RoutingStatistics.fresh(SIZE), [e.input for e in examples]
    streams = [stream(composer.messages(parameters, fresh, x)) for x in inputs]
    prefix = sum(1 for _ in takewhile(lambda t: len(set(t)) == 1, zip(*streams, strict=False)))
    total = sum(len(s) for s in streams)
    return prefix * len(streams) / total, sum(len(tokens(x)) for x in inputs) / len(inputs)


async def counted(
    server: Served, examples: Sequence[Example], templates: str
) -> tuple[float, float, float]:
    """Share shared, mean input tokens, and the share that the server reports as cached."""
    config = load_config({"lm": server.lm, "size": SIZE, "cache": False, "templates": templates})
    models = Models.build(config)
    kept = load_templates(config.templates)
    ranks = RankedRoutes(config.select).rank
    composer = Composer(models.ask, kept, config.select, ranks, tally=models.tally)
    seeds = load_task("constraints").seeds
    parameters = (await Initialiser(models.ask, kept, config).first(seeds)).parameters
    share, length = shared(composer, parameters, examples)
    server.reset()
    for example in examples:
        draws, fresh = Draws(0, 0, example.id), RoutingStatistics.fresh(SIZE)
        await composer.route(parameters, fresh, example, draws)
    await models.close()
    stats = server.stats()
    return share, length, stats["cached_tokens"] / stats["prompt_tokens"]


def words_of(body: dict[str, Any]) -> list[str]:
    """All that a request says, in order."""
    return [word for m in body["messages"] for word in (m["role"], *str(m["content"]).split())]


def repeated(bodies: Sequence[dict[str, Any]]) -> float:
    """Of the words that requests say after the first one, the share that an earlier one began with:
    what a server that caches prefixes does not read again."""
    streams = list(map(words_of, bodies))

    def common(a: Sequence[str], b: Sequence[str]) -> int:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))

    known = sum(max(common(a, b) for b in streams[:n]) for n, a in enumerate(streams) if n)
    return known / sum(map(len, streams[1:]))


async def conversed(texts: Sequence[str], size: int, **options: object) -> tuple[float, float]:
    """The share of a conversation's prompt tokens that repeat, its first turn left out; and the
    greatest that there is, all but the turn that is new and the answer before it."""
    words = " ".join(texts).split()
    system = {"role": "system", "content": " ".join(words[:size])}
    answer = {"role": "assistant", "content": " ".join(words[-ANSWER:])}
    shares, most = list[float](), list[float]()
    async with up(policy(), Setup(options=options)) as asked:
        for begin in range(0, len(texts) - TURNS + 1, TURNS):
            talk = [system]
            for text in texts[begin : begin + TURNS]:
                talk.append({"role": "user", "content": text})
                await asked.ask(json={"messages": talk})
                talk.append(answer)
            shares.append(repeated(asked.upstream.bodies))
            lengths = [len(words_of(body)) for body in asked.upstream.bodies]
            most.append(sum(lengths[:-1]) / sum(lengths[1:]))
            asked.upstream.bodies.clear()
    return sum(shares) / len(shares), sum(most) / len(most)


def conversations(texts: Sequence[str]) -> list[Figure]:
    figures: list[Figure] = []
    for name, goal, size, options in (
        ("--sticky conversation", GOAL, LEAST, {"sticky": "conversation"}),
        ("every turn routed", None, LEAST, {}),
        ("every turn routed, --prompt-first", None, LEAST, {"first": True}),
        ("--sticky conversation, short system text", None, FEW, {"sticky": "conversation"}),
        ("every turn routed, short system text", None, FEW, {}),
    ):
        share, most = asyncio.run(conversed(texts, size, **options))
        said = f"{size} tokens of it; at the most {most:.3f}"
        figures.append(Figure(f"repeats, {name}", share, "", goal, True, said))
    return figures


def measure() -> list[Figure]:
    every = [e for _, split in load_task("constraints").dataset.items() for e in split]
    short = [e for e in every if len(e.input.split()) <= SHORT_WORDS]
    figures: list[Figure] = []
    rows = (
        (f"{len(short)} short inputs", short, "default", GOAL),
        (f"all {len(every)} inputs", every, "default", None),
        (f"{len(short)} short inputs, the paper's templates", short, "paper", None),
    )
    for name, examples, templates, goal in rows:
        with served("simulated?prefix_cache=1") as server:  # afresh: nothing is cached yet
            share, length, cached = asyncio.run(counted(server, examples, templates))
        figures += [
            Figure(f"shared prefix, {name}", share, "", goal, True, f"{length:.0f} tokens each"),
            Figure(f"cached, first request included, {name}", cached, beside="simulated"),
        ]
    return figures + conversations([e.input for e in short])


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
