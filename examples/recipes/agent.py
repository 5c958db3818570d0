"""A menu's line, made in two calls: a sentence about the dish, then a title out of it."""

from __future__ import annotations

import promptcodebook as pco


async def menu_line(prompt: str, example: pco.Example, lm: pco.Chat) -> pco.Output:
    """The agent that is optimized: `prompt` is composed for this dish, both calls are metered."""
    draft = await lm(f"What is in {example.input}?", system=prompt, purpose="draft")
    asked = f"{draft.text}\n\nGive {example.input} a title for a menu."
    title = await lm(asked, system=prompt, purpose="title")
    return pco.Output(title.text.strip(), trace=(pco.Stage("draft", example.input, draft.text),))


def reward(example: pco.Example, output: str) -> tuple[float, str]:
    """Half for a title that is short, half for one that names what is in the dish; and why."""
    words, wanted = output.split(), str(example.target)
    short = 1 <= len(words) <= 8
    named = wanted.rstrip("s").lower() in output.lower()
    said = [] if short else [f"It has {len(words)} words; at most 8 fit on the menu."]
    said += [] if named else [f"It should name the {wanted}."]
    return 0.5 * short + 0.5 * named, " ".join(said)
