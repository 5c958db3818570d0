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
from promptcodebook.intervals import Interval, mean_interval

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two: its name, rewards by example id, and what it was evaluated on."""

    name: str
    rewards: dict[str, float]
    split: str
    simulated: bool

    @property
    def score(self) -> Interval:
        return mean_interval(list(self.rewards.values()))


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
    from promptcodebook.session.evaluation import Sample, paired

    asked = Asked(config, task, data, lm, budget, sets or ())
    sample = Sample(split, count)
    sides = [_side(ref, sample, asked) for ref in (a, b)]
    gain = paired(sides[0].rewards, sides[1].rewards)
    if as_json:
        emit(_plain(sides, gain))
    else:
        print(_text(sides, gain))


def _plain(sides: list[_Side], gain: Interval) -> dict[str, Any]:
    first, second = ({"ref": s.name, "score": asdict(s.score)} for s in sides)
    simulated = any(side.simulated for side in sides)
    facts = {"split": sides[0].split, "n": gain.n, "simulated": simulated}
    return {"a": first, "b": second, "gain": asdict(gain), **facts}


def _text(sides: list[_Side], gain: Interval) -> str:
    rows = [
        {
            "": mark,
            "policy": side.name,
            "reward": f"{side.score.mean:.3f}",
            "95 %": f"{side.score.low:.3f}..{side.score.high:.3f}",
        }
        for mark, side in zip("AB", sides, strict=True)
    ]
    marked = "simulated model, " if any(side.simulated for side in sides) else ""
    said = f"{gain.mean:+.3f} (95 % {gain.low:+.3f} to {gain.high:+.3f}, paired)"
    return (
        f"{marked}{sides[0].split} split, n = {gain.n}:\n\n{columns(rows)}\n\n"
        f"A - B: {said}: {_judged(gain.low, gain.high)}"
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
