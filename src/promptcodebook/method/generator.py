"""G_φ: compose the selected instincts, conditioned on the input, into a system prompt (Eq. 4).

Deviations: `compose: verbatim` puts the instincts in as they are, which the paper does for tasks
with many constraints only (method decision 12). A prompt that was cut at its cap, or is empty, is
asked for once more; then the instincts stand in for it verbatim, with the output format that it was
to ask for, since a deployed policy must answer anyway. What a model writes around a prompt is taken
off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from promptcodebook.calls import Request, Usage
from promptcodebook.incidents import Incident, Tally, no_tally
from promptcodebook.lm.structured import Ask
from promptcodebook.method.templates import TemplateSet, instinct_lines
from promptcodebook.randomness import Draws
from promptcodebook.text import strip_wrapping
from promptcodebook.types import Codebook, Route


@dataclass(frozen=True, slots=True)
class Composition:
    """How prompts are put together: by the generator or verbatim, and what stands before them."""

    mode: Literal["generator", "verbatim"] = "generator"
    base_prompt: str = ""
    output_format: str = ""


class Generator:
    """Composes by asking a model; counts the prompts that had to be put together without it."""

    def __init__(
        self, ask: Ask, templates: TemplateSet, composition: Composition, tally: Tally = no_tally
    ) -> None:
        self._ask = ask
        self._templates = templates
        self._composition = composition
        self._tally = tally

    async def compose(
        self, phi: str, codebook: Codebook, route: Route, task: str, draws: Draws, stage: str = ""
    ) -> tuple[str, Usage]:
        """p = G_φ(x, C[z]). Raises LMError only when the model cannot be reached."""
        base = self._composition.base_prompt
        verbatim = join_prompts(base, join_instincts(codebook, route))
        if self._composition.mode == "verbatim":
            return verbatim, Usage()
        values = {
            "phi": phi,
            "instincts": instinct_lines(codebook, route.indices),
            "task": task,
            "format": self._composition.output_format,
            "stage": f"The prompt is for this stage of the work: {stage}" if stage else "",
        }
        request = Request(
            role="generator",
            messages=self._templates["generator"].fill(values),
            sample=draws.sample(f"compose {stage}" if stage else "compose"),
        )
        answer = await self._ask.text(request, _fault)
        if answer.fault is not None:
            self._tally(Incident.PROMPT_FALLBACKS)
            return join_prompts(verbatim, self._composition.output_format), answer.usage
        return join_prompts(base, strip_wrapping(answer.text)), answer.usage


def _fault(reply: str) -> str | None:
    return None if reply else "it holds no text but thoughts, or none at all"


def join_instincts(codebook: Codebook, route: Route) -> str:
    """The selected instincts as they are, one a line (method decision 12)."""
    return "\n".join(codebook[k].text for k in route.indices)


def join_prompts(base_prompt: str, composed: str) -> str:
    """The user's fixed prompt stands before the composed one, word for word."""
    return f"{base_prompt}\n\n{composed}" if base_prompt and composed else base_prompt or composed
