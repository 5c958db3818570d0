"""A run written by hand: steps, validations and a verdict with known figures and hostile texts."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from promptcodebook.base.randomness import keyed_random
from promptcodebook.calls import Usage
from promptcodebook.config import Config
from promptcodebook.run.decision import JudgingTerms, RowSource, conclude
from promptcodebook.store.events import (
    Compared,
    Concluded,
    Ended,
    Event,
    Started,
    Stepped,
    Validated,
)
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.types import (
    Codebook,
    Critique,
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
    Turn,
)

PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAADAAAAAgAQMAAABuGmlfAAAABlBMVEUgYLDQ"
    "4PBIwbHuAAAAD0lEQVR42mPgBwOG4UoBAO0cC0EawAgLAAAAAElFTkSuQmCC"
)
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


_ROWS = (
    ("present", "the present prompt", 0.4),
    ("concat", "one prompt with all its instincts (concat)", 0.5),
    ("best_fixed", "the best of its prompts, used for all inputs (best_fixed)", 0.55),
    ("untrained", "the first codebook, untrained", 0.45),
    ("learned", "the learned policy", 0.7),
)


@dataclass(frozen=True)
class ScriptedRun:
    """How long and how large the run is; `rows` of the verdict are name, title and score."""

    steps: int = 30
    size: int = 16
    select: int = 4
    batch: int = 6
    simulated: bool = True
    verdict: bool = True
    config: dict[str, Any] = field(default_factory=lambda: dict[str, Any]())
    hostile: str = HOSTILE
    private: bool = False
    task: str = "constraints"
    rows: tuple[tuple[str, str, float], ...] = _ROWS
    lost: Usage = Usage()


def write_run(
    runs: Path,
    run: ScriptedRun | None = None,
    events: Iterable[Event] | None = None,
    **header: Any,
) -> RunStore:
    """The run's store, open for writing; with these events and fields of its header, where given
    ones differ from the script's."""
    run = run or ScriptedRun()
    lm = "simulated?load=0.2" if run.simulated else "http://user:hush@localhost:8000/v1#m"
    config = Config(size=run.size, select=run.select, seed=3).model_dump(mode="json")
    config["lm"] = lm
    config["critic"]["safety"] = False  # its hostile texts are there to be shown
    config["roles"]["critic"]["headers"] = {"Authorization": "Bearer hush"}
    fields: dict[str, Any] = {"task": run.task, "command": "pco train", "private": run.private}
    fields |= {"config": config | run.config}
    fields |= {"fingerprints": {"train": "ab" * 32, "test": "cd" * 32}, **header}
    store = RunStore.create(runs, Header("", "2026-01-31T15:45:02+00:00", "0.1.0", **fields))
    for event in events_of(run) if events is None else events:
        store.append(event)
    for role, calls in (("encoder", 90), ("executor", 300), ("critic", 120)):
        cost = None if role == "critic" else 0.01 * calls
        usage = Usage(calls, calls * 400, calls * 90, calls * 300, cost, calls)
        store.journal.attempts.end(store.journal.attempts.begin(role, usage), role, usage, False)
    if run.lost.calls:
        log = store.journal.attempts
        log.end(log.begin("executor", run.lost), "executor", run.lost, True)
    for name, n in (("rate_limited", 7), ("repaired", 4), ("reasked", 2), ("strange_thing", 1)):
        store.count(name, n)
    store.flush()
    return store


def events_of(run: ScriptedRun) -> Iterator[Event]:
    """What happens in the run, from its first codebook on."""
    draw = keyed_random("story", run.steps, run.size)
    instincts = tuple(Instinct(f"{_ADVICE[k % 8]}.", frozen=k == 1) for k in range(run.size))
    texts = "Choose what the input needs.", "Write two sentences."
    parameters = Parameters(*texts, Codebook(instincts), "Judge it strictly.")
    yield Started(parameters, "expert")
    selected = [0] * run.size
    for index in range(run.steps):
        if index % 10 == 0:
            yield Validated(index - 1, "subset", _evaluation("val", "val", 0.4 + 0.01 * index, 20))
        step = _step(run, draw, index, parameters, selected)
        parameters, selected = step.parameters, list(step.selected)
        yield Stepped(step)
    if run.verdict:
        yield from _end(run)


def _end(run: ScriptedRun) -> Iterator[Event]:
    last = (run.steps - 1) // 10 * 10 - 1
    yield Validated(last, "full", _evaluation("val", "val", 0.66, 40))
    entries = [
        RowSource(title, _evaluation(name, "test", score, 60)) for name, title, score in run.rows
    ]
    for entry in entries:
        yield Compared(entry.evaluation)
    conclusion = conclude(entries, JudgingTerms(simulated=run.simulated))
    rows = conclusion.table.as_json()
    yield Concluded(conclusion.sentence, conclusion.worth, rows, conclusion.deploy)
    yield Ended("finished")


def _evaluation(name: str, split: str, score: float, n: int) -> Evaluation:
    route = Route((0,)) if name in ("untrained", "learned") else None
    rollouts = tuple(
        Rollout(
            f"{split}-{i}",
            route,
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
    run: ScriptedRun, draw: random.Random, index: int, parameters: Parameters, selected: list[int]
) -> Step:
    epsilon, counts = max(0.15, 0.94**index), list(selected)
    traces = [_trace(run, draw, (index, place), epsilon) for place in range(run.batch)]
    for trace in traces:
        if trace.unit is not None and trace.rollout.route is not None:
            for k in trace.rollout.route.indices:
                counts[k] += 1
    rewrites = _rewrites(run, draw, index, parameters)
    codebook, encoder = parameters.codebook, parameters.encoder
    for rewrite in rewrites:
        if rewrite.kept and rewrite.variable == "encoder":
            encoder = rewrite.after
        elif rewrite.kept and isinstance(rewrite.variable, int):
            codebook = codebook.reword(rewrite.variable, rewrite.after)
    rates = tuple(min(1.0, 0.2 + 0.02 * index + 0.01 * k) for k in range(run.size))
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


def _trace(run: ScriptedRun, draw: random.Random, at: tuple[int, int], epsilon: float) -> Trace:
    index, place = at
    explored = draw.random() < epsilon
    # The encoder comes to prefer the first entries; exploration takes any.
    pool = range(run.size) if explored else range(min(run.size, run.select + 3))
    route = Route(
        tuple(sorted(draw.sample(pool, run.select))),
        explored=explored,
        constraints=("at most 50 words",),
        analysis=f"because {run.hostile}",
    )
    name = f"train-{index}-{place}"
    if draw.random() < 0.04:
        failure = Failure("execute", "ServerFault", f"answered 500 {run.hostile}", "Traceback: x")
        return Trace(Rollout(name, route=route, prompt="p", failure=failure))
    reward = round(min(1.0, draw.random() * 0.6 + 0.4 * (index + 1) / run.steps), 2)
    rollout = Rollout(
        name,
        route=route,
        prompt=f"Be brief. {run.hostile}",
        output=f"Some answer {run.hostile}",
        fields={"label": run.hostile},
        stages=(
            Stage("search", "query", f"found {run.hostile}"),
            Stage("agent", "what people see is below", "it is", _turns(run.hostile)),
        ),
        reward=reward,
        feedback=f"missed a constraint {run.hostile}",
        truncated=place == 0,
        usage=Usage(3, 900, 140, 600, None, 1.2),
    )
    gradients = Gradients(
        encoder=f"look at lengths {run.hostile}",
        codebook={route.indices[0]: f"too vague {run.hostile}"},
        severity={"codebook": 0.1, **({"critic": 0.0} if place else {})},
    )
    verdict = Critique(round(reward, 1), f"The answer ignores a limit. {run.hostile}")
    return Trace(rollout, reward, verdict, 1 - reward, gradients, residual=0.9 - reward)


def _turns(hostile: str) -> tuple[Turn, ...]:
    """What an agent was asked and said: long words, images that are shown and are not."""
    arguments = f'{{"order": "{"4711-" * 30}", "why": "{hostile}"}}'
    return (
        Turn("user", f"What is in these pictures? {hostile}"),
        Turn("image", f"data:image/png;base64,{PICTURE}", f"image/png 90 B, sha256 0 {hostile}"),
        Turn("image", f"https://a.b/{'c' * 150}.png{hostile}"),
        Turn("image", "", "image/jpeg 2.1 MB, sha256 0123456789ab"),
        Turn("assistant", f"data:image/png;base64,{PICTURE}"),
        Turn("tool call", arguments, f"look_up_{'orders_' * 20}{hostile}"),
        Turn("tool result", f"It is late. {hostile}", "look_up"),
        Turn("assistant", f"A blue square. {hostile}"),
    )


def _rewrites(
    run: ScriptedRun, draw: random.Random, index: int, parameters: Parameters
) -> tuple[Rewrite, ...]:
    rewrites: list[Rewrite] = []
    for k in sorted(draw.sample([k for k in range(run.size) if k != 1], 2)):
        before = parameters.codebook[k].text
        after = f"{_ADVICE[(k + index) % 8]}, above all in step {index}. {run.hostile}"
        rewrites.append(Rewrite(k, before, after, f"- too vague {run.hostile}", kept=True))
    refused = f"near-copy of another entry: {run.hostile}"
    rewrites.append(Rewrite(2, "a", f"b {run.hostile}", "- g", kept=False, reason=refused))
    if index % 5 == 0:
        after = f"{parameters.encoder} Mind point {index}."
        rewrites.append(Rewrite("encoder", parameters.encoder, after, "- mind it", kept=True))
    return tuple(rewrites)
