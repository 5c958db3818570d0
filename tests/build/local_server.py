"""A served model as a process of its own: `transformers serve`, or ours; started, waited for, and
taken down whole."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.build.server import free_port

_START_S = 180.0
_STOP_S = 20.0
_COUNTED = 'pco_requests_total{path="/v1/chat/completions",status="200"}'
_ANSWERED = '"POST /v1/chat/completions HTTP/1.1" 200'


@dataclass(frozen=True, slots=True)
class Served:
    """A running server: its address, the one model it serves and its log."""

    url: str
    model: Path
    log: Path

    @property
    def spec(self) -> str:
        return f"{self.url}/v1#{self.model}"

    @property
    def answered(self) -> int:
        """Completions so far, as the server itself logs them."""
        return self.log.read_text("utf-8", "replace").count(_ANSWERED)


@dataclass(frozen=True, slots=True)
class Ours:
    """`pco lm serve` at work: `url` ends in /v1."""

    url: str
    model: str
    process: subprocess.Popen[bytes]

    @property
    def spec(self) -> str:
        return f"{self.url}#{self.model}"

    def metric(self, name: str) -> float:
        """A line of /metrics, by its name and labels."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{self.url.removesuffix('/v1')}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return float(next((x.split()[-1] for x in lines if x.startswith(f"{name} ")), 0))

    @property
    def answered(self) -> int:
        """Completions so far, as the server counts them."""
        return int(self.metric(_COUNTED))


@contextmanager
def served_by_us(model: str, folder: Path, *options: str) -> Iterator[Ours]:
    """The model behind `pco lm serve`, ready to answer; ended by SIGTERM, which it obeys."""
    program = Path(sys.executable).with_name("pco")
    command = [str(program), "lm", "serve", model, "--port", "0", *options]
    log = folder / "server.log"
    with log.open("wb") as out:
        process = _start(command, folder, stdout=subprocess.PIPE, stderr=out)
    assert process.stdout is not None
    try:
        spec = process.stdout.readline().decode().strip()
        assert spec.startswith("http://"), log.read_text("utf-8", "replace")[-4000:]
        url, _, name = spec.partition("#")
        yield Ours(url, name, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(_STOP_S) == 0, log.read_text("utf-8", "replace")[-4000:]
    finally:
        process.stdout.close()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert "Traceback" not in log.read_text("utf-8", "replace")


def _start(command: Sequence[object], folder: Path, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(part) for part in command],
        env=offline(folder),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        **streams,
    )


def offline(home: Path) -> dict[str, str]:
    """An environment without the developer's settings, in which nothing may be downloaded."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        # The model is too small to share among threads.
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def served(model: Path, folder: Path) -> Iterator[Served]:
    """The model behind `transformers serve`, ready to answer; gone afterwards."""
    port = free_port()
    program = Path(sys.executable).with_name("transformers")
    command = [program, "serve", model, "--host", "127.0.0.1", "--port", port, "--device", "cpu"]
    log = folder / "server.log"
    with log.open("wb") as out:
        process = _start(command, folder, stdout=out, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_healthy(url, process, log)
        yield Served(url, model, log)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(urllib.error.URLError, OSError), direct.open(f"{url}/health", timeout=5):
            return
        time.sleep(0.2)
    tail = log.read_text("utf-8", "replace")[-4000:]
    raise AssertionError(f"transformers serve did not come up (exit {process.poll()}):\n{tail}")
