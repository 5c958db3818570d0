"""Effects of instincts in the viewer: what was measured, what another measurement would take, and
one that goes on in this process because somebody asked for it.

Nothing is asked of a model unless a form of this server's own pages was sent: a POST of another
origin is refused. One measurement goes on at a time, in a thread of its own, within a budget; the
rooms that it needs are imported when it begins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from promptcodebook.config import parse_budget
from promptcodebook.errors import ConfigError, Interrupted, PcoError
from promptcodebook.paths import run_reference
from promptcodebook.progress import Phase, ProgressEvent
from promptcodebook.store.effects import effects_mark
from promptcodebook.viewer.frame import address
from promptcodebook.viewer.watched import Shelf, Watched

if TYPE_CHECKING:
    from promptcodebook.sync import Relay

_log = logging.getLogger(__name__)
_PATIENCE_S = 3.0
"""How long calls in flight may take to come home when the server ends."""


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for: an instinct of a run on a split, within a budget."""

    run: str
    instinct: int
    split: str
    budget: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a measurement stands: what it does now, `done` of `total`; `error` and `hint` say why
    it ended without a result ('' = it goes on, or has one)."""

    order: Order
    doing: str = "setting up"
    done: int = 0
    total: int = 0
    running: bool = True
    error: str = ""
    hint: str = ""


@dataclass
class _Job:
    """A measurement in its thread; who reads `standing` takes what is there."""

    standing: Standing
    relay: Relay
    thread: threading.Thread = field(default_factory=threading.Thread)


class Measuring:
    """The measurements of one server; one that is `read_only` begins none."""

    def __init__(self, shelf: Shelf, *, trust: bool = False, read_only: bool = False) -> None:
        self._shelf = shelf
        self._trust = trust
        self.read_only = read_only
        self._lock = threading.RLock()
        self._jobs: dict[str, _Job] = {}
        self._version = 0

    def standing(self, run: str, k: int) -> Standing | None:
        """Of the latest measurement of this instinct, as long as the latest of its run is that."""
        job = self._jobs.get(run)
        here = job is not None and job.standing.order.instinct == k
        return job.standing if job is not None and here else None

    @property
    def busy(self) -> Order | None:
        """What is measured now; None = nothing."""
        running = (job.standing for job in self._jobs.values() if job.standing.running)
        return next((standing.order for standing in running), None)

    def mark(self, watched: Watched, own: str) -> str:
        """Changes whenever a page about this run's instincts would; `own` is the run's mark. It
        rests where that does, unless one of its instincts is being measured."""
        found = f"{effects_mark(watched.path)}-{self._version}-{own}"
        job = self._jobs.get(watched.key)
        return f"{found}-measuring" if job is not None and job.standing.running else found

    def begin(self, order: Order, run: Path) -> None:
        """Starts it, in a thread. ConfigError where one goes on already, or none may here."""
        from promptcodebook.sync import Relay

        if self.read_only:
            raise ConfigError("this viewer only reads", hint=measuring_command(run, order.instinct))
        with self._lock:
            if (busy := self.busy) is not None:
                raise ConfigError(
                    f"instinct {busy.instinct} of {busy.run} is being measured",
                    hint="wait for it, or stop it",
                )
            job = self._jobs[order.run] = _Job(Standing(order), Relay())
            job.thread = threading.Thread(
                target=self._work, args=(job, run), name="promptcodebook-effect", daemon=True
            )
            self._version += 1
            job.thread.start()

    def stop(self, run: str) -> None:
        """No new call starts; calls in flight finish and are kept. Asked twice, it ends at once."""
        with self._lock:
            job = self._jobs.get(run)
            if job is not None and job.standing.running:
                job.relay.interrupt()
                self._say(job, doing="stopping: waiting for calls in flight")

    def close(self) -> None:
        """Ends what goes on, in order while that is quick."""
        for run in list(self._jobs):
            for _ in range(2):
                self.stop(run)
                if self._jobs[run].thread.is_alive():
                    self._jobs[run].thread.join(_PATIENCE_S)

    def _say(self, job: _Job, **changes: object) -> None:
        with self._lock:
            job.standing = replace(job.standing, **changes)  # type: ignore[arg-type]
            self._version += 1

    def _work(self, job: _Job, run: Path) -> None:
        error, hint = "", ""
        try:
            self._measure(job, run)
        except Interrupted as stop:
            error, hint = "It was stopped.", stop.hint or ""
        except PcoError as fault:
            error, hint = str(fault), fault.hint or ""
        except KeyboardInterrupt:  # stopped twice
            error, hint = "It was stopped.", "ask again: what came home before is kept"
        except Exception as fault:
            _log.debug("a measurement failed", exc_info=True)
            error = f"The measurement failed ({type(fault).__name__})."
            hint = measuring_command(run, job.standing.order.instinct)
        self._say(job, running=False, error=error, hint=hint)

    def _measure(self, job: _Job, run: Path) -> None:
        from promptcodebook.run.effect import Question, measuring
        from promptcodebook.run.subject import Subject, handed
        from promptcodebook.sync import run_sync

        order = job.standing.order

        def hear(event: ProgressEvent) -> None:
            if isinstance(event, Phase):
                self._say(job, doing=event.name, done=event.done, total=event.total)

        parse_budget(order.budget)  # none is refused here: whoever clicked is told what it may take
        given = handed("effect()", budget=order.budget, trust=self._trust)
        question = Question(order.instinct, order.split)
        with measuring(Subject.resolve(str(run), given), question) as measurement:
            run_sync(measurement.measure(hear), measurement.interrupt, job.relay)

    def add_to(self, router: web.UrlDispatcher) -> None:
        """The two forms of a biography."""
        at = "/run/{run}/codebook/{text}"
        router.add_post(f"{at}/measure", self._posted(self.begin))
        router.add_post(f"{at}/stop", self._posted(lambda order, _: self.stop(order.run)))

    def _posted(
        self, act: Callable[[Order, Path], None]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """An endpoint of a form, which leads back to its page."""

        async def answer(request: web.Request) -> web.StreamResponse:
            _require_own_page(request)
            form, run = await _fields(request), request.match_info["run"]
            text = request.match_info["text"]
            if not (text.isascii() and text.isdecimal() and len(text) < 6):
                raise web.HTTPNotFound
            split, budget = form.get("split", "val"), form.get("budget", "").strip()
            with self._shelf.reading(run) as watched:
                if watched is None:
                    raise web.HTTPNotFound
                try:
                    act(Order(run, int(text), split, budget), watched.path)
                except ConfigError as error:
                    return web.Response(status=409, text=f"{error}\nNext: {error.hint}\n")
            back = address("run", run, "codebook", int(text)) + "#measured"
            return web.Response(status=303, headers={"Location": back})

        return answer


def measuring_command(run: Path, k: int) -> str:
    """What to type to measure instinct k of the run in this folder."""
    return f"pco codebook effect {run_reference(run)} {k}"


async def _fields(request: web.Request) -> dict[str, str]:
    """What a form of our pages sends. An HTTPException for a body of another kind."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise web.HTTPUnsupportedMediaType
    try:
        return {name: str(value) for name, value in (await request.post()).items()}
    except (ValueError, LookupError):
        raise web.HTTPBadRequest from None


def _require_own_page(request: web.Request) -> None:
    """HTTPForbidden for what no page of this server has sent: browsers say where a form is from."""
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if request.headers.get("Origin") != f"http://{request.host}" or site != "same-origin":
        raise web.HTTPForbidden(reason="this was not sent by a page of this server")
