"""What `pco demo` shows on SmolLM2: a run on six house rules, its rows, three replies; and a short
run in which the same model criticises and rewrites. Nothing here is simulated: all figures come
from the runs that were just made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from promptcodebook.assemble import Sources, plan_run
from promptcodebook.base.paths import runs_dir
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import sentences_of, shorten
from promptcodebook.base.units import number
from promptcodebook.cli.command import emit, headline_text, note, verdict_text, wrap_text
from promptcodebook.config import Config, load_config
from promptcodebook.data import Dataset, sample
from promptcodebook.errors import MissingExtra, require_modules
from promptcodebook.models.local.engine import require_model
from promptcodebook.models.local.lm import LocalModels
from promptcodebook.paper.experiments.lab import fitting_runs, read_training
from promptcodebook.paper.experiments.page import read_table
from promptcodebook.paper.experiments.what_learns import one_topic
from promptcodebook.paper.tasks.houserules.task import SIX, present_prompt
from promptcodebook.progress import watch_run
from promptcodebook.report.page import write_report
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import Run, finish
from promptcodebook.run.verdict import VerdictRow, VerdictTable
from promptcodebook.store.run import RunStore
from promptcodebook.types import Example, Rollout

# A message, its route, and what became of it with the present prompt and with that route.
_Sample = tuple[str, list[str], Rollout, Rollout]
NAME = "demo"  # the runs' name, by which `pco report demo` finds the latest
REWRITE = "demo-rewrite"
MODEL = "smollm2"
_SHOWN = 3
_SAMPLE = ("message", "present", "route", "learned")  # in the order in which they are shown
_LONGEST = 400  # characters of a reply that are shown
_FIGURES = ("reward", "gain", "calls", "tokens", "seconds")


def demo_config() -> Config:
    """The demo's run: the present prompt taken apart, and routes over its sentences."""
    prompt = present_prompt(SIX)
    init = {"kind": "from_prompt", "prompt": prompt}
    own = {"lm": MODEL, "size": len(sentences_of(prompt)), "init": init}
    return load_config({**read_table("demo")["run"], **own}, where="the demo")


def rewrite_config() -> Config:
    """The second run: messages of one topic, and two instincts that order nothing."""
    return load_config({**read_table("demo")["rewrite"], "lm": MODEL}, where="the demo")


def _rewrite_data() -> Dataset:
    train, test = read_table("demo")["rewrite_messages"]
    return one_topic(train, 0, test, topics=SIX[:1])


def missing_model() -> MissingExtra | None:
    """Why the demo cannot run here, with what to type for it in its hint; None where it can."""
    try:
        require_model(MODEL)
        require_modules(("numpy", "threadpoolctl"), "learning routes from outcomes", "router")
        return None
    except MissingExtra as error:
        return error


def demonstrate(*, plain: bool, as_json: bool) -> int:
    """Run the demo on the model of this machine and return its exit code. Raises MissingExtra when
    it cannot run."""
    if (missing := missing_model()) is not None:
        raise missing
    models = LocalModels()  # loaded once for both runs
    config, second, sources = demo_config(), rewrite_config(), Sources(local=models)
    try:
        return show(config, sources, plain=plain, as_json=as_json, second=second)
    finally:
        run_sync(models.close())


def show(
    config: Config, sources: Sources, *, plain: bool, as_json: bool, second: Config | None = None
) -> int:
    """Runs a demo, or resumes one of these settings that was stopped, and prints the result. The
    `second` run is the one that rewrites; None = it is left out."""
    note(wrap_text(" ".join(read_table("demo")["about"].split()), "") + "\n")
    plan, runs = plan_run(config, sources), list[Run]()
    parts = [(NAME, config, sources)]
    if second is not None:
        parts.append((REWRITE, second, replace(sources, data=_rewrite_data())))
    for name, settings, own in parts:
        found = fitting_runs(runs_dir(), plan_run(settings, own))
        stopped = [each.path for each in found if each.name == name and each.resumable]
        where = Where(runs_dir(), stopped[-1] if stopped else None, "pco demo", name)
        with watch_run(plain=plain) as view:
            opened = open_run(settings, own, where, view)
            run = run_sync(finish(opened), opened.interrupt)
        if run.stop is not None:
            note(f"pco: stopped: {run.stop}\n  next: pco demo resumes it")
            return run.stop.exit_code
        runs.append(run)
    run, rewrite = runs[0], _rewrite(runs[1]) if second is not None else None
    report = run.path / "report.html"
    examples = {e.id: e for _, split in plan.dataset.items() for e in split}
    with closing(RunStore.open(run.path)) as store:
        write_report(store, report, examples)
    samples = _samples(run, {example.id: example for example in plan.dataset.test})
    if as_json:
        emit({**_as_json(run, report, samples), "rewrite": rewrite})
    else:
        print(_as_text(run, report, samples, rewrite))
    return 0


def _rewrite(run: Run) -> dict[str, Any]:
    """The first rewrite of an instinct that stayed, and the rewards before and after the run."""
    with closing(RunStore.open(run.path)) as store:
        learned = set(run.policy.codebook.texts)
        kept = [
            each
            for step in store.steps()
            for each in step.rewrites
            if each.kept and isinstance(each.variable, int) and each.after in learned
        ]
    scores = {name: run.rows[name].score for name in ("untrained", "learned") if name in run.rows}
    shown = {"run": run.id, "n": scores["learned"].n if "learned" in scores else 0}
    shown |= {name: number(score.mean) for name, score in scores.items()}
    if not kept:
        return shown
    first = kept[0]
    said = first.gradient.partition("\n")[0].removeprefix("- ")
    return {**shown, "before": first.before, "critic": said, "after": first.after}


def _samples(run: Run, examples: Mapping[str, Example]) -> list[_Sample]:
    with closing(RunStore.open(run.path)) as store:
        judged = store.test_evaluations()
        rows = {row.name: {r.example_id: r for r in row.rollouts} for row in judged}
    if not {"present", "learned"} <= rows.keys():
        return []
    before, after = rows["present"], rows["learned"]
    routes = {id: rollout.route.indices for id, rollout in after.items() if rollout.route}
    texts = run.policy.codebook.texts
    drawn = sample([examples[name] for name in after], None)
    # One that it helped and one that it did not, so that the three are never all of a kind.
    helped = [e for e in drawn if (after[e.id].reward or 0.0) > (before[e.id].reward or 0.0)]
    others = [e for e in drawn if e not in helped]
    chosen = [*helped[:1], *others[:1], *helped[1:], *others[1:]][:_SHOWN]
    return [
        (e.input, [texts[k] for k in routes.get(e.id, ())], before[e.id], after[e.id])
        for e in chosen
    ]


def _rows(run: Run) -> list[VerdictRow]:
    return [run.rows[name] for name in read_table("demo")["titles"] if name in run.rows]


def _as_text(
    run: Run, report: Path, samples: Sequence[_Sample], rewrite: Mapping[str, Any] | None
) -> str:
    def reply(rollout: Rollout) -> str:
        reward = number(rollout.reward, missing="failed")
        return f"[{reward}] {shorten(rollout.output, _LONGEST)}"

    told: list[str] = []
    for message, route, present, learned in samples:
        sent = " ".join(route) or "(nothing: the message is sent without instructions)"
        texts = [message, reply(present), sent, reply(learned)]
        lines = [wrap_text(text, f"{name:<10}") for name, text in zip(_SAMPLE, texts, strict=True)]
        told.append("\n".join(lines))
    rows, page = _rows(run), read_table("demo")
    table = VerdictTable(rows, titles=page["titles"]).only(*_FIGURES)
    parts = [
        wrap_text(page["head"].format(n=rows[0].score.n if rows else 0), ""),
        verdict_text(table, page["figures"]),
        wrap_text(run.verdict, ""),
        page["drawn"].format(n=len(samples)),
        *told,
        *([] if rewrite is None else _rewrite_lines(rewrite)),
        *([headline_text(run.conclusion.headline(NAME))] if run.conclusion else []),
        page["rest"].format(report=report),
    ]
    return "\n\n".join(parts)


def _rewrite_lines(shown: Mapping[str, Any]) -> list[str]:
    page = read_table("demo")
    if "after" not in shown:
        return [wrap_text(page["unwritten"], "")]
    lines = [wrap_text(shown[name], f"{name:<10}") for name in ("before", "critic", "after")]
    return [page["rewritten"], "\n".join(lines), wrap_text(page["brought"].format(**shown), "")]


def _as_json(run: Run, report: Path, samples: Sequence[_Sample]) -> dict[str, Any]:
    def reply(each: Rollout) -> dict[str, Any]:
        return {"reply": each.output, "reward": each.reward, "feedback": each.feedback}

    return {
        "simulated": False,
        "model": MODEL,
        "run": run.id,
        "path": str(run.path),
        "report": str(report),
        "training_rollouts": read_training(run.path)["rollouts"],
        "rows": [asdict(row) for row in _rows(run)],
        "headline": asdict(run.conclusion.headline(run.id)) if run.conclusion else None,
        "verdict": run.verdict,
        "worth": run.worth,
        "deploy": run.deploy,
        "samples": [
            dict(zip(_SAMPLE, (message, reply(present), route, reply(learned)), strict=True))
            for message, route, present, learned in samples
        ],
    }
