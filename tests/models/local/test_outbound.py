"""Nothing is sent but to what the user names: the extras that need weights, or their own server.

The others are in `tests/attack/test_outbound.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.attack.test_outbound import ELSEWHERE, OWN
from tests.outbound import watched

pytestmark = pytest.mark.local

_TINY = """
from pathlib import Path
from tests.models.local import tiny
model = Path("model")
tiny.make(model)
"""

_ENGINE = """
import asyncio
from promptcodebook.calls import Message
from promptcodebook.models.local.engine import Job, find_weights
from promptcodebook.models.local.lm import load_engine
"""
SCRIPTS = {
    "smollm2": f"""{_ENGINE}
async def main():
    engine = load_engine(find_weights("smollm2"))
    assert (await engine.generate(Job((Message("user", "Say hi."),), max_tokens=4))).text
    assert await engine.embed(["a text"])
    await engine.close()

asyncio.run(main())
""",
    "local": f"""{_TINY}{_ENGINE}
async def main():
    engine = load_engine(find_weights(f"hf:{{model}}"))
    schema = {{"type": "object", "properties": {{"a": {{"type": "boolean"}}}}}}
    asked = Job((Message("user", "Say hi."),), max_tokens=20, schema=schema)
    assert (await engine.generate(asked)).completion_tokens
    await engine.close()

asyncio.run(main())
""",
    "grpo": f"""{_TINY}
import subprocess
from tests.models.local.test_grpo import _TINY as SETTINGS, Project
project = Project.make(Path("project").resolve(), f"hf:{{model.resolve()}}", SETTINGS)
from tests.cli.invoked import pco
done = pco("train", "--json", "--plain", cwd=project.folder)
assert done.code == 0, done.err
""",
    "datasets": """
import datasets
import promptcodebook as pco
rows = [{"question": f"What is {n}?", "target": str(n)} for n in range(8)]
datasets.Dataset.from_list(rows).save_to_disk("saved")
for source in ("saved", datasets.Dataset.from_list(rows)):
    assert sum(len(part) for _, part in pco.load(source, input="question").items()) == 8
""",
    "presidio": """
from promptcodebook.deploy.audit.report import PresidioScan
assert list(PresidioScan().find("Pay with 4111 1111 1111 1111 at once, mail a@b.example.", "c0"))
""",
    "wandb": """
import os
from pathlib import Path
os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(Path.cwd()), "WANDB_SILENT": "true"}
os.environ["WANDB_DATA_DIR"] = os.environ["WANDB_DIR"]
from tests.cli.invoked import pco
typed = "train --task houserules --lm simulated --preset quick --set update.epochs=1"
asked = ("--set", "verdict_examples=10", "--set", 'telemetry=["wandb"]')
done = pco(*typed.split(), *asked, cwd=Path.cwd())
assert done.code == 0, done.err
assert list(Path.cwd().glob("wandb/offline-run-*"))
""",
    "mlflow": """
from tests.cli.invoked import served
from promptcodebook.errors import PcoError
from promptcodebook.deploy.registry.registry import open_registry
from tests.lm.server import Server

with served(Server()) as server:  # which is no MLflow: the client says so, and asks nobody else
    try:
        open_registry(server.spec.partition("#")[0].removesuffix("/v1")).history()
    except PcoError:
        pass
""",
}


@pytest.mark.parametrize("extra", SCRIPTS)
def test_nothing_is_sent_that_the_user_did_not_name(extra: str, tmp_path: Path) -> None:
    seen = watched(tmp_path, sys.executable, "-c", SCRIPTS[extra], OMP_NUM_THREADS="1")
    assert seen.code == 0, seen.err[-4000:]
    assert (seen.hosts, seen.packets) == ((), {})
    unasked = [name for name in seen.files if not name.startswith(OWN)]
    assert not unasked, "nothing marks this user in the home folder"


def test_every_extra_is_watched() -> None:
    assert set(SCRIPTS) == ELSEWHERE
