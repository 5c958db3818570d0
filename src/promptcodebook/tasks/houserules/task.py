"""`houserules`: messages to a shop, each topic answered in a form that no message mentions.

648 messages on 14 topics to a shop that sells home goods; what a prompt has to bring is the
house rule of the topic. A message under two topics has two rules, one under none is to be answered
plainly. The checks decide: the reward is the share of the message's rules that the reply keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from promptcodebook.calls import Chat, Role
from promptcodebook.data import Dataset, load
from promptcodebook.errors import DataError
from promptcodebook.tasks.constraints.checks import sentences
from promptcodebook.tasks.houserules.checks import check, plain
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Output, Prompt, Score

RULES: Mapping[str, str] = {
    "parcel": "dialogue",
    "return": "recipe",
    "refund": "letter",
    "damaged": "emoji",
    "invoice": "spanish",
    "cancel": "chinese",
    "address": "json",
    "login": "python",
    "advice": "story",
    "howto": "japanese",
    "warranty": "one_sentence",
    "voucher": "html",
    "privacy": "russian",
    "visit": "french",
}
"""Topic -> the kind of its rule, in the order of the present prompt's lines."""

SIX = ("invoice", "cancel", "address", "login", "advice", "howto")
"""The topics whose rules SmolLM2 keeps best when they stand alone, on training messages that did
not choose their wording (docs/tasks/houserules.md); of equals the first."""

_TITLES: Mapping[str, str] = {
    "parcel": "a parcel that has not come",
    "return": "sending something back",
    "refund": "a refund that has not come",
    "damaged": "something that arrived broken or does not work",
    "invoice": "an invoice or a receipt",
    "cancel": "cancelling an order",
    "address": "another delivery address",
    "login": "signing in",
    "advice": "choosing a product",
    "howto": "assembling, using or cleaning a product",
    "warranty": "a warranty or a spare part",
    "voucher": "a voucher that does not work",
    "privacy": "newsletters and personal data",
    "visit": "visiting the stores",
}


class PromptLast:
    """One call: the message and, after a blank line, the prompt, both in the customer's turn.

    Small models heed what is said last and pass over a system prompt (docs/tasks/houserules.md
    has the figures).
    """

    name = "message, then prompt"
    stages: tuple[str, ...] = ()
    roles: frozenset[Role] = frozenset()

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        """y, and whether it was cut; without a prompt the message stands alone."""
        turn = "\n\n".join(part for part in (example.input, prompt.text) if part.strip())
        reply = await lm(turn, purpose="execute")
        return Output(reply.text, truncated=reply.finish == "length")


def load_houserules(_data_dir: Path | None = None) -> Task:
    """The task; its data ships with the package, so no folder is looked at."""
    return _task("houserules", "fourteen", tuple(RULES))


def load_houserules_six(_data_dir: Path | None = None) -> Task:
    """Its messages on six topics and on none: routes are learned in a few hundred rollouts."""
    return _task("houserules_six", "six", SIX)


def _task(name: str, count: str, topics: Collection[str]) -> Task:
    return Task(
        name=name,
        dataset=_messages(name, topics),
        reward=asks_nobody(reward),
        program=PromptLast(),
        seeds=sentences(present_prompt(topics)),
        zero_shot="Answer the customer's message.",
        description=f"Messages to a shop on {count} topics, each with a house rule for the form "
        "of its answer; the reward is the share of a message's rules that the reply keeps.",
        oracle=lambda example: "\n".join(right_rules(example)),
        output_format="Only the reply to the customer, in the form that the house rule for its "
        "topic asks for; plain English where there is none.",
    )


def _messages(name: str, topics: Collection[str]) -> Dataset:
    """Those that are on no other topic."""
    whole = load(
        _shipped("data.jsonl"),
        input="message",
        target=None,
        id="id",
        split="split",
        name=name,
    )
    kept = {
        split: tuple(e for e in examples if set(topics_of(e)) <= set(topics))
        for split, examples in whole.items()
    }
    return replace(whole, **kept)


def present_prompt(topics: Collection[str] = tuple(RULES)) -> str:
    """The prompt the firm has now: who it is, then a line for each rule with its condition."""
    who, _, rules = _shipped("present_prompt.md").read_text("utf-8").strip().partition("\n\n")
    lines = zip(RULES, rules.splitlines(), strict=True)
    return "\n".join([who, "", *(line for topic, line in lines if topic in topics)])


def right_rules(example: Example) -> tuple[str, ...]:
    """The sentences of the present prompt that apply to this message: none, one or two."""
    lines = present_prompt().partition("\n\n")[2].splitlines()
    said = dict(zip(RULES, lines, strict=True))
    return tuple(said[topic] for topic in topics_of(example))


def topics_of(example: Example) -> tuple[str, ...]:
    """The topics in the example's `fields["topics"]`; DataError for one that has no rule."""
    topics = tuple(cast("list[str]", example.fields.get("topics") or []))
    for topic in topics:
        if topic not in RULES:
            raise DataError(
                f"the example {example.id!r} has the topic {topic!r}, which has no house rule",
                hint=f"topics: {', '.join(RULES)}",
            )
    return topics


def reward(example: Example, output: str) -> Score:
    """Kept / all rules of the message's topics, in [0, 1]; the feedback names each and its topic.

    A message without a topic: 1 for a plain English reply, else 0.
    """
    topics = topics_of(example)
    if not topics:
        result = plain(output)
        return Score(float(result.satisfied), result.explanation)
    results = {topic: check(RULES[topic], output) for topic in topics}
    parts = [
        f"House rule for messages about {_TITLES[topic]} "
        f"{'kept' if result.satisfied else 'broken'}: {result.explanation}"
        for topic, result in results.items()
    ]
    return Score(sum(r.satisfied for r in results.values()) / len(results), " ".join(parts))


def _shipped(name: str) -> Path:
    return Path(__file__).with_name(name)
