"""SQLite files: their layout, readers and packed values; and the one writer thread."""

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard

from promptcodebook.base.sqlite import Layout, Reader, Writer, connect, pack, unpack
from promptcodebook.errors import DiskFull, StoreError, StoreTooNew

LAYOUT = Layout("test store", 2, ("CREATE TABLE t (id INTEGER PRIMARY KEY)",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sqlite"


def test_reading_never_makes_a_file_and_never_writes(path: Path) -> None:
    with pytest.raises(StoreError, match="no test store at"):
        connect(path, LAYOUT, write=False)
    assert list(path.parent.iterdir()) == []
    db = connect(path, LAYOUT, write=True)
    names = ("user_version", "journal_mode", "synchronous")
    assert [db.execute(f"PRAGMA {name}").fetchone()[0] for name in names] == [2, "wal", 1]
    db.close()
    reader = Reader(path, LAYOUT)
    with pytest.raises(StoreError, match="readonly"):
        reader.rows("DELETE FROM t")
    assert reader.row("SELECT 1 FROM t") is None
    reader.close()


def test_a_newer_file_and_a_foreign_one_are_left_alone(tmp_path: Path) -> None:
    for version, error in ((3, StoreTooNew), (0, StoreError), (1, StoreError)):
        path = tmp_path / f"v{version}.sqlite"
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE theirs (id)")
        db.execute(f"PRAGMA user_version = {version}")
        db.close()
        for write in (True, False):
            with pytest.raises(error) as caught:
                connect(path, LAYOUT, write=write)
            assert caught.value.hint
        db = sqlite3.connect(path)
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
        db.close()


def test_a_file_of_an_earlier_version_with_the_same_tables_is_read_and_stamped_when_written(
    path: Path,
) -> None:
    connect(path, LAYOUT, write=True).close()
    later = Layout("test store", 3, LAYOUT.script, since=2)
    connect(path, later, write=False).close()
    connect(path, LAYOUT, write=False).close()  # reading left it as it was
    connect(path, later, write=True).close()
    with pytest.raises(StoreTooNew, match="format 3"):
        connect(path, LAYOUT, write=False)
    with pytest.raises(StoreError, match="is not a promptcodebook test store"):
        connect(path, Layout("test store", 5, LAYOUT.script, since=4), write=False)


def test_tables_that_a_file_lacks_are_made_all_or_none(path: Path) -> None:
    def is_whole() -> bool:
        with contextlib.closing(connect(path, LAYOUT, write=False)) as db:
            names = [name for [name] in db.execute("SELECT name FROM sqlite_master")]
            return names == ["t"] and db.execute("SELECT id FROM t").fetchall() == [(7,)]

    db = connect(path, LAYOUT, write=True)
    db.execute("INSERT INTO t VALUES (7)")
    db.close()
    more, fault = (
        "CREATE TABLE IF NOT EXISTS more (id)",
        "CREATE INDEX IF NOT EXISTS i ON absent (id)",
    )
    for version in (2, 3):
        failing = Layout("test store", version, LAYOUT.script, since=2, later=(more, fault))
        with pytest.raises(StoreError, match="absent"):
            connect(path, failing, write=True)
        assert is_whole()
    later = Layout("test store", 3, LAYOUT.script, since=2, later=(more,))
    gate = threading.Barrier(8)

    def migrate() -> list[tuple[int]]:
        gate.wait()
        with contextlib.closing(connect(path, later, write=True)) as db:
            return db.execute("SELECT t.id FROM t LEFT JOIN more").fetchall()

    with ThreadPoolExecutor(8) as pool:
        assert [each.result() for each in [pool.submit(migrate) for _ in range(8)]] == [[(7,)]] * 8


def test_a_file_that_a_process_is_still_making_is_waited_for_but_not_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    maker.execute("BEGIN IMMEDIATE")  # before the file keeps a log: SQLite itself would not wait
    with monkeypatch.context() as patched:
        patched.setattr("promptcodebook.base.sqlite._BUSY_S", 0.1)
        with pytest.raises(StoreError, match="was locked by another process"):
            connect(path, LAYOUT, write=True)
    soon = threading.Timer(0.2, lambda: maker.execute("COMMIT"))
    soon.start()
    connect(path, LAYOUT, write=True).close()
    soon.join()
    maker.close()


def test_a_single_wrong_byte_in_a_packed_value_is_noticed() -> None:
    value = [{"text": "say it in one line", "score": 0.5}] * 3
    blob = pack(value)
    assert unpack(blob) == value
    for at in range(len(blob)):
        for flip in (1, 0x20, 0x80, 0xFF):
            damaged = blob[:at] + bytes([blob[at] ^ flip]) + blob[at + 1 :]
            try:
                assert unpack(damaged) == value  # a flag that says nothing about the value
            except StoreError:
                continue
    for wrong in (b"", b"garbage", blob[:-1], blob[:9], blob + b"x", blob + blob, b"\0" * 20):
        with pytest.raises(StoreError, match="damaged"):
            unpack(wrong)


def test_what_would_unpack_to_more_than_memory_holds_is_not_unpacked() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(b" " * 600_000_000)
    assert len(bomb) < 100_000
    with pytest.raises(StoreError, match="would unpack to 600000000 bytes"):
        unpack(bomb)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b" " * 1000)
    with pytest.raises(StoreError, match="would unpack to"):
        unpack(unsized)
    with pytest.raises(StoreError, match="damaged"):
        unpack(zstandard.compress(b"[" * 100_000))
    with pytest.raises(StoreError, match="damaged"):
        unpack(zstandard.compress(b"9" * 100_000))

    # Each of 4 million lists takes a hundred bytes; a text takes what it says.
    lists = b"[" + b"[]," * 2_000_001 + b"[]]"
    with pytest.raises(StoreError, match="more than 4,000,000 parts"):
        unpack(zstandard.compress(lists))
    text = ',"[{' * 1_500_000
    assert unpack(pack([text, 1])) == [text, 1]
    with pytest.raises(StoreError, match="too large to store"):
        pack([[]] * 4_000_001)


@pytest.mark.parametrize("statement", [
    "CREATE VIEW v AS SELECT 1",
    "CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE v USING fts5(x)",
    "CREATE TABLE g (x, y AS (x + 1))",
    "CREATE TABLE g (x, y AS (x + 1) STORED)",
])  # fmt: skip
def test_a_file_with_more_than_plain_tables_is_not_read(path: Path, statement: str) -> None:
    connect(path, LAYOUT, write=True).close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS t (x)")
        db.execute(statement)
    for write in (False, True):
        with pytest.raises(StoreError, match="is not a plain table"):
            connect(path, LAYOUT, write=write)


def test_a_statement_that_does_not_end_is_ended(path: Path) -> None:
    connect(path, LAYOUT, write=True).close()
    reader = Reader(path, LAYOUT, most_s=0.2)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    with pytest.raises(StoreError, match="takes far longer to read than any file"):
        reader.rows(f"{endless} WHERE i < 0")
    assert reader.rows("SELECT 1") == [(1,)]
    reader.close()
    reader = Reader(path, LAYOUT)
    with pytest.raises(StoreError, match="too many rows"):
        reader.rows(f"{endless} LIMIT 2000000")
    reader.close()


# The writer


LAYOUT_WRITER = Layout(
    "test store", 1, ("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT NOT NULL UNIQUE)",)
)


def insert(word: str | None):
    return lambda db: db.execute("INSERT INTO t (word) VALUES (?)", (word,))


def words(path: Path) -> list[str]:
    reader = Reader(path, LAYOUT_WRITER)
    found = [row[0] for row in reader.rows("SELECT word FROM t ORDER BY id")]
    reader.close()
    return found


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    writer = Writer(path, LAYOUT_WRITER, full_hint="make room")
    yield writer
    writer.close()


async def queued(
    writer: Writer, *words: str | None
) -> tuple[threading.Event, list[asyncio.Future[None]]]:
    """Writes that queue up behind one, and share a transaction once its event is set."""
    held = threading.Event()
    writer.send(lambda db: held.wait(5))
    waits = [asyncio.ensure_future(writer.write(insert(word))) for word in words]
    await asyncio.sleep(0)
    return held, waits


def test_closing_commits_what_was_handed_over(writer: Writer, path: Path) -> None:
    for index in range(5_000):
        writer.send(insert(str(index)))
    writer.close()
    assert words(path) == [str(index) for index in range(5_000)]
    with pytest.raises(StoreError, match="is closed"):
        writer.send(insert("late"))


async def test_many_waiters_share_a_transaction(path: Path) -> None:
    commits: list[int] = []
    writer = Writer(path, LAYOUT_WRITER, each_batch=lambda db: commits.append(1))
    held, waits = await queued(writer, *map(str, range(500)))
    held.set()
    await asyncio.gather(*waits)
    assert len(commits) <= 3
    assert len(words(path)) == 500
    writer.close()


async def test_a_faulty_write_fails_alone(writer: Writer, path: Path) -> None:
    held, waits = await queued(writer, "a", "a", None, "c", "b")
    waits[3].cancel()
    held.set()
    results = await asyncio.gather(*waits, return_exceptions=True)
    failed, gone = StoreError, asyncio.CancelledError
    assert [type(r) for r in results] == [type(None), failed, failed, gone, type(None)]
    assert words(path) == ["a", "c", "b"], "a cancelled wait does not undo its write"


def test_a_waiter_whose_loop_has_ended_does_not_stop_the_writer(writer: Writer, path: Path) -> None:
    held, _ = asyncio.run(queued(writer, "a"))
    held.set()
    writer.write_now(insert("b"))
    assert words(path) == ["a", "b"]


def test_a_fault_nobody_waited_for_is_raised_in_the_end(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(path, LAYOUT_WRITER)
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


def test_room_is_set_aside_while_it_writes_and_never_in_what_a_link_names(path: Path) -> None:
    mine = path.with_name("mine.txt")
    mine.write_text("kept")
    reserve = path.with_name(f"{path.name}-reserve")
    reserve.symlink_to(mine)
    writer = Writer(path, LAYOUT_WRITER, reserve=True)
    taken = reserve.lstat()
    assert taken.st_size == 512 * taken.st_blocks == 8 << 20
    writer.require_room()
    writer.close()
    assert not reserve.exists() and mine.read_text() == "kept"
