"""`real-roles`: which roles of the method a small real model can carry, one at a time and together,
with the templates `few-shot` and with ours for large models. The world is `control` of
`what-learns`: a codebook of sentences that order nothing. Rules (teacher.py) play the other roles.
real_roles.toml has the arms, and docs/experiments.md what was expected of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from promptcodebook.assemble import Assembled, Sources
from promptcodebook.config import merge
from promptcodebook.method.templates import TemplateSet, load_templates
from promptcodebook.optimizers.pco import build_learner
from promptcodebook.paper.experiments import what_learns
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab
from promptcodebook.paper.experiments.operators import OPERATORS
from promptcodebook.paper.experiments.page import read_table
from promptcodebook.paper.experiments.teacher import Teacher, TeacherBehaviour


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One run of the ladder.

    Attributes:
        shots: Templates of the set `few-shot` that take the place of ours; the model answers them.
        plain: Our templates that the model answers in the place of the teacher.
        operator: A broken operator (operators.py); '' = none.
    """

    name: str
    title: str
    shots: Sequence[str] = ()
    plain: Sequence[str] = ()
    operator: str = ""
    manner: Mapping[str, Any] = field(default_factory=dict[str, Any])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


def mixed(shots: Sequence[str]) -> TemplateSet:
    """Our templates, with some of the set `few-shot`."""
    ours, theirs = load_templates("default"), load_templates("few-shot")
    sources = {**ours.sources, **{name: theirs.sources[name] for name in shots}}
    lines = tuple(name for name in theirs.one_line if name in shots)
    return replace(ours, sources=sources, one_line=lines)


def cell(arm: Arm, seed: int, spec: str) -> Cell:
    table = read_table("real_roles")
    world = {"init": {"instincts": read_table("teacher")["general"]}, "lm": spec, "seed": seed}
    settings = merge(table["settings"], world, arm.settings)
    manner = {**table["manner"], **arm.manner}
    data = what_learns.one_topic(*table["messages"])

    def measure(lab: Lab) -> CellResult:
        assert lab.replies is not None, "the ladder is for a model"
        teacher = Teacher(TeacherBehaviour(**manner))
        lm = what_learns.Taught(lab.replies.counted, teacher, frozenset(arm.plain))
        sources = Sources(data=data, lm=lm, templates=mixed(arm.shots))

        async def run(assembled: Assembled) -> CellResult:
            learner = build_learner(assembled)
            if arm.operator:
                learner = OPERATORS[arm.operator](learner)
            return await what_learns.learned(assembled, learner, judged_before=True)

        return lab.work(settings, run, sources)

    known = {"arm": repr(arm), "manner": manner, "data": table["messages"]}
    return Cell(f"{arm.name}/{seed}", {**settings, **known}, measure)
