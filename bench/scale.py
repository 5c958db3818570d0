"""How commands grow with data: `pco data check`, `estimate`, `train`, `eval` and `report` at 1,000
to 1,000,000 rows; `pco runs list` of 1,000 finished runs; and how two days of log are searched for
drift, 300,000 requests: the memory of `pco serve status`, and how long a server's loop waits.

Whole processes. A command's exponent is the slope of its processor seconds over the last tenfold:
1 = linear. The model is simulated, and all sizes train, validate and judge on as many rows. Each
row has 60 words; every thousandth is a near-copy in another split. The runs are copies of one; the
first listing reads them, the others find them kept.

    python -m bench.scale            PCO_ROWS=100000 leaves the largest out
"""

import asyncio
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.base.randomness import keyed_random
from promptcodebook.deploy.online.served_log import Served, ServedLog
from promptcodebook.deploy.online.status import drift_of

SIZES = [
    n for n in (1_000, 10_000, 100_000, 1_000_000) if n <= int(os.environ.get("PCO_ROWS", 1e6))
]
EVERY = 1_000
RUNS = 1_000
SERVED, CHUNK, DAY = 300_000, 25_000, 86_400.0
FEATURES = tuple(range(0, 4_000, 97))
REPEATS = 3
WORDS = [f"word{n}" for n in range(4_000)]
SPLITS = ("train", "val", "test")
PEAK = (
    "import resource, sys; from promptcodebook.cli import main\n"
    "try: main()\n"
    "finally:\n"
    "    used = resource.getrusage(resource.RUSAGE_SELF)\n"
    "    print('used', used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=sys.stderr)"
)
SETTINGS = """
lm = "simulated"
preset = "small"
reward = "normalised"
verdict_examples = 20
data = { path = "rows.jsonl", split = "split" }
update = { epochs = 3, batch_size = 8 }
validation = { every = 2, subset = 20, examples = 30 }
"""
COMMANDS = {
    "data check": ("data", "check", "rows.jsonl", "--split", "split", "--json"),
    "estimate": ("estimate",),
    "train": ("train",),
    "eval": ("eval", "last", "--again", "--n", "20"),
    "report": ("report", "last", "-o", "report.html"),
}


def write_rows(path: Path, count: int) -> None:
    draw, words = keyed_random("rows"), list[str]()
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            near = number % EVERY == 1
            words = [*words[:30], "another", *words[31:]] if near else draw.choices(WORDS, k=60)
            row = {"input": " ".join(words), "target": str(number % 7), "split": SPLITS[number % 3]}
            file.write(json.dumps(row) + "\n")


def used_by(folder: Path, *typed: str) -> tuple[float, float, str]:
    """Processor seconds and peak MB of one command, and what it printed."""
    made = subprocess.run(
        [sys.executable, "-c", PEAK, *typed],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_DATA_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds, peak = made.stderr.rsplit("used ", 1)[1].split()
    assert made.returncode == 0, made.stderr
    return float(seconds), float(peak), made.stdout


def growth(folder: Path) -> list[Figure]:
    used = {name: list[tuple[float, float, str]]() for name in COMMANDS}
    for count in SIZES:
        here = folder / str(count)
        here.mkdir()
        write_rows(here / "rows.jsonl", count)
        (here / "pco.toml").write_text(SETTINGS, "utf-8")
        for name, typed in COMMANDS.items():
            used[name].append(used_by(here, *typed))
            seconds, peak, _ = used[name][-1]
            print(f"  {count:>9,} rows  {name:<11}{seconds:>8.1f} s{peak:>8.0f} MB", flush=True)
        near = len(json.loads(used["data check"][-1][2])["near"])
        assert near == count // EVERY, f"{near} near-copies found of {count // EVERY}"
    figures: list[Figure] = []
    for name, sizes in used.items():
        (before, *_), (last, *_) = sizes[-2:]
        figures.append(Figure(f"{name}: exponent of its time", math.log10(last / before), "", 1.1))
        at = min(len(sizes) - 1, SIZES.index(100_000) if 100_000 in SIZES else 0)
        figures.append(Figure(f"{name}: peak at {SIZES[at]:,} rows", sizes[at][1], "MB", 1000.0))
    return figures


def runs_list(folder: Path) -> list[Figure]:
    (folder / "pco.toml").write_text(
        'lm = "simulated"\ntask = "constraints"\nsize = 4\nselect = 1\n'
        "verdict_examples = 20\n[update]\nepochs = 2\nbatch_size = 4\n",
        "utf-8",
    )
    used_by(folder, "train")
    [run] = (folder / "runs").iterdir()
    for number in range(RUNS - 1):
        shutil.copytree(run, folder / "runs" / f"{run.name}-{number + 2}")
    first, *others = [used_by(folder, "runs", "list") for _ in range(REPEATS + 1)]
    assert others[0][2].count(run.name) >= RUNS, "a run is missing"
    later = statistics.median(s for s, _, _ in others)
    beside = f"the first time {first[0]:.2f} s"
    return [Figure(f"runs list of {RUNS:,} runs", later, "s", 0.5, beside=beside)]


def drift(folder: Path) -> list[Figure]:
    path, now = folder / "promptcodebook" / "requests.sqlite", time.time()
    drawn = random.Random(7)  # a part is read by its ids

    async def fill() -> None:
        for first in range(0, SERVED, CHUNK):  # a log drops what waits longer than its queue
            log = ServedLog(path)
            for n in range(first, first + CHUNK):
                at, whole = now - 2 * DAY * (1 - n / SERVED), (200, 0.1, None, (n % 8,), 1.0)
                log.put(
                    Served(
                        f"req-{drawn.getrandbits(96):024x}",
                        at,
                        "t@live",
                        "v",
                        "",
                        "",
                        *whole,
                        FEATURES,
                    )
                )
            log.close()

    async def longest_wait() -> float:
        looked = asyncio.ensure_future(asyncio.to_thread(drift_of, log, "t@live", DAY, now))
        longest, last = 0.0, time.perf_counter()
        while not looked.done():
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - last)
            last = time.perf_counter()
        return longest

    asyncio.run(fill())
    _, peak, _ = used_by(folder, "serve", "status", "--json")
    log = ServedLog(path)
    wait = asyncio.run(longest_wait())
    log.close()
    return [
        Figure(f"serve status of {SERVED:,} requests: peak", peak, "MB", 300.0),
        Figure("drift: longest wait of the loop", wait, "s", 0.5),
    ]


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        return [part for each in (drift, runs_list, growth) for part in each(Path(folder))]


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
