"""What a server says about itself: Prometheus counts, the place where a call failed, and a log that
callers cannot flood. Nothing here is made from the text of a request."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from promptcodebook.errors import import_extra
from promptcodebook.serve.composing import Composed

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Where the histogram of latencies is cut."""


class Metrics:
    """Counts since the start. Nothing in them is the text of a request, nor made from it.

    `in_flight` is asked when the page is read; `what` is what needs the library. MissingExtra.
    """

    def __init__(self, what: str, in_flight: Callable[[], int]) -> None:
        self._library: Any = import_extra("prometheus_client", what, "serve")
        self._registry: Any = self._library.CollectorRegistry()
        self._requests = self._counter("pco_requests", "Requests answered.", "path", "status")
        self._seconds: Any = self._library.Histogram(
            "pco_request_seconds",
            "From a request's arrival to its last byte.",
            ["path"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._gauge("pco_in_flight", "Completions admitted and not yet answered.", in_flight)

    def _counter(self, name: str, about: str, *labels: str) -> Any:
        return self._library.Counter(name, about, labels, registry=self._registry)

    def _gauge(self, name: str, about: str, value: Callable[[], int]) -> None:
        self._library.Gauge(name, about, registry=self._registry).set_function(value)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """A request is done with; 499 = its caller hung up first."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def page(self) -> bytes:
        return self._library.generate_latest(self._registry)


class PolicyMetrics(Metrics):
    """Those of a policy that is served; the functions are asked when the page is read."""

    def __init__(
        self, in_flight: Callable[[], int], moves: Callable[[], int], failures: Callable[[], int]
    ) -> None:
        super().__init__("serving a policy", in_flight)
        self._prompts = self._counter(
            "pco_prompts", "Prompts composed, by calls an answer and cache.", "mode", "cached"
        )
        self._fallbacks = self._counter(
            "pco_fallbacks", "Prompts without a model's part, and why.", "part", "reason"
        )
        self._gauge("pco_version_moves", "Versions taken up since the start.", moves)
        self._gauge("pco_version_failures", "Versions that failed.", failures)

    def composed(self, mode: str, composed: Composed) -> None:
        self._prompts.labels(mode, composed.cached or "no").inc()
        for fallback in composed.fallbacks:
            self._fallbacks.labels(*fallback.split(":")).inc()


class Seldom(logging.Filter):
    """Lets a line a second of each kind into a log; the next one says how many were left out. What
    a caller can cause as often as it likes then fills no disk."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        # The text before its values are filled in; asyncio puts those on further lines.
        kind, now = (record.name, str(record.msg).partition("\n")[0]), self._clock()
        then, left_out = self._seen.get(kind, (now - 1.0, 0))
        if now - then < 1.0:
            self._seen[kind] = then, left_out + 1
            return False
        self._seen[kind] = now, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more like it)", ()
        return True


def kind_and_place(error: Exception) -> str:
    """An error without its message, which may quote anything."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return type(error).__name__ + place
