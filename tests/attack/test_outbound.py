"""Nothing is sent but to what the user names: every extra at work, with each address written down.

What needs weights or a server of its own is in `tests/local/test_outbound.py`.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from promptcodebook.cluster import join_cluster
from promptcodebook.errors import ConfigError
from tests.outbound import can_isolate, watched

_TRAIN = """
from pathlib import Path
from tests.cli.invoked import pco
typed = "train --task houserules --lm simulated --preset {} --set update.epochs=1"
done = pco(*typed.split(), "--set", "verdict_examples=10", cwd=Path.cwd())
assert done.code == 0, done.err
"""
_ROWS = """
import promptcodebook as pco
rows = [{"question": f"What is {n}?", "target": str(n)} for n in range(8)]
"""
_LEARN = """
from pathlib import Path
from tests.optimizers.teachable import learn
assert learn(Path.cwd(), {!r}, config={}).ended == "finished"
"""

SCRIPTS = {
    "none": _TRAIN.format("quick"),
    "serve": """
import asyncio
from tests.serve.test_local import SAID, ask, up

async def main():
    async with up() as url:
        assert (await ask(url, json={"messages": SAID}))[0] == 200
        assert (await ask(url, "/metrics"))[0] == 200

asyncio.run(main())
""",
    "parquet": f"""{_ROWS}
import pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "rows.parquet")
assert sum(len(part) for _, part in pco.load("rows.parquet", input="question").items()) == 8
""",
    "pandas": f"""{_ROWS}
import pandas
assert sum(len(part) for _, part in pco.load(pandas.DataFrame(rows), input="question").items()) == 8
""",
    "schema": """
import promptcodebook as pco
elsewhere = {"$ref": "https://stranger.example/schema.json"}
example = pco.Example("e", "?")
assert pco.rewards.schema({"type": "array"})(example, "[]").value == 1
try:
    pco.rewards.schema(elsewhere)(example, "[]")
except Exception as error:
    assert "stranger.example" in str(error)
else:
    raise AssertionError("it passed a text by a schema that it does not have")
""",
    "litellm": """
import asyncio, os
from promptcodebook.calls import Message, Request
from promptcodebook.lm.litellm_client import LiteLLM
from tests.cli.invoked import served
from tests.lm.server import Server

with served(Server()) as server:
    os.environ["OPENAI_API_BASE"] = server.spec.partition("#")[0]
    os.environ["OPENAI_API_KEY"] = "sk-none"
    asked = Request("executor", (Message("user", "hi"),))
    assert asyncio.run(LiteLLM("openai/any")(asked)).text == "ok"
""",
    "router": _TRAIN.format("small"),
    "bench": """
import json
from pathlib import Path
from promptcodebook.tasks.ifbench.language import Language
from promptcodebook.tasks.livebench_math.algebra import same_by_lark, same_by_math_verify
from promptcodebook.tasks.retrieval import open_retriever

Path("corpus.jsonl").write_text(json.dumps({"title": "Oak", "text": "An oak is a tree."}) + "\\n")
assert open_retriever(Path("corpus.jsonl")).search("tree", 1)
language = Language()
assert language.guess("This is an English sentence.") == "en"
assert language.syllables("river") == 2 and language.is_emoji("\\U0001f600")
same_by_lark("x", "x"), same_by_math_verify("x", "x")
""",
    "figures": """
from pathlib import Path
from promptcodebook.experiments.page import draw
from promptcodebook.experiments.page import Bars
assert draw(Bars("bars", "Bars", "reward", ("a",), {"learned": (1.0,)}), Path.cwd())
""",
    "ray": """
from promptcodebook.cluster import join_cluster
ray = join_cluster("local", 2, "a test")
assert ray.get(ray.remote(lambda: 3).remote()) == 3
ray.shutdown()
""",
    "baselines: gepa": _LEARN.format("gepa", {"gepa": {"rollouts": 60}}),
    "baselines: mipro": _LEARN.format("mipro", {}),
    "baselines: dspy": """
from pathlib import Path
from tests.integrations.test_dspy import compile
assert compile(Path.cwd()).run.ended == "finished"

import dspy
from tests.cli.invoked import served
from tests.lm.server import Server

with served(Server()) as server:
    dspy.LM("openai/any", api_base=server.spec.partition("#")[0], api_key="sk-none")("hi")
""",
}
ELSEWHERE = {"datasets", "mlflow", "presidio", "grpo", "smollm2", "local"}
"""Extras that no test tool needs: `make test-local` has them."""
OWN = (".local/share/promptcodebook/", ".cache/", ".dspy_cache/")
"""What may be written to the home folder: our secret, and libraries' caches."""


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


@pytest.mark.parametrize(
    "sends",
    [
        "import socket\ntry: socket.getaddrinfo('stranger.example', 443)\nexcept OSError: pass",
        "import urllib.request as u\ntry: u.urlopen('http://192.0.2.7/')\nexcept OSError: pass",
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import socket;"
        'socket.socket(2, 2).sendto(b"x", ("192.0.2.7", 53))\'])',
    ],
)
def test_the_watch_sees_what_is_sent(sends: str, tmp_path: Path) -> None:
    seen = watched(tmp_path, sys.executable, "-c", sends)
    assert len(seen.hosts) == 1, seen


@pytest.mark.skipif(not can_isolate(), reason="this system allows no network namespace")
def test_the_kernel_counts_what_code_without_python_sends(tmp_path: Path) -> None:
    seen = watched(tmp_path, "bash", "-c", "exec 3<>/dev/tcp/192.0.2.7/80 || true")
    assert seen.packets == {"packets without a route": 1}, seen


_CLUSTER = """
import os, subprocess, sys
from pathlib import Path
from promptcodebook.cluster import join_cluster

def listening():
    tables = [line.split() for name in ("tcp", "tcp6")
              for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {row[9]: row[1].rpartition(":")[0] for row in tables if row[3] == "0A"}

before = set(listening())
ray = join_cluster("local", 1, "a test")
assert ray.get(ray.remote(lambda: 3).remote()) == 3
new = {address for inode, address in listening().items() if inode not in before}
print(*sorted(a for a in new if not a.endswith("0100007F") and a != "0" * 24 + "01000000"))
stranger = "import ray, sys; ray.init(address=sys.argv[1], logging_level='critical')"
address = ray.get_runtime_context().gcs_address
for mode in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
    told = {**{k: v for k, v in os.environ.items() if "RAY_AUTH" not in k}, **mode}
    done = subprocess.run([sys.executable, "-c", stranger, address], env=told, capture_output=True)
    print("let in" if done.returncode == 0 else "refused")
ray.shutdown()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the table of sockets is Linux's")
def test_a_ray_of_ours_listens_on_loopback_and_asks_for_its_token(tmp_path: Path) -> None:
    seen = watched(tmp_path, sys.executable, "-c", _CLUSTER, isolated=False)
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
        join_cluster("local", 1, "a test")
    assert "pip install" in (raised.value.hint or "")
    monkeypatch.delitem(sys.modules, "ray")
