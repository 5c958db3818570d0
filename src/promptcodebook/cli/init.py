"""`pco init`: a folder to start from, which trains as it stands."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from promptcodebook.cli.console import emit
from promptcodebook.cli.options import Json
from promptcodebook.errors import ConfigError

__all__ = ["FILES", "app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

FILES = ("pco.toml", "data.jsonl", "reward.py")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to put them; made if missing.")] = Path(),
    as_json: Json = False,
) -> None:
    """Write pco.toml, data.jsonl and reward.py: a working example to make your own.

    Nothing that exists is written over.
    """
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise ConfigError(
            f"{folder / there[0]} exists already; nothing was written",
            hint="pco init OTHER_FOLDER, or move the file away",
        )
    _write(folder)
    if as_json:
        emit({"folder": str(folder), "files": [str(folder / name) for name in FILES]})
        return
    print("\n".join(f"wrote {folder / name}" for name in FILES))
    go = "" if folder == Path() else f"cd {folder} && "
    print(
        "\nIt trains as it stands, on the simulated model. Put in your own data, reward and lm, "
        f"then:\n  {go}pco doctor\n  pco estimate\n  pco train"
    )


def _write(folder: Path) -> None:
    source = resources.files("promptcodebook.cli") / "scaffold"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            # 'x': a file that appears in this very moment is not written over either.
            with (folder / name).open("x", encoding="utf-8") as target:
                target.write((source / name).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot write to {folder}: {error.strerror or error}",
            hint="pco init OTHER_FOLDER",
        ) from None
