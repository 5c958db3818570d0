"""Nothing is sent but to what the user names: the extras that need weights, or their own server.

The others are in `tests/attack/test_outbound.py`.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from tests.build.outbound import ELSEWHERE, OWN, watched

pytestmark = pytest.mark.local

SCRIPTS: dict[str, str] = tomllib.loads(
    (Path(__file__).parent / "outbound.toml").read_text("utf-8")
)["extras"]


@pytest.mark.parametrize("extra", SCRIPTS)
def test_nothing_is_sent_that_the_user_did_not_name(extra: str, tmp_path: Path) -> None:
    seen = watched(tmp_path, sys.executable, "-c", SCRIPTS[extra], OMP_NUM_THREADS="1")
    assert seen.code == 0, seen.err[-4000:]
    assert (seen.hosts, seen.packets) == ((), {})
    unasked = [name for name in seen.files if not name.startswith(OWN)]
    assert not unasked, "nothing marks this user in the home folder"


def test_every_extra_is_watched() -> None:
    assert set(SCRIPTS) == ELSEWHERE
