"""`pco bench quick` as a process: all six benchmarks, killed on the way, and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from promptcodebook.errors import StoreError
from promptcodebook.store.run import RunStore

pytestmark = pytest.mark.slow

SHARED = Path(os.environ.get("PCO_SHARED") or Path(__file__).parents[3] / "shared")
SIX = ("aime", "hotpotqa", "hover", "ifbench", "livebench_math", "pupa")
STAGES = {
    "hotpotqa": ("summarize1", "query2", "summarize2", "answer"),
    "hover": ("summarize1", "query2", "summarize2", "query3", "verify"),
    "ifbench": ("generate", "rewrite"),
}
COMMAND = (sys.executable, "-m", "promptcodebook.cli", "bench", "quick", "--plain")


def bench(*more: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *more], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def begun_runs(cells: Path) -> set[str]:
    """Runs whose header is on disk: before that there is nothing to go on with."""
    found: set[str] = set()
    for file in cells.glob("*/run.sqlite"):
        try:
            RunStore.open(file.parent).close()
        except StoreError:
            continue
        found.add(file.parent.name)
    return found


def test_a_killed_suite_goes_on_where_it_was(tmp_path: Path) -> None:
    cells = tmp_path / "runs" / "bench" / "quick"
    victim = bench(cwd=tmp_path)
    deadline = time.monotonic() + 60
    # Once the third cell has begun, two are done and one is on its way.
    while len(begun_runs(cells)) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    begun = begun_runs(cells)
    assert 3 <= len(begun) < len(SIX)
    out, err = bench("--json", cwd=tmp_path).communicate(timeout=120)
    told = json.loads(out)
    assert told["failed"] == {}, err
    states = [cell["state"] for cell in told["cells"]]
    assert states[:2] == ["skipped", "skipped"]
    assert "skipped" not in states[len(begun) :]
    assert [cell["task"] for cell in told["cells"]] == list(SIX)
    # The killed cell was gone on with: no task was begun twice.
    assert len(list(cells.glob("*/run.sqlite"))) == len(SIX)
    assert begun <= {cell["run"] for cell in told["cells"]}


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="no ../shared/data")
def test_all_six_on_the_benchmarks_data(tmp_path: Path) -> None:
    began = time.monotonic()
    out, err = bench("--data", str(SHARED / "data"), "--json", cwd=tmp_path).communicate()
    assert time.monotonic() - began < 300
    told = json.loads(out)
    assert told["failed"] == {}, err
    assert [cell["task"] for cell in told["cells"]] == list(SIX)
    for cell in told["cells"]:
        assert cell["simulated"]
        assert cell["updates"] == 3
        learned = next(row for row in cell["rows"] if row["name"] == "learned")
        assert learned["failed"] == 0
        assert learned["score"]["low"] <= learned["score"]["mean"] <= learned["score"]["high"]
        page = (tmp_path / cell["report"]).read_text("utf-8")
        assert all(stage in page for stage in STAGES.get(cell["task"], ()))
