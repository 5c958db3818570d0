"""`pco demo`: the offline tour on the simulated model, over several simulated worlds.

The first world runs before the user's eyes, with a report; the others beside it, in processes of
their own, so that the intervals cover more than one world.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from promptcodebook.cli.console import columns, emit

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_SETTINGS: dict[str, Any] = {
    "task": "constraints",
    "preset": "quick",
    "update": {"epochs": 30},
    "validation": {"every": 6, "subset": 40},
}
_DILUTIONS = {"dilution 0 (long prompts cost nothing)": "&dilution=0", "default dilution": ""}
_NAMES = {
    "present": "zero-shot",
    "untrained": "untrained codebook",
    "concat": "all K instincts (concat)",
    "learned": "trained",
    "oracle": "oracle",
}


@app.command()
def demo(
    worlds: Annotated[int, typer.Option(min=1, help="How many simulated worlds.")] = 5,
    world: Annotated[
        int | None, typer.Option(help="Only the world with this seed, as raw JSON.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The tables as JSON.")] = False,
) -> None:
    """Train, evaluate and report on the simulated model: offline, in under half a minute.

    Everything it prints is simulated. It shows that the machinery works, not that the method beats
    another on real models.
    """
    if world is not None:
        emit(_unseen(world))
        return
    from promptcodebook.cli.worlds import Worlds

    with Worlds(range(2, worlds + 1)) as others:
        first = {name: _seen(extra, plain, others.poll) for name, extra in _DILUTIONS.items()}
        raw = [{n: each["rows"] for n, each in first.items()}, *others.wait()]
    tables = {name: _table([each[name] for each in raw]) for name in _DILUTIONS}
    if as_json:
        emit({"simulated": True, "worlds": worlds, "tables": tables})
        return
    for name, rows in tables.items():
        print(
            f"\nsimulated model, {name}: held-out test split, {worlds} worlds x "
            f"{rows[0]['n'] // worlds} examples, 95 % intervals over both\n"
        )
        print(columns([_cells(row) for row in rows]))
        print(f"\nworld 1 alone: {first[name]['sentence']}\nreport: {first[name]['report']}")
    run, pco = first["default dilution"]["run"], _program()
    print(
        "\nAll figures above are simulated. Look closer:\n"
        f"  {pco} codebook show {run}\n"
        f'  {pco} explain {run} "Describe a rainy market in exactly 3 sentences."\n'
        f"Your own data and model: {pco} init mytask"
    )


def _program() -> str:
    """How to type `pco` in this shell: `make demo` puts it where no search path leads."""
    import shutil

    if shutil.which("pco"):
        return "pco"
    return "python -m promptcodebook.cli" if sys.argv[0].endswith("__main__.py") else sys.argv[0]


def _config(world: int, extra: str) -> Any:
    from promptcodebook.config import load_config

    spec = f"simulated?world_seed={world}{extra}"
    return load_config(_SETTINGS, {"lm": spec, "seed": world}, where="the demo")


def _unseen(world: int) -> dict[str, Any]:
    """One world at both dilutions, its runs thrown away."""
    import tempfile
    from pathlib import Path

    from promptcodebook.session.opening import Where
    from promptcodebook.session.sources import Sources
    from promptcodebook.session.tour import tour

    with tempfile.TemporaryDirectory() as folder:
        where = Where(Path(folder))
        return {
            name: tour(_config(world, extra), Sources(), where).as_json()
            for name, extra in _DILUTIONS.items()
        }


def _seen(extra: str, plain: bool, poll: Any) -> dict[str, Any]:
    """The first world under a view, kept with its report; `poll` keeps the others going."""
    from promptcodebook.cli.settings import runs_dir
    from promptcodebook.cli.view import make_view
    from promptcodebook.report import write_report
    from promptcodebook.session.opening import Where
    from promptcodebook.session.sources import Sources
    from promptcodebook.session.tour import tour
    from promptcodebook.store.run import RunStore

    with make_view(sys.stderr, plain=plain) as view:

        def listener(event: Any) -> None:
            poll()
            view(event)

        made = tour(_config(1, extra), Sources(), Where(runs_dir(), command="pco demo"), listener)
    report = made.path / "report.html"
    store = RunStore.open(made.path)
    try:
        write_report(store, report, {key: e.input for key, e in made.examples.items()})
    finally:
        store.close()
    return {
        "run": made.run_id,
        "sentence": made.sentence,
        "report": str(report),
        "rows": made.as_json(),
    }


def _table(worlds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows over all worlds: every mean and gain with an interval over worlds and examples."""
    from promptcodebook.intervals import clustered_interval

    rows: list[dict[str, Any]] = []
    for name in _NAMES:
        rewards = [w[name]["rewards"] for w in worlds]
        base = [w["present"]["rewards"] for w in worlds]
        gains = [
            [a - b for a, b in zip(x, y, strict=True)] for x, y in zip(rewards, base, strict=True)
        ]
        score, gain = clustered_interval(rewards), clustered_interval(gains)
        rows.append(
            {
                "name": name,
                "n": score.n,
                "score": [score.mean, score.low, score.high],
                "gain": None if name == "present" else [gain.mean, gain.low, gain.high],
                **{
                    key: sum(w[name][key] for w in worlds) / len(worlds)
                    for key in ("calls", "tokens", "prompt_words")
                },
            }
        )
    return rows


def _cells(row: dict[str, Any]) -> dict[str, str]:
    score, gain = row["score"], row["gain"]
    return {
        "simulated": _NAMES[row["name"]],
        "reward": f"{score[0]:.3f}",
        "95 %": f"{score[1]:.3f}..{score[2]:.3f}",
        "gain": "" if gain is None else f"{gain[0]:+.3f}",
        "gain 95 %": "" if gain is None else f"{gain[1]:+.3f}..{gain[2]:+.3f}",
        "calls": f"{row['calls']:.1f}",
        "tokens": f"{row['tokens']:.0f}",
        "prompt words": f"{row['prompt_words']:.0f}",
    }
