"""Tables as they are printed."""

from __future__ import annotations

from promptcodebook.cli.console import columns


def test_numbers_and_amounts_stand_to_the_right_and_the_ids_of_runs_do_not() -> None:
    rows = [
        {"run": "20260131-154502-a", "calls": "1,260 / 3", "tokens": "7.7k", "USD": "unknown"},
        {"run": "20260131-154502-long", "calls": "24", "tokens": "-", "USD": "$0.0012"},
    ]
    assert columns(rows).splitlines() == [
        "run                       calls  tokens      USD",
        "20260131-154502-a     1,260 / 3    7.7k  unknown",
        "20260131-154502-long         24       -  $0.0012",
    ]
