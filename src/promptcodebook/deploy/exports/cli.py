"""`pco codebook export`: the registry as lines, or a policy in the forms that other tools take."""

from __future__ import annotations

from pathlib import Path

import typer

from promptcodebook.base.text import shell
from promptcodebook.cli.command import Json, Trust, emit, note, resolved
from promptcodebook.deploy.exports.forms import FORMS, export_policy
from promptcodebook.deploy.registry.cli import export_registry, write_files
from promptcodebook.errors import ConfigError


def export(
    ref: str = typer.Argument("", help="With --to: the policy. Without both: the whole registry."),
    to: str = typer.Option(
        "",
        metavar="FORM",
        help="; ".join(f"{name}: {form.about}" for name, form in FORMS.items()) + ".",
    ),
    output: Path | None = typer.Option(
        None, "--output", "-o", help="The file, or for code the folder; default: stdout."
    ),
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """The registry as JSON lines for `import`; with --to, a policy for other tools.

    Code is a folder with the policy beside it: each input gets the very prompt that the policy
    composes, through the package."""
    if not (to or ref):
        export_registry(output, as_json)
        return
    if not (to and ref):
        message = "a policy and its form go together: REF and --to"
        named = shell(ref) if ref else "REF"
        raise ConfigError(message, hint=f"pco codebook export {named} --to {shell(to or 'json')}")
    reference = resolved(ref, trust=trust, use=True)
    made = export_policy(reference.file, to, reference.name, trusted=reference.trusted)
    if output is None:
        if made.folder:
            message = f"{to} is a folder of {', '.join(made.files)}"
            raise ConfigError(message, hint=f"pco codebook export {shell(ref)} --to {to} -o {to}")
        print(*made.files.values(), end="")
        return
    texts = {output / name if made.folder else output: text for name, text in made.files.items()}
    write_files(texts, output if made.folder else None)
    written = [str(target) for target in texts]
    if as_json:
        named = {"ref": reference.name, "caution": reference.caution}
        emit({**named, "to": to, "live": made.live, "files": written})
        return
    note(f"wrote {', '.join(written)}")
    if not made.live:
        note("the choice of instincts for each input is not in it, as the file says")
