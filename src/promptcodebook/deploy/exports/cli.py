"""`pco export`: a policy in a form that other tools take; `pco registry export`: the registry."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from promptcodebook.base.paths import write_whole
from promptcodebook.base.text import shell
from promptcodebook.cli.command import Json, Ref, Trust, emit, note, resolved
from promptcodebook.deploy.exports.forms import FORMS, export_policy
from promptcodebook.deploy.registry.registry import export_lines, open_registry
from promptcodebook.errors import ConfigError

_ABOUT_FORMS = "; ".join(f"{name}: {form.about}" for name, form in FORMS.items())


def export(
    ref: Ref,
    to: Annotated[str, typer.Option(metavar="FORM", help=f"{_ABOUT_FORMS}.")] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file, or the folder for code; default: stdout."),
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Export a policy in another tool's format.

    Code is exported as a folder that includes the policy. The code uses this package, so each input
    gets exactly the prompt that the policy composes."""
    reference = resolved(ref, trust=trust, use=True)
    made = export_policy(reference.file, to, reference.name, trusted=reference.trusted)
    if output is None:
        if made.folder:
            message = f"{to} is a folder of {', '.join(made.files)}"
            raise ConfigError(message, hint=f"pco export {shell(ref)} --to {to} -o {to}")
        print(*made.files.values(), end="")
        return
    if output.is_dir() and not made.folder:
        hint = f"pco export {shell(ref)} --to {to} -o {shell(output / reference.name)}"
        raise ConfigError(f"{output} is a folder, and {to} is a single file", hint=hint)
    texts = {output / name if made.folder else output: text for name, text in made.files.items()}
    _write_files(texts, output if made.folder else None)
    written = [str(target) for target in texts]
    if as_json:
        named = {"ref": reference.name, "caution": reference.caution}
        emit({**named, "to": to, "live": made.live, "files": written})
        return
    note(f"wrote {', '.join(written)}")
    if not made.live:
        note("as the file itself notes, it does not choose instincts for each input")


def export_registry(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; default: stdout.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the whole registry as JSON lines, for `pco registry import`."""
    with open_registry() as registry:
        lines = list(export_lines(registry))
    if output is None:
        sys.stdout.writelines(lines)
        return
    _write_files({output: "".join(lines)})
    if as_json:
        emit({"file": str(output), "lines": len(lines)})
    else:
        note(f"wrote {output}")


def _write_files(texts: Mapping[Path, str], folder: Path | None = None) -> None:
    """Writes each file whole; makes the `folder` of them first. Raises ConfigError where it
    cannot."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        for target, text in texts.items():
            write_whole(target, text)
    except OSError as error:
        message = f"cannot write {folder or next(iter(texts))}: {error.strerror}"
        raise ConfigError(message, hint="choose a writable location with free space") from error
