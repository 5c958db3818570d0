"""What the locks install: written down as a bill of materials, and asked about at a service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from bench.provenance import main

ROOT = Path(__file__).parents[1]
LOCK = """# made by a tool
jinja2==3.1.4 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
    # via
    #   -r core.in
    #   torch
torch==2.13.0+cpu ; sys_platform == 'linux' \\
    --hash=sha256:{c}
    # via -r core.in
""".format(a="a" * 64, b="b" * 64, c="c" * 64)
Answer = Callable[[Mapping[str, Any]], tuple[int, bytes]]


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    (tmp_path / "core.lock").write_text(LOCK)
    return tmp_path


class Service:
    """A service of advisories on loopback, in the form that osv.dev answers in."""

    def __init__(self, answer: Answer) -> None:
        self.asked: list[Any] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.asked.append(body)
                status, data = answer(body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/querybatch"


@pytest.fixture
def serving() -> Iterator[Callable[[Answer], Service]]:
    begun: list[Service] = []

    def serve(answer: Answer) -> Service:
        begun.append(Service(answer))
        Thread(target=begun[-1].server.serve_forever, daemon=True).start()
        return begun[-1]

    yield serve
    for service in begun:
        service.server.shutdown()
        service.server.server_close()


def results(*found: Any) -> Answer:
    return lambda _: (200, json.dumps({"results": list(found)}).encode())


# Recorded from osv.dev in form; the first is of jinja2 3.1.4, whose sandbox could be left.
FOUND = {"vulns": [{"id": "GHSA-q2x7-8rv6-6q7h", "modified": "2025-02-04T20:55:07Z"}]}


def test_a_package_with_an_advisory_fails_the_scan(
    locks: Path, serving: Callable[[Answer], Service], capsys: pytest.CaptureFixture[str]
) -> None:
    service = serving(results(FOUND, {}))
    assert main(["--locks", str(locks), "--service", service.url]) == 1
    printed = capsys.readouterr().out
    assert "jinja2 3.1.4 (core.lock): GHSA-q2x7-8rv6-6q7h" in printed and "torch" not in printed
    [asked] = service.asked
    assert asked["queries"] == [
        {"package": {"name": "jinja2", "ecosystem": "PyPI"}, "version": "3.1.4"},
        {"package": {"name": "torch", "ecosystem": "PyPI"}, "version": "2.13.0"},
    ]
    (locks / "advisories.accepted").write_text(
        "# what does not concern us, and why\nGHSA-q2x7-8rv6-6q7h jinja2: no sandbox is used\n"
    )
    assert main(["--locks", str(locks), "--service", service.url]) == 0
    assert "accepted: jinja2 3.1.4 (core.lock): GHSA-q2x7-8rv6-6q7h" in capsys.readouterr().out
