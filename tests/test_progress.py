"""A run in Python says how it goes, in the log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.run.test_optimize import train


def test_every_step_and_validation_is_logged_and_labelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "promptcodebook.progress")
    run = train(tmp_path)
    said = [r.getMessage() for r in caplog.records if r.name == "promptcodebook.progress"]
    assert all(line.startswith("[simulated] ") for line in said)
    assert f"run {run.id} in " in said[0]
    assert [line.split(":")[0] for line in said if "step 3 of 3" in line] == [
        "[simulated] step 3 of 3"
    ]
    assert any("validation untrained: " in line for line in said)
