"""A policy file, a stopped run and a registry that 0.2.0 left. They are kept for good: every later
version opens them, and no test may be changed to read others instead."""

import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import promptcodebook as pco_library
from tests.build.cli import pco, served, serving
from tests.build.server import Server
from tests.build.store import edit_header

KEPT = Path(__file__).parent / "of_0_2_0"
RUN = "20261130-092257-data"
VERSION = "sha256:4c374ec7f8a6e5754b00b129dbd9e87972eecb395d356e5faf75f9d4f31bd8f3"
INPUT = "Where is my parcel?"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Their project, with each of them where a user has it."""
    copy = Path(shutil.copytree(KEPT, tmp_path / "mytask"))
    run = copy / "runs" / RUN
    run.mkdir(parents=True)
    (copy / "run_sqlite.bin").rename(run / "run.sqlite")
    edit_header(run / "run.sqlite", lambda text: text.replace("/home/ada/mytask", str(copy)))
    monkeypatch.setenv(
        "PCO_REGISTRY", str((copy / "registry_sqlite.bin").rename(copy / "r.sqlite"))
    )
    return copy


def test_a_policy_file_answers(folder: Path) -> None:
    policy = pco_library.load_policy(folder / "policy.json", lm="simulated")
    assert policy.file.text() == (folder / "policy.json").read_text("utf-8")
    assert policy.file.digest == "3ce47da5d63c1522fe34b8e6f8044e863cd428ac7c037f7cb06660c3b51485ab"
    assert policy.prompt(INPUT) and policy.respond(INPUT).text
    assert pco("explain", "policy.json", INPUT, cwd=folder).code == 0


def test_a_run_is_listed_reported_and_resumed(folder: Path) -> None:
    [row] = pco("runs", "list", "--json", cwd=folder).json
    assert (row["id"], row["ended"]) == (RUN, "budget")
    assert pco("report", RUN, cwd=folder).code == 0
    assert pco("registry", "show", RUN, cwd=folder).code == 0
    resumed = pco("train", "--resume", RUN, "--budget", "300calls", "--plain", cwd=folder)
    assert resumed.code == 0 and "n = 4" in resumed.out, resumed.err
    [row] = pco("runs", "list", "--json", cwd=folder).json
    assert row["ended"] == "finished"


def test_a_registry_is_shown_and_served_at_the_addresses_that_it_was(folder: Path) -> None:
    listed = pco("registry", "list", "--json", cwd=folder).json
    assert listed["refs"] == {"tickets@latest": VERSION, "tickets@production": VERSION}
    log = pco("registry", "log", "tickets@production", "--json", cwd=folder).json
    assert [entry["action"] for entry in log] == ["promote"]
    assert pco("registry", "verify", cwd=folder).code == 0
    assert pco("registry", "show", "tickets@production", cwd=folder).code == 0
    with served(Server()) as server:
        args = ("tickets@production", "--lm", server.spec, "--feedback")
        with serving(folder, *args) as (_, printed):
            assert printed["version"] == VERSION
            for line in Path(__file__).with_name("http.txt").read_text("utf-8").splitlines():
                method, path = line.split()
                path = path.replace("NAME", printed["model"])
                assert asked(method, printed["base_url"].removesuffix("/v1") + path), line


def asked(method: str, url: str) -> bool:
    """Whether there is something at the address: a request without a body is a wrong one."""
    body = json.dumps({}).encode() if method == "POST" else None
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        return urllib.request.urlopen(request, timeout=60).status == 200
    except urllib.error.HTTPError as error:
        return error.code == 400
