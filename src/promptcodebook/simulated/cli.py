"""`pco demo`: on a small real model (`experiments/demo.py`), or the tour on the simulated one.

The tour covers several simulated worlds, so that intervals do too. The first runs before the user's
eyes, with a report. The others run beside it, each in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import emit, note, verdict_text, wrap_text
from promptcodebook.cli.settings import Plain
from promptcodebook.errors import MissingExtra, PcoError, import_part
from promptcodebook.paths import runs_dir

if TYPE_CHECKING:
    from promptcodebook.config import Config
    from promptcodebook.run.verdict import Row

_SETTINGS: dict[str, Any] = {
    "task": "constraints",
    "preset": "quick",
    "update": {"epochs": 30},
    "validation": {"every": 6, "subset": 40},
}
_WORLDS = 5
_LOADS = {"load 0 (long prompts cost nothing)": "&load=0", "default load": ""}
_TITLES = {
    "present": "zero-shot",
    "untrained": "untrained codebook",
    "concat": "all K instincts (concat)",
    "best_fixed": "best of its prompts for all",
    "learned": "trained",
}
"""What a stranger understands by a row; one that is not here is called by its name."""


def demo(
    simulated: Annotated[
        bool, typer.Option("--simulated", help="The tour on the simulated model instead.")
    ] = False,
    worlds: Annotated[
        int | None, typer.Option(min=1, help="Number of simulated worlds; 5 unless given.")
    ] = None,
    world: Annotated[
        int | None, typer.Option(help="Only the world with this seed, as raw JSON.")
    ] = None,
    plain: Plain = False,
    as_json: Annotated[bool, typer.Option("--json", help="The tables as JSON.")] = False,
) -> int | None:
    """Learn which instruction helps which message, on a small real model, in minutes.

    SmolLM2-135M runs in this process, offline; seven ways of prompting it are judged on messages
    that nothing was learned from. A stopped demo resumes where it was. Where the model is not
    installed, and with --simulated, --worlds or --world, it is a tour on the simulated model, which
    shows that the machinery works, not that the method beats another.
    """
    if world is not None:
        emit(_raw_world(world))
        return None
    if not (simulated or worlds is not None):
        from promptcodebook.cli.app import COMMAND_GROUP

        try:
            demonstrate = import_part(COMMAND_GROUP, "demo.real", "the demo", "bench")
            return demonstrate(plain=plain, as_json=as_json)
        except MissingExtra as missing:
            next_step = f"  next: {missing.hint}\nthe simulated tour instead:"
            note(f"no real model here: {missing}\n{next_step}")
    _tour(worlds or _WORLDS, plain=plain, as_json=as_json)
    return None


def _tour(worlds: int, *, plain: bool, as_json: bool) -> None:
    """The simulated tour: the first world before the user's eyes, the others beside it."""
    with Worlds(range(2, worlds + 1)) as others:
        first = {
            name: _show_first_world(extra, others.poll, plain=plain)
            for name, extra in _LOADS.items()
        }
        raw = [{n: each["rows"] for n, each in first.items()}, *others.wait()]
    tables = {name: _table([each[name] for each in raw]) for name in _LOADS}
    if as_json:
        emit({"simulated": True, "worlds": worlds, "tables": tables})
        return
    for name, rows in tables.items():
        _print_table(name, rows, worlds)
        sentence = wrap_text(f"world 1 alone: {first[name]['sentence']}", "")
        print(f"\n{sentence}\nreport: {first[name]['report']}")
    run, pco = first["default load"]["run"], _program()
    print(
        "\nAll figures above are simulated. Look closer:\n"
        f"  {pco} codebook show {run}\n"
        f'  {pco} explain {run} "Describe a rainy market in exactly 3 sentences."\n'
        f"Your own data and model: {pco} init mytask"
    )


def _print_table(name: str, rows: Sequence[Mapping[str, Any]], worlds: int) -> None:
    from promptcodebook.run.verdict import VerdictTable

    what = (
        f"simulated model, {name}: held-out test split, {worlds} worlds x "
        f"{rows[0]['n'] // worlds} examples, 95 % intervals over both"
    )
    print(f"\n{wrap_text(what, '')}\n")
    table = VerdictTable(tuple(map(_row, rows)), titles=_TITLES, head="simulated")
    print(verdict_text(table.only("reward", "gain", "calls", "tokens", "longest prompt")))


def _program() -> str:
    """How to type `pco` in this shell: `make demo` puts it where no search path leads."""
    if shutil.which("pco"):
        return "pco"
    return "python -m promptcodebook.cli" if sys.argv[0].endswith("__main__.py") else sys.argv[0]


def _config(world: int, extra: str) -> Config:
    from promptcodebook.config import load_config

    spec = f"simulated?world={world}{extra}"
    return load_config(_SETTINGS, {"lm": spec, "seed": world}, where="the demo")


def _raw_world(world: int) -> dict[str, Any]:
    """One world at both loads, its runs thrown away."""
    from promptcodebook.assemble import Sources
    from promptcodebook.run.opening import Where
    from promptcodebook.simulated.tour import tour
    from promptcodebook.tasks.constraints.task import draw_constraints

    sources = Sources(data=draw_constraints(world))
    with tempfile.TemporaryDirectory() as folder:
        where = Where(Path(folder))
        return {
            name: tour(_config(world, extra), sources, where).as_json()
            for name, extra in _LOADS.items()
        }


def _show_first_world(extra: str, poll: Callable[[], None], *, plain: bool) -> dict[str, Any]:
    """The first world under a view, kept with its report; `poll` keeps the others going."""
    from promptcodebook.assemble import Sources
    from promptcodebook.cli.live import watch_run
    from promptcodebook.cli.runs import write_run_report
    from promptcodebook.run.opening import Where
    from promptcodebook.simulated.tour import tour

    with watch_run(plain=plain) as view:

        def listener(event: Any) -> None:
            poll()
            view(event)

        made = tour(_config(1, extra), Sources(), Where(runs_dir(), command="pco demo"), listener)
    report = made.path / "report.html"
    write_run_report(made.path, report, {key: e.input for key, e in made.examples.items()})
    return {
        "run": made.run_id,
        "sentence": made.sentence,
        "report": str(report),
        "rows": made.as_json(),
    }


def _table(worlds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows over all worlds: every mean and gain with an interval over worlds and examples. Gains
    are over the first row."""
    from promptcodebook.intervals import clustered_interval

    names = list(worlds[0])
    base = [w[names[0]]["rewards"] for w in worlds]
    rows: list[dict[str, Any]] = []
    for name in names:
        rewards = [w[name]["rewards"] for w in worlds]
        gains = [
            [a - b for a, b in zip(x, y, strict=True)] for x, y in zip(rewards, base, strict=True)
        ]
        score, gain = clustered_interval(rewards), clustered_interval(gains)
        rows.append(
            {
                "name": name,
                "n": score.n,
                "score": [score.mean, score.low, score.high],
                "gain": None if name == names[0] else [gain.mean, gain.low, gain.high],
                **{
                    key: sum(w[name][key] for w in worlds) / len(worlds)
                    for key in ("calls", "tokens", "longest_prompt")
                },
            }
        )
    return rows


def _row(row: Mapping[str, Any]) -> Row:
    """A row of the tables as one of a verdict."""
    from promptcodebook.calls import Usage
    from promptcodebook.intervals import Interval
    from promptcodebook.run.verdict import Row
    from promptcodebook.types import PromptLength

    def interval(given: Sequence[float]) -> Interval:
        mean, low, high = given
        return Interval(mean, low, high, row["n"])

    score, gain = interval(row["score"]), row["gain"] and interval(row["gain"])
    used, longest = Usage(prompt_tokens=round(row["tokens"])), round(row["longest_prompt"])
    length = PromptLength(longest, longest)
    name, calls = row["name"], row["calls"]
    return Row(name, score, gain, None, 0, 0, used, calls, prompt_length=length)


@dataclass
class _Running:
    world: int
    process: subprocess.Popen[bytes]
    out: IO[bytes]


class Worlds:
    """Runs worlds side by side: one core is left to the caller while it is busy itself."""

    def __init__(self, worlds: Iterable[int]) -> None:
        self._waiting = list(worlds)
        self._running: list[_Running] = []
        self._done: dict[int, Any] = {}
        self._total = len(self._waiting)

    def __enter__(self) -> Worlds:
        self.poll()
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._running:
            running.process.kill()
            running.process.wait()
            running.out.close()

    def poll(self, spare: int = 1) -> None:
        """Collects what is done and starts what fits; `spare` cores are left alone."""
        for running in [r for r in self._running if r.process.poll() is not None]:
            self._running.remove(running)
            self._collect(running)
        while self._waiting and len(self._running) < max(1, (os.cpu_count() or 1) - spare):
            self._start(self._waiting.pop(0))

    def wait(self) -> list[dict[str, Any]]:
        """All worlds' raw rows, in order; prints on stderr how far it is."""
        printed_at, printed = 0.0, -1
        while self._waiting or self._running:
            self.poll(spare=0)
            now = time.monotonic()
            if now - printed_at > 2 and len(self._done) != printed:
                note(f"simulated worlds: {len(self._done)} of {self._total} further ones done")
                printed_at, printed = now, len(self._done)
            time.sleep(0.05)
        return [self._done[world] for world in sorted(self._done)]

    def _start(self, world: int) -> None:
        out = tempfile.TemporaryFile()  # noqa: SIM115 - closed where it is collected
        command = [sys.executable, "-m", "promptcodebook.cli", "demo", "--simulated"]
        command += ["--world", str(world)]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        self._running.append(_Running(world, process, out))

    def _collect(self, running: _Running) -> None:
        with running.out as out:
            out.seek(0)
            text = out.read()
        if running.process.returncode != 0:
            raise PcoError(
                f"the simulated world {running.world} ended with {running.process.returncode}",
                hint=f"pco demo --simulated --world {running.world} shows why",
            )
        self._done[running.world] = json.loads(text)
