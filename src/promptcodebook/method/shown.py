"""How values are shown to the models: codebook lines, references, rewards."""

from __future__ import annotations

from collections.abc import Sequence

from promptcodebook.method.templates import TemplateSet
from promptcodebook.types import Codebook, Example, Stage

__all__ = ["codebook_lines", "instinct_lines", "reference", "shorten", "stage_lines"]

LONG = 6000
"""Characters of one field that a critic is shown, so that an 8k context holds them all."""


def codebook_lines(
    codebook: Codebook, rates: Sequence[float | None], templates: TemplateSet
) -> str:
    """The numbered codebook as the encoder reads it; a rate of None means never selected."""
    lines: list[str] = []
    for k, (text, rate) in enumerate(zip(codebook.texts, rates, strict=True)):
        flat = " ".join(text.split())
        # As precise as a policy file, so that a loaded policy shows what the run itself showed.
        shown = round(rate or 0.0, 6)
        if templates == "paper":
            lines.append(f"{k}: {flat} [{shown:.2f}]")
        else:
            said = "untried" if rate is None else f"success {shown:.2f}"
            lines.append(f"[{k}] {flat} ({said})")
    return "\n".join(lines)


def instinct_lines(codebook: Codebook, indices: Sequence[int]) -> str:
    """C[z], one line each with its index (Assumption 1 wants the index in the template)."""
    return "\n".join(f"[{k}] {' '.join(codebook[k].text.split())}" for k in indices)


def reference(example: Example, feedback: str) -> str:
    """y* and what the reward said; a task without references says so (method decision 22)."""
    known = (
        f"Reference answer: {shorten(example.target)}"
        if example.target is not None
        else "There is no reference answer for this task: judge the response on its own."
    )
    return f"{known}\nFeedback of the checker: {shorten(feedback)}" if feedback else known


def stage_lines(stages: Sequence[Stage]) -> str:
    """The stages of a compound executor, for the critic; '' for a single call."""
    if not stages:
        return ""
    said = [f"- {s.name}: {shorten(s.input, 1000)} -> {shorten(s.output, 1000)}" for s in stages]
    return "Stages on the way:\n" + "\n".join(said)


def shorten(text: str, limit: int = LONG) -> str:
    """The text, its middle cut out where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - limit} characters left out ...]\n{text[-half:]}"
