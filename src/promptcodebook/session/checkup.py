"""What `pco doctor` looks at: settings, data, reward, endpoints, prices, disk and cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcodebook.config import Config
from promptcodebook.data import Dataset, examine
from promptcodebook.errors import ConfigError, PcoError, StoreError
from promptcodebook.lm.cache import ReplyCache, default_cache_path
from promptcodebook.lm.prices import PriceTable, price_lines
from promptcodebook.lm.probe import Finding, probe
from promptcodebook.lm.spec import parse_spec
from promptcodebook.session.foresee import planned
from promptcodebook.session.models import simulated_in, specs_of
from promptcodebook.session.plan import RunPlan
from promptcodebook.session.rehearsal import rehearsal
from promptcodebook.session.simulation import simulated_factory
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.tasks.rewards.judge import Judge
from promptcodebook.types import ROLES, Role

__all__ = ["Section", "checkup", "roles_by_spec"]

_ROOM = 500 * 10**6
"""Bytes of free disk below which a run may not fit."""


@dataclass(frozen=True, slots=True)
class Section:
    """What was looked at, and what was found."""

    title: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(each.level != "fail" for each in self.findings)


async def checkup(
    config: Config,
    base: Path,
    runs_dir: Path,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Section]:
    """Section by section, as they are found. A fault is a Finding, never an error."""
    env = os.environ if environment is None else environment
    plan, found = _plan(config, base)
    if plan is not None:
        found.append(_data(plan.task.dataset))
        found.append(await _reward(plan))
    yield Section("task", tuple(found))
    try:
        specs = specs_of(config)
    except ConfigError as error:
        yield Section("models", (_failed("model", error),))
        return
    dataset = plan.task.dataset if plan is not None else Dataset((), (), ())
    reachable = True
    for spec, headers in specs.items():
        roles = ", ".join(roles_by_spec(config)[spec])
        looked = await probe(
            spec,
            timeout=min(30.0, config.timeout),
            headers=headers,
            environment=env,
            simulated=simulated_factory(config.task, dataset),
        )
        reachable &= looked.ok
        yield Section(f"{spec} ({roles})", (*_keys(spec, env), *_told(spec, looked.findings)))
    if plan is not None and reachable:
        yield Section("one example, from route to gradients", await rehearsal(config, base))
    yield Section("money", tuple(_money(config, list(specs))))
    asked = plan is not None and "untrusted" in getattr(plan.task.executor, "roles", ())
    shared = _untrusted(config, asked)
    if shared is not None:
        yield Section("untrusted", (shared,))
    yield Section("disk", (_disk(runs_dir), _cache(config, list(specs))))


def roles_by_spec(config: Config) -> dict[str, list[Role]]:
    """Which roles ask which model."""
    found: dict[str, list[Role]] = {}
    for role in ROLES:
        settings = config.roles.get(role)
        spec = (settings.model if settings is not None else None) or config.lm
        found.setdefault(spec, []).append(role)
    return found


def _failed(name: str, error: PcoError) -> Finding:
    return Finding(name, "fail", str(error), error.hint)


def _plan(config: Config, base: Path) -> tuple[RunPlan | None, list[Finding]]:
    """Settings, data, reward and agent as `pco train` reads them."""
    try:
        plan = planned(config, base)
    except PcoError as error:
        return None, [_failed("task", error)]
    size, select = plan.config.size, plan.config.select
    return plan, [Finding("settings", "ok", f"task {plan.task.name}, K = {size}, S = {select}")]


def _data(dataset: Dataset) -> Finding:
    found = examine(dataset)
    counts = ", ".join(f"{n} {split}" for split, n in found.counts.items())
    warnings = found.warnings()
    if not warnings:
        return Finding("data", "ok", f"{counts}; no input stands in two splits")
    return Finding("data", "warn", f"{counts}; {len(warnings)} warnings: {warnings[0]}", _CHECK)


_CHECK = "pco data check FILE"


async def _reward(plan: RunPlan) -> Finding:
    """The reward of one example with an empty answer: it must not raise, nor leave its range."""
    task = plan.task
    if isinstance(task.reward, Judge):
        return Finding("reward", "ok", "the judge role is asked")
    example = task.dataset.train[0]
    try:
        score = await apply_reward(task.reward, example, "", task.reward_range)
    except PcoError as error:
        return _failed("reward", error)
    said = "with feedback" if score.feedback else "without feedback"
    return Finding("reward", "ok", f"an empty answer to {example.id} gets {score.value:g}, {said}")


def _told(spec: str, findings: Sequence[Finding]) -> list[Finding]:
    """In process nothing is served side by side: how that compares says nothing."""
    return [f for f in findings if f.name != "concurrency" or not simulated_in([spec])]


def _keys(spec_text: str, env: Mapping[str, str]) -> list[Finding]:
    """Whether a key is set, by the name of its variable; its value is not touched."""
    try:
        names = parse_spec(spec_text, env).key_names
    except ConfigError:
        return []
    if not names:
        return []
    there = [name for name in names if env.get(name, "").strip()]
    if there:
        return [Finding("key variable", "ok", f"{there[0]} is set")]
    return [Finding("key variable", "ok", f"not set ({' or '.join(names)})")]


def _money(config: Config, specs: list[str]) -> list[Finding]:
    prices = PriceTable(config.prices)
    unknown = [spec for spec in specs if prices.price(spec) is None]
    if not unknown:
        return [Finding("prices", "ok", "known for every model")]
    step = f"in pco.toml: {price_lines(unknown[0])}"
    what = f"unknown for {', '.join(unknown)}"
    if config.budget.usd is not None:
        return [Finding("prices", "fail", f"{what}, so budget.usd cannot be kept", step)]
    return [Finding("prices", "ok", f"{what}: costs are shown as unknown", step)]


def _untrusted(config: Config, asked: bool) -> Finding | None:
    """Method decision 13: who must not see the private input must not share an endpoint.

    `asked` = the task's executor asks the role, so that having no model of its own is a fault too.
    """
    settings = config.roles.get("untrusted")
    own = settings.model if settings is not None else None
    spec = own or (config.lm if asked else "")
    if not spec:
        return None
    address = _address(spec)
    shared = [
        role
        for other, roles in roles_by_spec(config).items()
        for role in roles
        if role != "untrusted" and _address(other) == address
    ]
    if not shared:
        return Finding("endpoint", "ok", "no other role shares its endpoint")
    return Finding(
        "endpoint",
        "warn",
        f"shared with {', '.join(shared)}: what they send, the input included, reaches it too",
        "give the untrusted role an endpoint of its own: roles.untrusted.model",
    )


def _address(spec_text: str) -> str:
    try:
        spec = parse_spec(spec_text)
    except ConfigError:
        return spec_text
    return spec.base_url or spec.text.partition("?")[0]


def _disk(runs_dir: Path) -> Finding:
    """Room, and whether a run's folder can be made; nothing is left behind."""
    there = runs_dir.resolve()
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        free = shutil.disk_usage(there).free
    except OSError as error:
        said = f"cannot write to {there}: {error.strerror}"
        return Finding("runs", "fail", said, "set PCO_RUNS to a folder you own")
    room = f"{free / 1e9:.1f} GB free at {runs_dir}"
    if free < _ROOM:
        return Finding("runs", "warn", room, "free some space, or set PCO_RUNS to another disk")
    return Finding("runs", "ok", room)


def _cache(config: Config, specs: list[str]) -> Finding:
    if not config.cache:
        return Finding("cache", "ok", "off")
    if simulated_in(specs):
        return Finding("cache", "ok", "not used for the simulated model")
    path = default_cache_path()
    try:
        cache = ReplyCache(path)
    except StoreError as error:
        return Finding("cache", "warn", f"a run would go without it: {error}", error.hint)
    try:
        return Finding("cache", "ok", f"{cache.stats().replies} replies in {path}")
    finally:
        cache.close()
