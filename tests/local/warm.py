"""`pco` in processes of their own, forked from one that has imported what a training imports: that
takes longer than a training of a tiny model, and a test needs several."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from promptcodebook.cli import main
from tests.local.served import offline

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
