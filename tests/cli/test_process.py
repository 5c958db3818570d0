"""What only a process of its own can show: signals, pipes, exit codes, a served model."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.build.cli import pco, running, served
from tests.build.clock import until
from tests.build.policy import file_of
from tests.build.project import QUICK
from tests.build.server import Server, says

PCO = [sys.executable, "-m", "promptcodebook.cli"]
TRAIN = ("train", "--lm", "simulated?latency=0.02", *QUICK)


def started(*words: str, folder: Path | None = None, **more: Any) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, stdout=pipe, stderr=pipe, text=True, **more)


@pytest.mark.slow
def test_a_served_model_says_its_spec_answers_counts_and_ends_on_sigterm(tmp_path: Path) -> None:
    words = ("lm", "serve", "simulated", "--task", "constraints", "--port", "0")
    with running(*words) as process:
        assert process.stdout is not None
        spec = process.stdout.readline().strip()
        assert spec.startswith("http://127.0.0.1:") and spec.endswith("/v1#simulated")
        file_of(column="input").save(tmp_path / "p.json")
        args = ("--task", "constraints", "--lm", spec, "--n", "3", "--json")
        result = pco("eval", "p.json", *args, cwd=tmp_path)
        assert result.code == 0, result.err
        assert result.json["simulated"] is True  # served, and still simulated
        stats = spec.replace("/v1#simulated", "/stats")
        with urllib.request.urlopen(stats, timeout=30) as response:
            assert json.load(response)["requests"] >= 9
        port = spec.split(":")[2].split("/")[0]
        taken = pco("lm", "serve", "simulated", "--port", port, cwd=tmp_path)
        taken.error(2, "cannot listen on 127.0.0.1", "--port 0")
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0


@pytest.mark.parametrize(("args", "error"), [
    (("openai/gpt-4o",), "unknown local model 'openai/gpt-4o'"),
    (("smolm2",), "did you mean 'smollm2'"),
    (("absent.gguf",), "there is no file absent.gguf"),
    (("simulated?laod=1",), "did you mean 'load'"),
    (("simulated?faults=418:1",), "unknown fault"),
    (("simulated", "--queue", "3"), "--queue is for models of this machine"),
    (("smollm2", "--task", "x"), "--task is for the simulated model"),
    (("smollm2", "--4bit"), "--4bit is for hf: models"),
    (("hf:x/y", "--host", "0.0.0.0"), "PCO_SERVE_KEY=$(openssl rand -hex 24) pco lm serve"),
])  # fmt: skip
def test_what_cannot_be_served_is_refused_before_anything_is_loaded(
    args: tuple[str, ...], error: str, tmp_path: Path
) -> None:
    result = pco("lm", "serve", *args, cwd=tmp_path)
    assert result.code == 2
    assert error in " ".join(result.err.split())


# As a script's shell starts `pco ... &`: deaf to Ctrl-C.
DEAF = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")


def interrupted(
    folder: Path, *args: str, until: str, by: int = signal.SIGINT, background: bool = False
) -> tuple[int, str]:
    """The command, sent Ctrl-C (or another signal) once its stderr has said `until`."""
    process = started(*(DEAF if background else ()), *PCO, *args, folder=folder)
    assert process.stderr is not None
    stderr = ""
    for line in process.stderr:
        stderr += line
        if until in line:
            process.send_signal(by)
            break
    stderr += process.communicate(timeout=300)[1]
    return process.returncode, stderr


@pytest.mark.parametrize(
    ("by", "background"),
    [pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow), (signal.SIGINT, True)],
)
def test_a_stopped_run_keeps_what_it_has_and_can_be_resumed(
    folder: Path, by: int, background: bool
) -> None:
    code, stderr = interrupted(folder, *TRAIN, until="step 1 of ", by=by, background=background)
    assert code == 130, stderr
    assert "waiting for calls in flight" in stderr
    assert "interrupted by the user" in stderr and "pco train --resume" in stderr
    assert "Traceback" not in stderr
    (run,) = pco("runs", "list", "--json", cwd=folder).json
    assert run["ended"] == "interrupted" and run["resumable"]
    if by == signal.SIGTERM:
        assert pco("train", "--resume", "last", cwd=folder).code == 0


IMPORTING = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, *more):
        if name == {at!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{by})

sys.meta_path.insert(0, CtrlC())
sys.argv = ["pco", "data", "check", "gone.jsonl"]
from promptcodebook.cli import main
main()
"""


@pytest.mark.parametrize(
    ("at", "by", "background"),
    [
        ("typing", "SIGINT", False),
        ("typer", "SIGINT", False),
        ("typer", "SIGTERM", False),
        ("typer", "SIGINT", True),
        ("promptcodebook.cli.plan", "SIGINT", False),
    ],
)
def test_ctrl_c_while_modules_are_imported_leaves_no_traceback(
    at: str, by: str, background: bool, tmp_path: Path
) -> None:
    command = (sys.executable, "-c", IMPORTING.format(at=at, by=by))
    process = started(*(DEAF if background else ()), *command, folder=tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, "") and err in ("", "pco: interrupted\n")


def test_ctrl_c_ends_an_evaluation_in_order(trained: Path) -> None:
    server, heard = Server(), threading.Event()
    reply = '{"selected_indices": [0, 1, 2, 3]}'  # a route, and then a prompt as well

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if server.calls > 6:  # the prompts, which are under way until the interrupt is heard
            await asyncio.to_thread(heard.wait, 300)
        return await says(reply)(request, body)

    server.default = answer
    with served(server):
        process = started(*PCO, "eval", "last", "--lm", server.spec, folder=trained)
        assert process.stderr is not None
        asyncio.run(until(lambda: server.calls == 12))  # six routes, six prompts
        process.send_signal(signal.SIGINT)
        stderr = ""
        while "waiting for calls in flight" not in stderr:
            stderr += (line := process.stderr.readline())
            assert line, stderr
        heard.set()
        stderr += process.communicate(timeout=300)[1]
    assert process.returncode == 130, stderr
    assert "interrupted by the user" in stderr
    assert "Traceback" not in stderr
    prompts = [body["messages"][0]["content"] for body in server.bodies]
    assert len(prompts) == 12 and reply not in prompts  # no answer was asked for any more


def test_a_reader_that_leaves_is_no_error(trained: Path) -> None:
    show = " ".join([*PCO, "codebook", "show", "last"])
    process = started("/bin/sh", "-c", f"{show} | head -1", folder=trained)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and "rror" not in err and "K = 16" in out


def test_a_disk_without_room_is_one_message_before_anything_is_paid_for(folder: Path) -> None:
    """The system refuses to let a file grow past a limit, as a full disk does. A disk that fills up
    on the way is in `tests/proof/test_kill.py`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, before[1]))
    try:
        result = pco("train", *QUICK, cwd=folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert result.code == 1, result.err
    assert result.err.count("pco: error") == 1 and "Traceback" not in result.err
    assert "free space" in result.err and "step 1" not in result.err
    assert pco("train", *QUICK, cwd=folder).code == 0
    assert pco("runs", "list", cwd=folder).code == 0


def test_a_short_output_whose_reader_is_gone_ends_without_a_word(tmp_path: Path) -> None:
    # It is still in the buffer when the command is done: only the end of the process writes it.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = started(*PCO, "templates", "list", folder=tmp_path, env=env)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert process.communicate(timeout=300)[1] == "" and process.returncode == 1


# A terminal that closes, and a run that nohup shields from it


def ended(folder: Path) -> str:
    (run,) = pco("runs", "list", "--json", cwd=folder).json
    return run["ended"]


@pytest.mark.slow
def test_a_hang_up_stops_in_order_and_nohup_shields_from_it(folder: Path) -> None:
    code, stderr = interrupted(folder, *TRAIN, until="step 1 of ", by=signal.SIGHUP)
    assert code == 130, stderr
    assert ended(folder) == "interrupted"
    pco("runs", "rm", "last", "--yes", cwd=folder)

    shell = 'nohup "$@" & echo $!; wait $!; echo "code $?"'
    process = started("/bin/sh", "-c", shell, "sh", *PCO, *TRAIN, folder=folder)
    assert process.stdout is not None and process.stderr is not None
    pid = int(process.stdout.readline())
    for line in process.stderr:
        if "step 1 of " in line:
            break
    os.kill(pid, signal.SIGHUP)
    time.sleep(0.3)
    os.kill(pid, 0)  # it is still there
    os.kill(pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert "code 130" in out and "interrupted by the user" in err
    assert ended(folder) == "interrupted"
