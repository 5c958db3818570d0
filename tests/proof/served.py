"""The simulated model behind a real server, in a process of its own.

As a module it is that process: `python -m tests.proof.served SPEC TASK PORT [DATA_DIR]` prints the
address it listens at and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
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
    command = [sys.executable, "-m", "tests.proof.served", spec, task, str(port)]
    command += [str(data_dir)] if data_dir is not None else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address.startswith("http://"), "the server did not come up"
            yield Served(address)
        finally:
            server.kill()


def main(arguments: Sequence[str]) -> None:
    """Serves until killed."""
    from promptcodebook.lm.spec import parse_spec
    from promptcodebook.session.simulation import simulated_world
    from promptcodebook.simulated.parameters import SimulatedSettings
    from promptcodebook.simulated.server import Address, serve
    from promptcodebook.tasks.registry import load_task

    text, task, port, *rest = arguments
    spec = parse_spec(text)
    world = simulated_world(task, load_task(task, Path(rest[0]) if rest else None).dataset, spec)

    def say(address: Address) -> None:
        sys.stdout.write(address.base_url + "\n")
        sys.stdout.flush()

    settings = SimulatedSettings.from_params(spec.params)
    asyncio.run(serve(world, settings, port=int(port), ready=say))


if __name__ == "__main__":
    main(sys.argv[1:])
