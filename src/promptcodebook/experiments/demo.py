"""What `pco demo` shows on SmolLM2: a run on six house rules, its rows, three replies.

Nothing here is simulated: all figures come from the run that was just made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcodebook.cli.command import emit, note, verdict_text, wrap_text
from promptcodebook.errors import MissingExtra, require_modules
from promptcodebook.paths import runs_dir
from promptcodebook.text import shorten
from promptcodebook.units import number

if TYPE_CHECKING:
    from promptcodebook.assemble import Sources
    from promptcodebook.config import Config
    from promptcodebook.run.optimize import Run
    from promptcodebook.run.verdict import Row
    from promptcodebook.types import Example, Rollout

NAME = "demo"
"""The runs' name, by which `pco report demo` finds the latest."""
MODEL = "smollm2"
_STEPS = 10
"""Of training: batches of at most 32, two looks at each message."""
_BATCH = 32
_JUDGED = 48
"""Held-out messages; all rows are judged on the same."""
_COMPARED = 20
"""Validation messages on which the best single instinct is chosen."""
_REPLY = 48
"""New tokens of a reply at most: the right rule alone is kept as often as at 64, in 0.98 of 48
training messages (0.96 at 40 tokens, 0.85 at 32)."""
_SHOWN = 3
_LONGEST = 400
"""Characters of a reply that are shown."""
_TITLES: Mapping[str, str] = {
    "none": "no instructions",
    "present": "the present prompt",
    "best_single": "best single instinct",
    "concat": "all instincts in one prompt",
    "untrained": "the untrained codebook",
    "learned": "learned: one for each message",
    "oracle": "the right rules (oracle)",
}
"""The rows in the order they are shown: all that the verdict may name, and the references."""
_FIGURES = ("reward", "gain", "calls", "tokens", "seconds")


def demo_config() -> Config:
    """The demo's run: the present prompt taken apart, and routes over its sentences."""
    from promptcodebook.config import load_config
    from promptcodebook.tasks.houserules.task import SIX, present_prompt
    from promptcodebook.text import sentences_of

    prompt = present_prompt(SIX)
    settings: dict[str, Any] = {
        "task": "houserules_six",
        "preset": "small",
        "lm": MODEL,
        "size": len(sentences_of(prompt)),
        "init": {"kind": "from_prompt", "prompt": prompt},
        "roles": {"executor": {"temperature": 0.0, "max_tokens": _REPLY}},
        "update": {"epochs": _STEPS, "batch_size": _BATCH},
        "validation": {"subset": _COMPARED},
        "verdict_examples": _JUDGED,
    }
    return load_config(settings, where="the demo")


def missing_model() -> MissingExtra | None:
    """Why the demo cannot run here, with what to type for it in its hint; None where it can."""
    from promptcodebook.local.engine import require_model

    try:
        require_model(MODEL)
        require_modules(("numpy", "threadpoolctl"), "learning routes from outcomes", "router")
    except MissingExtra as error:
        return error
    return None


def demonstrate(*, plain: bool, as_json: bool) -> int:
    """The demo on the model of this machine; its exit code. MissingExtra where it cannot run."""
    from promptcodebook.assemble import Sources

    if (missing := missing_model()) is not None:
        raise missing
    return show(demo_config(), Sources(), plain=plain, as_json=as_json)


def show(config: Config, sources: Sources, *, plain: bool, as_json: bool) -> int:
    """Runs a demo, or resumes one of these settings that was stopped, and prints the result."""
    from promptcodebook.assemble import plan_run
    from promptcodebook.cli.live import watch_run
    from promptcodebook.cli.runs import write_run_report
    from promptcodebook.run.opening import Where, open_run
    from promptcodebook.run.optimize import finish, fitting_runs
    from promptcodebook.sync import run_sync

    about = Path(__file__).with_name("demo.txt").read_text("utf-8")
    note(wrap_text(" ".join(about.split()), "") + "\n")
    plan = plan_run(config, sources)
    stopped = [r for r in fitting_runs(runs_dir(), plan) if r.name == NAME and r.resumable]
    where = Where(runs_dir(), stopped[-1].path if stopped else None, "pco demo", NAME)
    with watch_run(plain=plain) as view:
        opened = open_run(config, sources, where, view)
        run = run_sync(finish(opened), opened.interrupt)
    if run.stop is not None:
        note(f"pco: stopped: {run.stop}\n  next: pco demo resumes it")
        return run.stop.exit_code
    report = run.path / "report.html"
    inputs = {e.id: e.input for _, split in plan.dataset.items() for e in split}
    write_run_report(run.path, report, inputs)
    samples = _samples(run, {example.id: example for example in plan.dataset.test})
    if as_json:
        emit(_as_json(run, report, samples))
    else:
        print(_as_text(run, report, samples))
    return 0


@dataclass(frozen=True, slots=True)
class _Sample:
    """One message, and what became of it with the present prompt and with the learned route."""

    message: str
    route: tuple[str, ...]
    present: Rollout
    learned: Rollout


def _samples(run: Run, examples: Mapping[str, Example]) -> list[_Sample]:
    """A few judged messages, drawn by id and not by outcome."""
    from promptcodebook.data import sample
    from promptcodebook.store.run import RunStore

    with closing(RunStore.open(run.path)) as store:
        rows = {evaluation.name: evaluation for evaluation in store.test_evaluations()}
    if not {"present", "learned"} <= rows.keys():
        return []
    before, after = (
        {rollout.example_id: rollout for rollout in rows[name].rollouts}
        for name in ("present", "learned")
    )
    routes = {id: rollout.route.indices for id, rollout in after.items() if rollout.route}
    texts = run.policy.codebook.texts
    return [
        _Sample(e.input, tuple(texts[k] for k in routes.get(e.id, ())), before[e.id], after[e.id])
        for e in sample([examples[name] for name in after], _SHOWN)
    ]


def _rows(run: Run) -> list[Row]:
    return [run.rows[name] for name in _TITLES if name in run.rows]


def _as_text(run: Run, report: Path, samples: Sequence[_Sample]) -> str:
    from promptcodebook.run.verdict import VerdictTable

    def reply(rollout: Rollout) -> str:
        reward = number(rollout.reward, missing="failed")
        return f"[{reward}] {shorten(rollout.output, _LONGEST)}"

    told: list[str] = []
    for each in samples:
        lines = {
            "message": each.message,
            "present": reply(each.present),
            "route": " ".join(each.route) or "(nothing: the message goes without instructions)",
            "learned": reply(each.learned),
        }
        told.append("\n".join(wrap_text(text, f"{name:<10}") for name, text in lines.items()))
    rows = _rows(run)
    parts = [
        wrap_text(
            f"SmolLM2-135M-Instruct, {rows[0].score.n if rows else 0} held-out messages, greedy, "
            "with 95 % intervals; gains are over the present prompt:",
            "",
        ),
        verdict_text(
            VerdictTable(rows, titles=_TITLES).only(*_FIGURES),
            "per message (seconds: of a reply while up to 32 are written at once):",
        ),
        wrap_text(run.verdict, ""),
        f"{len(samples)} of these messages, drawn before any reply was seen ([reward] reply, cut):",
        *told,
        f"report: {report}\n"
        "Look closer:\n"
        f"  pco codebook show {NAME}\n"
        f'  pco explain {NAME} "My parcel is two weeks late."\n'
        "  pco reproduce small-real-model\n"
        "The tour of everything else, simulated: pco demo --simulated\n"
        "Your own data and model: pco init mytask",
    ]
    return "\n\n".join(parts)


def _as_json(run: Run, report: Path, samples: Sequence[_Sample]) -> dict[str, Any]:
    from promptcodebook.experiments.lab import read_training

    def reply(each: Rollout) -> dict[str, Any]:
        return {"reply": each.output, "reward": each.reward, "feedback": each.feedback}

    told = [
        {
            "message": each.message,
            "route": list(each.route),
            "present": reply(each.present),
            "learned": reply(each.learned),
        }
        for each in samples
    ]
    return {
        "simulated": False,
        "model": MODEL,
        "run": run.id,
        "path": str(run.path),
        "report": str(report),
        "training_rollouts": read_training(run.path).rollouts,
        "rows": [asdict(row) for row in _rows(run)],
        "verdict": run.verdict,
        "worth": run.worth,
        "deploy": run.deploy,
        "samples": told,
    }
