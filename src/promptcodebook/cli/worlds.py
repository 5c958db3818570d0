"""Further simulated worlds, each `pco demo --world N` in a process of its own, as cores allow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any

from promptcodebook.cli.console import note
from promptcodebook.errors import PcoError

__all__ = ["Worlds"]


@dataclass
class _Running:
    world: int
    process: subprocess.Popen[bytes]
    out: IO[bytes]


class Worlds:
    """Runs worlds side by side: one core is left to whoever asked while it is busy itself."""

    def __init__(self, worlds: Iterable[int]) -> None:
        self._waiting = list(worlds)
        self._running: list[_Running] = []
        self._done: dict[int, Any] = {}
        self._total = len(self._waiting)

    def __enter__(self) -> Worlds:
        self.poll()
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._running:
            running.process.kill()
            running.process.wait()
            running.out.close()

    def poll(self, spare: int = 1) -> None:
        """Collects what is done and starts what fits; `spare` cores are left alone."""
        for running in [r for r in self._running if r.process.poll() is not None]:
            self._running.remove(running)
            self._collect(running)
        while self._waiting and len(self._running) < max(1, (os.cpu_count() or 1) - spare):
            self._start(self._waiting.pop(0))

    def wait(self) -> list[dict[str, Any]]:
        """All worlds' raw rows, in order; says on stderr how far it is."""
        said, told = 0.0, -1
        while self._waiting or self._running:
            self.poll(spare=0)
            now = time.monotonic()
            if now - said > 2 and len(self._done) != told:
                note(f"simulated worlds: {len(self._done)} of {self._total} further ones done")
                said, told = now, len(self._done)
            time.sleep(0.05)
        return [self._done[world] for world in sorted(self._done)]

    def _start(self, world: int) -> None:
        out = tempfile.TemporaryFile()  # noqa: SIM115 - closed where it is collected
        command = [sys.executable, "-m", "promptcodebook.cli", "demo", "--world", str(world)]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        self._running.append(_Running(world, process, out))

    def _collect(self, running: _Running) -> None:
        with running.out as out:
            out.seek(0)
            text = out.read()
        if running.process.returncode != 0:
            raise PcoError(
                f"the simulated world {running.world} ended with {running.process.returncode}",
                hint=f"pco demo --world {running.world} shows why",
            )
        self._done[running.world] = json.loads(text)
