"""HotpotQA's program: two hops of retrieval, 7 passages each, then the answer.

search(question) -> summarize1 -> query2, search -> summarize2 -> answer. The four named stages are
chain-of-thought modules; hops and field names are those of the GEPA artifact.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcodebook.calls import Chat, Role
from promptcodebook.tasks.program import ModuleReply, make_output, think
from promptcodebook.tasks.retrieval.hops import SearchFunction, number_passages, titles_by_hop
from promptcodebook.types import Example, Output, Prompt

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


class HotpotProgram:
    """The program. `stages` names its modules, so that each may have a prompt of its own.

    y is the answer; its field `retrieved` holds the titles found, hop by hop.
    """

    name = "hotpotqa"
    stages = STAGES
    roles: frozenset[Role] = frozenset()

    def __init__(self, search: SearchFunction) -> None:
        self._search = search

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        """One question through both hops; a blank query finds nothing. Errors of chat, search."""
        question = example.input
        first = await self._hop(question)
        summary1 = await _module(
            lm, prompt, "summarize1", question, passages=number_passages(first)
        )
        query2 = await _module(lm, prompt, "query2", question, summary_1=summary1["summary"])
        second = await self._hop(query2["query"])
        summary2 = await _module(
            lm,
            prompt,
            "summarize2",
            question,
            context=summary1["summary"],
            passages=number_passages(second),
        )
        known = {"summary_1": summary1["summary"], "summary_2": summary2["summary"]}
        answer = await _module(lm, prompt, "answer", question, **known)
        steps = (summary1, query2, summary2, answer)
        return make_output(answer["answer"], steps, titles_by_hop(first, second))

    async def _hop(self, query: str) -> Sequence[str]:
        return await self._search(query, PASSAGES) if query.strip() else ()


async def _module(
    chat: Chat, prompt: Prompt, stage: str, question: str, **fields: str
) -> ModuleReply:
    return await think(
        chat,
        prompt=prompt,
        stage=stage,
        instruction=INSTRUCTIONS[stage],
        fields={"question": question, **fields},
        outputs=(_OUTPUTS[stage],),
    )
