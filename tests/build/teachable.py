"""A task that one sentence in the prompt solves the more of, the later it was proposed; and the
model behind it, which answers the same to the same request."""

import hashlib
import re
from pathlib import Path
from typing import Any

import promptcodebook as pco
from promptcodebook.calls import Request
from promptcodebook.lm.scripted import ScriptedLM
from tests.build.optimize import train

QUICK: dict[str, Any] = {"preset": "quick", "update": {"epochs": 6, "batch_size": 6}}


def answer(request: Request) -> str:
    """Of the executor: the stated use, for as many of eight inputs as its prompt says. Of the
    updater: a prompt of a level that the request decides, in the forms that gepa and dspy read."""
    if request.role == "updater":
        return _propose(request)
    system = "".join(m.content for m in request.messages if m.role == "system")
    question = request.messages[-1].content
    levels = re.findall(r"at level (\d)", system) or ["1"]
    words, topic = re.findall(r"In (\d+) words: what are (\w+)", question)[-1]
    if int(words) % 8 < int(levels[-1]):
        return f"use {topic} {words}"
    return "no idea"


def _propose(request: Request) -> str:
    whole = "\x1f".join(m.content for m in request.messages) + str(request.sample)
    level = hashlib.sha256(whole.encode()).digest()[0] % 8 + 1
    text = f"Give the stated use, at level {level}."
    fields = re.findall(r"`\[\[ ## (\w+) ## \]\]`", request.messages[-1].content)
    if not fields:
        return f"```\n{text}\n```"
    return "\n".join(f"[[ ## {name} ## ]]\n{text}" for name in fields)


def install_package(site: Path, name: str, entries: str = "") -> None:
    """As pip leaves a package: with its version, and its entry points."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)


def model() -> ScriptedLM:
    return ScriptedLM().reply_with(answer)


def learn(tmp_path: Path, optimizer: str, lm: Any = None, **more: Any) -> pco.Run:
    """A run of that optimizer on the task."""
    settings = {**QUICK, "optimizer": optimizer}
    lm = model() if lm is None else lm
    return train(tmp_path, more.pop("name", "runs"), settings, lm=lm, progress=False, **more)


def total(run: pco.Run) -> int:
    return sum(usage.calls for usage in run.usage.values())


async def two_steps(prompt: pco.Prompt, example: pco.Example, lm: pco.Chat) -> pco.Output:
    plan = await lm("Plan: " + example.input, system=prompt.of("plan"), purpose="plan")
    reply = await lm(example.input, system=prompt.of("say"), purpose="say")
    trace = (pco.Stage("plan", example.input, plan.text), pco.Stage("say", plan.text, reply.text))
    return pco.Output(reply.text, trace)


two_steps.stages = ("plan", "say")  # type: ignore[attr-defined]
