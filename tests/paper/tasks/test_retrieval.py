"""BM25 over a corpus file: what is found, what is saved, what is refused."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from promptcodebook.base.paths import cache_folder
from promptcodebook.errors import DataError
from promptcodebook.paper.tasks import retrieval
from tests.build.paper_tasks import cases, shared

PAGES = [
    {"title": "Tern Island", "sentences": ["Tern Island has a lighthouse. ", " ", " It is small."]},
    {"title": "Oak", "sentences": ["An oak is a tree.", "Oaks bear acorns."]},
    {"title": "Elm", "sentences": ["An elm is a tree."]},
    {"title": "Ash", "text": "An ash is a tree."},
    {"title": "Lighthouse", "sentences": ["A lighthouse shows ships the way."]},
]


def written(folder: Path, rows: list[object]) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return written(tmp_path, list(PAGES))


def test_finds_passages_best_first_and_a_page_by_its_title(corpus: Path) -> None:
    retriever = retrieval.open_retriever(corpus)
    assert len(retriever) == 5
    found = retriever.search("Which island has lighthouses?", 2)
    assert found[0] == "Tern Island | Tern Island has a lighthouse. It is small."
    assert [retrieval.title_of(p) for p in found] == ["Tern Island", "Lighthouse"]
    assert [*map(retriever.passages, retriever.rank(["acorn", "ships"], 1))] == [
        ["Oak | An oak is a tree. Oaks bear acorns."],
        ["Lighthouse | A lighthouse shows ships the way."],
    ]
    # Equal scores come in corpus order.
    assert retriever.rank(["tree"], 3) == [(2, 3, 1)]
    assert retriever.rank(["tree"], 1) == [(2,)]
    assert len(retriever.search("tree lighthouse", 100)) == 5
    assert retriever.search("tree", 0) == []
    page = retriever.page("Tern Island")
    sentences = ("Tern Island has a lighthouse.", "", "It is small.")
    assert page == retrieval.WikiPage("Tern Island", sentences)
    assert retrieval.passage_of(page) == retriever.search("tern", 1)[0]
    assert retriever.page("tern island") is retriever.page("Zebra") is None


@pytest.mark.parametrize("query", ["", "the of and", "zebra", "?!", "{braces} %s \x00"])
def test_pages_without_a_shared_word_are_not_returned(corpus: Path, query: str) -> None:
    assert retrieval.open_retriever(corpus).search(query, 7) == []


def test_the_index_is_saved_beside_the_corpus_and_used_again(corpus: Path) -> None:
    first = retrieval.open_retriever(corpus)
    folder = corpus.with_name("corpus.jsonl.bm25")
    made = (folder / "meta.json").stat().st_mtime_ns
    os.utime(corpus, (1, 1))  # touched: the same text all the same
    again = retrieval.open_retriever(corpus)
    assert (folder / "meta.json").stat().st_mtime_ns == made
    assert again.search("tree", 3) == first.search("tree", 3)
    made = {path.name for path in corpus.parent.glob("corpus*")}
    assert made == {"corpus.jsonl", "corpus.jsonl.bm25"}
    assert not list(folder.rglob("*.pkl"))


def test_a_changed_corpus_is_indexed_anew(corpus: Path) -> None:
    retrieval.open_retriever(corpus)
    written(corpus.parent, [{"title": "Zebra", "sentences": ["A zebra has stripes."]}])
    found = retrieval.open_retriever(corpus).search("zebra tree", 5)
    assert [retrieval.title_of(passage) for passage in found] == ["Zebra"]


@pytest.mark.parametrize("name", ["meta.json", "spans.npy", "data.csc.index.npy"])
@pytest.mark.parametrize("content", [b"no index", b"", b"[]", b"{}", None])
def test_a_damaged_index_is_built_again(corpus: Path, name: str, content: bytes | None) -> None:
    retrieval.open_retriever(corpus)
    damaged = corpus.with_name("corpus.jsonl.bm25") / name
    damaged.unlink()
    if content is not None:
        damaged.write_bytes(content)
    assert len(retrieval.open_retriever(corpus).search("tree", 7)) == 3
    assert damaged.stat().st_size > 10


@pytest.mark.parametrize("blocked", [False, True])
def test_a_read_only_folder_has_its_index_in_the_cache_or_nowhere(
    corpus: Path, caplog: pytest.LogCaptureFixture, blocked: bool
) -> None:
    cache = cache_folder()
    cache.parent.mkdir(parents=True, exist_ok=True)
    if blocked:
        cache.write_text("no folder")
    corpus.parent.chmod(0o555)
    try:
        assert retrieval.open_retriever(corpus).search("acorns", 1)
    finally:
        corpus.parent.chmod(0o755)
    assert not corpus.with_name("corpus.jsonl.bm25").exists()
    assert len(list((cache / "retrieval").glob("*.bm25"))) == (not blocked)
    assert ("could not be saved" in caplog.text) is blocked


@pytest.mark.parametrize(("row", "message"), cases("retrieval-a-faulty-line-is-named"))
def test_a_faulty_line_is_named(corpus: Path, row: str, message: str) -> None:
    with corpus.open("a") as file:
        file.write(f"\n{row}\n")
    with pytest.raises(DataError, match=message) as caught:
        retrieval.open_retriever(corpus)
    assert f"{corpus}:7:" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(("path", "text", "message"), [
    ("corpus.jsonl", "", "no page"),
    ("corpus.jsonl", "\n \n", "no page"),
    ("corpus.jsonl", '{"title": "!", "sentences": ["?"]}', "no searchable words"),
    ("corpus.jsonl", None, "corpus"),
    ("nowhere/corpus.jsonl", None, "corpus"),
])  # fmt: skip
def test_a_corpus_that_is_empty_or_missing_is_refused(
    tmp_path: Path, path: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / path).write_text(text)
    with pytest.raises(DataError, match=message):
        retrieval.open_retriever(tmp_path / path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "field", "recall"), [("hotpotqa", "question", 0.54), ("hover", "claim", 0.67)]
)
def test_recall_is_that_of_the_reference(name: str, field: str, recall: float) -> None:
    """Of the question or claim alone, as stated beside the data: all gold titles in the top 7."""
    folder = shared("data", name)
    retriever = retrieval.open_retriever(folder / "corpus.jsonl")
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text("utf-8").splitlines()]
    ranked = retriever.rank([row[field] for row in rows], 7)
    found = zip(rows, map(retriever.passages, ranked), strict=True)
    titles = [(set(row["gold_titles"]), set(map(retrieval.title_of, p))) for row, p in found]
    hits = sum(gold <= ours for gold, ours in titles)
    assert hits / len(rows) == pytest.approx(recall, abs=0.01)


# The awaited search.


async def test_a_query_is_searched_once_by_any_loop_and_a_fault_is_not_remembered() -> None:
    asked: list[tuple[str, int]] = []

    class Faulty:
        broken = True

        def rank(self, queries: list[str], k: int) -> list[tuple[int, ...]]:
            if self.broken:
                raise OSError("the disk is gone")
            asked.extend((query, k) for query in queries)
            return [(k,) for _ in queries]

        def passages(self, numbers: tuple[int, ...]) -> list[str]:
            return [str(number) for number in numbers]

    faulty = Faulty()
    search = retrieval.Search(faulty)  # type: ignore[arg-type]
    errors = await asyncio.gather(search("a", 1), search("b", 1), return_exceptions=True)
    assert [str(error) for error in errors] == ["the disk is gone"] * 2
    faulty.broken = False
    assert await search("a", 1) == await search("a", 1) == ["1"]
    assert await asyncio.to_thread(lambda: asyncio.run(search("a", 1))) == ["1"]
    assert await search("a", 2) == ["2"] and asked == [("a", 1), ("a", 2)]
