"""A byte that was flipped is found, and what it is in is named; or it holds nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcodebook.errors import StoreError
from promptcodebook.registry.registry import Registry
from promptcodebook.registry.shelf import Facts
from promptcodebook.registry.sqlite import SqliteShelf
from tests.policy.registry.build import PRODUCTION, open_gate, policy, sqlite

FLIPS = st.integers(1, 255)


@dataclass(frozen=True)
class Written:
    """A registry's file, and all that it says."""

    file: Path
    data: bytes
    says: object

    def changed(self, place: int, flip: int) -> Registry:
        """The registry with one byte another."""
        data = bytearray(self.data)
        data[place] ^= flip
        self.file.write_bytes(data)
        return Registry(SqliteShelf(self.file))


def says(registry: Registry) -> object:
    texts = {v.version: registry.text(v.version) for v in registry.versions()}
    return registry.history(), registry.refs(), texts


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Some versions and moves, so that pages are full, split, and go on in others."""
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
        all_of_it = says(registry)
    file = folder / "registry.sqlite"
    return Written(folder / "flipped.sqlite", file.read_bytes(), all_of_it)


def is_found(written: Written, place: int, flip: int) -> bool:
    """Whether verify finds it. Where it does not, what the registry says is what it said."""
    with written.changed(place, flip) as registry:
        found = registry.verify()
        if found.passes:
            assert says(registry) == written.says, f"byte {place} ^ {flip} changed it unseen"
            return False
        assert all(fault.place and fault.what for fault in found.faults)
        with contextlib.suppress(StoreError):  # nobody is told anything else, either
            assert says(registry) == written.says
        return True


@given(st.integers(0, 2**20), FLIPS)
@settings(max_examples=60)
def test_a_flipped_byte_is_found_or_holds_nothing(written: Written, place: int, flip: int) -> None:
    is_found(written, place % len(written.data), flip)


@pytest.mark.slow
def test_flipped_bytes_all_over_the_file_are_found_but_in_room_that_was_never_filled(
    written: Written,
) -> None:
    places = range(0, len(written.data), 47)
    lost = [place for place in places if not is_found(written, place, 0x41)]
    assert all(written.data[place] == 0 for place in lost)
    assert len(lost) < len(places) / 2


def cells(db: sqlite3.Connection) -> Iterator[tuple[str, str, int, str]]:
    for table, key in (("log", "seq"), ("policies", "id")):
        names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        for (number,) in db.execute(f"SELECT {key} FROM {table}").fetchall():
            yield from ((table, key, number, name) for name in names if name != key)


def test_a_byte_flipped_in_any_cell_is_found_and_its_row_is_the_first_named(
    written: Written, tmp_path: Path
) -> None:
    """As an editor of the file would do it: the file itself stays whole."""
    file = tmp_path / "edited.sqlite"
    file.write_bytes(written.data)
    with sqlite3.connect(file, isolation_level=None) as db, Registry(SqliteShelf(file)) as registry:
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
        ("DELETE FROM log WHERE seq = 5", "row 5 of the log"),
        ("DELETE FROM policies WHERE id = 2", "row 2 of the policies"),
        ("UPDATE log SET seq = 99 WHERE seq = 7", "row 7 of the log"),
        ("UPDATE log SET seq = -1 WHERE seq = 7", "row 7 of the log"),
        ("INSERT INTO policies SELECT 4, 'sha256:0', policy FROM policies WHERE id = 1",
         "row 4 of the policies"),
        ("UPDATE log SET who = CAST(who AS BLOB) WHERE seq = 3", "row 3 of the log"),
        ("DROP INDEX log_by_ref", "the file"),
        ("ALTER TABLE log ADD COLUMN more TEXT", "the file"),
        ("PRAGMA application_id = 7", "the file"),
    ],
)  # fmt: skip
def test_rows_taken_out_put_in_or_made_otherwise_are_named(
    written: Written, tmp_path: Path, statement: str, place: str
) -> None:
    file = tmp_path / "edited.sqlite"
    file.write_bytes(written.data)
    with sqlite3.connect(file) as db:
        db.execute(statement)
    with Registry(SqliteShelf(file)) as registry:
        assert registry.verify().faults[0].place == place


def test_an_entry_that_was_changed_and_sealed_anew_breaks_the_chain(
    written: Written, tmp_path: Path
) -> None:
    file = tmp_path / "edited.sqlite"
    file.write_bytes(written.data)
    with Registry(SqliteShelf(file)) as registry:
        entry = registry.history()[4]
    forged = replace(entry, why="forged").sealed()
    with sqlite3.connect(file) as db:
        db.execute("UPDATE log SET why = ?, hash = ? WHERE seq = 5", (forged.why, forged.hash))
    with Registry(SqliteShelf(file)) as registry:
        [fault] = registry.verify().faults
        assert str(fault).startswith("row 6 of the log: it does not follow the entry before it")
