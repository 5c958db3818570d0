from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from promptcodebook.errors import DiskFull, StoreError
from promptcodebook.sqlite import Layout, Reader, Writer

LAYOUT = Layout(
    "test store", 1, ("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT NOT NULL UNIQUE)",)
)


def insert(word: str | None):
    return lambda db: db.execute("INSERT INTO t (word) VALUES (?)", (word,))


def words(path: Path) -> list[str]:
    reader = Reader(path, LAYOUT)
    found = [row[0] for row in reader.rows("SELECT word FROM t ORDER BY id")]
    reader.close()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sqlite"


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    writer = Writer(path, LAYOUT, full_hint="make room")
    yield writer
    writer.close()


async def test_an_awaited_write_is_committed(writer: Writer, path: Path) -> None:
    await writer.write(insert("a"))
    assert words(path) == ["a"]
    writer.write_now(insert("b"))
    assert words(path) == ["a", "b"]


def test_closing_commits_what_was_handed_over(writer: Writer, path: Path) -> None:
    for index in range(5_000):
        writer.send(insert(str(index)))
    writer.close()
    assert words(path) == [str(index) for index in range(5_000)]
    with pytest.raises(StoreError, match="is closed"):
        writer.send(insert("late"))


async def test_many_waiters_share_a_transaction(path: Path) -> None:
    commits: list[int] = []
    writer = Writer(path, LAYOUT, each_batch=lambda db: commits.append(1))
    held = threading.Event()
    writer.send(lambda db: held.wait(5))  # the rest queues up behind this one
    waits = [asyncio.ensure_future(writer.write(insert(str(i)))) for i in range(500)]
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(*waits)
    assert len(commits) <= 3
    assert len(words(path)) == 500
    writer.close()


async def test_a_faulty_write_fails_alone(writer: Writer, path: Path) -> None:
    held = threading.Event()
    writer.send(lambda db: held.wait(5))
    waits = [asyncio.ensure_future(writer.write(insert(w))) for w in ("a", "a", None, "b")]
    await asyncio.sleep(0)
    held.set()
    results = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(r) for r in results] == [type(None), StoreError, StoreError, type(None)]
    assert words(path) == ["a", "b"]


async def test_a_cancelled_wait_does_not_disturb_the_others(writer: Writer, path: Path) -> None:
    held = threading.Event()
    writer.send(lambda db: held.wait(5))
    first = asyncio.ensure_future(writer.write(insert("a")))
    second = asyncio.ensure_future(writer.write(insert("b")))
    await asyncio.sleep(0)
    first.cancel()
    held.set()
    await second
    assert first.cancelled()
    assert words(path) == ["a", "b"]


def test_a_waiter_whose_loop_has_ended_does_not_stop_the_writer(writer: Writer, path: Path) -> None:
    held = threading.Event()

    async def leave() -> None:
        writer.send(lambda db: held.wait(5))
        asyncio.ensure_future(writer.write(insert("a")))  # noqa: RUF006
        await asyncio.sleep(0)

    asyncio.run(leave())
    held.set()
    writer.write_now(insert("b"))
    assert words(path) == ["a", "b"]


def test_a_fault_nobody_waited_for_is_raised_in_the_end(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(path, LAYOUT)
    with caplog.at_level(logging.WARNING):
        writer.send(insert(None))
        with pytest.raises(StoreError, match="NOT NULL"):
            writer.flush()
        writer.send(insert(None))
        with pytest.raises(StoreError, match="NOT NULL"):
            writer.close()
    assert "NOT NULL" in caplog.text


async def test_a_full_disk_refuses_this_and_every_later_write(writer: Writer, path: Path) -> None:
    # SQLite's own ceiling on pages gives the very error that a full disk gives.
    writer.write_now(lambda db: db.execute("PRAGMA max_page_count = 20"))
    kept: list[str] = []
    with pytest.raises(DiskFull, match="disk refused") as caught:
        for index in range(1_000):
            await writer.write(insert(f"{index:01000d}"))
            kept.append(f"{index:01000d}")
    assert caught.value.hint == "make room"
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    with pytest.raises(DiskFull, match="disk refused"):
        await writer.write(insert("small"))
    with pytest.raises(DiskFull):
        writer.send(insert("small"))
    assert words(path) == kept
    assert len(kept) > 2


async def test_all_that_wait_hear_of_a_full_disk(writer: Writer, path: Path) -> None:
    writer.write_now(lambda db: db.execute("PRAGMA max_page_count = 20"))
    waits = [writer.write(insert(f"{index:09000d}")) for index in range(50)]
    results = await asyncio.gather(*waits, return_exceptions=True)
    refused = [r for r in results if r is not None]
    assert refused and all(isinstance(r, DiskFull) for r in refused)
    assert len(words(path)) == len(results) - len(refused)


def test_room_is_set_aside_while_it_writes_and_never_in_what_a_link_names(path: Path) -> None:
    mine = path.with_name("mine.txt")
    mine.write_text("kept")
    reserve = path.with_name(f"{path.name}-reserve")
    reserve.symlink_to(mine)
    writer = Writer(path, LAYOUT, reserve=True)
    taken = reserve.lstat()
    assert taken.st_size == 512 * taken.st_blocks == 8 << 20
    writer.require_room()
    writer.close()
    assert not reserve.exists() and mine.read_text() == "kept"


def test_several_threads_may_write_at_once(writer: Writer, path: Path) -> None:
    def write(name: int) -> None:
        for index in range(50):
            writer.write_now(insert(f"{name}/{index}"))

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(words(path)) == 200
