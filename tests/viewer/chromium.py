"""A real browser that looks at pages, and hears what they ask for and complain of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
SIZES = {400: 800, 1600: 1000}
IN_A_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM} here"),
]
"""Marks of tests that need it."""


@dataclass
class Heard:
    """What a page asked for and complained of."""

    requests: list[str] = field(default_factory=list[str])
    complaints: list[str] = field(default_factory=list[str])

    def of(self, page: Any) -> None:
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("console", self._said)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def foreign(self, base: str) -> list[str]:
        return [url for url in self.requests if not url.startswith((f"{base}/", "data:"))]


@contextmanager
def view(runs: Path, port: int = 0, **environment: str) -> Iterator[str]:
    """`pco view` of these runs in a process of its own; its address."""
    command = [sys.executable, "-m", "promptcodebook.cli", "view", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--results", str(runs / "no-results")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PCO_RUNS": str(runs), **environment},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rstrip("/")
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def opened(browser: Any, width: int, scheme: str) -> Iterator[tuple[Any, Heard]]:
    context = browser.new_context(
        viewport={"width": width, "height": SIZES[width]},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    page, heard = context.new_page(), Heard()
    heard.of(page)
    yield page, heard
    context.close()


def faults(page: Any, axe: str) -> list[str]:
    """What axe calls serious or critical, with the place."""
    page.evaluate(axe)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{fault['id']}: {node['html'][:120]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
