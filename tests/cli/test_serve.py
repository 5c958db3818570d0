"""`pco serve`: what is refused before anything listens, and a served policy as a process."""

import json
import os
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.deploy.online.served_log import served_name
from promptcodebook.deploy.serve.spending import find_record
from promptcodebook.deploy.serve.upstream import length_field
from promptcodebook.lm.spec import parse_spec
from promptcodebook.policy.references import Reference
from tests.build import proxied
from tests.build.cases import table
from tests.build.cli import pco, running, served, serving
from tests.build.clock import until
from tests.build.online import registry_in, try_canary
from tests.build.policy import file_of
from tests.build.proxied import CHAT, one_call
from tests.build.registry import PRODUCTION
from tests.build.scripted_run import ScriptedRun, write_run
from tests.build.server import Server, says
from tests.build.store import header


def ask(base_url: str, key: str, **body: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The answer's body and headers."""
    request = urllib.request.Request(
        f"{base_url}/chat/completions",
        json.dumps({"messages": CHAT, **body}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer), dict(answer.headers)


def test_a_policy_file_is_served_explained_and_stopped(tmp_path: Path) -> None:
    one_call().save(tmp_path / "tickets.pco.json")
    (tmp_path / "keys").write_text("desk-4711-key\n")
    records = str(tmp_path / "requests.sqlite")
    env = {"PCO_REQUESTS": records, "PCO_SERVE_KEY": "shop-4711-key"}
    with served(Server()) as server:
        args = ("tickets.pco.json", "--lm", server.spec, "--keys", "keys")
        args += ("--set", 'serve.serve_as=["gpt-4o", "gpt-5"]')
        (tmp_path / "pco.toml").write_text('[serve]\nsticky = "header:X-Session-Id"\n')
        with serving(tmp_path, *args, **env) as (process, printed):
            for key, model in (("desk-4711-key", "gpt-5"), ("shop-4711-key", printed["model"])):
                body, headers = ask(printed["base_url"], key, model=model)
                assert body["choices"][0]["message"]["content"] == "ok"
            [prompt, own] = server.bodies[-1]["messages"]
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert printed["model"] == "pco/tickets" and headers["x-pco-version"] == printed["version"]
    assert own == CHAT[0] and not out
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PCO_REQUESTS", records)
        explained = pco("explain", headers["x-request-id"], "--json", cwd=tmp_path)
        shown = pco("explain", headers["x-request-id"], cwd=tmp_path)
        missing = pco("explain", "req-" + "0" * 24, cwd=tmp_path)
    assert explained.json["prompt"] == prompt["content"] and explained.json["input"] == ""
    assert "mode: one-call" in shown.out and printed["version"] in shown.out
    missing.error(1, "no request req-", "PCO_REQUESTS")
    part = pco("explain", "req-0123", cwd=tmp_path)
    part.error(2, "req-0123 is not a full request id", "x-request-id")
    for typed, hint in (("last", "last 'an input'"), ("Lost it.", "last 'Lost it.'")):
        pco("explain", typed, cwd=tmp_path).error(2, "a REF and an input", f"pco explain {hint}")


async def test_the_canary_of_a_served_ref_is_judged(tmp_path: Path) -> None:
    registry, _, new = registry_in(tmp_path)
    try_canary(registry, new)
    own = {"PCO_REGISTRY": str(registry.file.path), "PCO_REQUESTS": str(tmp_path / "r.sqlite")}
    typed = (PRODUCTION, "--feedback", "--lm", "http://127.0.0.1:1/v1#m")
    with serving(tmp_path, *typed, **own) as (_, printed):

        async def judged() -> bool:
            _, body, _ = await proxied.ask(printed["base_url"].removesuffix("/v1"), "/readyz")
            return "no feedback on" in body.get("canary_state", "")

        await until(judged)


@pytest.mark.parametrize(("name", "called", "expected"), [
    ("20260101-120000-tickets-1a2b", "refunds v2", "refunds-v2"),
    ("20260101-120000-tickets-1a2b", "", "20260101-120000-tickets-1a2b"),
    ("tickets.pco.json", None, "tickets"),
    ("tickets@production", None, "tickets@production"),
])  # fmt: skip
def test_a_policy_is_called_by_what_its_user_calls_it(
    name: str, called: str | None, expected: str
) -> None:
    made = None if called is None else header({}, name=called)
    assert served_name(Reference(name, file_of(), made)) == expected


def test_only_openais_own_models_are_sent_the_newer_field_for_a_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert length_field(parse_spec("openai/gpt-5", os.environ)) == "max_completion_tokens"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    assert length_field(parse_spec("openai/gpt-5", os.environ)) == "max_tokens"


@pytest.mark.slow
@pytest.mark.parametrize("args", [("--set", "serve.records=0"), ("--set", "serve.verbatim=true")])
def test_what_requests_say_is_on_no_disk(args: tuple[str, ...], tmp_path: Path) -> None:
    """Nor is what the encoder says of it: the one file that is written is the record."""
    file_of().save(tmp_path / "tickets.pco.json")
    analysis = {"analysis": "The user says MARKED-4711.", "constraints": [], "indices": [0]}
    home = tmp_path / "home"
    folders = {f"XDG_{name}_HOME": str(home / name) for name in ("CACHE", "DATA")}
    with served(Server()) as server:
        server.default = says(json.dumps(analysis))
        typed = ("tickets.pco.json", "--lm", server.spec, *args)
        with serving(tmp_path, *typed, **folders) as (process, printed):
            _, headers = ask(printed["base_url"], "")
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=300)
        assert server.calls >= 2, "the encoder was asked"
    written = {path.name.partition("-")[0] for path in home.rglob("*") if path.is_file()}
    assert written == ({"requests.sqlite"} if "serve.verbatim=true" in args else set())
    for path in home.rglob("requests.sqlite"):
        assert "MARKED" not in repr(find_record(path, headers["x-request-id"]))


@pytest.mark.parametrize(
    ("args", "error"), table(__file__, "what_cannot_be_served_is_refused_before_anything_listens")
)
def test_what_cannot_be_served_is_refused_before_anything_listens(
    args: tuple[str, ...], error: str, tmp_path: Path
) -> None:
    file_of().save(tmp_path / "p.json")
    staged = file_of(program="agent.py:run").model_copy(update={"stages": ("find", "answer")})
    staged.save(tmp_path / "staged.json")
    result = pco("serve", *args, cwd=tmp_path)
    assert result.code == 2, (result.err, result.out)
    assert error in " ".join(result.err.split())


@pytest.mark.parametrize(("lm", "requests", "error"), table(__file__, "addresses"))
def test_only_an_address_that_is_taken_is_told_as_one(
    lm: str, requests: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_REQUESTS", str(tmp_path / requests))
    file_of().save(tmp_path / "p.json")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        free = port if "PORT" in error else "0"
        stderr = pco("serve", "p.json", "--lm", lm, "--port", free, cwd=tmp_path).err
    assert error.replace("PORT", port) in " ".join(stderr.split())
    assert (f"next: pco serve p.json --lm {lm} --port 0" in stderr) is ("PORT" in error)


def test_a_hint_that_repeats_the_command_shows_no_password(tmp_path: Path) -> None:
    file_of().save(tmp_path / "p.json")
    for spec, part in (("//me:word4711@h:1/v1#m", "password"), ("//h:1/v1#m", "--lm http://h:1")):
        result = pco("serve", "p.json", "--host", "0.0.0.0", "--lm", f"http:{spec}", cwd=tmp_path)
        result.error(2, part)
        assert "word4711" not in result.err


@pytest.mark.local
def test_a_model_of_this_process_that_routes_is_loaded_before_the_first_request(
    tmp_path: Path,
) -> None:
    """What cannot be loaded would let every request fall back."""
    file_of().save(tmp_path / "p.json")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(64))
    model = f"roles.encoder.model={tmp_path / 'broken.gguf'}"
    result = pco("serve", "p.json", "--lm", "http://127.0.0.1:9/v1#m", "--set", model, cwd=tmp_path)
    assert "loading the model that routes requests" in result.err and not result.out
    result.error(2, "broken.gguf")


# `pco view` as it is typed.


@pytest.mark.parametrize("options", [pytest.param((), marks=pytest.mark.slow), ("--open",)])
def test_the_address_of_a_run_answers_and_opens_where_asked_until_sigterm(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    write_run(tmp_path, ScriptedRun(steps=2, hostile="", task="tickets")).close()
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(0o755)
    env = {**os.environ, "PCO_RUNS": str(tmp_path), "BROWSER": f"{browser} %s"}
    with running("view", "last", "--port", "0", *options, env=env) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:") and url.endswith("-tickets")
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert "Worth deploying" in answer.read().decode()
        assert (seen.read_text().strip() if seen.exists() else "") == (url if options else "")
        taken = pco("view", "--port", url.split(":")[2].split("/")[0], cwd=tmp_path)
        taken.error(2, "cannot listen on 127.0.0.1", "--port 0")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_run_that_is_not_there_is_an_error_with_a_hint(tmp_path: Path) -> None:
    result = pco("view", "nope", "--json", cwd=tmp_path)
    assert result.code != 0 and "PCO_RUNS" in result.out
