"""`pco route`: which of the prompts that you have suits which input."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from promptcodebook.base.units import plural
from promptcodebook.cli import command
from promptcodebook.cli.command import Json, Plain, note
from promptcodebook.cli.train import train
from promptcodebook.tools.prompts import read_front

_BATCH = 32
_SETTINGS = (
    "init.kind=prompts", "select=1", "compose=verbatim", "keep=last", "router.kind=outcomes",
    "router.least=1", "update.text_updates=false", "validation.every=0",
    f"update.batch_size={_BATCH}",
)  # fmt: skip


def route(
    prompts: str = typer.Argument(
        ..., help="GEPA's result or run folder, DSPy programs, or a folder of text files."
    ),
    config: command.ConfigOption = None,
    task: command.TaskName = None,
    data: str | None = typer.Option(None, help="Your data file; with --task, its data folder."),
    input: str | None = typer.Option(None, help="The input column or template."),
    target: str | None = typer.Option(None, help="The reference column, or none."),
    reward: str | None = typer.Option(None, help="The reward: exact, reward.py:reward, ..."),
    rollouts: int = typer.Option(1024, min=_BATCH, help="Rollouts to learn the routes from."),
    lm: command.ModelOption = None,
    preset: command.PresetOption = None,
    budget: command.BudgetOption = None,
    seed: command.Seed = None,
    sets: command.Sets = None,
    name: str = typer.Option("", help="A name for the run."),
    plain: Plain = False,
    as_json: Json = False,
) -> int:
    """Learn which of your prompts suits each input, and judge the routing on the test split.

    No prompt is rewritten. The verdict compares routing with the prompt that works best for all
    inputs and, if known, with the prompt that the original optimizer would deploy. Data, reward and
    models may come from pco.toml, as for `pco train`. To resume, use `pco train --resume`."""
    front = read_front(Path(prompts))
    made = [*_SETTINGS, f"init.path={json.dumps(str(Path(prompts).resolve()))}"]
    made += [f"size={len(front.prompts)}", f"update.epochs={rollouts // _BATCH}"]
    if front.best:
        made.append(f"init.prompt={front.best}")
    if data and not task:
        made.append(f"data.path={json.dumps(str(Path(data).resolve()))}")
    given = {"data.input": input, "data.target": target, "reward": reward}
    made += [f"{key}={value}" for key, value in given.items() if value is not None]
    note(f"{plural(len(front.prompts), 'different prompt')} in {prompts}")
    return train(
        config=config, task=task, data=data if task else None, lm=lm, preset=preset,
        budget=budget, seed=seed, sets=[*made, *(sets or [])], resume=None, name=name,
        trust=False, edited=False, agent=None, prompt=None, question="", plain=plain,
        as_json=as_json,
    )  # fmt: skip
