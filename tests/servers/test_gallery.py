"""Each server of the gallery, from `pco doctor` to a served policy: whatever it refuses is learned
from its own words in a few calls, and the user sets nothing."""

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from promptcodebook import load
from promptcodebook.calls import ROLES
from promptcodebook.lm.spec import parse_spec
from promptcodebook.paper.simulated.model import SimulatedLM, simulated_model
from tests.build.cli import Result, pco, served
from tests.build.project import PROJECT
from tests.build.project import folder as folder
from tests.servers.fake import ROWS, Fake

MOST = 6  # calls that a command may spend on learning what its endpoint takes
# 60 calls, with all that a run has: routes, prompts, critiques, blame, rewrites and a verdict.
SMALL = {"update.epochs": 2, "update.batch_size": 3, "validation.every": 0, "keep": "last"}
SMALL |= {"size": 6, "select": 2, "verdict_examples": 2}
TRAIN = ("--preset", "full", "--budget", "80calls")
TRAIN += tuple(word for k, v in SMALL.items() for word in ("--set", f"{k}={v}"))
# One of each kind of refusal: a form of reply, fields, a role of messages, a limit of tokens.
FAST = {"deepseek", "openai-reasoning", "vllm-gemma", "vllm-4k"}
CHAT = [
    {"role": "system", "content": "You are the desk of a shop. Never promise a refund."},
    {"role": "user", "content": "How many mugs are left when a shop starts with 48 and sells 19?"},
]


@cache
def model() -> SimulatedLM:
    """A model that knows the project's rows."""
    return simulated_model("", load(PROJECT / "data.jsonl"), parse_spec("simulated", {}))


class Printed(StringIO):
    """What a server prints; `begun` has its first line, the address."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = Future[str]()

    def write(self, text: str) -> int:
        if not self.begun.done():
            self.begun.set_result(text.strip())
        return super().write(text)


def ask_and_stop(printed: Printed) -> Any:
    """The answer to a caller who brings a system message; then the server is stopped."""
    address = printed.begun.result()
    try:
        sent = json.dumps({"messages": CHAT}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/chat/completions", sent, headers)
        try:
            answer = urllib.request.urlopen(request, timeout=60)
        except HTTPError as refused:
            answer = refused
        with answer:
            return json.load(answer)
    finally:
        os.kill(os.getpid(), signal.SIGINT)


def serve(folder: Path) -> tuple[Result, Future[Any]]:
    """`pco serve` in this process, and what one caller gets."""
    printed = Printed()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask_and_stop, printed)
        done = pco("serve", "last", "--port", "0", cwd=folder, out=printed)
        printed.begun.cancel()  # where it never began to listen
    return done, answer


@contextmanager
def playing(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """The row's server, and the project set to use it."""
    row = ROWS[name]
    with served(Fake(row, model())) as fake:
        for variable, value in row.get("variables", {}).items():
            monkeypatch.setenv(variable, fake.typed(value))
        lines = [f"lm = {json.dumps(fake.typed(row.get('spec', '$url#m')))}"]
        lines += ['reward = "reward.py:reward"', 'data.path = "data.jsonl"']
        for header, value in row.get("headers", {}).items():
            lines += [f'roles.{role}.headers."{header}" = "{value}"' for role in ROLES]
        (folder / "pco.toml").write_text("\n".join(lines))
        yield fake


def failures(examined: Result) -> list[Any]:
    found = [each for section in examined.json["sections"] for each in section["findings"]]
    return [each for each in found if each["level"] == "fail"]


def rows() -> list[Any]:
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in ROWS]


@pytest.mark.parametrize("name", rows())
def test_a_server_of_the_gallery_is_trained_on_and_served(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = dict[str, int]()
    with playing(name, folder, monkeypatch) as fake:

        def learned(command: str) -> None:
            spent[command] = len(fake.refused)
            fake.refused.clear()
            fake.bodies.clear()

        examined = pco("doctor", "--json", cwd=folder)
        learned("doctor")
        trained = pco("train", *TRAIN, "--json", cwd=folder)
        learned("train")
        judged = pco("eval", "last", "--json", cwd=folder)
        learned("eval")
        done, answer = serve(folder)
        learned("serve")
    sys.stdout.write(f"{name}: {spent}\n")
    if os.environ.get("PCO_TEST_DUMP"):
        sys.stdout.write(trained.out + trained.err + judged.err + examined.out)
    assert examined.code == 0, failures(examined)
    assert trained.code == 0, trained.err
    assert trained.json["ended"] == "finished" and trained.json["usage"]["updater"]["calls"]
    assert judged.code == 0, judged.err
    assert done.code == 0, done.err
    assert "choices" in answer.result(), answer.result()
    assert answer.result()["choices"][0]["message"]["content"], answer.result()
    assert max(spent.values()) <= MOST, spent
