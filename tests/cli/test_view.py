"""`pco view` as it is typed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.invoked import pco
from tests.report.scripted_run import ScriptedRun, write_run

PCO = [sys.executable, "-m", "promptcodebook.cli"]


@pytest.mark.parametrize("options", [(), ("--open",)])
def test_the_address_of_a_run_answers_and_opens_where_asked_until_sigterm(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    write_run(tmp_path, ScriptedRun(steps=2, hostile="", task="tickets")).close()
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(0o755)
    process = subprocess.Popen(
        [*PCO, "view", "last", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PCO_RUNS": str(tmp_path), "BROWSER": f"{browser} %s"},
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:") and url.endswith("-tickets")
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert "Worth deploying" in answer.read().decode()
        assert (seen.read_text().strip() if seen.exists() else "") == (url if options else "")
        taken = pco("view", "--port", url.split(":")[2].split("/")[0], cwd=tmp_path)
        taken.error(2, "cannot listen on 127.0.0.1", "--port 0")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_run_that_is_not_there_is_an_error_with_a_hint(tmp_path: Path) -> None:
    result = pco("view", "nope", "--json", cwd=tmp_path)
    assert result.code != 0 and "pco runs list" in result.out
