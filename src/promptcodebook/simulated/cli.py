"""`pco demo`: on a small real model (`experiments/demo.py`), or the tour on the simulated one,
through several worlds, so that intervals cover worlds too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from promptcodebook.assemble import Sources
from promptcodebook.calls import Usage
from promptcodebook.cli.command import Plain, emit, note, verdict_text, wrap_text
from promptcodebook.cli.live import watch_run
from promptcodebook.cli.runs import write_run_report
from promptcodebook.config import load_config
from promptcodebook.errors import MissingExtra, PcoError, import_part
from promptcodebook.intervals import SIDE, Interval
from promptcodebook.lm.spec import parse_spec
from promptcodebook.optimizers.base import Problem, evaluate
from promptcodebook.optimizers.fixed import OraclePrompt
from promptcodebook.paths import runs_dir
from promptcodebook.progress import Listener, silent
from promptcodebook.randomness import keyed_random
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.verdict import Row, VerdictTable
from promptcodebook.simulated.model import simulated_model
from promptcodebook.simulated.world import oracle_prompt
from promptcodebook.sync import run_sync
from promptcodebook.tasks.constraints.task import draw_constraints
from promptcodebook.types import Example, PromptLength

_SETTINGS: dict[str, Any] = {
    "task": "constraints",
    "preset": "quick",
    "update": {"epochs": 30},
    "validation": {"every": 6, "subset": 40},
}
_LOADS = {"load 0 (long prompts cost nothing)": "&load=0", "default load": ""}
_WORLDS = 5
RESAMPLES = 2000
_TITLES = {
    **{"present": "zero-shot", "untrained": "untrained codebook", "learned": "trained"},
    **{"concat": "all K instincts (concat)", "best_fixed": "best of its prompts for all"},
}
"""What a stranger understands by a row; one that is not here is called by its name."""


def demo(
    simulated: bool = typer.Option(
        False, "--simulated", help="The tour on the simulated model instead."
    ),
    worlds: int | None = typer.Option(
        None, min=1, help="Number of simulated worlds; 5 unless given."
    ),
    world: int | None = typer.Option(None, help="Only the world with this seed, as raw JSON."),
    plain: Plain = False,
    as_json: bool = typer.Option(False, "--json", help="The tables as JSON."),
) -> int | None:
    """Learn which instruction helps which message, on a small real model, in minutes.

    SmolLM2-135M runs in this process, offline; seven ways of prompting it are judged on messages
    that nothing was learned from. A stopped demo resumes where it was. Where the model is not
    installed, and with --simulated, --worlds or --world, it is a tour on the simulated model, which
    shows that the machinery works, not that the method beats another."""
    if world is None and not simulated and worlds is None:
        from promptcodebook.cli.app import COMMAND_GROUP  # which looks for this file

        try:
            demonstrate = import_part(COMMAND_GROUP, "demo.real", "the demo", "bench")
            return demonstrate(plain=plain, as_json=as_json)
        except MissingExtra as missing:
            next_step = f"  next: {missing.hint}\nthe simulated tour instead:"
            note(f"no real model here: {missing}\n{next_step}")
    if world is not None:
        # At both loads, its runs thrown away.
        sources = Sources(data=draw_constraints(world))
        with tempfile.TemporaryDirectory() as folder:
            where = Where(Path(folder))
            judged = {n: _judge(world, load, sources, where, silent) for n, load in _LOADS.items()}
        emit({name: each.rows for name, each in judged.items()})
    else:
        _show_tour(worlds or _WORLDS, plain=plain, as_json=as_json)
    return None


@dataclass(frozen=True)
class _Judged:
    run_id: str
    path: Path
    sentence: str
    rows: Mapping[str, Mapping[str, Any]]
    examples: Mapping[str, Example]


def _judge(world: int, load: str, sources: Sources, where: Where, view: Listener) -> _Judged:
    spec = f"simulated?world={world}{load}"
    config = load_config(_SETTINGS, {"lm": spec, "seed": world}, where="the demo")
    opened = open_run(config, sources, where, view)
    assembled, store = opened.assembled, opened.store

    async def judged() -> _Judged:
        try:
            await opened.run()
            if opened.stop is not None:
                raise opened.stop
            # The oracle is an upper bound: it knows the world's hidden skills.
            plan = assembled.plan
            known = simulated_model(config.task, plan.dataset, parse_spec(config.lm)).world
            prompts = OraclePrompt(partial(oracle_prompt, known), "")
            problem = Problem(assembled, store, view)
            oracle = await evaluate(problem, "oracle", prompts, plan.judged, "judging oracle")
        finally:
            await assembled.models.close()
        rows = {
            row.name: {
                "rewards": row.rewards,
                "calls": row.usage.calls / len(row.rollouts),
                "tokens": row.usage.tokens / len(row.rollouts),
                "longest_prompt": row.prompt_length.longest if row.prompt_length else 0,
            }
            for row in (*store.test_evaluations(), oracle)
        }
        concluded = store.outline().conclusion
        assert concluded is not None, "a run that was not stopped has concluded"
        examples = {e.id: e for _, split in assembled.dataset.items() for e in split}
        return _Judged(store.header.id, store.path, concluded.text, rows, examples)

    try:
        return run_sync(judged(), opened.interrupt)
    finally:
        store.close()


def _show_tour(worlds: int, *, plain: bool, as_json: bool) -> None:
    with _beside(range(2, worlds + 1)) as others:
        first: dict[str, _Judged] = {}
        for name, load in _LOADS.items():
            where = Where(runs_dir(), command="pco demo")
            with watch_run(plain=plain) as view:
                first[name] = made = _judge(1, load, Sources(), where, view)
            write_run_report(made.path, made.path / "report.html", made.examples)
        raw = [{name: each.rows for name, each in first.items()}, *others()]
    tables = {name: _table([each[name] for each in raw]) for name in _LOADS}
    if as_json:
        emit({"simulated": True, "worlds": worlds, "tables": tables})
        return
    for name, rows in tables.items():
        _print_table(name, rows, worlds)
        sentence = wrap_text(f"world 1 alone: {first[name].sentence}", "")
        print(f"\n{sentence}\nreport: {first[name].path / 'report.html'}")
    run, pco = first["default load"].run_id, "pco"
    if not shutil.which("pco"):  # `make demo` puts it where no search path leads
        as_module = sys.argv[0].endswith("__main__.py")
        pco = "python -m promptcodebook.cli" if as_module else sys.argv[0]
    print(
        "\nAll figures above are simulated. Look closer:\n"
        f"  {pco} codebook show {run}\n"
        f'  {pco} explain {run} "Describe a rainy market in exactly 3 sentences."\n'
        f"Your own data and model: {pco} init mytask"
    )


def _table(worlds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    first, *_ = worlds[0]
    rows: list[dict[str, Any]] = []
    for name in worlds[0]:
        made = [world[name] for world in worlds]
        pairs = [zip(w[name]["rewards"], w[first]["rewards"], strict=True) for w in worlds]
        score = clustered_interval([each["rewards"] for each in made])
        gain = clustered_interval([[a - b for a, b in pair] for pair in pairs])
        row: dict[str, Any] = {"name": name, "n": score.n}
        row["score"] = [score.mean, score.low, score.high]
        row["gain"] = None if name == first else [gain.mean, gain.low, gain.high]
        for key in ("calls", "tokens", "longest_prompt"):
            row[key] = sum(each[key] for each in made) / len(worlds)
        rows.append(row)
    return rows


def clustered_interval(groups: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """The mean over groups (worlds, runs) of equal weight, which covers another draw of groups as
    well: groups are drawn with replacement, then values within each."""
    if not groups or not all(groups):
        raise ValueError("no values to take an interval of")
    draw = keyed_random(seed, "clustered", len(groups))

    def resampled() -> float:
        chosen = draw.choices(groups, k=len(groups))
        return sum(sum(draw.choices(g, k=len(g))) / len(g) for g in chosen) / len(groups)

    mean = sum(sum(g) / len(g) for g in groups) / len(groups)
    means = sorted(resampled() for _ in range(RESAMPLES))
    low, high = means[int(SIDE * RESAMPLES)], means[int((1 - SIDE) * RESAMPLES) - 1]
    return Interval(mean, low, high, sum(map(len, groups)))


def _print_table(name: str, rows: Sequence[Mapping[str, Any]], worlds: int) -> None:
    what = (
        f"simulated model, {name}: held-out test split, {worlds} worlds x "
        f"{rows[0]['n'] // worlds} examples, 95 % intervals over both"
    )
    print(f"\n{wrap_text(what, '')}\n")
    shown: list[Row] = []
    for row in rows:
        score, gain = (
            row[key] and Interval(row[key][0], row[key][1], row[key][2], row["n"])
            for key in ("score", "gain")
        )
        used, longest = Usage(prompt_tokens=round(row["tokens"])), round(row["longest_prompt"])
        length = PromptLength(longest, longest)
        calls = row["calls"]
        shown.append(Row(row["name"], score, gain, None, 0, 0, used, calls, prompt_length=length))
    table = VerdictTable(shown, titles=_TITLES, head="simulated")
    print(verdict_text(table.only("reward", "gain", "calls", "tokens", "longest prompt")))


@contextmanager
def _beside(worlds: Sequence[int]) -> Generator[Callable[[], list[dict[str, Any]]]]:
    """Runs worlds side by side; gives a function that waits for their raw rows, in order."""
    processes: list[subprocess.Popen[bytes]] = []

    def raw(world: int) -> dict[str, Any]:
        command = [sys.executable, "-m", "promptcodebook.cli", "demo", "--simulated"]
        command += ["--world", str(world)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        processes.append(process)
        out, _ = process.communicate()
        if process.returncode != 0:
            said = f"the simulated world {world} ended with {process.returncode}"
            raise PcoError(said, hint=f"pco demo --simulated --world {world} shows why")
        return json.loads(out)

    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    results = [pool.submit(raw, world) for world in worlds]

    def wait() -> list[dict[str, Any]]:
        for done, _ in enumerate(as_completed(results), start=1):
            note(f"simulated worlds: {done} of {len(results)} further ones done")
        return [each.result() for each in results]

    try:
        yield wait
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
