"""IFBench's program: write a response, then rewrite it so that every constraint is kept.

Both named stages are chain-of-thought modules; stages and field names are those of the GEPA
artifact. Only the rewritten response is scored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from promptcodebook.lm.base import Chat
from promptcodebook.tasks.pipeline import finished, think
from promptcodebook.types import Example, Output, Stage

__all__ = ["INSTRUCTIONS", "STAGES", "IFBenchProgram"]

STAGES: tuple[str, ...] = ("generate", "rewrite")

INSTRUCTIONS: dict[str, str] = {
    "generate": "Respond to the query.",
    "rewrite": "Make sure that the response is correct and keeps every constraint stated in the "
    "query; rewrite it wherever it does not. What you give is the final response.",
}


class IFBenchProgram:
    """The executor. `checked` says in words which constraints a text keeps ("" = not known).

    What it says of the first response joins the trace as a stage `generate: check`, so that the
    critic can tell which of the two stages is to blame; no model is shown it.
    """

    stages = STAGES

    def __init__(self, checked: Callable[[Example, str], str] | None = None) -> None:
        self._checked = checked

    async def __call__(self, prompt: str, example: Example, lm: Chat) -> Output:
        """The final response, with both stages. LMError as the chat raises it."""
        draft = await think(
            lm,
            prompt=prompt,
            stage="generate",
            instruction=INSTRUCTIONS["generate"],
            fields={"query": example.input},
            outputs=("response",),
        )
        final = await think(
            lm,
            prompt=prompt,
            stage="rewrite",
            instruction=INSTRUCTIONS["rewrite"],
            fields={"query": example.input, "response": draft["response"]},
            outputs=("final_response",),
        )
        output = finished(final["final_response"], (draft, final))
        if self._checked is None:
            return output
        # In a thread, as a pattern among the constraints may take its whole time limit.
        said = await asyncio.to_thread(self._checked, example, draft["response"])
        if not said:
            return output
        written, rewritten = output.trace
        check = Stage("generate: check", draft["response"], said)
        return Output(output.text, (written, check, rewritten), output.truncated)
