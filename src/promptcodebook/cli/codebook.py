"""`pco codebook`: what a policy's instincts say, how they came to say it, and what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import columns, emit, wrapped
from promptcodebook.cli.options import Json, Ref, RunRef
from promptcodebook.cli.settings import runs_dir

if TYPE_CHECKING:
    from promptcodebook.session.policy_file import PolicyFile
    from promptcodebook.types import Rewrite

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Show a codebook, its history, or a difference.",
)

_DIRECTIVES = {"theta": "encoder", "phi": "generator", "psi": "critic"}


@app.command()
def show(ref: Ref, as_json: Json = False) -> None:
    """Every instinct with its success, r̄, how often it was selected, and whether it is frozen."""
    from promptcodebook.session.references import referred

    found = referred(runs_dir(), ref)
    rows = [{"index": k, **entry.model_dump()} for k, entry in enumerate(found.file.codebook)]
    if as_json:
        emit(
            {
                "ref": found.name,
                "select": found.file.select,
                "encoder": found.file.encoder,
                "generator": found.file.generator,
                "codebook": rows,
            }
        )
        return
    where = f", after update {found.best.step + 1}" if found.best is not None else ""
    print(f"{found.name}: K = {len(rows)}, S = {found.file.select}{where}\n")
    print(columns([_cells(row) for row in rows]))
    for title, text in (("encoder", found.file.encoder), ("generator", found.file.generator)):
        print(f"\n{title}:\n{wrapped(text or '(none)')}")


def _cells(row: dict[str, Any]) -> dict[str, str]:
    tried = row["selected"] > 0
    return {
        "k": str(row["index"]),
        "success": f"{row['success']:.2f}" if tried else "-",
        "r̄": f"{row['ema']:.2f}" if tried else "-",
        "selected": str(row["selected"]),
        "frozen": "yes" if row["frozen"] else "",
        "instinct": " ".join(row["text"].split()),
    }


@app.command("log")
def history(
    run: RunRef,
    index: Annotated[int | None, typer.Option(help="Only this instinct, 0..K-1.")] = None,
    part: Annotated[
        str | None, typer.Option(help="Only theta (encoder), phi (generator) or psi (critic).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Every rewrite in order: kept, or refused and why, and the feedback that asked for it."""
    from promptcodebook.store.run import RunStore
    from promptcodebook.store.runs import find_run

    store = RunStore.open(find_run(runs_dir(), run))
    try:
        variable = _variable(store, index, part)
        steps = [
            (step.index, step.reverted, rewrite)
            for step in store.steps()
            for rewrite in step.rewrites
            if variable in (None, rewrite.variable)
        ]
    finally:
        store.close()
    if as_json:
        emit([_plain(*each) for each in steps])
    elif steps:
        print("\n\n".join(_said(*each) for each in steps))
    else:
        print(f"{variable or 'nothing'} was never rewritten")


def _variable(store: Any, index: int | None, part: str | None) -> str | None:
    from promptcodebook.errors import ConfigError, did_you_mean

    if part is not None:
        names = {**_DIRECTIVES, **{name: name for name in _DIRECTIVES.values()}}
        if part not in names:
            raise ConfigError(
                f"unknown part {part!r}{did_you_mean(part, names)}", hint="theta, phi or psi"
            )
        return names[part]
    if index is None:
        return None
    parameters = store.outline().parameters
    size = len(parameters.codebook) if parameters is not None else 0
    if not 0 <= index < size:
        raise ConfigError(
            f"the codebook has no index {index}: it has {size} instincts",
            hint=f"choose one of 0..{size - 1}",
        )
    return f"c{index}"


def _plain(step: int, reverted: bool, rewrite: Rewrite) -> dict[str, Any]:
    from dataclasses import asdict

    return {"update": step + 1, "reverted": reverted, **asdict(rewrite)}


def _said(step: int, reverted: bool, rewrite: Rewrite) -> str:
    fate = "kept" if rewrite.kept else f"refused: {rewrite.reason}"
    lines = [f"update {step + 1}  {rewrite.variable}  {fate}"]
    lines.append(wrapped(rewrite.before, "  before    "))
    lines.append(wrapped(rewrite.after or "(nothing)", "  after     "))
    lines.append(wrapped(rewrite.gradient, "  feedback  "))
    return "\n".join(lines)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="A run or a policy file.")],
    b: Annotated[
        str | None, typer.Argument(help="Another; without it, A's first codebook and its kept one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What changed, word by word: [-taken out-] {+put in+}."""
    from promptcodebook.cli.words import changed

    before, after = _pair(a, b)
    old, new = _texts(before), _texts(after)
    names = [name for name in [*old, *(n for n in new if n not in old)]]
    found = {n: (old.get(n, ""), new.get(n, "")) for n in names if old.get(n) != new.get(n)}
    if as_json:
        emit({name: {"before": x, "after": y} for name, (x, y) in found.items()})
    elif found:
        shown = (f"{name}\n{wrapped(changed(x, y))}" for name, (x, y) in found.items())
        print("\n\n".join(shown))
    else:
        print("no difference")


def _pair(a: str, b: str | None) -> tuple[PolicyFile, PolicyFile]:
    from promptcodebook.session.references import first_policy, referred

    later = referred(runs_dir(), a)
    if b is not None:
        return later.file, referred(runs_dir(), b).file
    return first_policy(runs_dir(), a), later.file


def _texts(file: PolicyFile) -> dict[str, str]:
    book = {f"c{k}": entry.text for k, entry in enumerate(file.codebook)}
    return {"encoder": file.encoder, "generator": file.generator, **book}
