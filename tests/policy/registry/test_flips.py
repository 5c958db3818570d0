"""A cell, a row or an entry that was changed in the file is found, and its row is named."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from promptcodebook.registry.registry import Facts, Registry
from promptcodebook.registry.sqlite import SqliteStorage
from tests.policy.registry.build import PRODUCTION, open_gate, policy, sqlite


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a registry with some versions and moves."""
    folder = tmp_path_factory.mktemp("flips")
    with sqlite(folder) as registry:
        for word in ("a", "b", "long " * 2500):
            facts = Facts(run=f"r{word[:1]}", configuration={"size": 2, "note": word[:900]})
            registry.freeze(policy(word), "tickets", facts, why=f"{word[:20]} é")
        for number in range(12):
            registry.promote(
                registry.versions()[number % 3].version, PRODUCTION, f"n{number}", gate=open_gate
            )
        registry.rollback(PRODUCTION, why="back")
    return (folder / "registry.sqlite").read_bytes()


def cells(db: sqlite3.Connection) -> Iterator[tuple[str, str, int, str]]:
    for table, key in (("log", "seq"), ("policies", "id")):
        names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        for (number,) in db.execute(f"SELECT {key} FROM {table}").fetchall():
            yield from ((table, key, number, name) for name in names if name != key)


def test_a_byte_flipped_in_any_cell_is_found_and_its_row_is_the_first_named(
    written: bytes, tmp_path: Path
) -> None:
    """As an editor of the file would do it: the file itself stays whole."""
    file = tmp_path / "edited.sqlite"
    file.write_bytes(written)
    with (
        sqlite3.connect(file, isolation_level=None) as db,
        Registry(SqliteStorage(file)) as registry,
    ):
        every = list(cells(db))
        assert len(every) == 16 * 10 + 3 * 2
        for table, key, number, name in every:
            where = f"UPDATE {table} SET {name} = ? WHERE {key} = {number}"
            value = db.execute(f"SELECT {name} FROM {table} WHERE {key} = {number}").fetchone()[0]
            data = bytearray(value if isinstance(value, bytes) else value.encode())
            if not data:
                db.execute(where, ("x",))
            else:
                data[len(data) // 2] ^= 1
                db.execute(where, (bytes(data) if isinstance(value, bytes) else data.decode(),))
            faults = registry.verify().faults
            assert faults and faults[0].place == f"row {number} of the {table}", (name, faults[:2])
            db.execute(where, (value,))
        assert registry.verify().passes


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("DELETE FROM log WHERE seq = 5", "row 6 of the log"),
        ("DELETE FROM policies WHERE id = 2", "row 2 of the log"),
        ("UPDATE log SET seq = 99 WHERE seq = 7", "row 8 of the log"),
        ("UPDATE log SET seq = -1 WHERE seq = 7", "row -1 of the log"),
        ("INSERT INTO policies SELECT 4, 'sha256:0', policy FROM policies WHERE id = 1",
         "row 4 of the policies"),
        ("UPDATE log SET who = CAST(who AS BLOB) WHERE seq = 3", "row 3 of the log"),
    ],
)  # fmt: skip
def test_rows_taken_out_put_in_or_made_otherwise_are_named(
    written: bytes, tmp_path: Path, statement: str, place: str
) -> None:
    file = tmp_path / "edited.sqlite"
    file.write_bytes(written)
    with sqlite3.connect(file) as db:
        db.execute(statement)
    with Registry(SqliteStorage(file)) as registry:
        assert registry.verify().faults[0].place == place


def test_an_entry_that_was_changed_and_sealed_anew_breaks_the_chain(
    written: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "edited.sqlite"
    file.write_bytes(written)
    with Registry(SqliteStorage(file)) as registry:
        entry = registry.history()[4]
    forged = replace(entry, why="forged").sealed()
    with sqlite3.connect(file) as db:
        db.execute("UPDATE log SET why = ?, hash = ? WHERE seq = 5", (forged.why, forged.hash))
    with Registry(SqliteStorage(file)) as registry:
        [fault] = registry.verify().faults
        assert str(fault).startswith("row 6 of the log: it does not follow the entry before it")
