"""Secrets in headers: sent to the one address that they are for, and neither stored nor shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.store.run import RunStore
from tests.build.cli import Result, pco, served
from tests.build.server import Server, says

HEADERS = {
    "X-Auth-Token": "PCO_TOKEN",
    "Ocp-Apim-Subscription-Key": "PCO_AZURE",
    "apikey": "PCO_KONG",
}
SECRETS = {name: f"hush-{name.lower()}" for name in HEADERS.values()}


async def echoes(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Refuses, and tells whoever asked with which headers."""
    told = "; ".join(f"{name}: {value}" for name, value in request.headers.items())
    return web.json_response({"error": {"message": f"you sent {told}"[:290]}}, status=400)


@pytest.fixture
def server() -> Iterator[Server]:
    with served(Server()) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    sent = ", ".join(f'"{header}" = "${name}"' for header, name in HEADERS.items())
    roles = "".join(f"[roles.{role}]\nheaders = {{{sent}}}\n" for role in ("encoder", "executor"))
    text = f'task = "constraints"\npreset = "quick"\nlm = "{server.spec}"\ncache = false\n{roles}'
    (tmp_path / "pco.toml").write_text(text)
    return tmp_path


def _clean(result: Result) -> None:
    assert "hush-" not in result.out + result.err


@pytest.mark.parametrize("answers", [echoes, says("no JSON at all")])
def test_they_are_sent_and_left_nowhere(folder: Path, server: Server, answers: Any) -> None:
    server.default = answers
    _clean(pco("train", "--budget", "40calls", cwd=folder))
    assert server.headers
    for seen in server.headers:
        given = {name: seen.get(name) for name in HEADERS}
        assert given == {h: SECRETS[v] for h, v in HEADERS.items()}
    [run] = (folder / "runs").iterdir()
    for file in run.iterdir():
        assert b"hush-" not in file.read_bytes(), file
    store = RunStore.open(run)
    assert "hush-" not in repr(list(store.events(full=True))) + repr(store.header)
    store.close()
    looks = ("runs show last", "runs show last --json", "report last -o page.html")
    for typed in (*looks, "doctor", "estimate"):
        _clean(pco(*typed.split(), cwd=folder))
    assert "hush-" not in (folder / "page.html").read_text("utf-8")


def test_another_address_gets_none_of_them(folder: Path, server: Server) -> None:
    with served(Server()) as other:
        other.default = echoes
        _clean(pco("train", "--lm", other.spec, "--budget", "20calls", cwd=folder))
        assert other.headers and not server.headers
        assert "hush-" not in repr(other.headers)
        _clean(pco("doctor", "--lm", other.spec, cwd=folder))
        assert "hush-" not in repr(other.headers)


@pytest.mark.parametrize("header", [*HEADERS, "X-Anything"])
def test_a_secret_that_stands_in_the_file_is_refused_unread(folder: Path, header: str) -> None:
    settings = json.dumps({header: "hush-in-file"}).replace('": "', '" = "')
    (folder / "pco.toml").write_text(f'task = "constraints"\n[roles.judge]\nheaders = {settings}\n')
    for typed in (("train", "--lm", "simulated"), ("doctor",), ("estimate",)):
        result = pco(*typed, cwd=folder)
        result.error(2, header, "PCO_")
        _clean(result)
    assert not (folder / "runs").exists()
