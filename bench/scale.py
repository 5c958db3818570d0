"""Large folders: `pco data check` of 100,000 rows, and `pco runs list` of 1,000 finished runs.

Whole processes, medians; the rows have 60 words each and are split into three, every thousandth is
a near-copy in another split. The runs are copies of one on the simulated model; the first listing
reads them, the others find them kept.

    python -m bench.scale
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.base.randomness import keyed_random

ROWS = 100_000
EVERY = 1_000
RUNS = 1_000
REPEATS = 3
WORDS = [f"word{n}" for n in range(4_000)]
SPLITS = ("train", "val", "test")
PEAK = (
    "import resource, sys; from promptcodebook.cli import main\n"
    "try: main()\n"
    "finally: print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
)


def write_rows(path: Path) -> None:
    draw = keyed_random("rows")
    with path.open("w", encoding="utf-8") as file:
        for number in range(ROWS):
            if number % EVERY == 0:
                words = draw.choices(WORDS, k=60)
            elif number % EVERY == 1:
                words = [*words[:30], "another", *words[31:]]  # pyright: ignore[reportPossiblyUnboundVariable]
            else:
                words = draw.choices(WORDS, k=60)
            row = {"input": " ".join(words), "target": str(number % 7), "split": SPLITS[number % 3]}
            file.write(json.dumps(row) + "\n")


def timed(folder: Path, *typed: str) -> tuple[float, float, str]:
    """Seconds and peak MB of one command, and what it printed."""
    begun = time.perf_counter()
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    made = subprocess.run(
        [sys.executable, "-c", PEAK, *typed],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begun
    return seconds, int(made.stderr.rsplit("peak", 1)[1]) / 1024, made.stdout


def data_check(folder: Path) -> list[Figure]:
    write_rows(folder / "rows.jsonl")
    typed = ("data", "check", "rows.jsonl", "--split", "split", "--json")
    made = [timed(folder, *typed) for _ in range(REPEATS)]
    near = len(json.loads(made[0][2])["near"])
    beside = f"{near} of {ROWS // EVERY} near-copies found"
    return [
        Figure(
            f"data check of {ROWS:,} rows", statistics.median(s for s, _, _ in made), "s", 5.0,
            beside=beside,
        ),
        Figure(f"data check of {ROWS:,} rows, peak", max(mb for _, mb, _ in made), "MB", 500.0),
    ]  # fmt: skip


def runs_list(folder: Path) -> list[Figure]:
    (folder / "pco.toml").write_text(
        'lm = "simulated"\ntask = "constraints"\nsize = 4\nselect = 1\n'
        "verdict_examples = 20\n[update]\nepochs = 2\nbatch_size = 4\n",
        "utf-8",
    )
    timed(folder, "train")
    [run] = (folder / "runs").iterdir()
    for number in range(RUNS - 1):
        shutil.copytree(run, folder / "runs" / f"{run.name}-{number + 2}")
    first, *others = [timed(folder, "runs", "list") for _ in range(REPEATS + 1)]
    assert others[0][2].count(run.name) >= RUNS, "a run is missing"
    later = statistics.median(s for s, _, _ in others)
    beside = f"the first time {first[0]:.2f} s"
    return [Figure(f"runs list of {RUNS:,} runs", later, "s", 0.5, beside=beside)]


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        return [*data_check(Path(folder)), *runs_list(Path(folder))]


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
