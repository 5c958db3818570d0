"""Errors say what to type next, wherever they come out."""

from __future__ import annotations

import os
import sys
import traceback

import pytest

from promptcodebook.errors import ConfigError, causes_of, import_extra


def shown(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def test_a_traceback_in_a_script_or_notebook_shows_the_hint() -> None:
    error = ConfigError("no model is named", hint="set PCO_LM")
    assert shown(error).endswith("ConfigError: no model is named\nnext: set PCO_LM\n")


def test_a_hint_that_changes_is_shown_once_beside_other_notes() -> None:
    error = ConfigError("no model is named", hint="set PCO_LM")
    error.add_note("while testing")
    error.hint = "pass lm="
    assert error.__notes__ == ["while testing", "next: pass lm="]
    error.hint = ""
    assert error.__notes__ == ["while testing"]


def test_errors_that_are_each_others_context_have_an_end() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__context__, second.__context__ = second, first
    assert list(causes_of(first)) == [first, second]


def test_an_extra_reports_its_use_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would send is seen in tests/attack/test_outbound.py; this much is quick."""
    monkeypatch.delitem(sys.modules, "openvino_telemetry", raising=False)
    monkeypatch.delenv("DO_NOT_TRACK", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "")
    assert import_extra("json", "a test", "none").dumps(1) == "1"
    assert os.environ["DO_NOT_TRACK"] == "1"
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True", "an empty one is none"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1", "what the user set stays"
    assert sys.modules["openvino_telemetry"] is None, "openvino takes its own stub"
