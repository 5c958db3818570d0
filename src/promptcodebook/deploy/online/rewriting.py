"""New texts for a served policy, from logged requests whose texts were kept. The critic and the
attribution read them as they read rollouts in training, and the updater rewrites the instincts that
are blamed, and φ where a model composes. Nothing is run again, so what a rewrite earns is unknown
until it is served.

The requests are a seeded draw from those that were served the texts of today: the newer a request,
the likelier it is drawn. A rewrite must pass the checks of training. It must copy eight words in a
row neither from the training data nor from any logged request, its answer or its feedback, and no
name, number or code that one logged request alone has."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from promptcodebook.base.units import cost_text, plural
from promptcodebook.calls import Usage
from promptcodebook.deploy.online.learning import TrainedRouter, rewritings
from promptcodebook.deploy.online.log import Logged
from promptcodebook.errors import ConfigError
from promptcodebook.method.failures import gather_all, too_many_failures
from promptcodebook.method.state import State
from promptcodebook.method.update import NoLeakCheck, apply_rewrites, collect_gradients
from promptcodebook.optimizers.pco import make_rewriting
from promptcodebook.policy.file import PolicyFile
from promptcodebook.run.subject import Subject
from promptcodebook.types import Example, Rewrite, Rollout, Route, Trace, Variable, variable_name


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The policy with its new texts, and what became of each text that was blamed, by `requests`
    that the critic was asked about; of `failed` ones it has no verdict, or no blame."""

    file: PolicyFile
    rewrites: tuple[Rewrite, ...]
    requests: int
    failed: int
    paid: Usage
    simulated: bool = False

    @property
    def kept(self) -> list[Rewrite]:
        return [each for each in self.rewrites if each.kept]

    def text(self) -> str:
        """What can be said of their worth, and what they cost."""
        asked = f"{'simulated model: ' * self.simulated}the critic read "
        asked += f"{plural(self.requests, 'logged request')} ({self.failed} failed): "
        asked += f"{plural(self.paid.calls, 'call')}, {cost_text(self.paid.cost)}"
        if not self.kept:
            return f"{asked}\nno text was rewritten"
        have = "text is" if len(self.kept) == 1 else "texts are"
        return (
            f"{asked}\n{len(self.kept)} {have} new, which no request was served: what the new "
            "version earns is not known, and a canary judges it"
        )

    def as_json(self) -> dict[str, Any]:
        """A refused text is left out: it may copy what a user wrote."""
        names = "variable", "kept", "reason", "before", "after"
        rows = (
            (variable_name(r.variable), r.kept, reason_of(r), r.before, r.after if r.kept else "")
            for r in self.rewrites
        )
        rewrites = [dict(zip(names, row, strict=True)) for row in rows]
        spent = {"calls": self.paid.calls, "usd": self.paid.cost}
        counts = {"requests_read": self.requests, "failed": self.failed}
        return {**counts, "rewrites": rewrites, "spent": spent}


class OnceOnly:
    """No name, number or code that one logged request alone has, unless a `known` text has it."""

    def __init__(self, logged: Iterable[Logged], known: Iterable[str]) -> None:
        count, telling = Counter[str](), set[str]()
        for each in logged:
            text = " ".join((each.served.input, each.served.output, each.text))
            words = set(re.findall(r"[^\W_]+", text))
            count.update({word.casefold() for word in words})
            telling |= {word.casefold() for word in words if word != word.lower() or _number(word)}
        self._private = {word for word in telling if count[word] == 1}
        for text in known:
            self._private -= _folded(text)

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        if (_folded(text) - _folded(before)) & self._private:
            return "it has a name, number or code that one logged request alone has"
        return None


def _folded(text: str) -> set[str]:
    return {word.casefold() for word in re.findall(r"[^\W_]+", text)}


def _number(word: str) -> bool:
    return len(word) > 1 and any(sign.isdigit() for sign in word)


def reason_of(rewrite: Rewrite) -> str:
    """Why it was refused, without what a reason quotes after its colon."""
    return rewrite.reason.partition(":")[0].strip()


async def rewrite(
    policy: Subject,
    trained: TrainedRouter,
    logged: Sequence[Logged],
    versions: Mapping[str, int],
    most: int,
    half_life: float,
) -> Rewritten:
    """Rewrites by at most that many of the requests. Raises ConfigError where none has its texts,
    TooManyFailures, or Stop."""
    assembled, file = policy.assembled, policy.file
    config, number = assembled.config, len(rewritings(file))
    parts = {
        "update": config.update.model_copy(update={"text_updates": True}),
        "critic": config.critic.model_copy(update={"trainable": False}),
    }
    config = config.model_copy(update=parts)
    kept = (each for each in logged if each.served.output and each.served.input)
    read = [each for each in kept if versions[each.served.version] == number]
    if not read:
        message = (
            "no request with feedback was kept with its texts since the instincts are as they are"
        )
        raise ConfigError(message, hint="pco serve REF --feedback --log-inputs")
    users = [
        Example(each.served.id, text)
        for each in logged
        for text in (each.served.input, each.served.output, each.text)
    ]
    known = chain(file.parameters.codebook.texts, trained.inputs.values())
    copies = (
        NoLeakCheck(trained.examples),
        NoLeakCheck(users, "a logged request"),
        OnceOnly(logged, known),
    )
    credit, updater = make_rewriting(assembled, config, copies)
    state = State.first(replace(file.parameters, critic=trained.critic), file.statistics)
    low, high = config.reward_range
    runs: list[tuple[float, Example, Rollout]] = []
    for each in read:
        served, reward = each.served, each.reward or 0.0
        route = Route(served.route, served.arm == "explored")
        prompt = served.prompt or file.verbatim(route)
        score = low + reward * (high - low)
        rollout = Rollout(served.id, route, prompt, served.output, reward=score, feedback=each.text)
        if credit.asks_about(Trace(rollout, reward)):
            age = read[-1].served.time - served.time
            drawn = config.randomness.generator("rewrite", served.id).random()
            # The least of such numbers are a draw by weight (Efraimidis and Spirakis 2006).
            rank = -math.log(max(drawn, 1e-300)) * 2.0 ** min(age / half_life, 900.0)
            runs.append((rank, Example(served.id, served.input), rollout))
    runs = sorted(runs, key=lambda run: run[0])[:most]
    traces = await gather_all(
        credit.trace(example, rollout, state, config.randomness.at(number, example.id))
        for _, example, rollout in runs
    )
    failures = [trace.failure for trace in traces if trace.failure is not None]
    if (failed := len(failures)) * 2 > (requests := len(traces)):
        raise too_many_failures(failures, traces, "reading logged requests: ")
    pending = collect_gradients(state.parameters, traces, config)
    rewrites = await updater.rewrite_all(pending, number)
    failures = [each.failure for each in rewrites if each.failure is not None]
    if failures and len(failures) == len(rewrites):
        raise too_many_failures(failures, traces, "rewriting: ")
    rewrites = tuple(each for each in rewrites if each.after != each.before)
    parameters = apply_rewrites(state.parameters, rewrites)
    codebook = tuple(
        entry.model_copy(update={"text": instinct.text})
        for entry, instinct in zip(file.codebook, parameters.codebook.instincts, strict=True)
    )
    made = file.model_copy(update={"codebook": codebook, "generator": parameters.generator})
    kept = [each for each in rewrites if each.kept]
    if kept:
        before = {str(r.variable): r.before for r in kept}
        known: Any = file.about.get("learned") or {}
        known = {**known, "rewritten": [*rewritings(file), before]}
        made = made.with_about(learned=known)
    models = assembled.models
    return Rewritten(made, rewrites, requests, failed, models.ledger.total, models.simulated)
