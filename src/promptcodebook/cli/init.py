"""`pco init`, `pco config` and `pco templates`: what a project of your own starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcodebook.cli.console import emit, show, wrap_text
from promptcodebook.cli.settings import Json, command_group
from promptcodebook.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from promptcodebook.config.loading import Key

app = command_group()
templates = command_group("The prompts around what is learned: list them, or copy a set to edit.")
app.add_typer(templates, name="templates")

FILES = ("pco.toml", "data.jsonl", "reward.py")


@app.command()
def init(
    folder: Path = typer.Argument(Path(), help="Where to write them; created if missing."),
    as_json: Json = False,
) -> None:
    """Write pco.toml, data.jsonl and reward.py: a working example to make your own.

    No existing file is overwritten.
    """
    present = [name for name in FILES if (folder / name).exists()]
    if present:
        raise ConfigError(
            f"{folder / present[0]} exists already; nothing was written",
            hint="pco init OTHER_FOLDER, or move the file away",
        )
    source = resources.files("promptcodebook.cli") / "scaffold"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            # 'x': a file that appears in this very moment is not overwritten either.
            with (folder / name).open("x", encoding="utf-8") as target:
                target.write((source / name).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot write to {folder}: {error.strerror or error}", hint="pco init OTHER_FOLDER"
        ) from None
    files = [str(folder / name) for name in FILES]
    go = "" if folder == Path() else f"cd {folder} && "
    what = "It trains as it is, on the simulated model. Put in your own data, reward and lm, then:"
    steps = f"{wrap_text(what, '')}\n  {go}pco doctor\n  pco estimate\n  pco train"
    text = "\n".join([*(f"wrote {file}" for file in files), "", steps])
    show(lambda: {"folder": str(folder), "files": files}, lambda: text, as_json=as_json)


@app.command()
def config(
    key: str = typer.Argument("", help="A key or a group, such as update or roles.critic.top_p."),
    as_json: Json = False,
) -> None:
    """Every key of pco.toml and --set: its default, its kind, and what it does."""
    from promptcodebook.config.loading import describe, describe_group

    keys = _select_keys(describe(), key)
    if as_json:
        emit([asdict(each) for each in keys])
        return
    blocks: list[str] = []
    for group, members in groupby(keys, key=lambda each: each.group):
        shown = list(members)
        if len(shown) > 1 or not key:
            line = describe_group(group) if group else "Keys that belong to no group."
            blocks.append(f"[{group}]\n{wrap_text(line, '')}" if group else line)
        blocks += [_key_text(each) for each in shown]
    print("\n\n".join(blocks))


def _select_keys(keys: Sequence[Key], name: str) -> list[Key]:
    """The key of that name or all keys of that group, else those that end with the name; every key
    where none is named. ROLE and MODEL in a key match any name."""
    parts = name.split(".") if name else []

    def matches(key: Sequence[str]) -> bool:
        pairs = zip(key, parts, strict=False)
        return len(parts) <= len(key) and all(o in (p, "ROLE", "MODEL") for o, p in pairs)

    selected = [each for each in keys if matches(each.key.split("."))]
    selected = selected or [each for each in keys if each.key.endswith(f".{name}")]
    if not selected:
        known = [*(each.key for each in keys), *(each.key.rpartition(".")[2] for each in keys)]
        message = f"no key {name!r}{did_you_mean(name, known)}"
        raise ConfigError(message, hint="pco config, which lists them all")
    return selected


def _key_text(key: Key) -> str:
    default = f" = {key.default}" if key.default else "   (must be given)"
    return "\n".join(
        [wrap_text(f"{key.key}{default}", ""), wrap_text(key.text), wrap_text(key.kind)]
    )


@templates.command("list")
def list_sets(as_json: Json = False) -> None:
    """The sets that come with the package, and the templates in each."""
    from promptcodebook.method.templates import load_templates, template_sets

    sets = {name: sorted(load_templates(name).sources) for name in template_sets()}
    lines = [wrap_text(", ".join(names), f"{name:<9}") for name, names in sets.items()]
    lines += ["", 'In pco.toml: templates = "NAME"']
    lines += ["next: pco templates copy DIR, for a set of your own"]
    show(lambda: sets, lambda: "\n".join(lines), as_json=as_json)


@templates.command()
def copy(
    folder: Annotated[Path, typer.Argument(help="Where to write it; created if missing.")],
    name: str = typer.Option("default", "--set", help="default or paper."),
    as_json: Json = False,
) -> None:
    """Write a whole set of templates to edit; no existing file is overwritten."""
    from promptcodebook.method.templates import copy_templates

    files = [str(file) for file in copy_templates(folder, name)]
    setting = str(folder) if folder.is_absolute() else f"./{folder}"
    lines = [*(f"wrote {file}" for file in files), "", f'In pco.toml: templates = "{setting}"']
    lines += ["A file that you delete there comes from the set it was copied from."]
    lines += ["next: edit them, then pco estimate"]
    tree = {"templates": setting, "files": files}
    show(lambda: tree, lambda: "\n".join(lines), as_json=as_json)
