"""HoVer's program: three hops of retrieval (7, 7 and 10 passages), then the verification.

search(claim) -> summarize1 -> query2, search -> summarize2 -> query3, search -> verify. The five
named stages are chain-of-thought modules; hops and field names are those of the GEPA artifact,
`verify` is ours, since our metric asks for the label too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from promptcodebook.lm.base import Chat
from promptcodebook.tasks.hover.score import parse_label, title_of
from promptcodebook.tasks.pipeline import Said, finished, think
from promptcodebook.types import Example, Output

__all__ = ["HOPS", "INSTRUCTIONS", "STAGES", "Found", "HoverProgram", "Search"]

HOPS: tuple[int, int, int] = (7, 7, 10)
"""Passages wanted from each hop; at most 24 in all."""

STAGES: tuple[str, ...] = ("summarize1", "query2", "summarize2", "query3", "verify")

INSTRUCTIONS: dict[str, str] = {
    "summarize1": "Given the claim and the passages, write a summary of what the passages say "
    "that bears on the claim.",
    "query2": "Given the claim and the first summary, write a search query for the pages that "
    "are still needed to check the claim.",
    "summarize2": "Given the claim, the context known so far and new passages, write a summary "
    "of what the passages add that bears on the claim.",
    "query3": "Given the claim and both summaries, write a search query for the pages that are "
    "still needed to check the claim.",
    "verify": "Given the claim, both summaries and the passages found last, decide on the "
    "label: SUPPORTED if everything the claim says is borne out, else NOT_SUPPORTED.",
}


class Search(Protocol):
    """Finds the best `k` passages ("TITLE | text") for a query, the best first."""

    async def __call__(self, query: str, k: int) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Found:
    """What the program hands to the reward: a label as written, and titles hop by hop.

    As text it is one JSON object, the label first:
    {"label": "SUPPORTED", "retrieved": [[titles of hop 1], [hop 2], [hop 3]]}.
    """

    label: str
    retrieved: tuple[tuple[str, ...], ...]

    @property
    def titles(self) -> tuple[str, ...]:
        """All retrieved titles in their order, repeats included."""
        return tuple(title for hop in self.retrieved for title in hop)

    def text(self) -> str:
        """The JSON object; `of` reads it back."""
        return json.dumps({"label": self.label, "retrieved": self.retrieved}, ensure_ascii=False)

    @classmethod
    def of(cls, text: str) -> Found:
        """Reads an output; a text that is no such object is a label with nothing retrieved."""
        try:
            value: object = json.loads(text)
        except (ValueError, RecursionError):
            return cls(text, ())
        if not isinstance(value, dict):
            return cls(text, ())
        held = cast("dict[str, object]", value)
        hops = held.get("retrieved")
        rows = cast("list[object]", hops) if isinstance(hops, list) else []
        retrieved = tuple(
            tuple(t for t in cast("list[object]", hop) if isinstance(t, str))
            for hop in rows
            if isinstance(hop, list)
        )
        return cls(str(held.get("label") or ""), retrieved)


class HoverProgram:
    """The executor. `stages` names its modules, so that each may have a prompt of its own."""

    stages = STAGES

    def __init__(self, search: Search) -> None:
        self._search = search

    async def __call__(self, prompt: str, example: Example, lm: Chat) -> Output:
        """One claim through all hops; an empty query finds nothing. Errors of chat and search."""
        claim = example.input
        first = await self._hop(claim, 0)
        summary1 = await _module(lm, prompt, "summarize1", claim, passages=_listed(first))
        query2 = await _module(lm, prompt, "query2", claim, summary_1=summary1["summary"])
        second = await self._hop(query2["query"], 1)
        summary2 = await _module(
            lm,
            prompt,
            "summarize2",
            claim,
            context=summary1["summary"],
            passages=_listed(second),
        )
        known = {"summary_1": summary1["summary"], "summary_2": summary2["summary"]}
        query3 = await _module(lm, prompt, "query3", claim, **known)
        third = await self._hop(query3["query"], 2)
        verdict = await _module(lm, prompt, "verify", claim, **known, passages=_listed(third))
        label = parse_label(verdict["label"]) or verdict["label"]
        found = Found(label, tuple(tuple(map(title_of, hop)) for hop in (first, second, third)))
        return finished(found.text(), (summary1, query2, summary2, query3, verdict))

    async def _hop(self, query: str, hop: int) -> Sequence[str]:
        return await self._search(query, HOPS[hop]) if query.strip() else ()


_OUTPUTS = {"summarize1": "summary", "summarize2": "summary", "query2": "query", "query3": "query"}


async def _module(chat: Chat, prompt: str, stage: str, claim: str, **fields: str) -> Said:
    return await think(
        chat,
        prompt=prompt,
        stage=stage,
        instruction=INSTRUCTIONS[stage],
        fields={"claim": claim, **fields},
        outputs=(_OUTPUTS.get(stage, "label"),),
    )


def _listed(passages: Sequence[str]) -> str:
    numbered = (f"[{n}] {passage}" for n, passage in enumerate(passages, 1))
    return "\n".join(numbered) or "(none found)"
