"""What of a run that bears no mark is refused: exactly the code and the addresses that would be
used and were not typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from promptcodebook.errors import RunNotTrusted
from promptcodebook.policy.references import require_trust
from promptcodebook.store.header import Header

THEIRS, OTHER, MINE = (f"http://{host}.test:9/v1#m" for host in ("theirs", "other", "mine"))
SENT = {
    "headers": {"X-Loot": "$PCO_LOOT", "X-Title": "plain"},
    "extra": {"api_key": "$PCO_BODY", "top_k": 3},
}


def refusal(stored: Mapping[str, Any], ref: str = "", **typed: Any) -> RunNotTrusted | None:
    header = Header(id="r1", created="", version="", config=stored)
    try:
        require_trust(header, typed, trusted=False, ref=ref)
    except RunNotTrusted as error:
        return error
    return None


def would(stored: Mapping[str, Any], **typed: Any) -> str:
    """What the refusal says that the run would do; '' where it is let through."""
    error = refusal(stored, **typed)
    return "" if error is None else str(error).partition("and it would ")[2]


FILES = {"lm": "simulated", "reward": "evil.py:score", "executor": "evil.py:run"}


@pytest.mark.parametrize(
    ("stored", "typed", "named"),
    [
        (FILES, {}, "run evil.py:score, evil.py:run"),
        (FILES, {"reward": "mine.py:score"}, "run evil.py:run"),
        (FILES, {"executor": "mine.py:run"}, "run evil.py:score"),
        (FILES, {"reward": "mine.py:score", "executor": "mine.py:run"}, ""),
        (FILES, {"task": "constraints"}, ""),
        ({**FILES, "reward": "exact", "executor": ""}, {}, ""),
        (
            {
                "lm": "simulated",
                "reward": {"sum": [{"of": "a.py:f"}, {"of": ["b.py:g", 0.5, "c"]}]},
            },
            {},
            "run a.py:f, b.py:g",
        ),
    ],
)
def test_code_is_run_only_if_it_was_typed_or_a_task_takes_its_place(
    stored: dict[str, Any], typed: dict[str, Any], named: str
) -> None:
    assert would(stored, **typed) == named


@pytest.mark.parametrize("spec", ["", "own", "smollm2", "simulated", "simulated?seed=3"])
def test_a_model_of_this_process_is_no_address(spec: str) -> None:
    assert would({"lm": spec}) == ""
    assert would({"lm": spec, "roles": {"critic": {"model": THEIRS}}}) == f"call {THEIRS}"


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ({}, f"call {OTHER}, {THEIRS}"),
        ({"lm": MINE}, f"call {OTHER}"),
        ({"lm": MINE, "roles": {"encoder": {"model": MINE}}}, ""),
        ({"roles": {"encoder": {"model": MINE}}}, f"call {THEIRS}"),
        ({"roles": {"encoder": {"temperature": 0.5}}}, f"call {OTHER}, {THEIRS}"),
        ({"lm": THEIRS}, f"call {OTHER}"),
        ({"lm": THEIRS, "roles": {"critic": {"model": OTHER}}}, ""),
    ],
)
def test_an_address_is_called_only_if_it_was_typed(typed: dict[str, Any], named: str) -> None:
    assert would({"lm": THEIRS, "roles": {"encoder": {"model": OTHER}}}, **typed) == named


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ({}, f"call {THEIRS} (with $PCO_LOOT, $PCO_BODY)"),
        ({"lm": MINE}, ""),
        ({"lm": THEIRS}, f"call {THEIRS} (with $PCO_LOOT, $PCO_BODY)"),
        ({"headers": {"X-Loot": "$PCO_MINE"}}, f"call {THEIRS} (with $PCO_BODY)"),
        ({"headers": {"X-Else": "$PCO_MINE"}}, f"call {THEIRS} (with $PCO_LOOT, $PCO_BODY)"),
        ({"extra": {"api_key": "$PCO_MINE"}}, f"call {THEIRS} (with $PCO_LOOT)"),
        ({"extra": {"api_key": "$PCO_BODY"}}, f"call {THEIRS} (with $PCO_LOOT)"),
    ],
)
def test_no_variable_goes_along_that_was_not_typed(typed: dict[str, Any], named: str) -> None:
    """Not even to an address that was: its headers and its body are the run's own."""
    above = typed if "lm" in typed else {"lm": THEIRS, "roles": {"encoder": typed}}
    if not typed:
        above = {}
    found = would({"lm": THEIRS, "roles": {"encoder": SENT}}, **above)
    assert found == named


def test_a_refusal_names_all_that_would_happen_and_what_to_type() -> None:
    both = refusal({**FILES, "lm": THEIRS}, ref="./runs/r1")
    assert both is not None and "the run r1 does not bear your mark" in str(both)
    assert str(both).endswith(f"run evil.py:score, evil.py:run and call {THEIRS}")
    assert both.hint.startswith("pco runs show ./runs/r1 --json ") and "--trust" in both.hint
    assert "--lm" not in both.hint, "a model of one's own would not make the code harmless"
    called = refusal({"lm": THEIRS})
    assert called is not None and "or name a model of yours: --lm SPEC" in called.hint
    assert called.hint.startswith("pco runs show r1 --json ")


def test_a_run_that_is_trusted_may_do_all_of_it() -> None:
    header = Header(id="r1", created="", version="", config={**FILES, "lm": THEIRS})
    require_trust(header, {}, trusted=True)
