"""What docs/stability.md promises to keep, as it was approved: a change of a file beside this one
is a change of what people rely on. `APPROVE=1 pytest tests/stability` writes them anew."""

import inspect
import json
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

import promptcodebook as pco
from promptcodebook.cli import app as tree
from promptcodebook.config.loading import describe
from promptcodebook.policy.file import PolicyFile
from promptcodebook.progress import ProgressEvent
from promptcodebook.store import events


def names(module: Any = pco, place: str = "") -> Iterator[str]:
    """Functions with their arguments, classes with their members."""
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from names(value, f"{name}.")
        elif inspect.isfunction(value):
            yield f"{place}{name}({', '.join(inspect.signature(value).parameters)})"
        elif value is pco.Config or issubclass(value, dict):  # their keys are settings
            yield f"{place}{name}"
        else:
            members = {*dir(value)} - {*dir(Exception)}
            yield " ".join(
                [f"{place}{name}:", *sorted(n for n in members if not n.startswith("_"))]
            )


def commands() -> Iterator[str]:
    root: Any = typer.main.get_command(tree.app)
    for name in tree.commands():
        yield from options_of(name, root.get_command(None, name))


def options_of(path: str, command: Any) -> Iterator[str]:
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from options_of(f"{path} {name}", command.get_command(None, name))
    else:
        words = [word for each in command.params for word in (*each.opts, *each.secondary_opts)]
        yield " ".join([path, *words])


def settings() -> Iterator[str]:
    for key in describe():
        yield f"{key.key}: {key.kind}"


def policy() -> Iterator[str]:
    schema = PolicyFile.model_json_schema()
    yield f"format = {schema['properties']['format']['const']}"
    yield from keys_of("", schema, schema["$defs"])


def keys_of(place: str, part: Any, shapes: Any) -> Iterator[str]:
    for key, kind in part.get("properties", {}).items():
        yield f"{place}{key}"
        for name in re.findall(r"/\$defs/(\w+)", json.dumps(kind)):
            yield from keys_of(f"{place}{key}.", shapes[name], shapes)


def event_kinds() -> Iterator[str]:
    """Those on a run's disk, by their names there, and those that a listener hears."""
    stored = events._KINDS  # pyright: ignore[reportPrivateUsage]
    heard = {each.__name__: each for each in get_args(ProgressEvent)}
    for name, shape in {**stored, **heard}.items():
        yield " ".join([f"{name}:", *(each.name for each in fields(shape))])


@pytest.mark.parametrize("what", [names, commands, settings, policy, event_kinds])
def test_what_is_public_is_what_was_approved(what: Any) -> None:
    file, lines = Path(__file__).with_name(f"{what.__name__}.txt"), [*what()]
    if os.environ.get("APPROVE") == "1":
        file.write_text("\n".join(lines) + "\n", "utf-8")
    assert lines == file.read_text("utf-8").splitlines()
