"""What `pco doctor` examines: settings, data, reward, endpoints, one example, prices and disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from promptcodebook.assemble import NO_DATA, Plan, Sources, plan_run, simulated_model
from promptcodebook.calls import LM, ROLES, Role
from promptcodebook.config import Config
from promptcodebook.config.loading import text_updates_remark
from promptcodebook.data import examine
from promptcodebook.doctor.probe import Finding, Section, probe
from promptcodebook.doctor.roles import rehearse
from promptcodebook.errors import ConfigError, PcoError, StoreError
from promptcodebook.lm.budget import PriceTable, price_lines
from promptcodebook.lm.cache import ReplyCache
from promptcodebook.lm.spec import Spec, missing_key, parse_spec
from promptcodebook.lm.stack import LocalModels, local_models, simulated_here, specs_of
from promptcodebook.paths import reply_cache_path
from promptcodebook.run.reward_trial import try_reward
from promptcodebook.run.verdict import verdict_remark
from promptcodebook.units import bytes_text, plural

_LEAST_DISK = 500 * 10**6
"""Bytes of free disk below which a run may not fit."""


async def checkup(
    config: Config,
    base: Path,
    runs_dir: Path,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Section]:
    """Section by section, as they are done. A fault is a Finding, never an error."""
    # One engine for the probe and the rehearsal.
    here = local_models()
    look = _Look(config, here, os.environ if environment is None else environment)
    try:
        async for section in _sections(look, base, runs_dir):
            yield section
    finally:
        if here is not None:
            await here.close()


@dataclass(frozen=True)
class _Look:
    """What an endpoint is looked at with."""

    config: Config
    here: LocalModels | None
    env: Mapping[str, str]


async def _sections(look: _Look, base: Path, runs_dir: Path) -> AsyncIterator[Section]:
    config, plan = look.config, None
    try:
        plan = plan_run(config, Sources(base, local=look.here)).require_training()
    except PcoError as error:
        yield Section("task", (_failure_finding("task", error),))
    else:
        settled = (_settings(plan), *_templates(plan), _data(plan), *_verdict(plan))
        yield Section("task", (*settled, await _reward(plan)))
    try:
        specs = specs_of(config)
    except ConfigError as error:
        yield Section("models", (_failure_finding("model", error),))
        return
    usable = True
    for spec, headers in specs.items():
        section = await _model(spec, headers, look, plan)
        usable &= section.ok
        yield section
    if plan is not None and usable:
        for section in await rehearse(plan):
            yield section
    yield Section("money", (_prices(config, list(specs)),))
    asked = plan is not None and "untrusted" in plan.task.program.roles
    if (shared := _look_at_untrusted(config, asked)) is not None:
        yield Section("untrusted", (shared,))
    yield Section("disk", (_disk(runs_dir), _cache(config, list(specs))))


def roles_by_spec(config: Config) -> dict[str, list[Role]]:
    """Which roles ask which model."""
    asking: dict[str, list[Role]] = {}
    for role in ROLES:
        asking.setdefault(config.model_of(role), []).append(role)
    return asking


def _failure_finding(name: str, error: PcoError) -> Finding:
    return Finding(name, "fail", str(error), error.hint)


def _settings(plan: Plan) -> Finding:
    size, select = plan.config.size, plan.config.select
    parts = [f"task {plan.task.name}, K = {size}, S = {select}", text_updates_remark(plan.config)]
    return Finding("settings", "ok", "; ".join(filter(None, parts)))


def _templates(plan: Plan) -> tuple[Finding, ...]:
    """Whether templates of the user's own tell the generator which stage it writes for."""
    asked = plan.prompt_stages and plan.config.compose == "generator"
    if not asked or "{stage}" in plan.templates["generator"].source:
        return ()
    folder, count = plan.config.templates, len(plan.prompt_stages)
    what = (
        f"generator.md in {folder} lacks {{stage}}, so that the {count} stages of the program are "
        "all asked for alike"
    )
    step = f"write {{stage}} into {folder}/generator.md, or set compose_per_stage = false"
    return (Finding("templates", "warn", what, step),)


def _data(plan: Plan) -> Finding:
    report = examine(plan.dataset)
    counts = ", ".join(f"{n} {split}" for split, n in report.counts.items())
    warnings = report.warnings()
    if not warnings:
        return Finding("data", "ok", f"{counts}; no input appears in two splits")
    first = "" if plan.task.private else f": {warnings[0]}"  # it may quote a target
    what = f"{counts}; {plural(len(warnings), 'warning')}{first}"
    return Finding("data", "warn", what, "pco data check FILE")


def _verdict(plan: Plan) -> tuple[Finding, ...]:
    """Whether the test split is too small for a verdict, which only its end would tell."""
    remark = verdict_remark(len(plan.judged))
    step = "add rows, or give test a greater share: data.fractions"
    if len(plan.dataset.test) > len(plan.judged):
        step = "raise verdict_examples"
    return (Finding("verdict", "warn", remark, step),) if remark else ()


async def _reward(plan: Plan) -> Finding:
    """The reward tried on one example, as a run tries it."""
    try:
        trial = await try_reward(plan)
    except PcoError as error:
        return _failure_finding("reward", error)
    if not trial.scores:
        return Finding("reward", "ok", "not tried: it asks the judge, or reads an agent's output")
    said = (f"{score.value:g} for {kind}" for kind, score in trial.scores if score is not None)
    what = "; ".join((*said, *trial.warnings))
    if trial.warnings:
        return Finding("reward", "warn", what, "pco data check FILE, and read the reward again")
    return Finding("reward", "ok", what)


async def _model(spec: str, headers: Mapping[str, str], look: _Look, plan: Plan | None) -> Section:
    """One model as its endpoint shows it, under the names of the roles that ask it; it is not
    asked where its provider wants a key and there is none."""
    config, here = look.config, look.here
    title = f"{spec} ({', '.join(roles_by_spec(config)[spec])})"
    key = _key_variable(spec, headers, look.env)
    if any(each.level == "fail" for each in key):
        return Section(title, key)

    def simulated(parsed: Spec) -> LM:
        dataset = plan.dataset if plan is not None else NO_DATA
        return simulated_model(config.task, dataset, parsed)

    seen = await probe(
        spec,
        timeout=min(30.0, config.timeout),
        headers=headers,
        environment=look.env,
        simulated=simulated,
        local=None if here is None else here.connect,
    )
    # In this process nothing is served side by side: how calls at once compare says nothing.
    alone = simulated_here([spec])
    kept = [each for each in seen.findings if not (alone and each.name == "concurrency")]
    return Section(title, (*key, *kept))


def _key_variable(
    spec_text: str, headers: Mapping[str, str], env: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Whether a key is set, by the name of its variable; its value is not touched."""
    try:
        absent, names = missing_key(spec_text, headers.values(), env), parse_spec(spec_text, env)
    except ConfigError:
        return ()  # the probe says what is wrong with it
    if absent:
        what = f"{' or '.join(absent)} is not set, and this provider needs a key"
        return (Finding("key variable", "fail", what, f"export {absent[0]}=..."),)
    if not names.key_names:
        return ()
    given = next((name for name in names.key_names if env.get(name, "").strip()), None)
    what = f"{given} is set" if given else f"not set ({' or '.join(names.key_names)})"
    return (Finding("key variable", "ok", what),)


def _prices(config: Config, specs: list[str]) -> Finding:
    table = PriceTable(config.prices)
    unknown = [spec for spec in specs if table.price(spec) is None]
    if not unknown:
        return Finding("prices", "ok", "known for every model")
    what, step = f"unknown for {', '.join(unknown)}", f"in pco.toml: {price_lines(unknown[0])}"
    if config.budget.usd is not None:
        return Finding("prices", "fail", f"{what}, so budget.usd cannot be kept", step)
    return Finding("prices", "ok", f"{what}: costs are shown as unknown", step)


def _look_at_untrusted(config: Config, asked: bool) -> Finding | None:
    """Method decision 13: who must not see the private input must not share an endpoint.

    `asked` = the task's executor asks the role, so that having no model of its own is a fault too.
    """
    settings = config.roles.get("untrusted")
    spec = (settings.model if settings is not None else None) or (config.lm if asked else "")
    if not spec:
        return None
    address = _address(spec)
    beside = [roles for other, roles in roles_by_spec(config).items() if _address(other) == address]
    shared = [role for roles in beside for role in roles if role != "untrusted"]
    if not shared:
        return Finding("endpoint", "ok", "no other role shares its endpoint")
    what = f"shared with {', '.join(shared)}: what they send, the input included, reaches it too"
    step = "give the untrusted role an endpoint of its own: roles.untrusted.model"
    return Finding("endpoint", "warn", what, step)


def _address(spec_text: str) -> str:
    try:
        spec = parse_spec(spec_text)
    except ConfigError:
        return spec_text
    return spec.base_url or spec.text.partition("?")[0]


def _disk(runs_dir: Path) -> Finding:
    """Room, and whether a run's folder can be made; nothing is left behind."""
    folder = runs_dir.resolve()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        what = f"cannot write to {folder}: {error.strerror}"
        return Finding("runs", "fail", what, "set PCO_RUNS to a folder you own")
    what = f"{bytes_text(free)} free at {runs_dir}"
    if free < _LEAST_DISK:
        return Finding("runs", "warn", what, "free some space, or set PCO_RUNS to another disk")
    return Finding("runs", "ok", what)


def _cache(config: Config, specs: list[str]) -> Finding:
    if not config.cache:
        return Finding("cache", "ok", "off")
    if simulated_here(specs):
        return Finding("cache", "ok", "not used for the simulated model")
    path = reply_cache_path()
    try:
        cache = ReplyCache(path)
    except StoreError as error:
        return Finding("cache", "warn", f"a run would go without it: {error}", error.hint)
    try:
        return Finding("cache", "ok", f"{cache.stats()[0]} replies in {path}")
    finally:
        cache.close()
