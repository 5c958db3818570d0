"""HoVer from its public homes: the official claims, and HotpotQA's paragraphs for their pages.

The paper searches five million abstracts, which lie in no table of any hub that we know of. HoVer
grew out of HotpotQA, so the paragraphs that come with HotpotQA's questions (hundreds of thousands
of pages) hold the gold pages of most claims; claims whose pages are not among them are left out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import cast

from promptcodebook.tasks.hover.claims import OFFICIAL, paper_splits, read_claim
from promptcodebook.tasks.public import Remote, Rows, Source
from promptcodebook.types import Example

__all__ = ["hover_source"]


def hover_source(revision: str) -> Source:
    """The source; `revision` is the hub's branch of parquet files."""
    parts = ("train/0000", "train/0001", "validation/0000")
    return Source(
        "hover",
        (
            Remote("github", "hover-nlp/hover", f"data/hover/{OFFICIAL}"),
            *(
                Remote("hub", "hotpotqa/hotpot_qa", f"distractor/{part}.parquet", revision)
                for part in parts
            ),
        ),
        _arrange,
        "claims with three gold pages that HotpotQA's paragraphs hold; these paragraphs are the "
        "corpus, not the five million abstracts of the paper, so retrieval is easier; some "
        "gigabytes of memory are needed to arrange them",
    )


def _arrange(files: Sequence[Rows]) -> Mapping[str, Rows]:
    """Train, val and test by the paper's protocol, and the corpus in the order of the titles."""
    corpus = dict[str, list[object]]()
    for row in (row for rows in files[1:] for row in rows):
        context = cast("dict[str, list[list[object]]]", row["context"])
        for title, sentences in zip(context["title"], context["sentences"], strict=True):
            corpus.setdefault(str(title), sentences)
    spelled = {unicodedata.normalize("NFD", title): title for title in corpus}
    pool = list[Example]()
    for number, row in enumerate(files[0], 1):
        claim = read_claim({**row, "_where": f"{OFFICIAL} record {number}"})
        named = cast("list[str]", claim.fields["gold_titles"])
        gold = [spelled.get(unicodedata.normalize("NFD", title)) for title in named]
        if None not in gold:
            pool.append(Example(claim.id, claim.input, fields={**row, "gold_titles": gold}))
    made: dict[str, Rows] = {
        split: [dict(claim.fields) for claim in part] for split, part in paper_splits(pool).items()
    }
    pages: Rows = [{"title": t, "sentences": corpus[t]} for t in sorted(corpus)]
    return made | {"corpus": pages}
