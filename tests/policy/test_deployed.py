"""The deployed policy is the judged one: the same prompts, in another process, from its file alone.

The server's every reply is decided by the body it was sent, so a request that differs in anything
(a temperature, a seed, one word) leads to another prompt.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import promptcodebook as pco
from promptcodebook.store.run import RunStore
from tests.build.cli import served
from tests.build.server import Server, says

SIZE = 6

LOADED = """
import json, sys, warnings
import promptcodebook as pco
warnings.simplefilter("error")
for line in sys.stdin:
    path, spec, inputs = json.loads(line)
    policy = pco.load_policy(path, lm=spec)
    print(json.dumps([policy.prompt(pco.Example(i, x)) for i, x in inputs]), flush=True)
"""


def decided(select: int):
    """Replies that follow from the whole body; S valid indices where a route is asked for."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        return await says(_reply(key, body, select))(request, body)

    return step


def _reply(key: str, body: dict[str, Any], select: int) -> str:
    name = body.get("response_format", {}).get("json_schema", {}).get("name", "")
    draw = random.Random(key)
    match name:
        case "RouteReply":
            return json.dumps({"selected_indices": draw.sample(range(SIZE), select)})
        case "":
            return f"Text {key[:16]}, as asked."
        case _:
            blame = {"rendering_errors": "", "routing_errors": f"mind {key[:8]}"}
            errors = {str(k): f"sharpen {key[:8]}" for k in range(SIZE)}
            return json.dumps(
                {"score": 0.5, "feedback": f"see {key[:8]}", "instinct_errors": errors, **blame}
            )


def reward(example: pco.Example, output: str) -> float:
    return random.Random(output).random() * 0.9


async def staged(prompt: pco.Prompt, example: pco.Example, lm: pco.Chat) -> str:
    draft = await lm(example.input, system=prompt.of("draft"), purpose="draft")
    return (await lm(draft.text, system=prompt.of("check"), purpose="check")).text


staged.stages = ("draft", "check")  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[subprocess.Popen[str]]:
    """Another process, which knows of a policy what its file says, and warns of nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", LOADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


SETTINGS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "sampling": {
        "roles": {
            "generator": {"temperature": 1.8, "max_tokens": 77, "extra": {"top_k": 7}},
            "encoder": {"temperature": 0.4, "top_p": 0.5},
        },
        "seed": 11,
    },
    "verbatim": {"compose": "verbatim", "base_prompt": "We sell lamps."},
    "texts": {"base_prompt": "We sell lamps.", "output_format": "one line", "select": 3},
    "paper templates": {"templates": "paper"},
    "no encoder": {"encoder": {"mode": "none"}},
    "last state": {"keep": "last"},
    "a prompt for each stage": {"compose_per_stage": True},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_loaded_policy_makes_the_prompts_that_were_judged(
    name: str, elsewhere: subprocess.Popen[str], tmp_path: Path
) -> None:
    settings = {"size": SIZE, "select": 2, "preset": "quick", **SETTINGS[name]}
    rows = [{"input": f"Question {n} of lamps?", "target": "light"} for n in range(24)]
    server = Server()
    server.default = decided(settings["select"])
    with served(server):
        run = pco.optimize(
            data := pco.load(rows),
            reward,
            lm=server.spec,
            executor=staged if name == "a prompt for each stage" else None,
            config={
                **settings,
                "update": {"epochs": 2, "batch_size": 4},
                "validation": {"every": 1, "subset": 4},
                "cache": False,
            },
            runs_dir=tmp_path / "runs",
        )
        run.policy.save(path := tmp_path / "policy.json")
        with closing(RunStore.open(run.path)) as store:
            *_, learned = store.test_evaluations()  # the verdict's last row
        judged = {r.example_id: r.prompt for r in learned.rollouts}
        inputs = [(example.id, example.input) for example in data.test]
        assert elsewhere.stdin is not None and elsewhere.stdout is not None
        elsewhere.stdin.write(json.dumps([str(path), server.spec, inputs]) + "\n")
        elsewhere.stdin.flush()
        line = elsewhere.stdout.readline()
    assert line, "it ended with an error, which is above"
    assert dict(zip((i for i, _ in inputs), json.loads(line), strict=True)) == judged
    assert len(set(judged.values())) > 1  # a constant prompt would prove nothing
