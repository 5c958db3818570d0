"""No budget is passed, and none is shown smaller than the bill, whatever a server does: one that
breaks, is late, lies or asks for patience. `python -m bench.budget` runs every mode."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.budget import MODES, Mode, attack
from tests.build.proof_server import Served, served

# Of the modes, those that no other contains.
TRIED = (
    *("answers late 20 %", "broken 90 %, priced", "usage zero", "usage missing"),
    *("usage of one token", "Retry-After 20 under 5 s"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as up:
        yield up


@pytest.mark.parametrize(
    "mode", [mode for mode in MODES if mode.name in TRIED], ids=lambda mode: mode.name
)
def test_no_mode_passes_its_budget(mode: Mode, server: Served, tmp_path: Path) -> None:
    bill = attack(mode, server, tmp_path)
    assert bill.over == []
    # A Retry-After that outlasts the budget holds for the verdict too: the first wave is all.
    assert bill.made >= (8 if mode.spoiler.put_off else 11) and bill.billed.calls > 0
    assert bill.ended in ("budget", "TooManyFailures")
