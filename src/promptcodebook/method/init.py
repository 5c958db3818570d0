"""The first codebook and the first θ, φ, ψ.

expert = given by the user, or the task's own; random = written by the model from a generic
request; from_prompt = the user's present prompt, split by the model; file = an earlier one.

Deviations: the paper does not print the requests of random and from_prompt, which are ours, and a
short list is filled up to K from the set's general instincts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from promptcodebook.calls import Request
from promptcodebook.config import Config
from promptcodebook.errors import ConfigError
from promptcodebook.lm.structured import Ask
from promptcodebook.method.templates import TemplateSet
from promptcodebook.text import words_of
from promptcodebook.types import Codebook, Instinct, Parameters

__all__ = ["Initialiser", "InstinctsReply"]


class InstinctsReply(BaseModel):
    """A list of instincts, from random or from_prompt initialisation."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    instincts: list[str] = Field(max_length=256)


class Initialiser:
    """Builds Θ before the first step."""

    def __init__(self, ask: Ask, templates: TemplateSet, config: Config) -> None:
        self._ask = ask
        self._templates = templates
        self._config = config

    async def parameters(
        self, seeds: Sequence[str], file_instincts: Sequence[Instinct] = ()
    ) -> Parameters:
        """Θ₀. `seeds` are the task's own instincts, `file_instincts` those of `init.path`."""
        config = self._config
        theta = "" if config.encoder.mode == "none" else self._templates.text("theta")
        instincts = await self._instincts(seeds, file_instincts)
        return Parameters(
            encoder=theta,
            generator=self._templates.text("phi"),
            codebook=Codebook(instincts),
            critic=self._templates.text("psi"),
        )

    async def _instincts(
        self, seeds: Sequence[str], file_instincts: Sequence[Instinct]
    ) -> tuple[Instinct, ...]:
        init = self._config.init
        match init.kind:
            case "file":
                given = list(file_instincts)
            case "random":
                given = await self._write("random", "")
            case "from_prompt":
                if not init.prompt.strip():
                    raise ConfigError(
                        "init.kind = 'from_prompt' needs the present prompt",
                        hint="set init.prompt to it",
                    )
                given = await self._write("from_prompt", init.prompt)
            case "expert":
                given = [Instinct(text) for text in init.instincts or seeds]
        return tuple(
            replace(instinct, frozen=instinct.frozen or k in init.frozen)
            for k, instinct in enumerate(self._fill(given))
        )

    async def _write(self, template: str, text: str) -> list[Instinct]:
        config = self._config
        values = {"size": config.size, "cap": config.update.instinct_words, "text": text}
        request = Request(
            role="updater",
            messages=self._templates[template].fill(values),
            sample=config.randomness.at(-1, "codebook").sample(template),
        )
        reply = (await self._ask.typed(request, InstinctsReply, _fault)).value
        return [Instinct(" ".join(i.split())) for i in reply.instincts]

    def _fill(self, given: Sequence[Instinct]) -> list[Instinct]:
        """Exactly K different instincts: too many are cut, too few filled from the general list."""
        size = self._config.size
        general = map(Instinct, self._templates.text("instincts").splitlines())
        out: dict[str, Instinct] = {}
        for instinct in (*given, *general):
            text = instinct.text.strip()
            if text:
                out.setdefault(" ".join(words_of(text)) or text, replace(instinct, text=text))
        if len(out) < size:
            raise ConfigError(
                f"only {len(out)} different instincts for a codebook of size {size}",
                hint=f"give more in init.instincts, or set size = {len(out)}",
            )
        return list(out.values())[:size]


def _fault(reply: InstinctsReply) -> str | None:
    return None if any(i.strip() for i in reply.instincts) else "instincts: the list is empty"
