"""What only a process of its own can show: signals, pipes, exit codes, a served model."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import QUICK
from tests.cli.invoked import pco, served
from tests.lm.server import Server, says

PCO = [sys.executable, "-m", "promptcodebook.cli"]


@pytest.fixture
def serving() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`pco lm serve simulated` and its spec."""
    process = subprocess.Popen(
        [*PCO, "lm", "serve", "simulated", "--task", "constraints", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


def test_a_served_model_says_its_spec_answers_counts_and_ends_on_sigterm(
    serving: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, spec = serving
    assert spec.startswith("http://127.0.0.1:") and spec.endswith("/v1#simulated")
    (tmp_path / "p.json").write_text(json.dumps(POLICY))
    args = ("--task", "constraints", "--lm", spec, "--n", "3", "--json")
    result = pco("eval", "p.json", *args, cwd=tmp_path)
    assert result.code == 0, result.err
    assert result.json["simulated"] is True  # served, and still simulated
    with urllib.request.urlopen(spec.replace("/v1#simulated", "/stats"), timeout=5) as response:
        assert json.load(response)["requests"] >= 9
    taken = pco(
        "lm", "serve", "simulated", "--port", spec.split(":")[2].split("/")[0], cwd=tmp_path
    )
    taken.error(2, "cannot listen on 127.0.0.1", "--port 0")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("openai/gpt-4o",), "unknown local model 'openai/gpt-4o'"),
        (("openai/gpt-4o",), "hf:DIR-or-NAME, or simulated"),
        (("smolm2",), "did you mean 'smollm2'"),
        (("absent.gguf",), "there is no file absent.gguf"),
        (("simulated?laod=1",), "did you mean 'load'"),
        (("simulated", "--faults", "418:1"), "unknown fault"),
        (("simulated", "--queue", "3"), "--queue is for models of this machine"),
        (("smollm2", "--latency", "1"), "--latency is for the simulated model"),
        (("smollm2", "--4bit"), "--4bit is for hf: models"),
        (("hf:x/y", "--host", "0.0.0.0"), "PCO_SERVE_KEY=$(openssl rand -hex 24) pco lm serve"),
        (("simulated", "--host", "0.0.0.0"), "PCO_SERVE_KEY=$(openssl rand -hex 24) pco lm serve"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_is_loaded(
    args: tuple[str, ...], error: str, tmp_path: Path
) -> None:
    result = pco("lm", "serve", *args, cwd=tmp_path)
    assert result.code == 2
    assert error in " ".join(result.err.split())


def interrupted(
    folder: Path, *args: str, until: str, by: int = signal.SIGINT, background: bool = False
) -> tuple[int, str]:
    """The command, sent Ctrl-C (or another signal) once its stderr has said `until`.

    `background`: as a script's shell starts `pco ... &`, which is deaf to Ctrl-C.
    """
    command = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh"] if background else []
    process = subprocess.Popen(
        [*command, *PCO, *args],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    stderr = ""
    for line in process.stderr:
        stderr += line
        if until in line:
            process.send_signal(by)
            break
    stderr += process.stderr.read()
    process.stderr.close()
    return process.wait(20), stderr


@pytest.mark.parametrize(
    ("by", "background"),
    [
        (signal.SIGINT, False),
        (signal.SIGTERM, False),
        (signal.SIGINT, True),
    ],
)
def test_a_stopped_run_keeps_what_it_has_and_can_be_resumed(
    folder: Path, by: int, background: bool
) -> None:
    args = ("train", "--lm", "simulated?latency=0.02", *QUICK)
    code, stderr = interrupted(folder, *args, until="step 1 of ", by=by, background=background)
    assert code == 130, stderr
    assert "waiting for calls in flight" in stderr
    assert "interrupted by the user" in stderr and "pco train --resume" in stderr
    assert "Traceback" not in stderr
    (run,) = pco("runs", "list", "--json", cwd=folder).json
    assert run["ended"] == "interrupted" and run["resumable"]
    if by == signal.SIGINT and not background:
        assert pco("train", "--resume", "last", cwd=folder).code == 0


def test_ctrl_c_ends_an_evaluation_in_order(trained: Path) -> None:
    server = Server()
    reply = '{"selected_indices": [0, 1, 2, 3]}'  # a route, and then a prompt as well
    server.default = says(reply, delay=1.0)
    with served(server):
        process = subprocess.Popen(
            [*PCO, "eval", "last", "--lm", server.spec],
            cwd=trained,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        until = time.monotonic() + 20
        while server.calls < 12 and time.monotonic() < until:  # six routes, six prompts under way
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert "waiting for calls in flight" in stderr and "interrupted by the user" in stderr
    assert "Traceback" not in stderr
    prompts = [body["messages"][0]["content"] for body in server.bodies]
    assert len(prompts) == 12 and reply not in prompts  # no answer was asked for any more


def test_a_reader_that_leaves_is_no_error(trained: Path) -> None:
    show = " ".join([*PCO, "codebook", "show", "last"])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{show} | head -1"],
        cwd=trained,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "" and "K = 16" in done.stdout


def test_exit_codes_reach_the_shell(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PCO, "eval", "none"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.startswith("pco: error: no run 'none'")
    assert done.stdout == ""


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


def test_no_colour_and_no_cursor_reach_what_is_not_a_terminal(folder: Path) -> None:
    result = pco("train", *QUICK, cwd=folder)
    assert "\x1b" not in result.out + result.err and "\r" not in result.err


POLICY = {
    "format": "promptcodebook policy 1",
    "templates": "default",
    "select": 2,
    "compose": "generator",
    "base_prompt": "",
    "output_format": "",
    "encoder": "Choose.",
    "generator": "Compose.",
    "codebook": [{"text": f"Mind the number of {word}."} for word in ("words", "lines", "points")],
}


def test_a_short_output_whose_reader_is_gone_ends_without_a_word(tmp_path: Path) -> None:
    # It is still in the buffer when the command is done: only the end of the process writes it.
    process = subprocess.Popen(
        [*PCO, "templates", "list"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert process.communicate(timeout=60)[1] == "" and process.returncode == 1
