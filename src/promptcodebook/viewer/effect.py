"""What an instinct adds, measured: the results that are kept, and how to come by another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.assemble import OWN_LM
from promptcodebook.errors import PcoError
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import POLICY
from promptcodebook.report.context import without_credentials
from promptcodebook.report.html import MISSING, Column, Content, Html, el, together
from promptcodebook.store.effects import Effect, read_effects, signed
from promptcodebook.store.events import Compared, Validated
from promptcodebook.store.header import Header
from promptcodebook.types import Evaluation, Rollout
from promptcodebook.units import cost_text, money, plural
from promptcodebook.viewer.frame import address
from promptcodebook.viewer.measuring import Measuring, Standing, measuring_command
from promptcodebook.viewer.watched import Look, Watched

_SPLITS = ("val", "test", "train")
_SPARE = 20
"""Calls that a budget allows beside what is expected, for replies that are asked for again."""
_COLUMNS = (
    Column("with it less without", numeric=False),
    Column("n"),
    Column("split", numeric=False),
    Column("routed to it"),
    Column("failed"),
    Column("text", numeric=False),
    Column("executor", numeric=False),
    Column("when", numeric=False),
)


@dataclass(frozen=True, slots=True)
class Offer:
    """What measuring on a split would take: how many `inputs` it has, how many of them are routed
    to the instinct, and the calls and USD for these (None = not known). `counted` = the run has
    routed all of them; else all is taken from training's share."""

    split: str
    inputs: int
    held: int
    calls: int
    cost: float | None
    counted: bool

    @property
    def budget(self) -> str:
        """Twice what is expected."""
        return f"{2 * self.calls + _SPARE}calls"


def offers(look: Look, k: int) -> list[Offer]:
    """For each split that the run has; none where it does not say how large they are."""
    sizes = look.context.header.sizes
    return [_offer(look, k, split, sizes[split]) for split in _SPLITS if sizes.get(split)]


def _offer(look: Look, k: int, split: str, inputs: int) -> Offer:
    known = _evaluation(look, split)
    trained = [trace.rollout for step in look.steps for trace in step.traces]
    rollouts = trained if known is None else known.rollouts
    routed = [r for r in rollouts if r.route is not None]
    held = [r for r in routed if r.route is not None and k in r.route.indices]
    calls, cost = _each(rollouts)
    if known is not None and len(rollouts) >= inputs:  # routes and answers with it are the run's
        price = None if cost is None else cost * len(held)
        return Offer(split, inputs, len(held), round(calls * len(held)), price, True)
    expected = round(inputs * len(held) / len(routed)) if routed else 0
    taken = inputs + round(2 * calls * expected)
    price = None if cost is None else cost * (inputs + 2 * expected)
    return Offer(split, inputs, expected, taken, price, False)


def _evaluation(look: Look, split: str) -> Evaluation | None:
    """The run's own, of the policy that it keeps, on all of a split."""
    deployed = look.context.deployed
    found: Evaluation | None = None
    for event in look.events:
        if isinstance(event, Validated) and split == "val":
            kept = deployed is not None and event.step == deployed.step
            found = event.evaluation if kept and event.scope == "full" else found
        elif isinstance(event, Compared) and split == "test":
            found = event.evaluation if event.evaluation.name == "learned" else found
    return found


def _each(rollouts: Sequence[Rollout]) -> tuple[float, float | None]:
    """Mean calls and USD of a rollout."""
    if not rollouts:
        return 1.0, None
    costs = [r.usage.cost for r in rollouts]
    known = [cost for cost in costs if cost is not None]
    cost = sum(known) / len(costs) if len(known) == len(costs) else None
    return sum(r.usage.calls for r in rollouts) / len(rollouts), cost


@dataclass(frozen=True, slots=True)
class _Now:
    """What the run has now: the text of an instinct, the digest of its policy ('' = it wrote none
    yet), and the fingerprints of its data by split."""

    text: str
    policy: str
    data: Mapping[str, str]

    @classmethod
    def of(cls, watched: Watched, look: Look, k: int) -> _Now:
        deployed = look.context.codebook
        text = deployed[k].text if k < len(deployed) else ""
        return cls(text, _digest(watched), look.context.header.fingerprints)

    def has_policy(self, effect: Effect) -> bool:
        return not self.policy or self.policy == effect.policy

    def has_data(self, effect: Effect) -> bool:
        return effect.data in ("", self.data.get(effect.split, effect.data))


def _digest(watched: Watched) -> str:
    try:
        return read_policy_file(watched.path / POLICY).digest
    except PcoError:
        return ""


def latest_effects(watched: Watched, look: Look) -> dict[tuple[int, str], Effect]:
    """By an instinct's number and text, the latest that was measured of it, where it has a pair: in
    the codebook that the run has now, and on its own data."""
    now = _Now.of(watched, look, 0)
    return {
        (each.instinct, each.text): each
        for each in read_effects(watched.path)
        if each.difference is not None and now.has_policy(each) and now.has_data(each)
    }


def measured_words(effect: Effect) -> str:
    """A result in short: the difference, on how many pairs of which split, and whose answers."""
    difference = "none" if effect.difference is None else signed(effect.difference)
    simulated = ", simulated" if effect.simulated else ""
    return f"{difference}, n = {effect.n}, {effect.split}{simulated}"


def effects_section(watched: Watched, look: Look, k: int, measuring: Measuring) -> Html:
    """What is kept of instinct k, and a form that measures it, or what to type instead."""
    kept = [each for each in read_effects(watched.path) if each.instinct == k]
    standing = measuring.standing(look.key, k)
    return el(
        "section",
        el("h2", "What it adds, measured"),
        _kept(look, kept, _Now.of(watched, look, k)),
        _standing(look, standing) if standing is not None else None,
        None if standing is not None and standing.running else _next(watched, look, k, measuring),
        attrs={"id": "measured"},
    )


def _kept(look: Look, kept: Sequence[Effect], now: _Now) -> Html:
    if not kept:
        return el("p.empty", "Not measured yet.")
    rows = [_cells(each, now) for each in kept[::-1]]
    caption = (
        "The same inputs on their route, and on their route without it, all else equal: mean "
        "difference of the rewards, paired, 95 %. A failed rollout's pair is left out."
    )
    return look.context.table(caption, _COLUMNS, rows)


def _cells(effect: Effect, now: _Now) -> tuple[Content, ...]:
    mark = el("span.badge", "simulated") if effect.simulated else None
    difference = "none" if effect.difference is None else signed(effect.difference)
    return (
        [mark, difference],
        effect.n,
        effect.split if now.has_data(effect) else f"{effect.split} of other data",
        f"{len(effect.rewards)} of {effect.examples}",
        "{} with, {} without".format(*effect.failed),
        _text(effect, now),
        without_credentials(effect.models.get("executor", "")) or MISSING,
        effect.at.replace("T", " ").removesuffix("+00:00"),
    )


def _text(effect: Effect, now: _Now) -> Content:
    if effect.text != now.text:
        return el("span.note", effect.text)
    return "as deployed" if now.has_policy(effect) else "as deployed, in another codebook"


def _standing(look: Look, standing: Standing) -> Html:
    order = standing.order
    if not standing.running:
        if not standing.error:
            return el("p.note", f"Measured on the {order.split} split.")
        hint = el("p.note", "Next: ", el("code", standing.hint)) if standing.hint else None
        return together(el("p.note", standing.error), hint)
    bar = {"max": max(1, standing.total), "value": standing.done, "aria-label": "measured so far"}
    counts = f": {standing.done} of {standing.total}" if standing.total else ""
    return together(
        el("p", f"{standing.doing}{counts} ", el("progress", attrs=bar)),
        _form(look, order.instinct, "stop", el("button.stop", "Stop")),
    )


def _next(watched: Watched, look: Look, k: int, measuring: Measuring) -> Html:
    """The form, or why there is none and what to type."""
    header, busy = look.context.header, measuring.busy
    typed = measuring_command(watched.path, k)
    found = offers(look, k)
    if measuring.read_only or not found:
        return el("p.note", "Measure it: ", el("code", typed))
    if not watched.usable:
        return el("p.note", "This run is not yours. ", el("code", f"{typed} --trust"))
    if _handed_over(header):
        said = "This run took objects of a program, which measures it: "
        return el("p.note", said, el("code", f"pco.effect({header.id!r}, {k}, data, reward, lm)"))
    if look.running:
        return el("p.note", "It can be measured when the run has come to its end.")
    if busy is not None:
        where = "run", busy.run, "codebook", busy.instinct
        link = el("a", "Another instinct", attrs={"href": address(*where)})
        return el("p.note", link, " is being measured.")
    splits = [el("option", each.split, attrs={"value": each.split}) for each in found]
    budget = {"name": "budget", "value": found[0].budget, "size": 12, "autocomplete": "off"}
    budget |= {"type": "text", "required": ""}
    return together(
        el("p.note", "To measure it anew takes, by split:"),
        el("ul.plain", [el("li", _words(each)) for each in found]),
        _form(
            look,
            k,
            "measure",
            el("label", "Split ", el("select.stop", splits, attrs={"name": "split"})),
            el("label", "Spend at most ", el("input.stop", attrs=budget)),
            el("button.stop", "Measure"),
            el("p.note", "Calls, tokens, money or time: 200calls, 1Mtok, 0.5usd, 5min."),
        ),
    )


def _words(offer: Offer) -> str:
    held = f"{'' if offer.counted else 'about '}{offer.held} of {plural(offer.inputs, 'input')}"
    cost = cost_text(None) if offer.cost is None else f"about {money(offer.cost)}"
    return f"{offer.split}: {held} routed to it, about {plural(offer.calls, 'call')}, {cost}"


def _form(look: Look, k: int, act: str, *parts: Content) -> Html:
    action = address("run", look.key, "codebook", k, act)
    return el("form.measure", *parts, attrs={"method": "post", "action": action})


def _handed_over(header: Header) -> bool:
    """Whether the run took data, reward or model as objects of a program."""
    settings = header.settings
    if settings.get("task"):
        return False
    data: Mapping[str, Any] = settings.get("data") or {}
    files = data.get("path") or data.get("train")
    return not files or not settings.get("reward") or settings.get("lm") == OWN_LM
