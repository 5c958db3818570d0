"""The same registry on a real MLflow server with a SQLite backend, started here."""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from promptcodebook.deploy.online.canary import CanaryJudge
from promptcodebook.deploy.online.log import SqliteLog
from promptcodebook.deploy.online.sequences import ValueCounts, difference
from promptcodebook.deploy.registry.registry import Facts, Registry, open_registry
from promptcodebook.deploy.serve.feedback import Online
from promptcodebook.deploy.serve.versions import RegistrySource
from promptcodebook.errors import ConfigError, RefNotFound, RegistryDamaged, StoreError
from tests.build.cli import pco
from tests.build.online import Trial
from tests.build.proxied import Setup, one_call, up
from tests.build.registry import PRODUCTION, exported, open_gate, policy, sqlite, taken

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


def test_versions_refs_and_entries_are_versions_aliases_and_tags(
    registry: Registry, client: Any
) -> None:
    text = policy("{{a}} é \u2028")
    a = registry.freeze(text, "tickets", Facts(run="r1", score=0.5), why="f" * 501)
    b = registry.freeze(policy("b"), "tickets").version
    registry.promote(a.version, PRODUCTION, "good", gate=open_gate)
    prompt = client.get_prompt_version_by_alias("tickets", "production")
    assert (int(prompt.version), prompt.template) == (1, text)
    assert prompt.tags["pco.version"] == a.version and prompt.commit_message == "f" * 500
    registry.attest(a.version, "audit", {"passes": True})
    registry.promote(b, PRODUCTION, gate=open_gate)
    assert client.get_prompt_version_by_alias("tickets", "production").template == policy("b")
    assert registry.before(PRODUCTION) == a.version
    entry = registry.rollback(PRODUCTION, why="worse")
    assert (entry.before, entry.after, entry.who) == (b, a.version, "ada")
    assert client.get_prompt_version_by_alias("tickets", "production").template == text
    with pytest.raises(RefNotFound):
        registry.rollback(PRODUCTION)
    actions = [entry.action for entry in registry.history()]
    assert actions == ["freeze", "freeze", "promote", "attest", "promote", "rollback"]
    assert [entry.why for entry in registry.history(PRODUCTION)] == ["good", "", "worse"]
    assert registry.attestations(a.version, "audit") == ({"passes": True},)
    assert registry.version(a.version).facts["score"] == 0.5
    assert registry.text(PRODUCTION) == text and registry.verify().passes


def test_another_reader_sees_the_same_and_a_watch_what_moves(url: str, client: Any) -> None:
    ours, theirs = open_registry(url, "ada"), open_registry(url, "bob")
    a, b = (ours.freeze(policy(word), "mails").version for word in "cd")
    ours.promote(a, "mails@production", gate=open_gate)
    production, newest = (
        partial(theirs.storage.poll, f"mails@{r}") for r in ("production", "latest")
    )
    assert (production(), newest()) == (a, b)
    ours.promote(b, "mails@production", gate=open_gate)
    assert production() == b and theirs.text(b) == policy("d")
    assert [e.hash for e in theirs.history()] == [e.hash for e in ours.history()]
    ours.freeze(policy("c"), "mails")  # again the newest one
    assert newest() == a == theirs.resolve("mails@latest")
    client.set_prompt_alias("mails", "production", 1)
    assert production() == a == theirs.refs()["mails@production"]
    assert theirs.history("mails@production")[-1].who == "MLflow"
    client.delete_prompt_alias("mails", "production")
    assert "mails@production" not in theirs.refs()
    with pytest.raises(StoreError, match="alias production not found"):
        production()


async def test_a_canary_is_split_judged_and_rolled_back_from_the_server(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, registry, log = "trial@production", open_registry(url, "ada"), SqliteLog(tmp_path / "log")
    monkeypatch.setenv("PCO_REGISTRY", url)
    texts = [one_call(base_prompt=word).text() for word in ("Today.", "New.")]
    today, new = (registry.freeze(text, "trial").version for text in texts)
    registry.promote(today, ref, gate=open_gate)
    # The first interval takes a second, and a judge rests long after such a look.
    difference(ValueCounts(), ValueCounts())
    judge = CanaryJudge(open_registry(url, "pco serve"), ref, log)
    setup = Setup(
        source=RegistrySource(registry, ref),
        options={"online": Online(ref, log, judge=judge, judge_s=1.0)},
    )
    async with up(setup=setup) as served:
        trial = Trial(served, registry, today, new, ref)
        await trial.begin()
        served_versions = set[str]()

        def reward(version: str, n: int) -> float:
            served_versions.add(version)
            return float(version == new)

        await trial.rewarded(reward, 20)  # where a request has none, who answers is in doubt
        assert served_versions == {today, new}
        async with asyncio.timeout(180):
            while await asyncio.to_thread(lambda: trial.canary):  # noqa: ASYNC110
                await asyncio.sleep(1)
        last = registry.history(ref)[-1]
        assert (last.action, last.who, last.after) == ("promote", "pco serve", new)
        assert last.known["canary"]["means"] == [1.0, 0.0] and registry.verify().passes
        assert open_registry(url).resolve(ref) == new
        trial.new = today
        await trial.begin()
        ended = await asyncio.to_thread(pco, "codebook", "rollback", ref, cwd=tmp_path)
        assert "the canary" in ended.out and trial.canary is None
        assert registry.resolve(ref) == new
        await trial.ready("no canary")
        assert {(await trial.prompted())[1] for _ in range(8)} == {new}
    with pytest.raises(ConfigError, match="is no version of trial"):
        other = registry.freeze(policy("other"), "another").version
        plan: Any = {"share": 0.5, "margin": 0.0, "split": "conversation"}
        registry.promote(other, ref, gate=open_gate, canary=plan)


def test_what_mlflow_cannot_do_is_refused_in_a_sentence(registry: Registry) -> None:
    [version, *_] = registry.versions()
    with pytest.raises(ConfigError, match="is no version of other"):
        registry.promote(version.version, "other@live", gate=open_gate)
    with pytest.raises(StoreError, match="exceeds max length"):
        registry.freeze(policy("long " * 20_000), "tickets")


def test_a_registry_moves_from_the_server_and_a_version_to_another_name(
    registry: Registry, url: str, tmp_path: Path
) -> None:
    with sqlite(tmp_path) as local:
        taken(local, exported(registry))
        assert local.verify().head == registry.verify().head
        assert local.refs() == registry.refs() and exported(local) == exported(registry)
    assert registry.freeze(registry.text("tickets@latest"), "copy").version == registry.resolve(
        "tickets@latest"
    )


def test_what_was_changed_on_the_server_is_found(url: str, client: Any) -> None:
    """Last: the server's registry is of no use afterwards."""
    registry = open_registry(url)
    client.set_prompt_version_tag("tickets", 1, "mlflow.prompt.text", "other")
    [fault] = registry.verify().faults
    assert fault.place == "version 1 of the prompt tickets"
    with pytest.raises(RegistryDamaged, match="have another hash"):
        registry.text(PRODUCTION)
    client.set_prompt_version_tag("tickets", 2, "pco.log.x", '{"why":"forged"}')
    assert "version 2 of the prompt tickets is no entry" in str(registry.verify().faults[0])
    with pytest.raises(RegistryDamaged, match=r"pco\.log\.x"):
        registry.refs()


def test_a_server_that_is_down_and_a_url_with_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(StoreError, match="the MLflow server at"):
        open_registry("http://127.0.0.1:9").refs()
    with pytest.raises(ConfigError) as raised:
        open_registry("http://ada:secret@127.0.0.1:9")
    assert "secret" not in str(raised.value)
