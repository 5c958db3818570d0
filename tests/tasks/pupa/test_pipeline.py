"""PAPILLON: who is sent what, and what nobody outside ever sees (our own, invented examples)."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest

from promptcodebook.calls import Message, Reply, Request, Schema, request_key
from promptcodebook.errors import ConfigError, ServerFault
from promptcodebook.incidents import Counts
from promptcodebook.lm.cache import Cache, unpack_reply
from promptcodebook.lm.journal import Journaled
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat, Trial
from promptcodebook.randomness import Draws
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.tasks import pupa
from promptcodebook.tasks.pupa.judge import Papillon, Wall, request_of
from promptcodebook.tasks.pupa.score import distinct_units, leaked_units
from promptcodebook.tasks.pupa.task import read_dataset
from promptcodebook.types import Example, Output, Prompt, Rollout

PROMPT = Prompt("COMPOSED-ONE: hide every name.\n\nCOMPOSED-TWO: keep the tone.")
QUERY = Example(
    "own-1",
    "Write to Mirelle Ostvang at mirelle@example.org that I am late.",
    "Dear Mirelle, I am late.",
    fields={"pii_units": "mirelle ostvang||mirelle@example.org"},
)


def crafted(request: str, thoughts: str = "Mirelle Ostvang is a private name.") -> str:
    return f"reasoning: {thoughts}\nllm_request: {request}"


async def answered(lm: ScriptedLM, prompt: Prompt = PROMPT) -> Output:
    return await Papillon()(prompt, QUERY, BoundChat(lm, lambda purpose: 7))


def sent(lm: ScriptedLM, role: str) -> list[Request]:
    return [request for request in lm.history if request.role == role]


async def test_three_stages_and_the_untrusted_one_gets_the_request_alone() -> None:
    lm = ScriptedLM().enqueue(crafted("Write a note about being late."), role="executor")
    lm.enqueue("Dear [NAME], I am late.", role="untrusted")
    lm.enqueue("Dear Mirelle, I am late.", role="executor")
    output = await Papillon()(PROMPT, QUERY, BoundChat(lm, lambda purpose: 7))
    assert output.text == "Dear Mirelle, I am late."
    assert output.fields == {"request": "Write a note about being late."}
    assert [stage.name for stage in output.trace] == ["craft", "outside", "respond"]
    assert [request.role for request in lm.history] == ["executor", "untrusted", "executor"]
    (outside,) = sent(lm, "untrusted")
    assert outside.messages == (Message("user", "Write a note about being late."),)
    assert outside.schema is None
    craft, respond = sent(lm, "executor")
    for trusted in (craft, respond):
        assert trusted.messages[0].content.startswith(PROMPT.text)
        assert QUERY.input in trusted.messages[1].content
    assert "Dear [NAME], I am late." in respond.messages[1].content


async def test_a_prompt_per_stage() -> None:
    lm = ScriptedLM().enqueue(crafted("r"), "helped", "done")
    parts = Prompt("all", {"craft": "FOR CRAFT", "respond": "FOR RESPOND"})
    assert (await answered(lm, parts)).text == "done"
    assert Papillon.stages == ("craft", "respond")
    firsts = [request.messages[0].content for request in sent(lm, "executor")]
    assert firsts[0].startswith("FOR CRAFT\n") and firsts[1].startswith("FOR RESPOND\n")


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "llm_request:",
        "reasoning: Mirelle Ostvang is private.\nllm_request:   ",
        "reasoning: Mirelle Ostvang is private.",
        "llm_request: a note\nreasoning: Mirelle Ostvang is private.",
        '{"reasoning": "Mirelle Ostvang is private.", "llm_request": ""}',
    ],
)
async def test_without_a_request_of_its_own_nothing_goes_outside(reply: str) -> None:
    lm = ScriptedLM().enqueue(reply)
    made = await answered(lm)
    for request in sent(lm, "untrusted"):
        assert "Mirelle" not in request.messages[0].content
    assert (made.text, request_of(made), len(lm.history)) == ("", "", 1)


async def test_a_failed_call_fails_the_rollout() -> None:
    lm = ScriptedLM().enqueue(crafted("a note"), ServerFault("down"))
    trial = Trial(Papillon(), None, lm)
    rollout = await trial.run(QUERY, PROMPT, Draws(0, 0, QUERY.id), Rollout(QUERY.id))
    assert rollout.failure is not None and rollout.failure.kind == "ServerFault"


@pytest.mark.parametrize(
    ("messages", "system", "schema"),
    [
        ("another text", "", None),
        ("the request, and more", "", None),
        ("the request", PROMPT.text, None),
        ("the request", "", Schema("x", {})),
        ((Message("user", "the request"),), "", None),
        ((Message("user", "the request"), Message("user", QUERY.input)), "", None),
    ],
)
async def test_the_wall_lets_only_the_released_request_pass(
    messages: str | tuple[Message, ...], system: str, schema: Schema | None
) -> None:
    lm = ScriptedLM().reply_with(lambda request: "fine")
    wall = Wall(BoundChat(lm, lambda purpose: 7))
    with pytest.raises(ConfigError, match="beside the rewritten request"):
        await wall("the request", role="untrusted")
    wall.release("the request")
    with pytest.raises(ConfigError, match="beside the rewritten request"):
        await wall(messages, system=system, role="untrusted", schema=schema)
    assert lm.history == []
    await wall("the request", role="untrusted")
    await wall(QUERY.input, system=PROMPT.text)
    assert [request.role for request in lm.history] == ["untrusted", "executor"]


def test_an_output_of_another_program_sent_nothing_outside() -> None:
    assert request_of(Output("plain")) == request_of(Output("x", fields={"request": None})) == ""


# What a private run leaves behind. The rewrite below keeps one unit and removes all others, so
# that the test would notice a comparison that finds nothing at all.


def rewriting(example: Example) -> tuple[str, tuple[str, ...]]:
    """A request that still holds the example's first unit, and the units that it removed."""
    first, *others = distinct_units(str(example.fields["pii_units"]))
    return f"Write a general text about {first}.", tuple(others)


def roles_played(example: Example, helped: str) -> ScriptedLM:
    def say(request: Request) -> str:
        if request.role == "untrusted":
            return helped
        craft = "llm_request" in request.messages[0].content.split("\n\n")[2]
        return crafted(rewriting(example)[0], example.input) if craft else example.target or ""

    return ScriptedLM().reply_with(say)


class Untrusted:
    """An LM that passes all on, and keeps what the role untrusted was sent and what it logged."""

    def __init__(self, inner: ScriptedLM) -> None:
        self._inner = inner
        self.seen: list[Request] = []

    async def __call__(self, request: Request) -> Reply:
        if request.role == "untrusted":
            self.seen.append(request)
        return await self._inner(request)


def stored(path: Path, sql: str, value: bytes | str) -> list[str]:
    """The rows that a query finds, every column as text."""
    db = sqlite3.connect(path)
    rows = db.execute(sql, (value,)).fetchall()
    db.close()
    return [f"{unpack_reply(row[-1])!r} {row[:-1]!r}" for row in rows]


def cache_and_journal(folder: Path, seen: Request) -> list[str]:
    """What cache and journal keep of a call to the untrusted role."""
    (run,) = (folder / "runs").rglob("*.sqlite")
    return [
        *stored(folder / "cache.sqlite", "SELECT * FROM replies WHERE key = ?", request_key(seen)),
        *stored(run, "SELECT * FROM journal WHERE role = ?", "untrusted"),
    ]


SHIPPED = Path(pupa.__file__).parent / "examples"
"""Ours by its path: a test must never meet a public copy that somebody fetched."""
OWN = [e for _, examples in read_dataset(SHIPPED).items() for e in examples]


@pytest.mark.parametrize("example", OWN, ids=lambda e: e.id)
async def test_no_removed_unit_and_no_prompt_reaches_the_untrusted_role(
    example: Example, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    request, removed = rewriting(example)
    helped = "Here is a general text with [NAME]."
    untrusted = Untrusted(roles_played(example, helped))
    cache = Cache(untrusted, tmp_path / "cache.sqlite", Counts())
    store = RunStore.create(
        tmp_path / "runs",
        Header("", "2025-01-01T00:00:00+00:00", "0", "pupa", "", "", {}, "", {}),
    )
    lm = Journaled(cache, store.reply_log, Counts())
    trial = Trial(Papillon(), None, lm)
    rollout = await trial.run(example, PROMPT, Draws(0, 0, example.id), Rollout(example.id))
    store.close()
    cache.close()
    assert rollout.failure is None
    assert (rollout.output, rollout.fields) == (example.target or "", {"request": request})

    (seen,) = untrusted.seen
    gone_out = repr(seen)
    assert leaked_units(gone_out, distinct_units(str(example.fields["pii_units"]))) != ()
    assert leaked_units(gone_out, removed) == ()
    assert "COMPOSED" not in gone_out
    kept = cache_and_journal(tmp_path, seen)
    assert len(kept) == 2
    for text in (*kept, caplog.text):
        assert leaked_units(text, removed) == () and "COMPOSED" not in text
