"""LLM_upd(v, g): rewrite one variable given its textual gradients (Eq. 9), and what is kept of it.
Every rewrite must pass the checks of `rewrite_checks.py`. `acceptance.py` then decides which of a
step's rewrites stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from promptcodebook.base.incidents import Incident, Tally
from promptcodebook.base.randomness import Draws
from promptcodebook.base.text import count_words, cut_at_sentence, place_in, strip_wrapping
from promptcodebook.calls import Request
from promptcodebook.config import Config
from promptcodebook.errors import LMError
from promptcodebook.lm.structured import Ask
from promptcodebook.method.critic import nearest_instinct, split_shared
from promptcodebook.method.failures import attempt, gather_all
from promptcodebook.method.rewrite_checks import NEAR_COPY, word_cap
from promptcodebook.method.safety import calls_harmful
from promptcodebook.method.templates import TemplateSet
from promptcodebook.types import (
    Check,
    Origin,
    Parameters,
    RefusedReply,
    Rewrite,
    Route,
    Trace,
    Variable,
    variable_name,
)

_OTHERS = "Other instincts (do not repeat their advice):"
# Words up to which another instinct is shown whole; else this many of its first ones.
_WHOLE, _TITLE = 25, 12

_DESCRIBED: Mapping[Variable, str] = {
    "encoder": "the directive of the encoder, which chooses instincts for an input",
    "generator": "the directive of the generator, which composes instincts into a prompt",
    "critic": "the rubric of the critic, which judges how well a prompt worked",
}


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """One variable with the gradients gathered for it, in batch order."""

    variable: Variable
    text: str
    gradients: tuple[str, ...]
    others: tuple[str, ...] = ()
    origin: Origin = "gradient"


def collect_gradients(
    parameters: Parameters, traces: Sequence[Trace], config: Config
) -> list[PendingUpdate]:
    """Each variable that some trace blames: θ, φ, the active c_k, ψ. A complaint about θ or φ that
    fewer than `update.shared_by` examples share goes to the nearest instinct (28)."""
    update, book = config.update, parameters.codebook
    if not update.text_updates:
        return []
    least = update.shared_by if update.mode == "minibatch" else 1
    routes = [t.rollout.route for t in traces]
    pending: list[PendingUpdate] = []
    lone: list[tuple[Route, str]] = []
    if config.has_encoder and config.encoder.mode == "learned":
        texts = [
            t.gradients.encoder if r and (update.encoder_on_explored or not r.explored) else ""
            for t, r in zip(traces, routes, strict=True)
        ]
        shared, own = split_shared(texts, least)
        pending.append(PendingUpdate("encoder", parameters.encoder, shared))
        # What is wrong with the form of a route is no matter for an instinct.
        lone += [(r, text) for i, text in own if (r := routes[i]) and not r.fallback]
    if config.compose == "generator":
        shared, own = split_shared([t.gradients.generator for t in traces], least)
        phi = PendingUpdate("generator", parameters.generator, shared)
        pending.append(_mending(phi, traces))
        harmless = [(i, text) for i, text in own if not calls_harmful(traces[i], "generator")]
        lone += [(r, text) for i, text in harmless if (r := routes[i])]
    nearest = [(nearest_instinct(text, book, r.indices), text) for r, text in lone if r.indices]
    for k, instinct in enumerate(book.instincts):
        if not instinct.frozen:
            blamed = [t.gradients.codebook[k] for t in traces if t.gradients.codebook.get(k)]
            blamed += [text for near, text in nearest if near == k]
            others = (*book.texts[:k], *book.texts[k + 1 :])
            pending.append(_mending(PendingUpdate(k, instinct.text, tuple(blamed), others), traces))
    if config.critic.trainable:
        psi = tuple(t.gradients.critic for t in traces if t.gradients.critic)
        pending.append(PendingUpdate("critic", parameters.critic, psi))
    return [p for p in pending if p.gradients]


def _mending(pending: PendingUpdate, traces: Sequence[Trace]) -> PendingUpdate:
    """Where a trace calls the text harmful, that alone is what its rewrite is about."""
    k = pending.variable
    calling = [t.gradients for t in traces if calls_harmful(t, k)]
    found = [g.codebook.get(k, "") if isinstance(k, int) else g.generator for g in calling]
    mended = tuple(dict.fromkeys(filter(None, found)))
    return replace(pending, gradients=mended, origin="safety") if mended else pending


def apply_rewrites(parameters: Parameters, rewrites: Sequence[Rewrite]) -> Parameters:
    """Θ with every kept rewrite in place."""
    for rewrite in rewrites:
        name, text = rewrite.variable, rewrite.after
        if not rewrite.kept:
            continue
        if isinstance(name, int):
            parameters = replace(parameters, codebook=parameters.codebook.reword(name, text))
        else:
            parameters = replace(parameters, **{name: text})
    return parameters


@dataclass
class Updater:
    """Rewrites variables concurrently; what a check refuses is asked for once more."""

    ask: Ask
    templates: TemplateSet
    config: Config
    check: Check
    tally: Tally

    async def rewrite_all(self, pending: Sequence[PendingUpdate], step: int) -> tuple[Rewrite, ...]:
        """In order. Of two instincts that become alike the later one stays as it was."""
        rewrites = await gather_all(self.write(p, step) for p in pending)
        kept: list[str] = []
        for i, rewrite in enumerate(rewrites):
            if rewrite.kept and isinstance(rewrite.variable, int):
                reason = self.check(rewrite.variable, rewrite.after, rewrite.before, kept)
                if reason is not None:
                    rewrites[i] = self.refuse(rewrite, reason)
                else:
                    kept.append(rewrite.after)
        return tuple(rewrites)

    async def write(self, pending: PendingUpdate, step: int) -> Rewrite:
        """One rewrite by itself; after a second try it holds the first reply too."""
        draws = self.config.randomness.at(step, variable_name(pending.variable))
        request, gradient = self._request(pending, draws)
        rewrite = await self._try(request, pending, gradient)
        # A model that cannot be asked, or has seen the text that it copied, is not asked again; but
        # a harmful text must go, so that it gets every chance.
        helps = rewrite.reason != NEAR_COPY or pending.origin == "safety"
        if not rewrite.kept and rewrite.failure is None and helps:
            self.tally(Incident.REWRITES_REASKED)
            # What a reason quotes after a colon is left out.
            fault = (
                f"\n\nAn earlier reply was refused: {rewrite.reason.partition(':')[0].strip()}. "
                "Rewrite it to fix this."
            )
            *before, last = request.messages
            turns = (*before, replace(last, content=last.content + fault))
            again = replace(request, messages=turns, sample=draws.sample("update again"))
            second = await self._try(again, pending, gradient)
            # The longer request may not fit where the first did: then the first refusal is kept.
            if second.failure is None:
                rewrite = replace(second, earlier=RefusedReply(rewrite.after, rewrite.reason))
        if not rewrite.kept:
            self.tally(Incident.REWRITES_REFUSED)
        return rewrite

    def refuse(self, rewrite: Rewrite, reason: str) -> Rewrite:
        """The rewrite refused, and counted."""
        self.tally(Incident.REWRITES_REFUSED)
        return replace(rewrite, kept=False, reason=reason)

    def _request(self, pending: PendingUpdate, draws: Draws) -> tuple[Request, str]:
        """The request, and the gradients in it: a seeded choice of them, in batch order."""
        gradients, most = pending.gradients, self.config.update.max_gradients
        if len(gradients) > most:
            draw = draws.generator("gradients")
            order = sorted(range(len(gradients)), key=lambda _: draw.random())
            gradients = [gradients[i] for i in sorted(order[:most])]
        gradient = "\n".join(f"- {' '.join(g.split())}" for g in gradients)
        split = [text.split() for text in pending.others]
        titles = [w if len(w) <= _WHOLE else [*w[:_TITLE], "…"] for w in split]
        others = [f"- {' '.join(words)}" for words in titles]
        instinct = "one instinct, a short directive about one thing"
        if place := place_in(pending.text):
            instinct += f", for the {place.replace(':', ' ').strip()} alone"
        values = {
            "variable": _DESCRIBED.get(pending.variable, instinct),
            "text": pending.text,
            "gradient": gradient,
            "others": "\n".join((_OTHERS, *others, "")) if others else "",
            "cap": word_cap(self.config.update, pending.variable),
        }
        messages = self.templates["updater"].fill(values)
        return Request("updater", messages, sample=draws.sample("update")), gradient

    async def _try(self, request: Request, pending: PendingUpdate, gradient: str) -> Rewrite:
        """One reply, stripped of what is chat, cut to its cap and checked."""
        k, before = pending.variable, pending.text
        rewrite = Rewrite(k, before, "", gradient, kept=False, origin=pending.origin)
        answer, failure = await attempt("update", self.ask.text(request), LMError)
        if answer is None:
            why = "" if failure is None else f"{failure.kind}: {failure.message}"
            return replace(rewrite, failure=failure, reason=why)
        text, cut = strip_wrapping(answer.value), ""
        if place := place_in(before):  # whatever it says, it stays where it belongs
            text = " ".join(text.removeprefix(place_in(text)).split())
            text = f"{place}{text}" if text else ""
        if answer.truncated:
            return replace(rewrite, after=text, reason="the rewrite was cut at its length cap")
        words, cap = count_words(text), word_cap(self.config.update, k)
        if words > cap and (shorter := cut_at_sentence(text, cap)):
            self.tally(Incident.REWRITES_CUT)
            text, cut = shorter, f"shortened from {words} words, at the end of a sentence"
        reason = self.check(k, text, before, pending.others)
        return replace(rewrite, after=text, kept=reason is None, reason=reason or cut)
