"""`pco compare`: two policies on the same examples, with a paired interval."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcodebook.cli.assess import Asked, assessed
from promptcodebook.cli.console import columns, emit
from promptcodebook.cli.options import (
    Budget,
    ConfigOption,
    Count,
    DataDir,
    Json,
    Model,
    Sets,
    SplitName,
    TaskName,
)
from promptcodebook.cli.settings import runs_dir

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two: its name, rewards by example id, and what it was evaluated on."""

    name: str
    rewards: dict[str, float]
    split: str
    simulated: bool


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="A run, a policy file, or a saved `pco eval --json`.")],
    b: Annotated[str, typer.Argument(help="What to compare it with.")],
    config: ConfigOption = None,
    task: TaskName = None,
    data: DataDir = None,
    split: SplitName = "test",
    lm: Model = None,
    count: Count = None,
    budget: Budget = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """The gain of A over B, paired by example, with its 95 % bootstrap interval."""
    from promptcodebook.intervals import mean_interval
    from promptcodebook.session.evaluation import Sample, paired

    asked = Asked(config, task, data, lm, budget, sets or ())
    sample = Sample(split, count)
    sides = [_side(ref, sample, asked) for ref in (a, b)]
    first, second = sides
    gain = paired(first.rewards, second.rewards)
    means = [mean_interval(list(side.rewards.values())) for side in sides]
    simulated = first.simulated or second.simulated
    if as_json:
        emit(
            {
                "a": {"ref": first.name, "score": asdict(means[0])},
                "b": {"ref": second.name, "score": asdict(means[1])},
                "gain": asdict(gain),
                "split": first.split,
                "n": gain.n,
                "simulated": simulated,
            }
        )
        return
    rows = [
        {
            "": mark,
            "policy": s.name,
            "reward": f"{m.mean:.3f}",
            "95 %": f"{m.low:.3f}..{m.high:.3f}",
        }
        for mark, s, m in zip("AB", sides, means, strict=True)
    ]
    marked = "simulated model, " if simulated else ""
    print(f"{marked}{first.split} split, n = {gain.n}:\n\n{columns(rows)}\n")
    print(
        f"A - B: {gain.mean:+.3f} (95 % {gain.low:+.3f} to {gain.high:+.3f}, paired): "
        f"{_judged(gain.low, gain.high)}"
    )


def _judged(low: float, high: float) -> str:
    if low > 0:
        return "A is better."
    return "B is better." if high < 0 else "no clear difference."


def _side(ref: str, sample: Any, asked: Asked) -> _Side:
    from promptcodebook.session.references import referred

    saved = _saved(ref)
    if saved is not None:
        return saved
    found = assessed(referred(runs_dir(), ref), sample, asked)
    return _Side(found.name, found.rewards, found.evaluation.split, found.simulated)


def _saved(ref: str) -> _Side | None:
    """A saved evaluation; None for anything else, which is then read as a REF."""
    path = Path(ref)
    if not path.is_file():
        return None
    try:
        tree = json.loads(path.read_text("utf-8"))
        rewards = {str(e["id"]): float(e["reward"]) for e in tree["examples"]}
        return _Side(path.name, rewards, str(tree["split"]), bool(tree["simulated"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
