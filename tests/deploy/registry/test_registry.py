"""Versions that never change, refs that only move, and a log of every move: in one file."""

import contextlib
import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from promptcodebook.deploy.audit.report import AuditReport
from promptcodebook.deploy.registry.log import (
    FIRST,
    Broken,
    Log,
    LogEntry,
    Propose,
    canonical,
    version_of,
)
from promptcodebook.deploy.registry.registry import (
    AUDIT,
    Facts,
    Registry,
    open_registry,
)
from promptcodebook.errors import (
    ConfigError,
    PolicyError,
    PromotionRefused,
    RefNotFound,
    RegistryDamaged,
    StoreError,
)
from promptcodebook.policy.scan import Finding
from tests.build.cases import table
from tests.build.registry import PRODUCTION, exported, policy, sqlite, taken


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with sqlite(tmp_path) as made:
        yield made


def frozen(registry: Registry, words: str) -> list[str]:
    """The names of a version of tickets for each letter."""
    return [registry.freeze(policy(word), "tickets").version for word in words]


def promoted(registry: Registry, words: str) -> list[str]:
    """The same, with tickets@production moved to each in turn."""
    versions = frozen(registry, words)
    for version in versions:
        registry.promote(version, PRODUCTION, override="a test")
    return versions


def test_a_version_is_its_bytes_once_with_what_is_known_of_it(registry: Registry) -> None:
    text, facts = policy("a"), Facts(run="r1", step=7, score=0.5, data={"train": "f"})
    first = registry.freeze(text, "tickets", facts, why="the first one")
    assert first.version == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    assert registry.text("tickets@latest") == text
    assert registry.policy(first.version[:20]).text() == text
    assert {key: first.facts[key] for key in ("run", "step", "score", "data", "parent")} == {
        "run": "r1", "step": 7, "score": 0.5, "data": {"train": "f"}, "parent": "",
    }  # fmt: skip
    assert (first.who, first.time) == ("ada", "2026-01-31T15:45:00.000+00:00")
    assert registry.freeze(text, "tickets", Facts(run="r2")) == first
    assert len(registry.history()) == 1
    other = registry.freeze(text, "mails")
    assert other.version == first.version and other.facts["run"] == "r1"
    assert other.refs == ("mails@latest", "tickets@latest") and len(registry.versions()) == 1
    second = registry.freeze(policy("b"), "tickets")
    assert second.facts["parent"] == first.version and second.refs == ("tickets@latest",)
    assert registry.version(first.version).refs == ("mails@latest",)


def test_rollback_goes_back_one_version_at_a_time_or_to_one_that_the_ref_was_at(
    registry: Registry,
) -> None:
    a, b, _c = promoted(registry, "abc")
    assert registry.before(PRODUCTION) == b
    assert registry.rollback(PRODUCTION, why="it fails").after == b
    assert registry.resolve(PRODUCTION) == b
    assert registry.rollback(PRODUCTION).after == a
    with pytest.raises(RefNotFound, match="has no version before"):
        registry.rollback(PRODUCTION)
    d, e, _f = promoted(registry, "def")
    with pytest.raises(PolicyError, match="was not at"):
        registry.rollback(PRODUCTION, to=b)  # it was taken back
    with pytest.raises(PolicyError, match="already"):
        registry.rollback(PRODUCTION, to=PRODUCTION)
    assert registry.rollback(PRODUCTION, to=d[:20]).after == d and registry.before(PRODUCTION) == a
    with pytest.raises(PolicyError, match="was not at"):
        registry.rollback(PRODUCTION, to=e)


def report_of(registry: Registry, judge: str = "", kind: str = "", **looked: Any) -> dict[str, Any]:
    """What an audit of tickets@latest says: one high finding of that kind ('' = none)."""
    source = "judge" if judge else "rules"
    found = Finding("generator", kind, "high", 0, 1, "x", "it harms", source)
    digest = registry.policy("tickets@latest").digest
    return AuditReport(digest, ("generator",), (found,) if kind else (), judge, **looked).to_json()


def test_what_a_judge_found_is_not_undone_by_rules_that_find_nothing(registry: Registry) -> None:
    version = registry.freeze(policy("a"), "tickets").version
    with pytest.raises(PromotionRefused, match="never audited"):
        registry.promote(version, PRODUCTION)
    registry.attest(version, AUDIT, report_of(registry, "a-judge", "dfm"))
    registry.attest(version, AUDIT, report_of(registry))
    message = "failed its audit by a-judge: defamation in the generator's directive"
    with pytest.raises(PromotionRefused, match=message) as refused:
        registry.promote(version, PRODUCTION)
    assert "if a-judge is too weak to judge" in refused.value.hint
    assert "--override REASON" in refused.value.hint
    registry.attest(version, AUDIT, report_of(registry, "a-judge"))
    entry = registry.promote(version, PRODUCTION)
    assert entry is not None and sorted(entry.known["audited"]) == ["a-judge", "rules"]


def test_what_an_audit_found_is_not_undone_by_one_that_looks_at_less(registry: Registry) -> None:
    version = registry.freeze(policy("a"), "tickets").version
    registry.attest(version, AUDIT, report_of(registry, "", "copied", rows=40))
    registry.attest(version, AUDIT, report_of(registry, "judge"))
    with pytest.raises(PromotionRefused, match=r"copied in the generator.s directive \(it harms\)"):
        registry.promote(version, PRODUCTION)
    registry.attest(version, AUDIT, report_of(registry, "judge", rows=40))
    assert registry.promote(version, PRODUCTION) is not None


@pytest.mark.parametrize("without_judge", [False, True])
def test_a_report_that_comes_in_at_the_last_moment_counts(
    registry: Registry, without_judge: bool
) -> None:
    [version] = frozen(registry, "a")
    registry.attest(version, AUDIT, report_of(registry))
    append, bad = registry.file.append, report_of(registry, "judge", "hate")

    def after_another(propose: Propose, *more: Any) -> list[LogEntry]:
        registry.file.append = append  # type: ignore[method-assign]
        registry.attest(version, AUDIT, bad)
        return append(propose, *more)

    registry.file.append = after_another  # type: ignore[method-assign]
    with pytest.raises(PromotionRefused, match="hate"):
        registry.promote(version, PRODUCTION, without_judge=without_judge)


@pytest.mark.parametrize("known", ["", "none"])
def test_a_version_without_a_verdict_takes_a_flag_or_is_tried_as_a_canary(
    registry: Registry, known: str
) -> None:
    """A canary's decision is evidence of its own."""
    first = registry.freeze(policy("a"), "tickets").version
    registry.promote(first, PRODUCTION, override="a test")
    bare = json.dumps({**json.loads(policy("b")), "about": {}})
    version = registry.freeze(bare, "tickets", Facts(verdict=known)).version
    with pytest.raises(PromotionRefused, match="has no verdict") as caught:
        registry.promote(version, PRODUCTION, override="a test")
    assert "--despite-verdict" in caught.value.hint
    plan = {"share": 0.1, "margin": 0.0, "split": "caller"}
    registry.promote(version, PRODUCTION, override="a test", canary=plan)
    canary = registry.canary(PRODUCTION)
    assert canary is not None and registry.resolve(PRODUCTION) == first
    registry.end_canary(canary, True, "users said so", {})
    assert registry.resolve(PRODUCTION) == version
    registry.rollback(PRODUCTION)
    registry.promote(version, PRODUCTION, override="a test", despite_verdict=True)
    assert registry.resolve(PRODUCTION) == version
    refused = policy("c").replace('"Deploy"', '"Do not deploy"')  # as a run's own file says
    bad = registry.freeze(refused, "tickets").version
    with pytest.raises(PromotionRefused, match="Do not deploy"):
        registry.promote(bad, PRODUCTION, override="a test", canary=plan)


@given(st.lists(st.tuples(st.sampled_from(["promote", "back", "to"]), st.integers(0, 2))))
@example([("promote", 0), ("promote", 1), ("promote", 0), ("to", 0)])
@settings(max_examples=15, deadline=None)
def test_whatever_is_moved_the_registry_is_whole(moves: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, sqlite(Path(folder)) as made:
        versions = [made.freeze(policy(word), "tickets").version for word in "abc"]
        for move, number in moves:
            with contextlib.suppress(PolicyError, RefNotFound):
                if move == "promote":
                    made.promote(versions[number], PRODUCTION, override="a test")
                else:
                    made.rollback(PRODUCTION, versions[number] if move == "to" else "")
        assert made.verify().passes and made.refs()["tickets@latest"] == versions[2]


def test_what_the_log_refuses_is_not_written(registry: Registry) -> None:
    frozen(registry, "a")
    [entry] = registry.history()
    with pytest.raises(StoreError, match="rejects the change"):
        registry.file.append(lambda log: [replace(entry, seq=2).sealed()])
    assert registry.verify().passes and len(registry.history()) == 1


def test_a_registry_put_back_from_a_copy_is_the_registry_from_then_on(tmp_path: Path) -> None:
    with sqlite(tmp_path) as ours, sqlite(tmp_path) as theirs:
        b, a = promoted(ours, "ba")
        copy = tmp_path / "copy"
        shutil.copy(tmp_path / "registry.sqlite", copy)
        copy.replace(tmp_path / "registry.sqlite")
        theirs.promote(b, PRODUCTION, override="a test")
        assert ours.resolve(PRODUCTION) == b
        ours.promote(a, PRODUCTION, override="a test")
        assert theirs.refs()[PRODUCTION] == a


def test_a_score_that_is_no_number_and_a_reason_of_nothing(registry: Registry) -> None:
    version = registry.freeze(policy("a"), "tickets", Facts(score=float("nan")))
    assert version.facts["score"] is None
    with pytest.raises(PromotionRefused):
        registry.promote(version.version, PRODUCTION, override="\x01")


def test_an_audit_of_other_texts_does_not_count(registry: Registry) -> None:
    registry.freeze(policy("a"), "tickets")
    others = report_of(registry)
    version = registry.freeze(policy("b"), "tickets").version
    registry.attest(version, AUDIT, others)
    registry.attest(version, AUDIT, {"format": "of another time"}, why="first scan")
    registry.attest(version, "licence", {"ok": 1})
    assert len(registry.attestations(version, AUDIT)) == 2
    with pytest.raises(PromotionRefused, match="never audited"):
        registry.promote(version, PRODUCTION, override="  ")


@pytest.mark.parametrize(
    "ref", ["tickets", "@production", "a/b@c", "../x@y", "t@", "t@a@b", "t@latest", "t@x y",
            "t@production\n"],
)  # fmt: skip
def test_what_is_no_ref_is_refused(registry: Registry, ref: str) -> None:
    frozen(registry, "a")
    with pytest.raises(ConfigError):
        registry.promote("tickets@latest", ref, override="a test")


def test_only_a_policy_file_is_stored(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="is not a policy file"):
        registry.freeze('{"format": "x"}', "tickets")
    assert registry.history() == () and not (tmp_path / "registry.sqlite").exists()


def test_texts_in_the_log_do_not_steer_a_terminal(registry: Registry) -> None:
    version = registry.freeze(policy("a"), "tickets", why="red \x1b[31m \udc80 alert")
    assert registry.history()[0].why == "red  [31m ? alert" and registry.verify().passes
    with pytest.raises(ConfigError, match="at most 4000 characters"):
        registry.promote(version.version, PRODUCTION, "x" * 5000, override="a test")


def test_a_registry_lies_where_the_environment_says_made_with_its_first_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_REGISTRY", str(tmp_path / "our" / "team" / "r.sqlite"))
    with open_registry() as registry:
        assert registry.refs() == {} and registry.versions() == ()
        found = registry.verify()
        assert found.passes and found.head == FIRST
        assert not (tmp_path / "our").exists()
        [version] = frozen(registry, "a")
        assert registry.refs() == {"tickets@latest": version}
    assert (tmp_path / "our" / "team" / "r.sqlite").stat().st_mode & 0o077 == 0
    assert [f.name for f in (tmp_path / "our" / "team").iterdir()] == ["r.sqlite"]


@pytest.mark.parametrize(("damage", "error", "match"), [
    ("log SET who = 'eve'", RegistryDamaged, "row 1 of the log"),
    ("log SET who = CAST(x'ff' AS TEXT)", StoreError, "registry"),
    ("policies SET policy = CAST(replace(policy, 'a', 'b') AS BLOB)", RegistryDamaged, "hash"),
])  # fmt: skip
def test_what_is_damaged_is_not_handed_out_nor_gone_on_with(
    tmp_path: Path, damage: str, error: type[StoreError], match: str
) -> None:
    with sqlite(tmp_path) as registry:
        frozen(registry, "a")
    with sqlite3.connect(tmp_path / "registry.sqlite") as db:
        db.execute(f"UPDATE {damage}")
    with sqlite(tmp_path) as registry, pytest.raises(error, match=match):
        registry.promote("tickets@latest", PRODUCTION, override="a test")


A, B, C, D = (f"sha256:{letter * 64}" for letter in "abcd")


def chained(log: Log, action: str, ref: str, before: str, after: str) -> LogEntry:
    """An entry with the right number and hashes: only what it says can be wrong."""
    entry = LogEntry(log.next, "2026", "eva", action, ref, before, after, "", "{}", log.head)
    return entry.sealed()


@pytest.mark.parametrize(("action", "ref", "before", "after", "fault"), [
    ("rollback", PRODUCTION, C, A, ""),
    ("rollback", PRODUCTION, C, B, ""),
    ("rollback", PRODUCTION, C, C, "already pointed to that version"),
    ("rollback", PRODUCTION, C, D, "was never at"),
    ("promote", PRODUCTION, C, D, ""),
    ("promote", PRODUCTION, C, f"sha256:{'e' * 64}", "no entry stored"),
    ("freeze", PRODUCTION, C, f"sha256:{'e' * 64}", ""),
    ("promote", PRODUCTION, B, A, "did not point to"),
    ("promote", PRODUCTION, "", A, "did not point to"),
    ("promote", "tickets@other", C, A, "did not point to"),
    ("promote", "", "", A, "does not go with an empty ref"),
    ("attest", PRODUCTION, C, A, "does not go with tickets@production"),
    ("attest", "", "", A, ""),
    ("attest", "", "", f"sha256:{'e' * 64}", "no entry stored"),
    ("burn", PRODUCTION, C, A, "there is no action 'burn'"),
])  # fmt: skip
def test_an_entry_that_follows_in_the_chain_must_still_say_what_can_be(
    action: str, ref: str, before: str, after: str, fault: str
) -> None:
    log = Log()
    for stored in (A, B, C, D):
        log.add(chained(log, "freeze", "tickets@latest", log.at("tickets@latest") or "", stored))
    for moved in (A, B, C):
        log.add(chained(log, "promote", PRODUCTION, log.at(PRODUCTION) or "", moved))
    entry, entries = chained(log, action, ref, before, after), len(log.entries)
    if fault:
        with pytest.raises(Broken, match=fault):
            log.add(entry)
    else:
        log.add(entry)
    assert len(log.entries) == entries + (not fault)
    assert log.at(PRODUCTION) == (C if fault or not ref else after)
    if action == "rollback" and not fault:
        assert log.history(PRODUCTION) == ((A,) if after == A else (A, B))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a registry with some versions and moves."""
    folder = tmp_path_factory.mktemp("flips")
    with sqlite(folder) as registry:
        for word in ("a", "b", "long " * 2500):
            facts = Facts(run=f"r{word[:1]}", configuration={"size": 2, "note": word[:900]})
            registry.freeze(policy(word), "tickets", facts, why=f"{word[:20]} é")
        for number, version in enumerate((*registry.versions(), registry.versions()[0])):
            registry.promote(version.version, PRODUCTION, f"n{number}", override="a test")
        registry.rollback(PRODUCTION, why="back")
    return (folder / "registry.sqlite").read_bytes()


def cells(db: sqlite3.Connection) -> Iterator[tuple[str, str, int, str]]:
    for name, key in (("log", "seq"), ("policies", "id")):
        names = [row[1] for row in db.execute(f"PRAGMA table_info({name})")]
        for (number,) in db.execute(f"SELECT {key} FROM {name}").fetchall():
            yield from ((name, key, number, column) for column in names if column != key)


def test_a_byte_flipped_in_any_cell_is_found_and_its_row_is_the_first_named(
    written: bytes, tmp_path: Path
) -> None:
    """As an editor of the file would do it: the file itself stays whole."""
    file = tmp_path / "edited.sqlite"
    file.write_bytes(written)
    with (
        sqlite3.connect(file, isolation_level=None) as db,
        Registry(file) as registry,
    ):
        every = list(cells(db))
        assert len(every) == 8 * 10 + 3 * 2
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
    ("statement", "place"), table(__file__, "rows_taken_out_put_in_or_made_otherwise_are_named")
)
def test_rows_taken_out_put_in_or_made_otherwise_are_named(
    written: bytes, tmp_path: Path, statement: str, place: str
) -> None:
    file = tmp_path / "edited.sqlite"
    file.write_bytes(written)
    with sqlite3.connect(file) as db:
        db.execute(statement)
    with Registry(file) as registry:
        assert registry.verify().faults[0].place == place


def test_an_entry_that_was_changed_and_sealed_anew_breaks_the_chain(
    written: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "edited.sqlite"
    file.write_bytes(written)
    with Registry(file) as registry:
        entry = registry.history()[4]
    forged = replace(entry, why="forged").sealed()
    with sqlite3.connect(file) as db:
        db.execute("UPDATE log SET why = ?, hash = ? WHERE seq = 5", (forged.why, forged.hash))
    with Registry(file) as registry:
        [fault] = registry.verify().faults
        assert str(fault).startswith("row 6 of the log: it does not follow the entry before it")


# A registry as lines: taken in whole and verified, or not at all.


def filled(folder: Path) -> Registry:
    registry = sqlite(folder)
    for word in "ab":
        registry.freeze(policy(word), "tickets", Facts(run=f"run {word}"))
        registry.promote("tickets@latest", PRODUCTION, f"{word} is good", override="a test")
    registry.rollback(PRODUCTION, why="é is not")
    return registry


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with filled(tmp_path_factory.mktemp("source")) as registry:
        yield registry


@pytest.fixture(scope="module")
def data(source: Registry) -> bytes:
    return exported(source)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Registry]:
    with sqlite(tmp_path, "bob") as registry:
        yield registry


def test_a_registry_goes_on_where_the_other_does(tmp_path: Path, empty: Registry) -> None:
    with filled(tmp_path / "other") as source:
        assert taken(empty, exported(source)) == (2, 5)
        assert empty.history() == source.history() and empty.versions() == source.versions()
        assert empty.verify().head == source.verify().head and taken(empty, exported(source)) == (
            0,
            0,
        )
        source.freeze(policy("c"), "tickets")
        assert taken(empty, exported(source)) == (1, 1)
        assert empty.refs() == source.refs()
        empty.freeze(policy("d"), "tickets")
        assert taken(empty, exported(source)) == (0, 0)  # ours continues where theirs ends


def test_a_log_that_is_another_one_is_refused_and_so_is_none(data: bytes, empty: Registry) -> None:
    empty.freeze(policy("z"), "mails")
    with pytest.raises(StoreError, match="does not continue that of"):
        taken(empty, data)
    assert len(empty.history()) == 1
    first, *_ = (json.loads(line) for line in data.splitlines())
    with pytest.raises(StoreError, match="contains no log"):
        taken(empty, forged([first, {"kind": "end", "lines": 2}]))


@given(st.data())
def test_a_byte_that_was_changed_is_found_and_its_line_named(
    data: bytes, tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    place = draw.draw(st.integers(0, len(data) - 1), "place")
    other = draw.draw(st.integers(1, 255), "other")
    changed = bytearray(data)
    changed[place] ^= other
    line = data[:place].count(b"\n") + 1
    with sqlite(tmp_path_factory.getbasetemp() / "never") as registry:
        with pytest.raises(RegistryDamaged, match=f"line {line} of the file"):
            taken(registry, bytes(changed))
        assert registry.history() == ()


def test_a_line_that_is_missing_put_in_or_moved_is_found(data: bytes, empty: Registry) -> None:
    lines = data.splitlines(keepends=True)
    for at in range(len(lines)):
        for first, bad in (
            (at + 1, lines[:at] + lines[at + 1 :]),
            (at + 2, [*lines[: at + 1], *lines[at:]]),
            (at + 1, [*lines[:at], *reversed(lines[at : at + 2]), *lines[at + 2 :]]),
        ):
            if bad != lines:
                with pytest.raises(RegistryDamaged, match=rf"line {first} "):
                    taken(empty, b"".join(bad))
    with pytest.raises(RegistryDamaged, match="line 1 of the file: it is missing"):
        taken(empty, b"")


def test_what_is_no_policy_is_not_taken_in_though_its_hash_is_right(empty: Registry) -> None:
    stored = {"kind": "version", "version": version_of(b"{}"), "policy": "{}", "facts": {}}
    first = {"kind": "registry", "format": "promptcodebook registry 1"}
    log, bytes_ = Log(), version_of(b"{}")
    first_of = LogEntry(1, "2026", "bob", "freeze", "t@latest", "", bytes_, "", "{}", log.head)
    log.add(first_of.sealed())
    entered = {"kind": "entry", "entry": asdict(log.entries[0])}
    data = forged([first, stored, entered, {"kind": "end", "lines": 4}])
    with pytest.raises(PolicyError, match="is not a policy file"):
        taken(empty, data)
    assert empty.history() == ()


def forged(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """The lines with sums as `export_lines` would write them: only what they say can be wrong."""
    written, sum_ = b"", ""
    for line in lines:
        plain = {key: value for key, value in line.items() if key != "sum"}
        sum_ = hashlib.sha256(f"{sum_}\n{canonical(plain)}".encode()).hexdigest()
        written += f"{canonical({**plain, 'sum': sum_})}\n".encode()
    return written


@pytest.mark.parametrize(("at", "change", "fault"), [
    (0, {"format": "promptcodebook registry 9"}, "line 1 .* it is out of place"),
    (1, None, "line 3 .* does not hold its version"),
    (2, None, "line 5 .* does not hold its version"),
    (1, {"policy": "{}"}, "line 2 .* its policy is not sha256"),
    (3, None, "line 4 .* it says that it is entry 2"),
    (-1, {"lines": 7}, "line 9 .* the last line of a different file"),
    (4, {"kind": "registry", "format": "promptcodebook registry 1"}, "line 5 .* out of place"),
])  # fmt: skip
def test_lines_whose_sums_are_right_must_still_fit_together(
    data: bytes, empty: Registry, at: int, change: dict[str, Any] | None, fault: str
) -> None:
    lines = [json.loads(line) for line in data.splitlines()]
    assert forged(lines) == data
    if change is None:
        del lines[at]
    elif "kind" in change:
        lines[at] = change
    else:
        lines[at] |= change
    with pytest.raises(RegistryDamaged, match=fault):
        taken(empty, forged(lines))
    assert empty.history() == ()
