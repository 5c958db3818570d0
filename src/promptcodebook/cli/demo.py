"""`pco demo`: the offline tour. Trains on the shipped task with the simulated model, twice: where
long prompts cost nothing (dilution 0) and at the default, and shows five ways of prompting."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from promptcodebook.cli.console import columns, emit, note

app = typer.Typer(rich_markup_mode=None)

_SETTINGS: dict[str, Any] = {
    "task": "constraints",
    "preset": "quick",
    "update": {"epochs": 30},
    "validation": {"every": 6, "subset": 40},
}


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The tables as JSON.")] = False,
) -> None:
    """Train, evaluate and report on the simulated model, offline, in under a minute.

    Everything it prints is simulated: it shows that the machinery works, not that the method beats
    another on real models.
    """
    found = {name: _tour(spec, seed, plain) for name, spec in _WORLDS.items()}
    if as_json:
        emit({name: {"simulated": True, **each} for name, each in found.items()})
        return
    for name, each in found.items():
        print(f"\nsimulated model, {name}; held-out test split, n = {each['n']}, 95 % intervals:\n")
        print(columns([_cells(row) for row in each["rows"]]))
        print(f"\n{each['verdict']}\nrun {each['run']}   report {each['report']}")
    last = list(found.values())[-1]
    print(
        "\nAll figures above are simulated. Look closer:\n"
        f"  pco codebook show {last['run']}\n"
        f'  pco explain {last["run"]} "Describe a rainy market in exactly 3 sentences."\n'
        "Your own data and model: pco init mytask"
    )


_WORLDS = {
    "dilution 0 (long prompts cost nothing)": "simulated?dilution=0",
    "default dilution": "simulated",
}


def _tour(spec: str, seed: int, plain: bool) -> dict[str, Any]:
    """One run with its five rows, its report written beside it."""
    from promptcodebook.cli.settings import runs_dir
    from promptcodebook.cli.view import make_view
    from promptcodebook.config import load_config
    from promptcodebook.report import write_report
    from promptcodebook.session.opening import Where, open_run
    from promptcodebook.session.oracle import oracle_row
    from promptcodebook.session.sources import Sources
    from promptcodebook.session.sync import run_sync
    from promptcodebook.session.verdict import row_of

    config = load_config(_SETTINGS, {"lm": spec, "seed": seed}, where="the demo")
    with make_view(sys.stderr, plain=plain) as view:
        opened = open_run(config, Sources(), Where(runs_dir(), command="pco demo"), view)

        async def whole() -> tuple[Any, Any]:
            try:
                outcome = await opened.session.run()
                if outcome.stop is not None:
                    raise outcome.stop
                return outcome, await oracle_row(opened, view)
            finally:
                await opened.models.close()

        try:
            outcome, oracle = run_sync(whole(), opened.session.interrupt)
            base = next(iter(opened.store.judged()))
            rows = [*outcome.conclusion.rows, row_of(oracle, base, seed)]
            report = opened.store.path / "report.html"
            inputs = {e.id: e.input for _, split in opened.task.dataset.items() for e in split}
            write_report(opened.store, report, inputs)
        finally:
            opened.store.close()
    note(f"simulated run {opened.store.header.id} done")
    return {
        "run": opened.store.header.id,
        "report": str(report),
        "verdict": outcome.conclusion.sentence,
        "n": rows[0].score.n,
        "rows": [_plain(row) for row in rows],
    }


def _plain(row: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(row)


_NAMES = {
    "present": "zero-shot",
    "concat": "concat (all K instincts)",
    "untrained": "untrained codebook",
    "learned": "trained",
    "oracle": "oracle",
}


def _cells(row: dict[str, Any]) -> dict[str, str]:
    score, gain, usage = row["score"], row["gain"], row["per_query"]
    return {
        "simulated": _NAMES[row["name"]],
        "reward": f"{score['mean']:.3f}",
        "95 %": f"{score['low']:.3f}..{score['high']:.3f}",
        "gain": "" if gain is None else f"{gain['mean']:+.3f}",
        "gain 95 %": "" if gain is None else f"{gain['low']:+.3f}..{gain['high']:+.3f}",
        "calls": f"{row['calls_per_query']:.1f}",
        "tokens": str(usage["prompt_tokens"] + usage["completion_tokens"]),
        "prompt words": f"{row['prompt_words']:.0f}",
    }
