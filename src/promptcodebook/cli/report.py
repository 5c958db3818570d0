"""`pco report`: one self-contained HTML file about a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcodebook.cli.console import emit
from promptcodebook.cli.options import Json, RunRef
from promptcodebook.cli.settings import runs_dir

if TYPE_CHECKING:
    from promptcodebook.store.header import Header

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def report(
    run: RunRef,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where; else RUN/report.html.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Curves, codebook, routing, history and examples, in one file that needs no network."""
    from promptcodebook.report import write_report
    from promptcodebook.store.run import RunStore
    from promptcodebook.store.runs import find_run

    store = RunStore.open(find_run(runs_dir(), run))
    try:
        target = output or store.path / "report.html"
        write_report(store, target, _inputs(store.header))
    finally:
        store.close()
    if as_json:
        emit({"run": store.header.id, "report": str(target)})
    else:
        print(target)


def _inputs(header: Header) -> dict[str, str]:
    """Texts of the inputs by example id; none where the data is gone or was an object."""
    from promptcodebook.config import load_config
    from promptcodebook.errors import ConfigError, DataError, TaskError
    from promptcodebook.session.sources import Sources, data_of, ready_made

    base = Path(header.base or ".")
    try:
        config = load_config(header.config, where=f"the run {header.id}")
        made = ready_made(config, base)
        data = made.dataset if made is not None else data_of(config, Sources(base))
    except (ConfigError, DataError, TaskError):
        return {}
    return {e.id: e.input for _, examples in data.items() for e in examples}
