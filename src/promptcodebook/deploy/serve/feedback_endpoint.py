"""`/v1/feedback`, and the log of requests that it speaks of."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web

from promptcodebook.base.units import duration
from promptcodebook.deploy.http.admission import (
    Admission,
    FairQuota,
    Metrics,
    RequestContext,
    json_response,
    without_quotes,
)
from promptcodebook.deploy.http.completions import Refusal
from promptcodebook.deploy.online.canary import CanaryJudge
from promptcodebook.deploy.online.canary_decision import KEY_SHARE, Decision
from promptcodebook.deploy.online.served_log import (
    REFUSED,
    BadFeedback,
    Served,
    ServedLog,
    feedback_of,
)
from promptcodebook.deploy.online.status import drift_of
from promptcodebook.deploy.serve.versions import Composed, Composing
from promptcodebook.errors import DiskFull, StoreError
from promptcodebook.routing.ranking import BUCKETS, buckets_of

_log = logging.getLogger(__name__)
_AT_ONCE = 2000  # Pieces of feedback that wait for their commit.
_EXPIRE_S, _DAY_S, _DRIFT_S = 3600.0, 86400.0, 300.0
_KINDS = {"unknown": "not_found", "erased": "gone", "conflict": "conflict", "full": "feedback_full"}
_STEP_S = 7200.0  # A clock that steps back by less is waited for: no stamp goes back.
_LONGEST = 64  # characters of a slice's value that are kept
_REST = 20  # How many times a look's processor time is waited until the next look.


@dataclass
class Online:
    """What a server keeps of its requests, and hears of them. `keep_s` is how long; `texts`: inputs
    and answers as well. Requests are known by `ref`. Keys of `slices` in a request's metadata say
    which slices it is in."""

    ref: str
    log: ServedLog
    keep_s: float = 30 * 86400.0
    texts: bool = False
    explores: bool = False
    judge: CanaryJudge | None = None
    judge_s: float = 5.0
    key_share: float = KEY_SHARE
    slices: tuple[str, ...] = ()
    _drifting: int = 0
    _newest: float = 0.0
    _waiting: FairQuota = field(default_factory=lambda: FairQuota(_AT_ONCE))

    def measure(self, metrics: Metrics) -> None:
        self._counter = metrics.counter("pco_feedback", "Feedback received, by outcome.", "became")
        self._reward = metrics.counter("pco_feedback_reward", "Sum of the rewards kept.")
        metrics.gauge(
            "pco_unrecorded", "1 when requests are no longer recorded.", lambda: int(self.log.fails)
        )
        lost = "Requests whose record was dropped since the start."
        metrics.gauge("pco_requests_lost", lost, lambda: self.log.lost)
        metrics.gauge("pco_drift", "What has changed since the day before.", lambda: self._drifting)
        if (judge := self.judge) is None:
            return

        def figure(of: Callable[[Decision], float]) -> Callable[[], float]:
            return lambda: math.nan if judge.decision is None else of(judge.decision)

        about = "How much more reward the canary earns than today's version:"
        metrics.gauge("pco_canary_gain_low", f"{about} at least.", figure(lambda d: d.low))
        metrics.gauge("pco_canary_gain_high", f"{about} at most.", figure(lambda d: d.high))
        feedback = figure(lambda d: d.rewards[0])
        metrics.gauge("pco_canary_feedback", "Feedback used to judge the canary.", feedback)
        for arm, name in enumerate(("canary", "control")):
            share = figure(lambda d, arm=arm: d.answered[arm])
            metrics.gauge(f"pco_{name}_answered", f"Share of {name} requests with feedback.", share)

    async def answer(
        self, admission: Admission, request: web.BaseRequest, visit: RequestContext
    ) -> web.StreamResponse:
        """What /v1/feedback does with a request. Raises Refusal."""
        body = await admission.read(request, visit)
        try:
            return json_response(await self._give(body, visit), visit)
        except Refusal as refusal:
            self._counter.labels(refusal.kind).inc()
            raise

    async def _give(self, body: Mapping[str, Any], visit: RequestContext) -> Mapping[str, Any]:
        try:
            feedback = feedback_of(body)
        except BadFeedback as error:
            raise Refusal(str(error), status=error.status, param=error.name) from None
        if not self._waiting.take(visit.caller):
            message = f"{_AT_ONCE} pieces of feedback are waiting to be written"
            raise Refusal(message, status=429, kind="rate_limit_exceeded", retry_after=1)
        try:
            became = await self.log.give(feedback, visit.caller)
        except StoreError as error:
            _log.error("feedback is not recorded: %s", error)
            kind = "disk_full" if isinstance(error, DiskFull) else "server_error"
            raise Refusal("feedback cannot be recorded now", status=503, kind=kind) from None
        finally:
            self._waiting.give_back(visit.caller)
        if became in REFUSED:
            name, what, status = REFUSED[became]
            own = " of this key" if became == "unknown" else ""
            message = f"{name} must be {what}{own}"
            raise Refusal(message, status=status, kind=_KINDS[became], param=name)
        self._counter.labels(became).inc()
        if became == "kept":
            self._reward.inc(feedback.reward)
        kept = {"request_id": feedback.request_id, "reward": feedback.reward, "key": feedback.name}
        return {"object": "feedback", **kept}

    def served(
        self,
        visit: RequestContext,
        composing: Composing,
        composed: Composed,
        text: str,
        status: int,
    ) -> None:
        route, expected = composed.route, composed.expected
        answer = visit.spent.get("executor")
        known = expected.features if expected else ()
        now = time.time()
        if now < self._newest < now + _STEP_S:
            now = self._newest  # A canary counts only what came after it began.
        self._newest = now
        self.log.put(
            Served(
                visit.id,
                now,
                self.ref,
                composing.version,
                visit.caller,
                visit.arm or ("explored" if route.explored else ""),
                status,
                round(time.perf_counter() - visit.begun, 4),
                answer and answer.tokens,
                route.indices,
                composed.propensity,
                tuple(k for k in known if k < BUCKETS) or buckets_of(text),
                composed.failed,
                text if self.texts else "",
                visit.output,
                expected.vector if expected else "",
                visit.slices,
            )
        )

    def slices_of(self, body: Mapping[str, Any]) -> tuple[str, ...]:
        """The slices of a request, such as ("channel = phone",)."""
        given = body.get("metadata")
        tree = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        cells = ((name, tree.get(name)) for name in self.slices)
        return tuple(f"{k} = {v[:_LONGEST]}" for k, v in cells if isinstance(v, str) and v)

    async def watch(self) -> None:
        """Deletes what is older than it may be, every hour. A clock that jumps forward makes
        nothing old: beside it the time since the start is counted, and the earlier one is taken."""
        began = time.time() - time.monotonic()
        while True:
            now = time.time()
            if (ahead := now - began - time.monotonic()) > _EXPIRE_S:
                message = "the clock jumped forward by %s: old requests are kept until a restart"
                _log.error(message, duration(ahead))
            try:
                await asyncio.to_thread(self.log.expire, now - max(0.0, ahead) - self.keep_s)
            except Exception as error:
                _log.error("old requests are not deleted: %s", without_quotes(error))
            await asyncio.sleep(_EXPIRE_S)

    async def judging(self) -> None:
        """Judges a canary every few seconds, and every few minutes looks for drift. The rest in
        between follows the processor's time."""
        drift_at = 0.0

        def look() -> float:
            nonlocal drift_at
            began = time.thread_time()
            try:
                if self.judge and (outcome := self.judge.look()):
                    _log.warning("%s", outcome)
                if time.monotonic() >= drift_at:
                    drift_at = time.monotonic() + _DRIFT_S
                    drifting = drift_of(self.log, self.ref, _DAY_S, time.time(), self.key_share)
                    self._drifting = len(drifting)
            except Exception as error:  # the next look may go well, whatever this is
                _log.error("canary and drift are not judged: %s", without_quotes(error))
            return time.thread_time() - began

        while True:
            spent = await asyncio.to_thread(look)
            await asyncio.sleep(max(self.judge_s, _REST * spent))

    def close(self) -> None:
        self.log.close()
