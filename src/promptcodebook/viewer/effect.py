"""What an instinct adds, as `pco codebook effect` measured it, and the command to type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from promptcodebook.assemble import OWN_LM
from promptcodebook.errors import PcoError
from promptcodebook.paths import run_reference
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import POLICY
from promptcodebook.report.context import without_credentials
from promptcodebook.store.effects import Effect, effects_mark, read_effects, signed
from promptcodebook.store.header import Header
from promptcodebook.viewer.following import FollowedRun, Look


@dataclass(frozen=True, slots=True)
class _Now:
    """What the run has now: the text of an instinct, the digest of its policy ('' = it wrote none
    yet), and the fingerprints of its data by split."""

    text: str
    policy: str
    data: Mapping[str, str]

    @classmethod
    def of(cls, followed: FollowedRun, look: Look, k: int) -> _Now:
        deployed = look.context.codebook
        text = deployed[k].text if k < len(deployed) else ""
        return cls(text, _digest(followed), look.context.header.fingerprints)

    def has_policy(self, effect: Effect) -> bool:
        return not self.policy or self.policy == effect.policy

    def has_data(self, effect: Effect) -> bool:
        return effect.data in ("", self.data.get(effect.split, effect.data))


def _digest(followed: FollowedRun) -> str:
    try:
        return read_policy_file(followed.path / POLICY).digest
    except PcoError:
        return ""


def latest_effects(followed: FollowedRun, look: Look) -> dict[tuple[int, str], Effect]:
    """By an instinct's number and text, the latest that was measured of it, where it has a pair: in
    the codebook that the run has now, and on its own data."""
    now = _Now.of(followed, look, 0)
    return {
        (each.instinct, each.text): each
        for each in read_effects(followed.path)
        if each.difference is not None and now.has_policy(each) and now.has_data(each)
    }


def measured_words(effect: Effect) -> str:
    """A result in short: the difference, on how many pairs of which split, and whose answers."""
    difference = "none" if effect.difference is None else signed(effect.difference)
    simulated = ", simulated" if effect.simulated else ""
    return f"{difference}, n = {effect.n}, {effect.split}{simulated}"


def measured_mark(followed: FollowedRun, own: str) -> str:
    """Changes whenever a page about this run's instincts would; `own` is the run's mark."""
    return f"{effects_mark(followed.path)}-{own}"


def effect_values(followed: FollowedRun, look: Look, k: int) -> dict[str, Any]:
    """What was measured of instinct k, the latest first, and what to type to measure it."""
    header, now = look.context.header, _Now.of(followed, look, k)
    trust = "" if followed.usable else " --trust"
    typed = f"pco codebook effect {run_reference(followed.path)} {k}{trust}"
    if _handed_over(header):
        typed = f"pco.effect({header.id!r}, {k}, data, reward, lm)"
    found = [each for each in read_effects(followed.path) if each.instinct == k]
    return {"typed": typed, "measured": [_values(each, now) for each in found[::-1]]}


def _values(effect: Effect, now: _Now) -> dict[str, Any]:
    deployed = "as deployed" if now.has_policy(effect) else "as deployed, in another codebook"
    return {
        "effect": effect,
        "difference": "none" if effect.difference is None else signed(effect.difference),
        "split": effect.split if now.has_data(effect) else f"{effect.split} of other data",
        "text": "" if effect.text == now.text else effect.text,
        "deployed": deployed,
        "executor": without_credentials(effect.models.get("executor", "")),
        "at": effect.at.replace("T", " ").removesuffix("+00:00"),
    }


def _handed_over(header: Header) -> bool:
    """Whether the run took data, reward or model as objects of a program."""
    settings = header.settings
    if settings.get("task"):
        return False
    data: Mapping[str, Any] = settings.get("data") or {}
    files = data.get("path") or data.get("train")
    return not files or not settings.get("reward") or settings.get("lm") == OWN_LM
