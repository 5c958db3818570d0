"""GRPO on real weights: trl's own trainer, a kill in its midst, and a budget."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from safetensors import deserialize

from promptcodebook.cli import main
from tests.build.local_server import offline

pytestmark = pytest.mark.local

# `pco` runs in processes of their own, forked from one that has imported what a training imports:
# that takes longer than a training of a tiny model, and a test needs several.
_IMPORTED = ("torch", "datasets", "peft", "transformers", "trl.trainer.grpo_trainer")
_LONGEST_S = 1800


@dataclass(frozen=True, slots=True)
class Pco:
    """A command under way in `folder`; its output lies there, in `out` and `err`."""

    folder: Path
    process: BaseProcess

    def end(self) -> int:
        """Its exit code."""
        self.process.join(_LONGEST_S)
        assert self.process.exitcode is not None, "it does not end"
        return self.process.exitcode

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text("utf-8", "replace")

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text("utf-8", "replace")


def begin(folder: Path, *arguments: str) -> Pco:
    """The command, with the folder as its home."""
    context = multiprocessing.get_context("forkserver")
    with pytest.MonkeyPatch.context() as patch:
        # Some of it holds from the import on: so it must be there before the first is forked.
        for name, value in offline(folder).items():
            patch.setenv(name, value)
        context.set_forkserver_preload(list(_IMPORTED))
        process = context.Process(target=_run, args=(folder, arguments))
        process.start()
    return Pco(folder, process)


def _run(folder: Path, arguments: Sequence[str]) -> None:
    os.environ.clear()
    os.environ.update(offline(folder))
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.argv = ["pco", *arguments]
    main()


_BRIEF = "def reward(example, output):\n    return max(0.0, 1.0 - len(output) / 200)\n"
_PROJECT = Path(__file__).with_name("grpo_project.txt").read_text("utf-8")
_TINY = {"cap": 8, "steps": 4, "group": 4, "batch": 2, "rate": 0.05}
# Calls of the verdict: the present prompt and the trained model on four test examples.
_JUDGED = 2 * 4
_ABOUT = ("boats", "maps", "lamps", "bread", "rivers", "clocks", "bridges", "seeds")


@dataclass(frozen=True, slots=True)
class Project:
    """A folder in which `pco train` runs, each time in a process of its own."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, lm: str, settings: Mapping[str, Any]) -> Project:
        folder.mkdir()
        (folder / "pco.toml").write_text(_PROJECT.format(lm=lm, **settings))
        (folder / "reward.py").write_text(_BRIEF)
        splits = ["train"] * 4 + ["test"] * 4
        rows = [
            {"question": f"What are {about}?", "split": split}
            for about, split in zip(_ABOUT, splits, strict=True)
        ]
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return cls(folder)

    def start(self, *arguments: str) -> Pco:
        return begin(self.folder, "train", "--json", "--plain", *arguments)

    def train(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        running = self.start(*arguments)
        assert running.end() == code, running.err[-4000:]
        return json.loads(running.out)

    def checkpoint(self, step: int) -> Path:
        [run] = (self.folder / "runs").iterdir()
        return run / "grpo" / f"checkpoint-{step}"

    def adapter(self, step: int) -> dict[str, bytes]:
        """Its matrices by name."""
        file = (self.checkpoint(step) / "adapter_model.safetensors").read_bytes()
        return {name: bytes(found["data"]) for name, found in deserialize(file)}


def moved(adapter: Mapping[str, bytes]) -> int:
    """Matrices of the adapter that training moved: each B is zero at first."""
    return sum(any(data) for name, data in adapter.items() if "lora_B" in name)


def test_the_weights_are_trained_and_a_killed_run_comes_to_the_same(
    model: Path, tmp_path: Path
) -> None:
    before = (model / "model.safetensors").read_bytes()
    whole = Project.make(tmp_path / "whole", f"hf:{model}", _TINY)
    told = whole.train()
    assert [row["name"] for row in told["rows"]] == ["present", "grpo"]
    assert told["usage"]["executor"]["calls"] == 4 * 4 * 2 + _JUDGED
    settings = told["settings"]
    assert settings["library"].startswith("trl ") and settings["weights"] == "grpo/checkpoint-4"
    assert (settings["max_steps"], settings["four_bit"], settings["device"]) == (4, False, "cpu")
    assert None not in settings.values(), settings
    assert "for 4 steps; their mean reward was " in told["verdict"]
    assert moved(whole.adapter(4)) > 0
    assert (model / "model.safetensors").read_bytes() == before

    part = Project.make(tmp_path / "part", f"hf:{model}", _TINY)
    running = part.start()
    until = time.monotonic() + 300
    while not [*part.folder.glob("runs/*/grpo/checkpoint-1/trainer_state.json")]:
        assert running.process.is_alive() and time.monotonic() < until, running.err[-4000:]
        time.sleep(0.02)
    running.process.kill()
    assert running.end() == -signal.SIGKILL
    # Too few for all steps, whether or not replies were in flight at the kill and count as lost.
    short = part.train("--resume", "last", "--budget", f"{4 * 8 + 4}calls", code=3)
    assert short["ended"] == "budget" and short["settings"]["weights"] != settings["weights"]
    assert [row["name"] for row in short["rows"]] == ["present", "grpo"]
    assert short["usage"]["executor"]["calls"] + short["lost"]["calls"] <= 4 * 8 + 4
    rest = part.train("--resume", "last", "--budget", "999calls")
    assert rest["ended"] == "finished"
    assert part.adapter(4) == whole.adapter(4)
    assert [r["score"]["mean"] for r in rest["rows"]] == [r["score"]["mean"] for r in told["rows"]]


def test_a_model_held_in_four_bits_is_trained(model: Path, tmp_path: Path) -> None:
    project = Project.make(tmp_path / "nf4", f"hf:{model}", _TINY)
    told = project.train("--set", "grpo.four_bit=true", "--set", "grpo.steps=2")
    assert (told["settings"]["four_bit"], told["settings"]["dtype"]) == (True, "bfloat16")
    assert told["usage"]["executor"]["calls"] == 2 * 4 * 2 + _JUDGED
    assert moved(project.adapter(2)) > 0
