"""HoVer's program: three hops of retrieval (7, 7 and 10 passages), then the verification.

search(claim) -> summarize1 -> query2, search -> summarize2 -> query3, search -> verify. The five
named stages are chain-of-thought modules; hops and field names are those of the GEPA artifact,
`verify` is ours, since our metric asks for the label too.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcodebook.calls import Chat, Role
from promptcodebook.tasks.hover.score import parse_label
from promptcodebook.tasks.program import ModuleReply, make_output, think
from promptcodebook.tasks.retrieval.hops import SearchFunction, number_passages, titles_by_hop
from promptcodebook.types import Example, Output, Prompt

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


class HoverProgram:
    """The program. `stages` names its modules, so that each may have a prompt of its own.

    y is the label (as written where it is neither); its field `retrieved` holds the titles found,
    hop by hop.
    """

    name = "hover"
    stages = STAGES
    roles: frozenset[Role] = frozenset()

    def __init__(self, search: SearchFunction) -> None:
        self._search = search

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        """One claim through all hops; an empty query finds nothing. Errors of chat and search."""
        claim = example.input
        first = await self._hop(claim, 0)
        summary1 = await _module(lm, prompt, "summarize1", claim, passages=number_passages(first))
        query2 = await _module(lm, prompt, "query2", claim, summary_1=summary1["summary"])
        second = await self._hop(query2["query"], 1)
        summary2 = await _module(
            lm,
            prompt,
            "summarize2",
            claim,
            context=summary1["summary"],
            passages=number_passages(second),
        )
        known = {"summary_1": summary1["summary"], "summary_2": summary2["summary"]}
        query3 = await _module(lm, prompt, "query3", claim, **known)
        third = await self._hop(query3["query"], 2)
        verdict = await _module(
            lm, prompt, "verify", claim, **known, passages=number_passages(third)
        )
        label = parse_label(verdict["label"]) or verdict["label"]
        steps = (summary1, query2, summary2, query3, verdict)
        return make_output(label, steps, titles_by_hop(first, second, third))

    async def _hop(self, query: str, hop: int) -> Sequence[str]:
        return await self._search(query, HOPS[hop]) if query.strip() else ()


_OUTPUTS = {"summarize1": "summary", "summarize2": "summary", "query2": "query", "query3": "query"}


async def _module(chat: Chat, prompt: Prompt, stage: str, claim: str, **fields: str) -> ModuleReply:
    return await think(
        chat,
        prompt=prompt,
        stage=stage,
        instruction=INSTRUCTIONS[stage],
        fields={"claim": claim, **fields},
        outputs=(_OUTPUTS.get(stage, "label"),),
    )
