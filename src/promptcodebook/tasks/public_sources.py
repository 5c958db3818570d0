"""The benchmarks' public homes, with the paper's split sizes and seeds.

The real hosts were not reached when this was written: the tests run on a local stand-in.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from promptcodebook.errors import TaskError, did_you_mean
from promptcodebook.tasks.hover.public import hover_source
from promptcodebook.tasks.public import Remote, Rows, Source

__all__ = ["SOURCES", "source_of"]

T = TypeVar("T")
# The hub's own conversion of every data set: config/split/0000.parquet, whatever was uploaded.
_PARQUET = "refs%2Fconvert%2Fparquet"


def source_of(name: str) -> Source:
    """The public home of a benchmark; TaskError for an unknown name."""
    if name in SOURCES:
        return SOURCES[name]
    known = sorted(SOURCES)
    raise TaskError(
        f"no benchmark {name!r} to fetch{did_you_mean(name, known)}",
        hint=f"pco data fetch NAME, with one of {', '.join(known)}",
    )


def _shuffled(rows: Sequence[T], seed: int) -> list[T]:
    # The protocol is stated in terms of Python's own generator, so it is followed with that.
    mixed = list(rows)
    random.Random(seed).shuffle(mixed)
    return mixed


def _at_most(rows: Sequence[T], count: int, seed: int = 1) -> list[T]:
    """The protocol's cut of a pool that is too large: a seeded sample."""
    if len(rows) <= count:
        return list(rows)
    return random.Random(seed).sample(list(rows), count)


def _cut(mixed: Rows, train: int, val: int, test: int | None = None) -> dict[str, Rows]:
    """The first rows are train, the next val, the next test (None = all that are left)."""
    end = len(mixed) if test is None else train + val + test
    return {
        "train": mixed[:train],
        "val": mixed[train : train + val],
        "test": mixed[train + val : end],
    }


def _aime(files: Sequence[Rows]) -> Mapping[str, Rows]:
    older, newest = files
    rows: Rows = [
        {"id": f"aime-{r['id']}", **{k: str(r[k]) for k in ("problem", "answer", "solution")}}
        for r in older
    ]
    mixed = _shuffled(rows, 0)
    test: Rows = [
        {"id": f"aime-2025-{r['problem_idx']}", "problem": r["problem"], "answer": str(r["answer"])}
        for r in newest
    ]
    half = len(mixed) // 2
    return {"train": mixed[:half], "val": mixed[half:], "test": test}


def _ifbench(files: Sequence[Rows]) -> Mapping[str, Rows]:
    ifeval, test = files
    rows = [_constrained(r, "ifeval-") for r in sorted(ifeval, key=lambda r: int(str(r["key"])))]
    parts = _cut(_shuffled(rows, 0), 150, 300)
    return {
        "train": parts["train"],
        "val": parts["val"],
        "test": [_constrained(r, "") for r in test],
    }


def _constrained(row: Mapping[str, object], prefix: str) -> dict[str, object]:
    kwargs = cast("list[dict[str, object]]", row["kwargs"])
    return {
        "key": f"{prefix}{row['key']}",
        "prompt": row["prompt"],
        "instruction_id_list": row["instruction_id_list"],
        "kwargs": [{k: v for k, v in each.items() if v is not None} for each in kwargs],
    }


def _livebench(files: Sequence[Rows]) -> Mapping[str, Rows]:
    rows = [
        {
            **{k: r.get(k) for k in ("question_id", "category", "task", "subtask", "ground_truth")},
            "question": cast("list[str]", r["turns"])[0],
        }
        for r in sorted((r for f in files for r in f), key=lambda r: str(r["question_id"]))
    ]
    return _cut(_shuffled(rows, 0), 123, 123)


def _pupa(files: Sequence[Rows]) -> Mapping[str, Rows]:
    wanted = ("conversation_hash", "user_query", "target_response", "pii_units", "redacted_query")
    rows: Rows = [
        {"id": f"pupa-{index}", "category": row.get("predicted_category") or row.get("category")}
        | {key: row[key] for key in wanted}
        for index, row in enumerate(files[0])
    ]
    return _cut(rows, 111, 111, 221)


def _hotpotqa(files: Sequence[Rows]) -> Mapping[str, Rows]:
    pool = [row for file in files for row in file]
    first, second = len(pool) * 40 // 100, len(pool) * 80 // 100
    parts = {
        "train": _at_most(pool[second:], 150),
        "val": _at_most(pool[first:second], 300),
        "test": _at_most(pool[:first], 300),
    }
    corpus = dict[str, dict[str, object]]()
    for row in (r for rows in parts.values() for r in rows):
        context = cast("dict[str, list[object]]", row["context"])
        for title, sentences in zip(context["title"], context["sentences"], strict=True):
            corpus.setdefault(str(title), {"title": title, "sentences": sentences})
    made: dict[str, Rows] = {s: [_question(r) for r in rows] for s, rows in parts.items()}
    return made | {"corpus": list(corpus.values())}


def _question(row: Mapping[str, object]) -> dict[str, object]:
    facts = cast("dict[str, list[object]]", row["supporting_facts"])
    return {
        **{key: row[key] for key in ("id", "question", "answer", "type", "level")},
        "supporting_facts": [list(p) for p in zip(facts["title"], facts["sent_id"], strict=True)],
        "gold_titles": list(dict.fromkeys(facts["title"])),
    }


def _nltk(path: str, folder: str) -> Remote:
    return Remote("github", "nltk/nltk_data", f"packages/{path}", "gh-pages", f"nltk_data/{folder}")


_SOURCES = (
    Source(
        "aime",
        (
            Remote("hub", "AI-MO/aimo-validation-aime", "default/train/0000.parquet", _PARQUET),
            Remote("hub", "MathArena/aime_2025", "default/train/0000.parquet", _PARQUET),
        ),
        _aime,
        "train and val are AIME 2022-2024, halves after a shuffle with seed 0; test is AIME 2025",
    ),
    Source(
        "hotpotqa",
        tuple(
            Remote("hub", "hotpotqa/hotpot_qa", f"distractor/train/{n:04}.parquet", _PARQUET)
            for n in range(2)
        ),
        _hotpotqa,
        "the corpus is the paragraphs that come with the chosen questions, not the five million "
        "abstracts of the paper, so retrieval is easier",
    ),
    hover_source(_PARQUET),
    Source(
        "ifbench",
        (
            Remote(
                "github",
                "josejg/instruction_following_eval",
                "instruction_following_eval/data/input_data.jsonl",
            ),
            Remote("github", "allenai/IFBench", "data/IFBench_test.jsonl"),
            _nltk("tokenizers/punkt_tab.zip", "tokenizers"),
            _nltk("corpora/stopwords.zip", "corpora"),
            _nltk("taggers/averaged_perceptron_tagger_eng.zip", "taggers"),
        ),
        _ifbench,
        "train and val are IFEval prompts, as the paper's training file is on a hub of its own; "
        "test is the present file of 300 rows, of which the paper used an earlier version of 294",
    ),
    Source(
        "livebench_math",
        tuple(
            Remote(
                "github",
                "LiveBench/LiveBench",
                f"livebench/data/live_bench/math/{part}/question.jsonl",
                "995e86f0cb983054e1e283fbb81a111a25e444d0",
            )
            for part in ("math_comp", "AMPS_Hard", "olympiad")
        ),
        _livebench,
        "sorted by id, shuffled with seed 0; 123 train, 123 val, the rest test",
    ),
    Source(
        "pupa",
        (Remote("github", "Columbia-NLP-Lab/PAPILLON", "pupa/PUPA_New.csv"),),
        _pupa,
        "real users' text: keep it to yourself; the first 443 rows in file order",
    ),
)
SOURCES: Mapping[str, Source] = {source.name: source for source in _SOURCES}
"""The benchmarks that `pco data fetch` takes from their public homes."""
