"""HotpotQA's program: two hops of retrieval, 7 passages each, then the answer.

search(question) -> summarize1 -> query2, search -> summarize2 -> answer. The four named stages are
chain-of-thought modules; hops and field names are those of the GEPA artifact.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from promptcodebook.lm.base import Chat
from promptcodebook.tasks.pipeline import Said, finished, think
from promptcodebook.tasks.retrieval import title_of
from promptcodebook.types import Example, Output

__all__ = ["INSTRUCTIONS", "PASSAGES", "STAGES", "Answered", "HotpotProgram"]

PASSAGES = 7
"""Passages wanted from each hop."""

STAGES: tuple[str, ...] = ("summarize1", "query2", "summarize2", "answer")

INSTRUCTIONS: dict[str, str] = {
    "summarize1": "Given the question and the passages, write a summary of what the passages say "
    "that bears on the question.",
    "query2": "Given the question and the first summary, write a search query for the page that "
    "is still needed to answer the question.",
    "summarize2": "Given the question, the context known so far and new passages, write a summary "
    "of what the passages add that bears on the question.",
    "answer": "Given the question and both summaries, write the answer to the question.",
}

_OUTPUTS = {
    "summarize1": "summary",
    "query2": "query",
    "summarize2": "summary",
    "answer": "answer",
}


@dataclass(frozen=True, slots=True)
class Answered:
    """What the program hands to the reward: the answer, and the titles found hop by hop.

    As text it is one JSON object, the answer first:
    {"answer": "Vienna", "retrieved": [[titles of hop 1], [titles of hop 2]]}.
    """

    answer: str
    retrieved: tuple[tuple[str, ...], ...] = ()

    def text(self) -> str:
        """The JSON object; `of` reads it back."""
        return json.dumps({"answer": self.answer, "retrieved": self.retrieved}, ensure_ascii=False)

    @classmethod
    def of(cls, text: str) -> Answered:
        """Reads an output; a text that is no such object is an answer with nothing retrieved."""
        try:
            value: object = json.loads(text)
        except (ValueError, RecursionError):
            return cls(text)
        if not isinstance(value, dict):
            return cls(text)
        held = cast("dict[str, object]", value)
        if not isinstance(held.get("answer"), str):
            return cls(text)
        hops = held.get("retrieved")
        rows = cast("list[object]", hops) if isinstance(hops, list) else []
        retrieved = tuple(
            tuple(t for t in cast("list[object]", hop) if isinstance(t, str))
            for hop in rows
            if isinstance(hop, list)
        )
        return cls(cast("str", held["answer"]), retrieved)


class HotpotProgram:
    """The executor. `stages` names its modules, so that each may have a prompt of its own."""

    stages = STAGES

    def __init__(self, search: Callable[[str, int], Awaitable[Sequence[str]]]) -> None:
        self._search = search

    async def __call__(self, prompt: str, example: Example, lm: Chat) -> Output:
        """One question through both hops; a blank query finds nothing. Errors of chat, search."""
        question = example.input
        first = await self._hop(question)
        summary1 = await _module(lm, prompt, "summarize1", question, passages=_listed(first))
        query2 = await _module(lm, prompt, "query2", question, summary_1=summary1["summary"])
        second = await self._hop(query2["query"])
        summary2 = await _module(
            lm,
            prompt,
            "summarize2",
            question,
            context=summary1["summary"],
            passages=_listed(second),
        )
        known = {"summary_1": summary1["summary"], "summary_2": summary2["summary"]}
        answer = await _module(lm, prompt, "answer", question, **known)
        found = Answered(
            answer["answer"], tuple(tuple(map(title_of, hop)) for hop in (first, second))
        )
        return finished(found.text(), (summary1, query2, summary2, answer))

    async def _hop(self, query: str) -> Sequence[str]:
        return await self._search(query, PASSAGES) if query.strip() else ()


async def _module(chat: Chat, prompt: str, stage: str, question: str, **fields: str) -> Said:
    return await think(
        chat,
        prompt=prompt,
        stage=stage,
        instruction=INSTRUCTIONS[stage],
        fields={"question": question, **fields},
        outputs=(_OUTPUTS[stage],),
    )


def _listed(passages: Sequence[str]) -> str:
    numbered = (f"[{n}] {passage}" for n, passage in enumerate(passages, 1))
    return "\n".join(numbered) or "(none found)"
