"""Errors say what to type next, wherever they come out."""

from __future__ import annotations

import traceback

from promptcodebook.errors import ConfigError


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
