"""`update.accept`: always against improve, on the simulated model (method decision 9).

Prints, per mode, the mean reward of the learned policy on the test split of `constraints` over
seeds, its paired difference with a bootstrap interval, and the calls that training paid for.

    python bench/accept.py [SEEDS]
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from promptcodebook.config import load_config
from promptcodebook.session.opening import Where, open_run
from promptcodebook.session.sources import Sources
from promptcodebook.session.sync import run_sync

SETTINGS = {
    "task": "constraints",
    "preset": "quick",
    "lm": "simulated",
    "validation": {"every": 6, "subset": 40},
}


def measure(mode: str, seed: int) -> tuple[float, float, int]:
    """Reward of the learned and of the untrained policy on the test split, and calls in all."""
    own = {"seed": seed, "update": {"epochs": 30, "accept": mode}}
    config = load_config(SETTINGS, own, where="the bench")
    with tempfile.TemporaryDirectory() as folder:
        opened = open_run(config, Sources(), Where(Path(folder), command="bench"))

        async def whole() -> tuple[float, float, int]:
            try:
                conclusion = (await opened.session.run()).conclusion
                calls = sum(usage.calls for usage in opened.store.usage().values())
            finally:
                await opened.close()
            assert conclusion is not None
            scores = {row.name: row.score.mean for row in conclusion.rows if row.score}
            return scores["learned"], scores["untrained"], calls

        return run_sync(whole())


def interval(differences: list[float], draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the mean."""
    draw = random.Random(0)
    means = sorted(
        sum(draw.choices(differences, k=len(differences))) / len(differences) for _ in range(draws)
    )
    return means[int(0.025 * draws)], means[int(0.975 * draws) - 1]


def main(seeds: int) -> None:
    found = {mode: [measure(mode, s) for s in range(seeds)] for mode in ("always", "improve")}
    print(f"simulated model, task constraints, test split, {seeds} seeds\n")
    for mode, rows in found.items():
        learned, untrained, calls = (sum(column) / seeds for column in zip(*rows, strict=True))
        print(f"{mode:8} learned {learned:.3f}  untrained {untrained:.3f}  calls {calls:.0f}")
    pairs = zip(found["improve"], found["always"], strict=True)
    differences = [improve[0] - always[0] for improve, always in pairs]
    low, high = interval(differences)
    mean = sum(differences) / seeds
    print(f"improve - always: {mean:+.3f} [{low:+.3f}, {high:+.3f}], paired by seed")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
