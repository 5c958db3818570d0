"""LLM_upd(v, g): rewrite one variable given its textual gradients (Eq. 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from promptcodebook.config import Config
from promptcodebook.errors import LMError
from promptcodebook.lm.base import Request
from promptcodebook.lm.structured import Ask
from promptcodebook.method.chains import all_of
from promptcodebook.method.checks import word_cap
from promptcodebook.method.draws import Draws
from promptcodebook.method.templates import Templates
from promptcodebook.types import Check, Parameters, Rewrite, Tally, Trace

__all__ = ["Pending", "Updater", "applied", "gather_gradients"]

_DESCRIBED = {
    "encoder": "the directive of the encoder, which chooses instincts for an input",
    "generator": "the directive of the generator, which composes instincts into a prompt",
    "critic": "the rubric of the critic, which judges how well a prompt worked",
}


@dataclass(frozen=True, slots=True)
class Pending:
    """One variable with the gradients gathered for it, in batch order."""

    variable: str
    text: str
    gradients: tuple[str, ...]
    others: tuple[str, ...] = ()


def gather_gradients(
    parameters: Parameters, traces: Sequence[Trace], config: Config
) -> list[Pending]:
    """Each variable that some trace blames, θ first, then φ, the active c_k, and ψ."""
    if not config.update.text_updates:
        return []
    explored_too = config.update.encoder_on_explored
    theta = [
        t.gradients.encoder
        for t in traces
        if t.rollout.route is not None and (explored_too or not t.rollout.route.explored)
    ]
    pending: list[Pending] = []
    if config.encoder.mode == "learned":
        pending.append(Pending("encoder", parameters.encoder, tuple(filter(None, theta))))
    if config.compose == "generator":
        phi = tuple(t.gradients.generator for t in traces if t.gradients.generator)
        pending.append(Pending("generator", parameters.generator, phi))
    pending.extend(_instincts(parameters, traces))
    if config.critic.trainable:
        psi = tuple(t.gradients.critic for t in traces if t.gradients.critic)
        pending.append(Pending("critic", parameters.critic, psi))
    return [p for p in pending if p.gradients]


def _instincts(parameters: Parameters, traces: Sequence[Trace]) -> list[Pending]:
    texts = parameters.codebook.texts
    pending: list[Pending] = []
    for k, instinct in enumerate(parameters.codebook.instincts):
        if instinct.frozen:
            continue
        said = tuple(t.gradients.codebook[k] for t in traces if t.gradients.codebook.get(k))
        pending.append(Pending(f"c{k}", instinct.text, said, (*texts[:k], *texts[k + 1 :])))
    return pending


def applied(parameters: Parameters, rewrites: Sequence[Rewrite]) -> Parameters:
    """Θ with every kept rewrite in place."""
    for rewrite in rewrites:
        if not rewrite.kept:
            continue
        match rewrite.variable:
            case "encoder":
                parameters = replace(parameters, encoder=rewrite.after)
            case "generator":
                parameters = replace(parameters, generator=rewrite.after)
            case "critic":
                parameters = replace(parameters, critic=rewrite.after)
            case instinct:
                k = int(instinct.removeprefix("c"))
                book = parameters.codebook.replaced(k, rewrite.after)
                parameters = replace(parameters, codebook=book)
    return parameters


class Updater:
    """Rewrites variables concurrently; what a check refuses stays as it was, with the reason."""

    def __init__(
        self, ask: Ask, templates: Templates, config: Config, check: Check, tally: Tally
    ) -> None:
        self._ask = ask
        self._templates = templates
        self._update = config.update
        self._seed = config.seed
        self._check = check
        self._tally = tally

    async def rewrite_all(self, pending: Sequence[Pending], step: int) -> tuple[Rewrite, ...]:
        """Every variable's rewrite, in the order of `pending`; then twins are told apart."""
        rewrites = await all_of(self._rewrite(p, step) for p in pending)
        return self._without_twins(rewrites)

    def _without_twins(self, rewrites: Sequence[Rewrite]) -> tuple[Rewrite, ...]:
        """Two instincts rewritten at once may grow alike: the later one keeps its old text."""
        kept: list[str] = []
        out: list[Rewrite] = []
        for rewrite in rewrites:
            if rewrite.kept and rewrite.variable.startswith("c") and rewrite.variable != "critic":
                reason = self._check(rewrite.variable, rewrite.after, rewrite.before, kept)
                if reason is None:
                    kept.append(rewrite.after)
                else:
                    rewrite = self._refused(rewrite, reason)
            out.append(rewrite)
        return tuple(out)

    def _refused(self, rewrite: Rewrite, reason: str) -> Rewrite:
        self._tally("rewrites_refused")
        return replace(rewrite, kept=False, reason=reason)

    async def _rewrite(self, pending: Pending, step: int) -> Rewrite:
        draws = Draws(self._seed, step, pending.variable)
        chosen = self._chosen(pending.gradients, draws)
        gradient = "\n".join(f"- {' '.join(g.split())}" for g in chosen)
        rewrite = Rewrite(pending.variable, pending.text, "", gradient, kept=False)
        values = {
            "variable": _DESCRIBED.get(pending.variable, "one instinct, a short directive"),
            "text": pending.text,
            "gradient": gradient,
            "cap": word_cap(self._update, pending.variable),
        }
        request = Request(
            role="updater",
            messages=self._templates["updater"].fill(values),
            sample=draws.sample("update"),
        )
        try:
            answer = await self._ask.text(request)
        except LMError as error:
            return self._refused(rewrite, f"{type(error).__name__}: {error}")
        rewrite = replace(rewrite, after=answer.text.strip())
        if answer.truncated:
            return self._refused(rewrite, "the rewrite was cut at its length cap")
        reason = self._check(pending.variable, rewrite.after, pending.text, pending.others)
        return self._refused(rewrite, reason) if reason else replace(rewrite, kept=True)

    def _chosen(self, gradients: tuple[str, ...], draws: Draws) -> list[str]:
        """At most `max_gradients`, a seeded choice in batch order, so that 8k context suffices."""
        most = self._update.max_gradients
        if len(gradients) <= most:
            return list(gradients)
        draw = draws.generator("gradients")
        order = sorted(range(len(gradients)), key=lambda _: draw.random())
        return [gradients[i] for i in sorted(order[:most])]
