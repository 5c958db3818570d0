"""The benchmarks' public homes, with the paper's split sizes and seeds.

The real hosts were not reached when this was written: the tests run on a local stand-in.
"""

from __future__ import annotations

import random
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from promptcodebook.errors import TaskError, did_you_mean
from promptcodebook.tasks.home import split_pool
from promptcodebook.tasks.hover.task import OFFICIAL, paper_splits, read_claim
from promptcodebook.tasks.public import Remote, Rows, Source
from promptcodebook.types import Example

T = TypeVar("T")


def source_of(name: str) -> Source:
    """The public home of a benchmark; TaskError for an unknown name."""
    if name in SOURCES:
        return SOURCES[name]
    known = sorted(SOURCES)
    raise TaskError(
        f"no benchmark {name!r} to fetch{did_you_mean(name, known)}",
        hint=f"pco data fetch NAME, with one of {', '.join(known)}",
    )


def _shuffle(rows: Sequence[T], seed: int) -> list[T]:
    # The protocol is stated in terms of Python's own generator, so it is followed with that.
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    return shuffled


def _cut(shuffled: Rows, train: int, val: int, test: int | None = None) -> dict[str, Rows]:
    """The first rows are train, the next val, the next test (None = all that are left)."""
    end = len(shuffled) if test is None else train + val + test
    return {
        "train": shuffled[:train],
        "val": shuffled[train : train + val],
        "test": shuffled[train + val : end],
    }


def _aime(files: Sequence[Rows]) -> Mapping[str, Rows]:
    older, newest = files
    rows: Rows = [
        {"id": f"aime-{r['id']}", **{k: str(r[k]) for k in ("problem", "answer", "solution")}}
        for r in older
    ]
    shuffled = _shuffle(rows, 0)
    test: Rows = [
        {"id": f"aime-2025-{r['problem_idx']}", "problem": r["problem"], "answer": str(r["answer"])}
        for r in newest
    ]
    half = len(shuffled) // 2
    return {"train": shuffled[:half], "val": shuffled[half:], "test": test}


def _ifbench(files: Sequence[Rows]) -> Mapping[str, Rows]:
    ifeval, test = files
    rows = [_request(r, "ifeval-") for r in sorted(ifeval, key=lambda r: int(str(r["key"])))]
    parts = _cut(_shuffle(rows, 0), 150, 300)
    return {"train": parts["train"], "val": parts["val"], "test": [_request(r, "") for r in test]}


def _request(row: Mapping[str, object], prefix: str) -> dict[str, object]:
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
    return _cut(_shuffle(rows, 0), 123, 123)


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
    parts = split_pool(pool)
    corpus = dict[str, dict[str, object]]()
    for row in (r for rows in parts.values() for r in rows):
        context = cast("dict[str, list[object]]", row["context"])
        for title, sentences in zip(context["title"], context["sentences"], strict=True):
            corpus.setdefault(str(title), {"title": title, "sentences": sentences})
    splits: dict[str, Rows] = {s: [_question(r) for r in rows] for s, rows in parts.items()}
    return splits | {"corpus": list(corpus.values())}


def _question(row: Mapping[str, object]) -> dict[str, object]:
    facts = cast("dict[str, list[object]]", row["supporting_facts"])
    return {
        **{key: row[key] for key in ("id", "question", "answer", "type", "level")},
        "supporting_facts": [list(p) for p in zip(facts["title"], facts["sent_id"], strict=True)],
        "gold_titles": list(dict.fromkeys(facts["title"])),
    }


def _hover(files: Sequence[Rows]) -> Mapping[str, Rows]:
    """Train, val and test by the paper's protocol, and the corpus in the order of the titles.

    The paper searches five million abstracts, which no hub that we know of has as a table.
    HoVer grew out of HotpotQA, so the paragraphs that come with HotpotQA's questions (hundreds of
    thousands of pages) hold the gold pages of most claims; the other claims are left out.
    """
    corpus = dict[str, list[object]]()
    for row in (row for rows in files[1:] for row in rows):
        context = cast("dict[str, list[list[object]]]", row["context"])
        for title, sentences in zip(context["title"], context["sentences"], strict=True):
            corpus.setdefault(str(title), sentences)
    spelled = {unicodedata.normalize("NFD", title): title for title in corpus}
    pool = list[Example]()
    for number, row in enumerate(files[0], 1):
        claim = read_claim(row, f"{OFFICIAL} record {number}")
        named = cast("list[str]", claim.fields["gold_titles"])
        gold = [spelled.get(unicodedata.normalize("NFD", title)) for title in named]
        if None not in gold:
            pool.append(Example(claim.id, claim.input, fields={**row, "gold_titles": gold}))
    splits: dict[str, Rows] = {
        split: [dict(claim.fields) for claim in part] for split, part in paper_splits(pool).items()
    }
    pages: Rows = [{"title": t, "sentences": corpus[t]} for t in sorted(corpus)]
    return splits | {"corpus": pages}


_ARRANGE = {
    "aime": _aime,
    "hotpotqa": _hotpotqa,
    "hover": _hover,
    "ifbench": _ifbench,
    "livebench_math": _livebench,
    "pupa": _pupa,
}
_READ = tomllib.loads(Path(__file__).with_name("public_sources.toml").read_text("utf-8"))
SOURCES: Mapping[str, Source] = {
    name: Source(name, tuple(Remote(**file) for file in read["files"]), arrange, read["note"])
    for name, arrange in _ARRANGE.items()
    for read in (_READ[name],)
}
"""The benchmarks that `pco data fetch` takes from their public homes."""
