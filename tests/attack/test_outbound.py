"""Nothing is sent but to what the user names: every extra at work, with each address written down.

What needs weights or a server of its own is in `tests/models/local/test_outbound.py`.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from promptcodebook.deploy.batch.on_ray import join_cluster
from promptcodebook.errors import ConfigError
from tests.build.outbound import ELSEWHERE, OWN, can_isolate, watched

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
