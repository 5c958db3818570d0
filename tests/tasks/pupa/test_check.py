"""What a rewrite must not take over from the training queries."""

from __future__ import annotations

import pytest

from promptcodebook.tasks.pupa.task import NoUnitCheck
from promptcodebook.types import Example

CHECK = NoUnitCheck(
    [
        Example("a", "q", fields={"pii_units": "mirelle ostvang||al||fennick lane 14"}),
        Example("b", "q", fields={"pii_units": "mari||"}),
    ]
)


@pytest.mark.parametrize(
    ("text", "before", "whose"),
    [
        ("Hide names such as Mirelle  Ostvang.", "", "example a"),
        ("Drop streets (Fennick Lane, 14).", "", "example a"),
        ("Ask Mari first.", "", "example b"),
        ("Summarise the text.", "", None),
        ("Speak to al, and be brief.", "", None),
        ("Hide the name Mirelle.", "", None),
        ("Ask Mari, then write.", "Ask Mari first.", None),
    ],
)
def test_a_private_piece_is_refused_by_its_owner(text: str, before: str, whose: str | None) -> None:
    said = CHECK("c3", text, before, ())
    assert (said is None) == (whose is None)
    if said is not None:
        assert whose is not None and whose in said
        assert not any(word in said.lower() for word in ("mirelle", "fennick", "mari"))
