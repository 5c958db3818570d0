"""Presidio beside our patterns, without a model of spaCy: its checks of numbers."""

from __future__ import annotations

import sys
import warnings

import pytest

from promptcodebook.audit.report import PresidioScan
from promptcodebook.errors import MissingExtra


def test_a_missing_presidio_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    with pytest.raises(MissingExtra) as raised:
        PresidioScan()
    assert "pip install 'promptcodebook[presidio]'" in (raised.value.hint or "")


@pytest.mark.local
def test_presidio_finds_numbers_and_says_that_it_cannot_look_for_names() -> None:

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # spaCy's own dependencies are deprecated here and there
        presidio = PresidioScan()
        text = "Pay with 4111 1111 1111 1111 at once."
        (finding,) = presidio.find(text, "c0")
        harmless = list(presidio.find("Count the words, then answer in at most 25 of them."))
    assert (finding.where, finding.kind, finding.severity) == ("c0", "personal", "high")
    assert text[finding.start : finding.end] == "4111 1111 1111 1111"
    assert finding.source == "presidio" and "CREDIT_CARD" in finding.reason
    assert harmless == []
    assert all("names of persons" in line for line in presidio.left_out)
