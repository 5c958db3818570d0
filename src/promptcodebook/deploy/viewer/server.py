"""The viewer over HTTP: screens, their style and script, and the news that a run continued. It
listens on loopback and answers to no other name, since a page of another site could point its own
name here. Scripts and styles within a page do not run. It writes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from aiohttp import web

from promptcodebook.deploy.http.admission import names_this_machine
from promptcodebook.deploy.viewer import following
from promptcodebook.deploy.viewer.grid import GridFilter, grid_screen
from promptcodebook.deploy.viewer.lists import RunFilter, RunsList
from promptcodebook.deploy.viewer.screens import (
    Screen,
    example_screen,
    examples_screen,
    missing,
    page_of,
    run_screen,
)
from promptcodebook.errors import PcoError
from promptcodebook.report.pages import read_script, read_style

HOST = "127.0.0.1"
_POLL_S, _POLL_ALL_S = 0.25, 0.8  # How often a page asks whether its run continued, or any run.
_BEAT_S = 10.0
# The page of an idle run asks again: a browser grants a server six answers that are held open.
_AT_REST = b"retry: 2000\nevent: rest\ndata: \n\n"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FILES = {
    "style.css": "text/css",
    "chart.js": "text/javascript",
    "view.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_UNFORESEEN = "The viewer failed; its error is printed where pco view runs"
_CHECK = "pco doctor"
_log = logging.getLogger(__name__)

_Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
_OfRun = Callable[[following.FollowedRun, web.Request], Screen]


class Viewer:
    """What is shown: the runs below one folder."""

    def __init__(self, runs_dir: Path, *, trust: bool = False) -> None:
        self.open_runs = following.OpenRuns(runs_dir, trust=trust)
        self._runs = RunsList(runs_dir)

    def application(self) -> web.Application:
        """The screens by their addresses; below /live a page hears that it is out of date."""
        application = web.Application(middlewares=[_guard])
        add = application.router.add_get
        add("/", _shown(lambda r: self._runs.screen(RunFilter.of(r.query))))
        for path, make in _RUN_SCREENS.items():
            add(path, _shown(partial(self._of_run, make)))
        add("/static/{name}", _static)
        add("/live/runs", _news(lambda _: self._runs.mark(), _POLL_ALL_S))
        add("/live/run/{run}", _news(self._run_mark))
        add("/{rest:.*}", _shown(lambda _: missing("There is nothing at this address.")))
        return application

    def _of_run(self, make: _OfRun, request: web.Request) -> Screen:
        key = request.match_info["run"]
        with self.open_runs.reading(key) as followed:
            if followed is None:
                place = self.open_runs.runs_dir
                return missing(f"There is no run {key} in {place}.", "pco runs list")
            return make(followed, request)

    def _run_mark(self, request: web.Request) -> str:
        with self.open_runs.reading(request.match_info["run"]) as followed:
            return followed.mark() if followed is not None else following.GONE


def _shown(make: Callable[[web.Request], Screen]) -> _Answer:
    """The screen as a page, made in a thread, since it reads files."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            screen = await asyncio.to_thread(make, request)
        except Exception as error:  # a page that cannot be made takes no other down
            if isinstance(error, PcoError):
                screen = missing(str(error), error.hint or "")
            else:
                _log.exception("%s was not shown", request.path)
                screen = missing(f"{_UNFORESEEN} ({type(error).__name__}).", _CHECK)
            screen = replace(screen, title="This cannot be shown", status=500)
        body, kind = page_of(screen, urlsplit(str(request.rel_url)).path), "text/html"
        return web.Response(body=body, status=screen.status, content_type=kind, charset="utf-8")

    return answer


def _news(mark: Callable[[web.Request], str], every: float = _POLL_S) -> _Answer:
    """Server-sent events: the mark, whenever it is another than the page's, until the run rests."""

    async def answer(request: web.Request) -> web.StreamResponse:
        known = request.headers.get("Last-Event-ID") or request.query.get("mark", "")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **_HEADERS})
        await response.prepare(request)
        await response.write(b"retry: 500\n\n")
        waited = 0.0
        with suppress(ConnectionError):
            while True:
                try:
                    now = await asyncio.to_thread(mark, request)
                except (PcoError, OSError) as error:
                    _log.debug("%s", error)
                    now = "unreadable"
                if now != known:
                    known, waited = now, 0.0
                    await response.write(f"id: {now}\nevent: changed\ndata: {now}\n\n".encode())
                elif waited >= _BEAT_S:  # a reader that is gone is found out
                    waited = 0.0
                    await response.write(b": still here\n\n")
                if following.rests(now):
                    await response.write(_AT_REST)
                    return response
                await asyncio.sleep(every)
                waited += every
        return response

    return answer


_RUN_SCREENS: Mapping[str, _OfRun] = {
    "/run/{run}": lambda run, _: run_screen(run),
    "/run/{run}/grid": lambda run, r: grid_screen(run, GridFilter.of(r.query)),
    "/run/{run}/examples": lambda run, _: examples_screen(run),
    "/run/{run}/example/{name}": lambda run, r: example_screen(run, r.match_info["name"]),
    "/run/{run}/example/{name}/{at}": lambda run, r: example_screen(
        run, r.match_info["name"], r.match_info["at"]
    ),
}


async def _static(request: web.Request) -> web.StreamResponse:
    name, folder = request.match_info["name"], files("promptcodebook.deploy.viewer")
    if name not in _FILES:
        raise web.HTTPNotFound
    if name == "style.css":
        text = read_style() + folder.joinpath("view.css").read_text("utf-8")
    else:
        text = read_script() if name == "chart.js" else folder.joinpath(name).read_text("utf-8")
    return web.Response(text=text, content_type=_FILES[name], charset="utf-8")


@web.middleware
async def _guard(request: web.Request, handler: _Answer) -> web.StreamResponse:
    """Who may ask, and the headers of every answer."""
    if not names_this_machine(f"//{request.host}"):
        text = "this server answers on localhost only\n"
        response: web.StreamResponse = web.Response(status=421, text=text)
    else:
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = web.Response(status=error.status, text=f"{error.reason}\n")
        except ConnectionError:
            raise  # the client is gone
        except Exception:
            _log.exception("%s was not answered", request.path)
            response = web.Response(status=500, text=f"{_UNFORESEEN}\nNext: {_CHECK}\n")
    if not response.prepared:
        for header, value in _HEADERS.items():
            response.headers.setdefault(header, value)
    return response


@asynccontextmanager
async def viewing(site: Viewer, port: int = 0) -> AsyncGenerator[str, None]:
    """The site at work while the block runs; its address. Raises OSError when the port is taken."""
    quiet = logging.getLogger(f"{__name__}.http")
    quiet.disabled = True  # what it says of a malformed request quotes it
    runner = web.AppRunner(
        site.application(),
        access_log=None,
        logger=quiet,
        handle_signals=False,
        handler_cancellation=True,
        shutdown_timeout=0.2,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        bound = cast("tuple[str, int]", runner.addresses[0])
        yield f"http://{bound[0]}:{bound[1]}"
    finally:
        await runner.cleanup()
        site.open_runs.close()
