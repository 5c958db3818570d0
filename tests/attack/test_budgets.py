"""No budget is passed, and none is shown smaller than the bill, whatever a server does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.budgets import MODES, Mode, attack
from tests.proof.served import Served, served


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as up:
        yield up


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_no_mode_passes_its_budget(mode: Mode, server: Served, tmp_path: Path) -> None:
    bill = attack(mode, server, tmp_path)
    assert bill.over == []
    assert bill.made > 10
    assert bill.ended in ("budget", "TooManyFailures")
