"""The simulated model behind a real server in a process of its own: `pco lm serve simulated`."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Served:
    """A server that is up; `base_url` ends in /v1."""

    base_url: str

    @property
    def lm(self) -> str:
        """Its spec, for `lm` in a configuration."""
        return f"{self.base_url}#simulated"

    def stats(self) -> dict[str, Any]:
        """What it has been asked and has answered since the start or the last reset."""
        return self._fetch("GET", "/stats")

    def reset(self) -> None:
        self._fetch("POST", "/stats/reset")

    def _fetch(self, method: str, path: str) -> dict[str, Any]:
        url = self.base_url.removesuffix("/v1") + path
        request = urllib.request.Request(url, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


@contextmanager
def served(
    spec: str = "simulated",
    task: str = "constraints",
    data_dir: Path | None = None,
    *,
    port: int = 0,
) -> Iterator[Served]:
    """The server while the block runs. `spec` sets the world, its latency and its faults."""
    command = [sys.executable, "-m", "promptcodebook.cli", "lm", "serve", spec]
    command += ["--task", task, "--port", str(port)]
    command += ["--data", str(data_dir)] if data_dir is not None else []
    env = {"PATH": os.environ["PATH"]}  # no PCO_* setting of the caller's
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=env
    ) as server:
        try:
            assert server.stdout is not None and server.stderr is not None
            line = server.stdout.readline().strip()
            assert line.startswith("http://"), server.stderr.read()
            yield Served(line.removesuffix("#simulated"))
        finally:
            server.kill()
