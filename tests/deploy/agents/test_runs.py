"""Runs that train an agent: typed on the command line, resumed after a kill, and not trusted."""

from __future__ import annotations

import itertools
import os
import random
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import promptcodebook as pco
from bench.kill import progress_of
from promptcodebook.calls import Request, request_key
from promptcodebook.errors import ConfigError
from promptcodebook.lm.scripted import ScriptedLM
from tests.build.agents import SCRIPT, SYSTEM
from tests.build.cli import pco as typed
from tests.build.topics import PHRASES, PROMPT, data, obey, right

AGENT = shlex.join([sys.executable, str(SCRIPT), "twice"])
SETTINGS = """
preset = "small"
lm = "simulated"
reward = {{ kind = "contains" }}
size = 3
verdict_examples = 4
cache = false
init = {{ kind = "expert", instincts = ["Say R.", "Say P.", "Be kind."] }}
[update]
epochs = {epochs}
batch_size = 4
[data]
path = "rows.csv"
input = "text"
target = "letter"
"""


LARGE = f"data:image/png;base64,{b64encode(random.Random(0).randbytes(75_000)).decode()}"
PICTURE: Any = {"type": "image_url", "image_url": {"url": LARGE, "detail": "low"}}


async def ask(url: str, key: str, content: Any, **fields: Any) -> str:
    """By a client that loads no certificates, which takes longer than all the rest."""
    plain = httpx.AsyncClient(verify=False)
    async with openai.AsyncOpenAI(base_url=url, api_key=key, http_client=plain) as client:
        made = await client.chat.completions.create(
            model="m",
            messages=[
                {"role": "system", "content": f"You work for a shop.\n{PROMPT}"},
                {"role": "user", "content": content},
            ],
            **fields,
        )
    return made.choices[0].message.content or ""


async def shop(url: str, key: str, example: pco.Example) -> str:
    """An agent of two calls, the second of which checks the first."""
    reply = await ask(url, key, example.input)
    return await ask(url, key, f"{example.input} {reply}")


async def looks(url: str, key: str, example: pco.Example) -> str:
    """An agent that shows its model a picture."""
    return await ask(url, key, [{"type": "text", "text": example.input}, PICTURE])


def learn(runs: Path, lm: Any, agent: Any = shop, epochs: int = 6, **more: Any) -> pco.Run:
    config = {
        "preset": "small",
        "size": 6,
        "init": {"kind": "from_prompt", "prompt": PROMPT},
        "update": {"epochs": epochs},
        "verdict_examples": 20,
    }
    executor = pco.Agent(function=agent, present=PROMPT)
    return pco.optimize(
        data(), right, lm, config=config, executor=executor, runs_dir=runs, progress=False, **more
    )


@pytest.mark.slow
def test_an_image_arrives_unchanged_is_journaled_once_and_a_run_with_it_resumes(
    tmp_path: Path,
) -> None:
    asked, again = (ScriptedLM().reply_with(obey) for _ in range(2))
    whole = learn(tmp_path / "whole", asked, looks, 2)
    cut = learn(tmp_path / "cut", again, looks, 2, budget="90calls")
    assert cut.ended == "budget" and 0 < len(again.history) < len(asked.history)
    resumed = learn(tmp_path / "cut", again, looks, 2, budget="100000calls", resume=cut.id)
    keys = {request_key(request) for request in again.history}
    assert len(keys) == len(again.history), "no reply was asked for twice"
    files = [(run.path / "policy.json").read_bytes() for run in (whole, resumed)]
    assert files[0] == files[1]
    seen = [turns.messages[-1] for turns in again.history if turns.role == "executor"]
    assert seen and all(message.media == [PICTURE] for message in seen)
    with closing(sqlite3.connect(resumed.path / "run.sqlite")) as db:
        [rows] = db.execute("SELECT count(*) FROM journal").fetchone()
    assert rows == len(again.history), "a row for each request"
    kept = sum(file.stat().st_size for file in resumed.path.iterdir())
    assert kept < 5 * len(LARGE), "none of the rows holds the picture"


@pytest.mark.slow
def test_a_run_of_an_agent_that_never_asks_the_same_twice_resumes_and_pays_for_what_it_asks(
    tmp_path: Path,
) -> None:
    counter = itertools.count()

    async def restless(url: str, key: str, example: pco.Example) -> str:
        return await ask(url, key, f"{example.input} [{next(counter)}]")

    lm = ScriptedLM().reply_with(obey)
    cut = learn(tmp_path, lm, restless, 2, budget="90calls")
    assert cut.ended == "budget" and len(lm.history) <= 90
    resumed = learn(tmp_path, lm, restless, 2, budget="100000calls", resume=cut.id)
    assert resumed.ended == "finished"
    assert resumed.usage["executor"].calls == len(lm.history), "each paid call is counted once"


def test_an_agents_policy_is_served_with_what_its_run_asked_and_not_with_what_it_asked(
    tmp_path: Path,
) -> None:
    """What was measured is what the run sent; a server sends the same where no caller says more."""

    async def warm(url: str, key: str, example: pco.Example) -> str:
        return await ask(url, key, example.input, temperature=0.9, max_tokens=900)

    lm = ScriptedLM().reply_with(obey)
    made = learn(tmp_path, lm, warm, 1, roles={"executor": {"max_tokens": 12}})
    sent = {(r.sampling.temperature, r.sampling.max_tokens) for r in lm.history[-1:]}
    assert lm.history[-1].role == "executor" and sent == {(0.0, 12)}
    assert made.policy.answer_fields == {"temperature": 0.0, "max_tokens": 12}


def test_a_prompt_that_is_found_nowhere_costs_nothing(tmp_path: Path) -> None:
    asked = list[Request]()
    lm = ScriptedLM().reply_with(lambda request: asked.append(request) or "R")  # type: ignore[func-returns-value]
    config = {"preset": "small", "size": 2, "init": {"instincts": ("Say R.", "Say P.")}}
    agent = pco.Agent(function=shop, present="Another prompt.")
    with pytest.raises(ConfigError, match="the prompt finds no place"):
        pco.optimize(
            data(), right, lm, config=config, executor=agent, runs_dir=tmp_path, progress=False
        )
    assert not asked


def folder_of(place: Path, epochs: int = 2) -> Path:
    rows = [f"{phrase} {n},{letter}" for letter, phrases in PHRASES.items() for phrase in phrases
            for n in range(2)]  # fmt: skip
    place.mkdir(exist_ok=True)
    (place / "rows.csv").write_text("\n".join(["text,letter", *rows]), "utf-8")
    (place / "pco.toml").write_text(SETTINGS.format(epochs=epochs), "utf-8")
    (place / "prompt.txt").write_text(SYSTEM, "utf-8")
    return place


TYPED = ("--agent", AGENT, "--present", "prompt.txt")
TRAIN = [sys.executable, "-m", "promptcodebook.cli", "train", *TYPED, "--json"]
MOMENTS = int(os.environ.get("PCO_TEST_MOMENTS", "3"))


@pytest.mark.slow
def test_an_agent_is_typed_and_its_command_runs_only_with_trust(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "shop")
    made = typed("train", *TYPED, "--json", cwd=place)
    assert made.code == 0, made.err
    assert made.json["ended"] == "finished"
    shown = typed("runs", "show", "last", "--json", cwd=place).json
    executor = shown["usage"]["executor"]
    assert executor["calls"] >= 8, "two calls for each rollout"
    [run] = (place / "runs").iterdir()
    other = folder_of(tmp_path / "other")
    run.rename(other / run.name)
    (other / "runs").mkdir()
    (other / run.name).rename(other / "runs" / run.name)
    assert typed("eval", "last", "--n", "2", cwd=other).code == 0
    secret = next(Path(os.environ["HOME"]).rglob("*secret*"), None)
    if secret is not None:
        secret.unlink()
        typed("eval", "last", "--n", "2", cwd=other).error(2, "does not bear your mark", "run ")


def test_the_doctor_says_whether_the_prompt_has_a_place(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "shop")
    found = typed("doctor", *TYPED, "--json", cwd=place)
    assert "its prompt has a place" in found.out
    (place / "prompt.txt").write_text("Another prompt.", "utf-8")
    found = typed("doctor", *TYPED, "--json", cwd=place)
    assert found.code == 1 and "the prompt finds no place" in found.out


@pytest.mark.slow
def test_a_killed_run_of_an_agent_ends_as_the_whole_one(tmp_path: Path) -> None:
    """Byte-equal policies, as many calls that were paid for, wherever the kill falls."""
    whole = folder_of(tmp_path / "whole", 3)
    subprocess.run(TRAIN, cwd=whole, check=True, capture_output=True, timeout=600)
    replies = progress_of(whole).journal
    for moment in range(MOMENTS):
        cut, least = folder_of(tmp_path / f"cut{moment}", 3), replies * moment / (MOMENTS + 1)
        with subprocess.Popen(TRAIN, cwd=cut, stdout=-3, stderr=-3, start_new_session=True) as run:
            while not ((now := progress_of(cut)).began and now.journal >= least):
                assert run.poll() is None, "it was too quick"
                time.sleep(0.01)
            os.killpg(run.pid, signal.SIGKILL)
        again = [*TRAIN, "--resume", "last"]
        subprocess.run(again, cwd=cut, check=True, capture_output=True, timeout=600)
        runs = [next((place / "runs").iterdir()) for place in (whole, cut)]
        assert len({(run / "policy.json").read_bytes() for run in runs}) == 1
        paid = [
            typed("runs", "show", "last", "--json", cwd=place).json["usage"]["executor"]["calls"]
            for place in (whole, cut)
        ]
        assert paid[0] == paid[1], moment
