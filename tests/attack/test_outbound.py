"""What leaves the machine, and where: addresses, secrets in headers, what the user's code sees."""

import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.deploy.batch.on_ray import join_cluster
from promptcodebook.errors import ConfigError
from promptcodebook.store.run import RunStore
from tests.build.cli import Result, pco, served
from tests.build.outbound import ELSEWHERE, OWN, can_isolate, watched
from tests.build.server import Server, says

PROGRAMS = tomllib.loads((Path(__file__).parent / "outbound.toml").read_text("utf-8"))
SCRIPTS: dict[str, str] = PROGRAMS["extras"]


@pytest.mark.parametrize("extra", SCRIPTS)
def test_nothing_is_sent_that_the_user_did_not_name(extra: str, tmp_path: Path) -> None:
    seen = watched(tmp_path, sys.executable, "-c", SCRIPTS[extra])
    assert seen.code == 0, seen.err[-4000:]
    assert (seen.hosts, seen.packets) == ((), {})
    assert not [name for name in seen.files if not name.startswith(OWN)]


def test_every_extra_is_watched() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    known = {name.partition(":")[0] for name in SCRIPTS} - {"none"}
    with_packages = {
        name for name, needs in project["project"]["optional-dependencies"].items() if needs
    }
    assert known | ELSEWHERE == with_packages


@pytest.mark.parametrize("sends", [
    "import socket\ntry: socket.getaddrinfo('stranger.example', 443)\nexcept OSError: pass",
    "import urllib.request as u\ntry: u.urlopen('http://192.0.2.7/')\nexcept OSError: pass",
    "import subprocess, sys\n"
    "subprocess.run([sys.executable, '-c', 'import socket;"
    'socket.socket(2, 2).sendto(b"x", ("192.0.2.7", 53))\'])',
])  # fmt: skip
def test_the_watch_sees_what_is_sent(sends: str, tmp_path: Path) -> None:
    seen = watched(tmp_path, sys.executable, "-c", sends)
    assert len(seen.hosts) == 1, seen


@pytest.mark.skipif(not can_isolate(), reason="this system allows no network namespace")
def test_the_kernel_counts_what_code_without_python_sends(tmp_path: Path) -> None:
    seen = watched(tmp_path, "bash", "-c", "exec 3<>/dev/tcp/192.0.2.7/80 || true")
    assert seen.packets == {"packets without a route": 1}, seen


@pytest.mark.skipif(sys.platform != "linux", reason="the table of sockets is Linux's")
def test_a_ray_of_ours_listens_on_loopback_and_asks_for_its_token(tmp_path: Path) -> None:
    seen = watched(tmp_path, sys.executable, "-c", PROGRAMS["cluster"], isolated=False)
    assert seen.code == 0, seen.err[-4000:]
    assert seen.out.split("\n") == ["", "refused", "refused", ""]
    assert not seen.files, "no token stays behind in the home folder"


def test_a_ray_without_tested_tokens_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ray.py").write_text("__version__ = '2.40.0'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(ConfigError, match=r"ray 2\.40\.0 is older than 2\.60") as raised:
        join_cluster("local", 1)
    assert "pip install" in (raised.value.hint or "")
    monkeypatch.delitem(sys.modules, "ray")


# Secrets in headers: sent to the one address that they are for, and neither stored nor shown.

HEADERS = {
    "X-Auth-Token": "PCO_TOKEN",
    "Ocp-Apim-Subscription-Key": "PCO_AZURE",
    "apikey": "PCO_KONG",
}
SECRETS = {name: f"hush-{name.lower()}" for name in HEADERS.values()}


async def echoes(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Refuses, and repeats the headers of the request in its answer."""
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


# User code that hangs, blocks, prints and exits, against a whole process.

PCO = [sys.executable, "-m", "promptcodebook.cli"]
QUICK = ("--preset", "quick", "--set", "update.epochs=2", "--set", "validation.every=0")

SCRIPT = """
import sys, time, asyncio, threading
import promptcodebook as pco

rows = [{"input": f"In {n} words: what is it?", "target": f"it {n}"} for n in range(2, 26)]
config = {"preset": "quick", "update": {"epochs": 1, "batch_size": 6}, "validation": {"every": 0}}

def began():
    sys.stderr.write("at work\\n"); sys.stderr.flush()

def hangs(example, output):
    began(); threading.Event().wait(); return 1.0

async def blocks(example, output):
    began(); time.sleep(3600); return 1.0

async def deaf(example, output):
    began()
    while True:
        try:
            await asyncio.sleep(3600)
            return 1.0
        except BaseException: pass

pco.optimize(pco.load(rows), REWARD, "simulated", config=config)
"""


def _started(folder: Path, reward: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("REWARD", reward))
    process = subprocess.Popen(
        [sys.executable, str(script)], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert any("at work" in line for line in process.stderr)
    return process


@pytest.mark.parametrize("reward", ["hangs", "blocks", "deaf"])
def test_ctrl_c_always_answers(tmp_path: Path, reward: str) -> None:
    """The first asks for an end in order, the second does not ask; no hung thread holds the process
    when it wants to end."""
    process = _started(tmp_path, reward)
    assert process.stderr is not None
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert time.monotonic() - began < 30


def test_stdout_holds_the_result_alone(tmp_path: Path) -> None:
    init = [*PCO, "init", "--lm", "simulated"]
    assert subprocess.run(init, cwd=tmp_path, capture_output=True).returncode == 0
    reward = tmp_path / "reward.py"
    loud = reward.read_text() + "\n\nprint('read')\n_quiet = reward\n\n"
    loud += (
        "def reward(example, output):\n    print('scored')\n    return _quiet(example, output)\n"
    )
    reward.write_text(loud)
    done = subprocess.run(
        [*PCO, "train", *QUICK, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ended"] == "finished"
    assert "read" in done.stderr and "scored" in done.stderr
