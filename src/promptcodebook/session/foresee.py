"""Configuration -> the plan of a run that no model is asked for, and its estimate."""

from __future__ import annotations

from pathlib import Path

from promptcodebook.config import Config
from promptcodebook.errors import ConfigError
from promptcodebook.lm.base import Reply, Request
from promptcodebook.lm.structured import Ask
from promptcodebook.method.init import Initialiser
from promptcodebook.method.templates import load_templates
from promptcodebook.session.estimate import Estimate, estimate
from promptcodebook.session.models import Counts, specs_of
from promptcodebook.session.plan import RunPlan
from promptcodebook.session.sources import (
    Sources,
    data_of,
    given_instincts,
    judged,
    ready_made,
    settled,
    task_of,
)
from promptcodebook.session.sync import run_sync
from promptcodebook.types import Parameters

__all__ = ["first_parameters", "foreseen", "planned"]


async def _nobody(request: Request) -> Reply:
    """The model that is not asked."""
    raise ConfigError(f"no model is asked here, and {request.role} was", hint="pco train")


def planned(config: Config, base: Path, ask: Ask | None = None) -> RunPlan:
    """The plan `pco train` would follow. Raises what it would raise before its first call.

    Without `ask`, a reward that asks a judge cannot be tried.
    """
    made = ready_made(config, base)
    sources = Sources(base)
    dataset = made.dataset if made is not None else data_of(config, sources)
    config = settled(config, made, dataset)
    task = made or task_of(config, sources, dataset, ask or Ask(_nobody, Counts()))
    if made is not None and ask is not None:
        task = judged(made, config, ask)
    return RunPlan(config, task, given_instincts(config, base)).checked()


def foreseen(config: Config, base: Path) -> Estimate:
    """What `pco train` would take."""
    specs_of(config)
    plan = planned(config, base)
    return estimate(plan, run_sync(first_parameters(plan)))


async def first_parameters(plan: RunPlan) -> Parameters:
    """The first texts; where a model would write the codebook, our general list stands for it."""
    config = plan.config
    if config.init.kind in ("random", "from_prompt"):
        stand_in = config.init.model_copy(update={"kind": "expert", "instincts": ()})
        config = config.model_copy(update={"init": stand_in})
    templates = load_templates(config.templates)
    initialiser = Initialiser(Ask(_nobody, Counts()), templates, config)
    return await initialiser.parameters(plan.task.seeds, plan.given)
