"""LLM_upd(v, g): rewrite one variable given its textual gradients (Eq. 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from promptcodebook.calls import Request
from promptcodebook.config import Config
from promptcodebook.errors import LMError
from promptcodebook.incidents import Incident, Tally
from promptcodebook.lm.structured import Ask
from promptcodebook.method.checks import word_cap
from promptcodebook.method.failures import failure_of, gather_all
from promptcodebook.method.safety import calls_harmful
from promptcodebook.method.templates import TemplateSet
from promptcodebook.protocols import Check
from promptcodebook.randomness import Draws
from promptcodebook.step import Refused, Rewrite
from promptcodebook.text import strip_wrapping
from promptcodebook.types import Directive, Origin, Parameters, Trace, Variable, variable_name

__all__ = ["Pending", "Updater", "apply_rewrites", "collect_gradients"]

_OTHERS = "Other instincts, whose advice is not to be repeated here:"
_WHOLE, _TITLE = 25, 12
"""Another instinct is shown whole up to so many words, else by so many of its first ones."""

_DESCRIBED: Mapping[Directive, str] = {
    "encoder": "the directive of the encoder, which chooses instincts for an input",
    "generator": "the directive of the generator, which composes instincts into a prompt",
    "critic": "the rubric of the critic, which judges how well a prompt worked",
}


def _describe(variable: Variable) -> str:
    if isinstance(variable, int):
        return "one instinct, a short directive about one thing"
    return _DESCRIBED[variable]


@dataclass(frozen=True, slots=True)
class Pending:
    """One variable with the gradients gathered for it, in batch order."""

    variable: Variable
    text: str
    gradients: tuple[str, ...]
    others: tuple[str, ...] = ()
    origin: Origin = "gradient"


def collect_gradients(
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
    if config.has_encoder and config.encoder.mode == "learned":
        pending.append(Pending("encoder", parameters.encoder, tuple(filter(None, theta))))
    if config.compose == "generator":
        phi = tuple(t.gradients.generator for t in traces if t.gradients.generator)
        pending.append(_mending(Pending("generator", parameters.generator, phi), traces))
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
        blamed = tuple(t.gradients.codebook[k] for t in traces if t.gradients.codebook.get(k))
        others = (*texts[:k], *texts[k + 1 :])
        pending.append(_mending(Pending(k, instinct.text, blamed, others), traces))
    return pending


def _mending(pending: Pending, traces: Sequence[Trace]) -> Pending:
    """Where a trace calls the text harmful, that alone is what its rewrite is about."""
    k = pending.variable
    calling = [t.gradients for t in traces if calls_harmful(t, k)]
    found = [g.codebook.get(k, "") if isinstance(k, int) else g.generator for g in calling]
    told = tuple(dict.fromkeys(filter(None, found)))
    return replace(pending, gradients=told, origin="safety") if told else pending


def apply_rewrites(parameters: Parameters, rewrites: Sequence[Rewrite]) -> Parameters:
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
            case k:
                book = parameters.codebook.reword(k, rewrite.after)
                parameters = replace(parameters, codebook=book)
    return parameters


@dataclass(frozen=True, slots=True)
class _Task:
    """A pending rewrite with its request, and the rewrite as long as there is no text."""

    pending: Pending
    request: Request
    blank: Rewrite

    def again(self, reason: str, sample: int) -> Request:
        """The request once more with the reason; what a reason quotes after a colon is left out."""
        told = (
            f"\n\nAn earlier reply was refused: {reason.partition(':')[0].strip()}. "
            "Write the text anew so that this is not true of it."
        )
        *before, last = self.request.messages
        turns = (*before, replace(last, content=last.content + told))
        return replace(self.request, messages=turns, sample=sample)


class Updater:
    """Rewrites variables concurrently. What is refused is asked for once more with the reason; what
    is refused again stays as it was."""

    def __init__(
        self, ask: Ask, templates: TemplateSet, config: Config, check: Check, tally: Tally
    ) -> None:
        self._ask = ask
        self._templates = templates
        self._update = config.update
        self._randomness = config.randomness
        self._check = check
        self._tally = tally

    async def rewrite_all(self, pending: Sequence[Pending], step: int) -> tuple[Rewrite, ...]:
        """Every variable's rewrite, in the order of `pending`; then twins are told apart."""
        tasks = [self._task(p, step) for p in pending]
        rewrites = await gather_all(self._rewrite(task, step) for task in tasks)
        return await self._without_twins(tasks, rewrites, step)

    async def write(self, pending: Pending, step: int) -> Rewrite:
        """One rewrite by itself."""
        return await self._rewrite(self._task(pending, step), step)

    def refuse(self, rewrite: Rewrite, reason: str) -> Rewrite:
        """The rewrite refused, and counted."""
        self._tally(Incident.REWRITES_REFUSED)
        return replace(rewrite, kept=False, reason=reason)

    async def _without_twins(
        self, tasks: Sequence[_Task], rewrites: Sequence[Rewrite], step: int
    ) -> tuple[Rewrite, ...]:
        """Two instincts rewritten at once may grow alike: the later one is asked for once more, and
        keeps its old text if that does not tell them apart."""
        kept: list[str] = []
        out: list[Rewrite] = []
        for task, rewrite in zip(tasks, rewrites, strict=True):
            if rewrite.kept and isinstance(rewrite.variable, int):
                reason = self._check(rewrite.variable, rewrite.after, rewrite.before, kept)
                if reason is not None:
                    refused = replace(rewrite, kept=False, reason=reason)
                    others = (*task.pending.others, *kept)
                    rewrite = await self._once_more(task, refused, others, step)
                if rewrite.kept:
                    kept.append(rewrite.after)
            out.append(rewrite)
        return tuple(out)

    def _task(self, pending: Pending, step: int) -> _Task:
        draws = self._randomness.at(step, variable_name(pending.variable))
        chosen = self._choose(pending.gradients, draws)
        gradient = "\n".join(f"- {' '.join(g.split())}" for g in chosen)
        values = {
            "variable": _describe(pending.variable),
            "text": pending.text,
            "gradient": gradient,
            "others": _others(pending.others),
            "cap": word_cap(self._update, pending.variable),
        }
        request = Request(
            role="updater",
            messages=self._templates[_template(pending.origin)].fill(values),
            sample=draws.sample(_purpose(pending.origin)),
        )
        blank = Rewrite(
            pending.variable, pending.text, "", gradient, kept=False, origin=pending.origin
        )
        return _Task(pending, request, blank)

    async def _rewrite(self, task: _Task, step: int) -> Rewrite:
        first = await self._try(task, task.request, task.pending.others)
        if first.kept:
            return first
        if first.failure is not None:
            self._tally(Incident.REWRITES_REFUSED)
            return first
        return await self._once_more(task, first, task.pending.others, step)

    async def _once_more(
        self, task: _Task, refused: Rewrite, others: Sequence[str], step: int
    ) -> Rewrite:
        """The second try, which remembers the first; the refusal itself if there was one before."""
        last = refused
        if refused.earlier is None:
            self._tally(Incident.REWRITES_REASKED)
            draws = self._randomness.at(step, variable_name(refused.variable))
            request = task.again(refused.reason, draws.sample(f"{_purpose(refused.origin)} again"))
            second = await self._try(task, request, others)
            # The longer request may not fit where the first did: the first refusal stands then.
            if second.failure is None:
                last = replace(second, earlier=Refused(refused.after, refused.reason))
        if not last.kept:
            self._tally(Incident.REWRITES_REFUSED)
        return last

    async def _try(self, task: _Task, request: Request, others: Sequence[str]) -> Rewrite:
        """One reply, stripped of what is chat and checked."""
        try:
            answer = await self._ask.text(request)
        except LMError as error:
            failure = failure_of("update", error)
            return replace(task.blank, failure=failure, reason=f"{failure.kind}: {failure.message}")
        rewrite = replace(task.blank, after=strip_wrapping(answer.text))
        if answer.truncated:
            return replace(rewrite, reason="the rewrite was cut at its length cap")
        reason = self._check(rewrite.variable, rewrite.after, rewrite.before, others)
        return replace(rewrite, kept=reason is None, reason=reason or "")

    def _choose(self, gradients: tuple[str, ...], draws: Draws) -> list[str]:
        """At most `max_gradients`, a seeded choice in batch order, so that 8k context suffices."""
        most = self._update.max_gradients
        if len(gradients) <= most:
            return list(gradients)
        draw = draws.generator("gradients")
        order = sorted(range(len(gradients)), key=lambda _: draw.random())
        return [gradients[i] for i in sorted(order[:most])]


def _template(origin: Origin) -> str:
    return "updater" if origin in ("gradient", "safety") else origin


def _purpose(origin: Origin) -> str:
    return "update" if origin in ("gradient", "safety") else origin


def _others(texts: Sequence[str]) -> str:
    """The other instincts by their titles; '' where the variable has none beside it."""
    if not texts:
        return ""
    return "\n".join((_OTHERS, *(f"- {_title(text)}" for text in texts), ""))


def _title(text: str) -> str:
    words = text.split()
    return " ".join(words) if len(words) <= _WHOLE else f"{' '.join(words[:_TITLE])} …"
