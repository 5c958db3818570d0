"""A registry as lines: taken in whole and verified, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.errors import PolicyError, RegistryDamaged, StoreError
from promptcodebook.registry.log import canonical, version_of
from promptcodebook.registry.registry import Facts, Registry, export_lines, import_lines
from tests.policy.registry.build import PRODUCTION, open_gate, policy, sqlite


def filled(folder: Path) -> Registry:
    registry = sqlite(folder)
    for word in "ab":
        registry.freeze(policy(word), "tickets", Facts(run=f"run {word}"))
        registry.promote("tickets@latest", PRODUCTION, f"{word} is good", gate=open_gate)
    registry.rollback(PRODUCTION, why="é is not")
    return registry


def exported(registry: Registry, *sources: str) -> bytes:
    return "".join(export_lines(registry, sources)).encode()


def taken(registry: Registry, data: bytes, name: str = "") -> tuple[int, int]:
    found = import_lines(registry, io.BytesIO(data), name)
    return found.versions, found.entries


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
        assert taken(empty, exported(source)) == (0, 0)  # ours goes on where theirs ends


def test_a_log_that_is_another_one_is_refused_and_its_versions_can_be_taken(
    data: bytes, source: Registry, empty: Registry
) -> None:
    empty.freeze(policy("z"), "mails")
    with pytest.raises(StoreError, match="a log of its own"):
        taken(empty, data)
    assert len(empty.history()) == 1
    assert taken(empty, data, "theirs") == (2, 2)
    assert [e.action for e in empty.history("theirs")] == ["import", "import"]
    assert empty.text("theirs@latest") == policy("b")
    assert empty.version("theirs@latest").facts["run"] == "run b"
    assert taken(empty, exported(source, PRODUCTION), "theirs") == (0, 1)


def test_single_versions_bring_what_is_known_of_them_but_no_log(
    source: Registry, empty: Registry
) -> None:
    data = exported(source, PRODUCTION)
    with pytest.raises(StoreError, match="single versions and no log"):
        taken(empty, data)
    assert taken(empty, data, "tickets") == (1, 1)
    facts = empty.version("tickets@latest").facts
    assert facts["run"] == "run a" and facts == source.version(PRODUCTION).facts


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
    data = forged([first, stored, {"kind": "end", "lines": 3}])
    with pytest.raises(PolicyError, match="is not a policy file"):
        taken(empty, data, "tickets")
    assert empty.history() == ()


def forged(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """The lines with sums as `export_lines` would write them: only what they say can be wrong."""
    written, sum_ = b"", ""
    for line in lines:
        plain = {key: value for key, value in line.items() if key != "sum"}
        sum_ = hashlib.sha256(f"{sum_}\n{canonical(plain)}".encode()).hexdigest()
        written += f"{canonical({**plain, 'sum': sum_})}\n".encode()
    return written


@pytest.mark.parametrize(
    ("at", "change", "fault"),
    [
        (0, {"format": "promptcodebook registry 9"}, "line 1 .* does not have it there"),
        (1, None, "line 3 .* does not hold its version"),
        (2, None, "line 5 .* does not hold its version"),
        (1, {"policy": "{}"}, "line 2 .* its policy is not sha256"),
        (3, None, "line 4 .* it says that it is entry 2"),
        (-1, {"lines": 7}, "line 9 .* the last one of another file"),
        (4, {"kind": "registry", "format": "promptcodebook registry 1"}, "line 5 .* have it there"),
    ],
)
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
