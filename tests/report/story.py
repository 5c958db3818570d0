"""A run written by hand: steps, validations and a verdict with known figures and hostile texts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from promptcodebook.config import Config
from promptcodebook.keyed import keyed_random
from promptcodebook.session.verdict import conclude
from promptcodebook.store import (
    Concluded,
    Ended,
    Event,
    Header,
    Judged,
    RunStore,
    Started,
    Stepped,
    Validated,
)
from promptcodebook.types import (
    Codebook,
    Evaluation,
    Failure,
    Gradients,
    Instinct,
    Parameters,
    Rewrite,
    Rollout,
    Route,
    Stage,
    Step,
    Trace,
    Usage,
    Verdict,
)

__all__ = ["HOSTILE", "Story", "write_story"]

HOSTILE = (
    "</script><script>alert(1)</script> <img src=x onerror=alert(2)> {{7*7}} ${x} %s {index} "
    '"quoted" \'single\' <a href="javascript:alert(3)">x</a> <!-- --> ]]> &amp; \x00\x07 \ud800'
)
_ADVICE = (
    "Count the words before answering",
    "State the final answer on its own line",
    "Keep the exact spelling of names",
    "Use bullet points where a list is asked for",
    "Check each constraint once more at the end",
    "Avoid every forbidden word",
    "Answer in the language of the question",
    "Write full sentences without filler",
)


@dataclass(frozen=True)
class Story:
    """How long and how large the run is."""

    steps: int = 30
    size: int = 16
    select: int = 4
    batch: int = 6
    simulated: bool = True
    verdict: bool = True
    config: dict[str, Any] = field(default_factory=lambda: dict[str, Any]())
    hostile: str = HOSTILE
    task: str = "constraints"


def write_story(runs: Path, story: Story | None = None) -> RunStore:
    """The run's store, open for writing."""
    told = story or Story()
    lm = "simulated?dilution=0.2" if told.simulated else "http://user:hush@localhost:8000/v1#m"
    config = Config(lm=lm, size=told.size, select=told.select, seed=3).model_dump(mode="json")
    config["roles"]["critic"]["headers"] = {"Authorization": "Bearer hush"}
    header = Header(
        "",
        "2026-01-31T15:45:02+00:00",
        "0.1.0",
        told.task,
        "pco train",
        config=config | told.config,
        fingerprints={"train": "ab" * 32, "test": "cd" * 32},
    )
    store = RunStore.create(runs, header)
    for event in _events(told):
        store.append(event)
    for role, calls in (("encoder", 90), ("executor", 300), ("critic", 120)):
        cost = None if role == "critic" else 0.01 * calls
        store.record_usage(role, Usage(calls, calls * 400, calls * 90, calls * 300, cost, calls))
    for name, n in (("rate_limited", 7), ("repaired", 4), ("reasked", 2), ("strange_thing", 1)):
        store.count(name, n)
    store.flush()
    return store


def _events(story: Story) -> Iterator[Event]:
    draw = keyed_random("story", story.steps, story.size)
    instincts = tuple(
        Instinct(f"{_ADVICE[k % len(_ADVICE)]}.", frozen=k == 1) for k in range(story.size)
    )
    parameters = Parameters(
        "Choose what the input needs.",
        "Write two sentences.",
        Codebook(instincts),
        "Judge it strictly.",
    )
    yield Started(parameters, "expert")
    selected = [0] * story.size
    for index in range(story.steps):
        if index % 10 == 0:
            yield Validated(index - 1, "subset", _evaluation("val", "val", 0.4 + 0.01 * index, 20))
        step = _step(story, draw, index, parameters, selected)
        parameters, selected = step.parameters, list(step.selected)
        yield Stepped(step)
    if story.verdict:
        yield from _end(story)


def _end(story: Story) -> Iterator[Event]:
    last = (story.steps - 1) // 10 * 10 - 1
    yield Validated(last, "full", _evaluation("val", "val", 0.66, 40))
    rows = [
        _evaluation(name, "test", score, 60)
        for name, score in (
            ("present", 0.4),
            ("concat", 0.5),
            ("untrained", 0.45),
            ("learned", 0.7),
        )
    ]
    for row in rows:
        yield Judged(row)
    said = conclude(rows, 3, story.simulated)
    yield Concluded(said.sentence, said.worth, said.rows_as_json())
    yield Ended("finished")


def _evaluation(name: str, split: str, score: float, n: int) -> Evaluation:
    rollouts = tuple(
        Rollout(
            f"{split}-{i}",
            prompt="Answer briefly and check the constraints. " * 2,
            output="fine",
            reward=1.0 if i < score * n else 0.0,
            usage=Usage(3, 900, 120, 700, None, 1.4),
        )
        for i in range(n)
    )
    broken = Failure("execute", "CallTimeout", "no reply in 120 s", "Traceback ...\nCallTimeout")
    return Evaluation(
        name, split, (*rollouts[:-1], replace(rollouts[-1], reward=None, failure=broken))
    )


def _step(
    story: Story,
    draw: random.Random,
    index: int,
    parameters: Parameters,
    selected: list[int],
) -> Step:
    epsilon = max(0.15, 0.94**index)
    counts = list(selected)
    traces: list[Trace] = []
    for place in range(story.batch):
        trace = _trace(story, draw, (index, place), epsilon)
        traces.append(trace)
        if trace.unit is not None and trace.rollout.route is not None:
            for k in trace.rollout.route.indices:
                counts[k] += 1
    rewrites = _rewrites(story, draw, index, parameters)
    codebook, encoder = parameters.codebook, parameters.encoder
    for rewrite in rewrites:
        if rewrite.kept and rewrite.variable == "encoder":
            encoder = rewrite.after
        elif rewrite.kept:
            codebook = codebook.replaced(int(rewrite.variable[1:]), rewrite.after)
    rates = tuple(min(1.0, 0.2 + 0.02 * index + 0.01 * k) for k in range(story.size))
    return Step(
        index=index,
        epoch=index,
        epsilon=epsilon,
        traces=tuple(traces),
        rewrites=rewrites,
        parameters=replace(parameters, codebook=codebook, encoder=encoder),
        ema=tuple(r - 0.3 for r in rates),
        success=rates,
        selected=tuple(counts),
    )


def _trace(story: Story, draw: random.Random, at: tuple[int, int], epsilon: float) -> Trace:
    index, place = at
    explored = draw.random() < epsilon
    # The encoder comes to prefer the first entries; exploration takes any.
    pool = range(story.size) if explored else range(min(story.size, story.select + 3))
    route = Route(
        tuple(sorted(draw.sample(pool, story.select))),
        explored=explored,
        constraints=("at most 50 words",),
        analysis=f"because {story.hostile}",
    )
    name = f"train-{index}-{place}"
    if draw.random() < 0.04:
        failure = Failure("execute", "ServerFault", f"answered 500 {story.hostile}", "Traceback: x")
        return Trace(Rollout(name, route=route, prompt="p", failure=failure))
    reward = round(min(1.0, draw.random() * 0.6 + 0.4 * (index + 1) / story.steps), 2)
    rollout = Rollout(
        name,
        route=route,
        prompt=f"Be brief. {story.hostile}",
        output=f"Some answer {story.hostile}",
        stages=(Stage("search", "query", f"found {story.hostile}"),),
        reward=reward,
        feedback=f"missed a constraint {story.hostile}",
        truncated=place == 0,
        usage=Usage(3, 900, 140, 600, None, 1.2),
    )
    gradients = Gradients(
        encoder=f"look at lengths {story.hostile}",
        codebook={route.indices[0]: f"too vague {story.hostile}"},
        severity={"c": 0.1},
    )
    verdict = Verdict(round(reward, 1), f"The answer ignores a limit. {story.hostile}")
    return Trace(rollout, reward, verdict, 1 - reward, gradients, residual=0.9 - reward)


def _rewrites(
    story: Story, draw: random.Random, index: int, parameters: Parameters
) -> tuple[Rewrite, ...]:
    found: list[Rewrite] = []
    for k in sorted(draw.sample([k for k in range(story.size) if k != 1], 2)):
        before = parameters.codebook[k].text
        after = f"{_ADVICE[(k + index) % 8]}, above all in step {index}. {story.hostile}"
        found.append(Rewrite(f"c{k}", before, after, f"- too vague {story.hostile}", kept=True))
    refused = f"near-copy of another entry: {story.hostile}"
    found.append(Rewrite("c2", "a", f"b {story.hostile}", "- g", kept=False, reason=refused))
    if index % 5 == 0:
        after = f"{parameters.encoder} Mind point {index}."
        found.append(Rewrite("encoder", parameters.encoder, after, "- mind it", kept=True))
    return tuple(found)
