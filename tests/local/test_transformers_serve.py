"""A real transformer behind a server that no one here wrote: tiny, random, and never of use.

Its replies are noise, so nothing that is asked for as JSON ever comes back as JSON. What is tested
is that a run gets through all the same, and counts what went wrong. One training example is
unsolved, and the critic asked about it alone: a run whose critiques are mostly noise would stop.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.calls import Message, Reply, Request, Sampling, Usage
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.spec import Credentials, parse_spec
from promptcodebook.store.run import RunStore
from tests.cli import invoked
from tests.local.served import Served
from tests.local.tiny import BEGIN, END, TURN

pytestmark = pytest.mark.local

STEPS, BATCH, HELD_OUT = 2, 6, 3
MIDWAY = 0.5  # neither of the range's ends: a failure booked as 0 or 1 would show
# The shortest reply is one word and the end of the turn: every answer fills its cap of two tokens.
CAPS = {"encoder": 32, "generator": 96, "executor": 2, "critic": 32}
SETTINGS: dict[str, Any] = {
    "size": 8,
    "select": 2,
    "keep": "last",
    "cache": False,
    # θ would be told what is wrong with its routes, and be rewritten to noise.
    "encoder": {"mode": "static"},
    "explore": {"epsilon": 0.0, "epsilon_min": 0.0},
    "update": {"epochs": STEPS, "batch_size": BATCH},
    "validation": {"every": 0},
    "roles": {role: {"max_tokens": cap} for role, cap in CAPS.items()},
}


def rows() -> list[dict[str, str]]:
    things = ("river", "bread", "map", "lamp", "clock", "boat")
    asked = [f"What is a {thing} for?" for thing in things]
    asked += [f"Who would miss a {thing} most?" for thing in things]
    return [{"question": question, "answer": "it serves people"} for question in asked]


async def say(server: Served, text: str, sample: int = 0, cap: int = 24) -> Reply:
    sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=cap)
    request = Request("executor", (Message("user", text),), sample=sample, sampling=sampling)
    async with Endpoint(parse_spec(server.spec, {}), Credentials(), timeout=60.0) as endpoint:
        return await endpoint(request)


async def test_a_reply_has_the_tokenizers_own_count_and_is_drawn_by_its_seed(
    server: Served,
) -> None:
    from tokenizers import Tokenizer

    reply = await say(server, "Where does the river lead?", cap=24)
    rendered = f"{BEGIN}{TURN}user\nWhere does the river lead?{END}{TURN}assistant\n"
    tokenizer = Tokenizer.from_file(str(server.model / "tokenizer.json"))
    assert reply.usage.prompt_tokens == len(tokenizer.encode(rendered).ids)
    assert 1 <= reply.usage.completion_tokens <= 24 and not reply.estimated
    assert reply.text.strip() and 0.0 < reply.usage.latency_s < 60.0
    first, again, other = [await say(server, "Name a boat.", sample) for sample in (1, 1, 2)]
    assert first.text == again.text != other.text
    # No reply ends before a second token: the first that can end it is still to be followed.
    cut = await say(server, "Tell all you know.", cap=1)
    assert (cut.finish, cut.usage.completion_tokens) == ("length", 1)


def test_the_doctor_says_so_in_plain_words(server: Served, tmp_path: Path) -> None:
    look = ("doctor", "--task", "constraints", "--lm", server.spec)
    # The rehearsal fails: a random model's verdicts never parse, and doctor says so.
    plain = invoked.pco(*look, cwd=tmp_path)
    assert plain.code == 1, plain.err
    assert "fail  critic: ParseError" in plain.out
    assert "warn  structured output: accepted and ignored" in plain.out


def test_a_run_on_noise_gets_through_and_its_counts_agree_with_the_server(
    server: Served, tmp_path: Path
) -> None:
    before, data = server.answered, pco.load(rows(), input="question", target="answer")

    def reward(example: pco.Example, output: str) -> pco.Score:
        unsolved = example.id == data.train[0].id
        feedback = f"the answer should read: {example.target}"
        return pco.Score(MIDWAY if unsolved else 1.0, feedback=feedback)

    run = pco.optimize(data, reward, lm=server.spec, config=SETTINGS, runs_dir=tmp_path)
    answered, tallies = server.answered - before, run.tallies
    with closing(RunStore.open(run.path)) as store:
        tests = tuple(store.test_evaluations())

    def calls(*roles: str) -> int:
        return sum(used.calls for role, used in run.usage.items() if role in roles)

    assert run.ended == "finished" and run.verdict
    total = sum(run.usage.values(), Usage())
    assert total.calls == answered
    assert total.prompt_tokens > total.calls and total.completion_tokens >= total.calls
    assert 0.0 < total.latency_s < 600.0
    assert calls("critic") == 2 * STEPS
    assert calls("attribution", "updater", "judge", "untrusted") == 0
    # What is asked for as JSON fails twice each time, and is asked for again once; so is a prompt
    # that was cut.
    typed = calls("encoder", "critic")
    judged = [rollout for row in tests for rollout in row.rollouts if rollout.route]
    # Nothing was rewritten: where the routes are the same, so is the request, and it is paid once.
    routes = {(rollout.example_id, rollout.route.indices) for rollout in judged if rollout.route}
    prompts = calls("generator") - (STEPS * BATCH + len(routes))
    assert tallies["reasked"] == typed / 2 + prompts
    routed = calls("encoder") // 2
    assert tallies["route_fallbacks"] == tallies["route_repairs"] == routed
    assert routed >= STEPS * BATCH + 2 * HELD_OUT
    # A typed reply is noise (malformed) or noise cut short (truncated); an answer is always cut.
    assert 0 < tallies["malformed"] <= typed
    assert tallies["truncated"] >= calls("executor")
    assert tallies["malformed"] + tallies["truncated"] >= typed + calls("executor")
    assert 0 < tallies["parse_failed"] <= tallies["reasked"]
    assert "repaired" not in tallies
    wire = {"rate_limited", "unavailable", "server_error", "dropped", "timeout"}
    assert wire.isdisjoint(tallies)
