"""Options that several commands share, so that they read alike everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "Budget",
    "ConfigOption",
    "ConfigPath",
    "Count",
    "DataDir",
    "Json",
    "Model",
    "Preset",
    "Ref",
    "RunRef",
    "Runs",
    "Seed",
    "Sets",
    "SplitName",
    "TaskName",
    "task_flags",
]

ConfigPath = Annotated[Path | None, typer.Argument(help="pco.toml or its folder.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="pco.toml or its folder.")]
TaskName = Annotated[str | None, typer.Option("--task", help="A ready-made task.")]
DataDir = Annotated[str | None, typer.Option("--data", help="Folder of the task's data.")]
Model = Annotated[str | None, typer.Option("--lm", help="Model of all roles, e.g. URL#MODEL.")]
Preset = Annotated[str | None, typer.Option("--preset", help="default, paper or quick.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Any key: a.b=value.")]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON.")]
Budget = Annotated[str | None, typer.Option("--budget", help="E.g. 5usd, 2Mtok, 500calls.")]
Count = Annotated[int | None, typer.Option("--n", help="So many examples, chosen by id.")]
Runs = Annotated[int, typer.Option("--samples", help="Sampled runs an example; 1 = greedy.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything drawn.")]
SplitName = Annotated[str, typer.Option("--split", help="train, val or test.")]
RunRef = Annotated[str, typer.Argument(help="A run: its id, the start of it, a path, or 'last'.")]
Ref = Annotated[str, typer.Argument(help="A run (id, start of it, path, 'last') or a policy file.")]


def task_flags(task: str | None, data: str | None, lm: str | None) -> dict[str, Any]:
    """Flags as a layer of the configuration; None = not given."""
    folder = str(Path(data).resolve()) if data else None
    return {"task": task, "data_dir": folder, "lm": lm}
