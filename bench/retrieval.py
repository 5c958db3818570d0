"""Retrieval: queries a second, opening and indexing; a synthetic corpus and what it leads to.

The first corpus has the size and shape of the HotpotQA subset, or is that subset with `--corpus`;
the second is made of short pages over a Zipf vocabulary, indexed in a process of its own, so that
its peak of memory is its own. One core does all the work.

    python -m bench.retrieval                          100,000 synthetic pages
    PCO_BENCH_PAGES=1000000 python -m bench.retrieval  as many as you like
    PCO_BENCH_CORPUS=DIR/corpus.jsonl                  instead of the first made-up corpus
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.paper.tasks.retrieval import Retriever, open_retriever

PAGES = int(os.environ.get("PCO_BENCH_PAGES", "100000"))
SMALL = 7_440
WHOLE = 5_000_000
QUERIES = 2_000
_VOCABULARY = 400_000


def made_up(path: Path, pages: int) -> None:
    """A corpus of short pages: titles of 2 words, 3 to 5 sentences of 15 to 25 words."""
    rng = random.Random(0)
    words = [f"{_stem(n)}{'s' * (n % 3 == 0)}" for n in range(_VOCABULARY)]
    weights = list(accumulate(1 / (n + 10) for n in range(_VOCABULARY)))
    with path.open("w") as file:
        for number in range(pages):
            drawn = iter(rng.choices(words, cum_weights=weights, k=130))
            lengths = [rng.randint(15, 25) for _ in range(rng.randint(3, 5))]
            sentences = [" ".join(next(drawn) for _ in range(size)) + "." for size in lengths]
            title = f"{next(drawn).title()} {number}"
            file.write(json.dumps({"title": title, "sentences": sentences}) + "\n")


def _stem(number: int) -> str:
    """A distinct word of syllables for each number."""
    syllables = [f"{c}{v}" for c in "bdklmnprst" for v in "aeiou"]
    word = ""
    while True:
        number, digit = divmod(number, len(syllables))
        word += syllables[digit]
        if not number:
            return word + "k"


def _queries(retriever: Retriever, count: int) -> list[str]:
    """Distinct questions of about 15 words, out of the pages themselves."""
    rng = random.Random(1)
    found: list[str] = []
    for number in range(count):
        page = retriever.passages([rng.randrange(len(retriever))])[0].split()
        words = rng.sample(page, min(15, len(page)))
        found.append(f"Which {' '.join(words)} {number}?")
    return found


def _rate(retriever: Retriever, queries: list[str]) -> float:
    """Queries a second, passages read, nothing remembered."""
    list(map(retriever.passages, retriever.rank(queries[:100], 7)))
    begun = time.perf_counter()
    list(map(retriever.passages, retriever.rank(queries, 7)))
    return len(queries) / (time.perf_counter() - begun)


def _small(corpus: Path) -> list[Figure]:
    open_retriever(corpus)
    opened = []
    for _ in range(5):
        begun = time.perf_counter()
        retriever = open_retriever(corpus)
        opened.append(time.perf_counter() - begun)
    rate = _rate(retriever, _queries(retriever, QUERIES))
    of = f"{len(retriever):,} pages"
    return [
        Figure(f"opening the index of {of}, median of 5", sorted(opened)[2], "s", 0.2),
        Figure(f"distinct queries a second over {of}, one core", rate, "/s", 1000, at_least=True),
    ]


def index_alone(corpus: Path) -> None:
    """The child process: indexes, saves, and prints what it took, one JSON line."""
    begun = time.perf_counter()
    retriever = open_retriever(corpus)
    built = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begun = time.perf_counter()
    retriever = open_retriever(corpus)
    opened = time.perf_counter() - begun
    rate = _rate(retriever, _queries(retriever, 200))
    folder = corpus.with_name(f"{corpus.name}.bm25")
    disk = sum(file.stat().st_size for file in folder.iterdir())
    print(json.dumps({"s": built, "peak": peak, "opened": opened, "rate": rate, "disk": disk}))


def _large(folder: Path) -> list[Figure]:
    corpus = folder / "large.jsonl"
    made_up(corpus, PAGES)
    command = [sys.executable, "-m", "bench.retrieval", "--index-alone", str(corpus)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took = json.loads(done.stdout)
    of, whole, more = f"{PAGES:,} made-up pages", f"{WHOLE:,}", WHOLE / PAGES
    gb = 1e9
    return [
        Figure(f"indexing and saving {of}", took["s"], "s"),
        Figure(f"peak memory of indexing {of}", took["peak"] / gb, "GB"),
        Figure(f"index of {of} on disk", took["disk"] / gb, "GB"),
        Figure(f"opening the index of {of}", took["opened"], "s"),
        Figure(f"distinct queries a second over {of}", took["rate"], "/s"),
        Figure(f"extrapolated: indexing {whole} pages", took["s"] * more / 60, "min"),
        Figure(f"extrapolated: peak memory for {whole}", took["peak"] * more / gb, "GB"),
        Figure(f"extrapolated: index of {whole} on disk", took["disk"] * more / gb, "GB"),
    ]


def measure() -> list[Figure]:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = os.environ.get("PCO_BENCH_CORPUS")
        corpus = Path(given) if given else folder / "small.jsonl"
        if not given:
            made_up(corpus, SMALL)
        os.environ["XDG_CACHE_HOME"] = name  # for the index of a corpus in a read-only folder
        return _small(corpus) + _large(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--index-alone"]:
        index_alone(Path(sys.argv[2]))
        raise SystemExit(0)
    raise SystemExit(shown(measure, str(__doc__)))
