"""The awaited search: one batch for all who ask at once, one search for each query."""

import asyncio
import json
from pathlib import Path

import pytest

from promptcodebook.tasks.retrieval import Search, open_retriever, title_of


@pytest.fixture
def search(tmp_path: Path) -> Search:
    path = tmp_path / "corpus.jsonl"
    rows = [{"title": f"Page {n}", "sentences": [f"It is about word{n}."]} for n in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Search(open_retriever(path, keep=False))


async def test_what_is_asked_together_is_searched_together(search: Search) -> None:
    found = await asyncio.gather(*(search(f"word{n}", 3) for n in range(40)))
    assert [title_of(passages[0]) for passages in found] == [f"Page {n}" for n in range(40)]
    assert search.asked == 40
    assert search.batches <= 2


async def test_each_query_is_searched_once(search: Search) -> None:
    together = await asyncio.gather(*(search("word7", 3) for _ in range(20)))
    later = await search("word7", 3)
    assert all(passages == later for passages in together)
    assert search.asked == 1
    assert len(await search("page", 5)) == 5
    assert len(await search("page", 2)) == 2
    assert search.asked == 3


async def test_the_answers_are_those_of_the_retriever(search: Search) -> None:
    queries = ["page", "word3 word4", "", "zebra"]
    found = await asyncio.gather(*(search(query, 7) for query in queries))
    assert found == search.retriever.search_many(queries, 7)


async def test_a_cancelled_asker_takes_nothing_from_the_others(search: Search) -> None:
    first = asyncio.create_task(search("word1", 1))
    second = asyncio.create_task(search("word1", 1))
    await asyncio.sleep(0)
    first.cancel()
    assert [title_of(p) for p in await second] == ["Page 1"]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_fault_reaches_every_asker_and_is_not_remembered(search: Search) -> None:
    class Faulty:
        broken = True

        def rank(self, queries: list[str], k: int) -> list[tuple[int, ...]]:
            if self.broken:
                raise OSError("the disk is gone")
            return [(1,) for _ in queries]

        def passages(self, numbers: tuple[int, ...]) -> list[str]:
            return [str(number) for number in numbers]

    faulty = Faulty()
    search = Search(faulty)  # type: ignore[arg-type]
    said = await asyncio.gather(search("a", 1), search("b", 1), return_exceptions=True)
    assert [str(error) for error in said] == ["the disk is gone"] * 2
    faulty.broken = False
    assert await search("a", 1) == ["1"]


async def test_the_memo_forgets_the_oldest(search: Search) -> None:
    small = Search(search.retriever, kept=2)
    for query in ("word1", "word2", "word3", "word3", "word1"):
        await small(query, 1)
    assert small.asked == 4


def test_one_search_serves_several_event_loops(search: Search) -> None:
    assert asyncio.run(search("word1", 1)) == asyncio.run(search("word1", 1))
    assert title_of(asyncio.run(search("word2", 1))[0]) == "Page 2"
    assert search.asked == 2
