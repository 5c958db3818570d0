"""`pco view`: runs in the browser, on this machine only."""

from __future__ import annotations

import asyncio
import sys

import typer

from promptcodebook.base.paths import runs_dir
from promptcodebook.cli.command import Json, Trust, emit, note


def view(
    run: str = typer.Argument(
        "", metavar="[RUN]", help="A run: its id or name, a path, or 'last'."
    ),
    port: int = typer.Option(8642, min=0, max=65535, help="Port; 0 = any free port."),
    browse: bool = typer.Option(False, "--open", help="Open the page in the browser."),
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """View runs live in the browser: what was learned, and the prompt for each input.

    The first line on stdout is the address. The page opens only on this machine; from other
    machines, use ssh -L 8642:localhost:8642. The viewer never calls a model, writes anything or
    stops a run."""
    import webbrowser

    from promptcodebook.deploy.serve.cli import listen
    from promptcodebook.deploy.viewer.following import find_key, root_of
    from promptcodebook.deploy.viewer.server import HOST, Viewer, viewing
    from promptcodebook.report.pages import address
    from promptcodebook.store.runs import find_run

    folder = find_run(runs_dir(), run) if run else None
    home = (runs_dir() if folder is None else root_of(runs_dir(), folder)).resolve()
    path = "/" if folder is None else address("run", find_key(home, folder))

    async def serve() -> None:
        site = Viewer(home, trust=trust)
        async with viewing(site, port) as base:
            if as_json:
                emit({"url": base + path})
            else:
                print(base + path)
            sys.stdout.flush()  # at once: a script may wait for it
            note("Ctrl-C ends it")
            if browse:
                webbrowser.open(base + path)
            await asyncio.Event().wait()

    listen(serve, HOST, port)
