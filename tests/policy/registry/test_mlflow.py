"""The same registry on a real MLflow server with a SQLite backend, started here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from promptcodebook.errors import ConfigError, RefNotFound, RegistryDamaged, StoreError
from promptcodebook.registry.log import LOG_NAME
from promptcodebook.registry.registry import Registry, open_registry
from promptcodebook.registry.storage import Facts
from tests.policy.registry.build import PRODUCTION, open_gate, policy, sqlite
from tests.policy.registry.test_exchange import exported, taken
from tests.policy.registry.test_processes import Crowd, hold_nothing_is_lost

pytestmark = pytest.mark.local

MLFLOW = Path(__file__).parents[3] / ".venv-mlflow" / "bin" / "mlflow"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    assert MLFLOW.exists(), "make test-local installs the server"
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(MLFLOW), "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
               "--artifacts-destination", str(folder / "artifacts"),
               "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]  # fmt: skip
    alone = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, env={**os.environ, **alone}, stdout=log, stderr=log, start_new_session=True,
            cwd=folder,
        )  # fmt: skip
    try:
        _wait_for(f"http://127.0.0.1:{port}", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + 300
    while time.monotonic() < ends:
        assert server.poll() is None, "the server ended"
        try:
            with urlopen(f"{url}/health", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.5)
    raise AssertionError("the server did not start")


@pytest.fixture
def registry(url: str) -> Registry:
    return open_registry(url, who="ada")


@pytest.fixture
def client(url: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=url, registry_uri=url)


def test_versions_and_aliases_are_those_of_the_prompt_registry(
    registry: Registry, client: Any
) -> None:
    text = policy("{{a}} é \u2028")
    a = registry.freeze(text, "tickets", Facts(run="r1"), why="first")
    b = registry.freeze(policy("b"), "tickets").version
    registry.promote(a.version, PRODUCTION, "good", gate=open_gate)
    prompt = client.get_prompt_version_by_alias("tickets", "production")
    assert (int(prompt.version), prompt.template) == (1, text)
    assert prompt.tags["pco.version"] == a.version
    registry.promote(b, PRODUCTION, gate=open_gate)
    assert client.get_prompt_version_by_alias("tickets", "production").template == policy("b")
    entry = registry.rollback(PRODUCTION, why="worse")
    assert (entry.before, entry.after, entry.who) == (b, a.version, "ada")
    assert client.get_prompt_version_by_alias("tickets", "production").template == text
    with pytest.raises(RefNotFound):
        registry.rollback(PRODUCTION)
    assert registry.verify().passes


def test_another_reader_sees_the_same_and_a_watch_what_moves(url: str) -> None:
    ours, theirs = open_registry(url, "ada"), open_registry(url, "bob")
    a, b = (ours.freeze(policy(word), "mails", Facts(score=0.5)).version for word in "cd")
    ours.promote(a, "mails@production", gate=open_gate)
    watch = theirs.watch("mails@production")
    assert watch.poll() is None
    ours.promote(b, "mails@production", gate=open_gate)
    assert watch.poll() == b and theirs.text(b) == policy("d")
    assert theirs.version(a).facts["score"] == 0.5
    assert [e.hash for e in theirs.history()] == [e.hash for e in ours.history()]


def test_a_version_of_another_codebook_and_one_that_is_latest_again(
    registry: Registry, client: Any
) -> None:
    a = registry.freeze(policy("e"), "one").version
    registry.promote(a, "two@live", gate=open_gate)
    assert client.get_prompt_version_by_alias("two", "live").template == policy("e")
    registry.freeze(policy("f"), "one")
    registry.freeze(policy("e"), "one")
    newest = client.search_prompt_versions("one", max_results=1)[0]
    assert newest.template == policy("e") and registry.resolve("one@latest") == a
    assert registry.verify().passes


def test_a_policy_file_longer_than_a_prompt_may_be(registry: Registry, url: str) -> None:
    long = policy("long é " * 20_000)
    version = registry.freeze(long, "long").version
    assert open_registry(url).text(version) == long


def test_a_registry_moves_to_the_server_and_back_with_the_same_chain(
    registry: Registry, url: str, tmp_path: Path
) -> None:
    with sqlite(tmp_path) as local:
        taken(local, exported(registry))
        assert local.verify().head == registry.verify().head
        assert local.refs() == registry.refs() and exported(local) == exported(registry)
        local.promote("long@latest", "long@production", gate=open_gate)
        assert taken(registry, exported(local)) == (0, 1)
    assert open_registry(url).refs()["long@production"] == registry.resolve("long@latest")


def test_an_alias_whose_writer_was_killed_is_set_again(registry: Registry, client: Any) -> None:
    version = registry.resolve(PRODUCTION)
    client.delete_prompt_alias("tickets", "production")
    assert registry.promote(version, PRODUCTION, gate=open_gate) is None
    aliased = client.get_prompt_version_by_alias("tickets", "production")
    assert aliased.tags["pco.version"] == version


def test_an_entry_that_came_too_late_is_void(url: str, client: Any) -> None:
    registry = open_registry(url)
    last = client.search_prompt_versions(LOG_NAME, max_results=1)[0]
    client.create_prompt_version(LOG_NAME, last.template, tags=last.tags)  # sent again by a proxy
    before = registry.history()
    assert len({entry.hash for entry in before}) == len(before)
    registry.freeze(policy("g"), "tickets")
    assert len(open_registry(url).history()) == len(before) + 1
    assert registry.verify().passes


def test_processes_promote_at_once_and_some_are_killed(tmp_path: Path, url: str) -> None:
    crowd = Crowd(tmp_path, url, size=2, count=5)
    registry = open_registry(url)
    before = len(registry.history(PRODUCTION))
    crowd.prepare(registry)
    crowd.run(registry, kills=1, seed=3)
    hold_nothing_is_lost(registry, crowd, 5, skip=before)


def test_what_was_changed_on_the_server_is_found(url: str, client: Any) -> None:
    """Last: the server's registry is of no use afterwards."""
    registry = open_registry(url)
    number = client.search_prompt_versions("long", max_results=1)[0].version
    client.delete_prompt_version_tag("long", number, "pco.piece.1")
    with pytest.raises(RegistryDamaged, match="a piece of its text is missing"):
        registry.text(registry.resolve("long@latest"))
    client.set_prompt_version_tag("long", number, "pco.piece.1", "other")
    assert f"version {number} of the prompt long" in str(registry.verify().faults[0])
    client.set_prompt_version_tag(LOG_NAME, 3, "mlflow.prompt.text", '{"why":"forged"}')
    faults = open_registry(url).verify().faults
    assert f"version 3 of the prompt {LOG_NAME}" in str(faults[0])
    with pytest.raises(RegistryDamaged, match="version 3 of the prompt"):
        open_registry(url).refs()


def test_a_server_that_is_down_and_a_url_with_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(StoreError, match="the MLflow server at"):
        open_registry("http://127.0.0.1:9").refs()
    with pytest.raises(ConfigError) as raised:
        open_registry("http://ada:secret@127.0.0.1:9")
    assert "secret" not in str(raised.value)
