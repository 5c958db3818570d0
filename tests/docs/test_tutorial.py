"""The tutorial's blocks, run in order in a folder of their own."""

import importlib
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.build.blocks import DOCS, blocks_of, commands_of
from tests.build.cli import pco

TUTORIAL = DOCS / "tutorial"
PAGE = TUTORIAL / "index.md"
HEADLINE = re.compile(r"^(Deploy|Do not deploy|Undecided): ", re.M)


def follow(folder: Path, model: str, *small: str) -> str:
    """Does what the tutorial says, with `small` after each train and estimate; what was printed."""
    shutil.copy(TUTORIAL / "messages.csv", folder)
    printed = ""
    for block in blocks_of(PAGE):
        if block.title:
            (folder / block.title).write_text(block.text.replace("smollm2", model), "utf-8")
        elif block.kind == "console":
            for words in commands_of(block.text):
                if words[0] == "pco":
                    more = small if words[1] in ("train", "estimate") else ()
                    result = pco(*words[1:], *more, cwd=folder)
                    assert result.code == 0, (words, result.err)
                    printed += result.out
    return printed


def ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the served policy answers."""
    from fastapi.testclient import TestClient

    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    try:
        with TestClient(importlib.import_module("app").app) as client:
            text = "Is there a story hour for children on Saturday?"
            return client.post("/answer", json={"text": text}).json()
    finally:
        for name in ("app", "agent"):
            sys.modules.pop(name, None)


def test_the_files_that_the_page_shows_are_those_beside_it() -> None:
    shown = {block.title: block.text for block in blocks_of(PAGE) if block.title}
    assert set(shown) == {"reward.py", "agent.py", "pco.toml", "app.py"}
    assert shown == {name: (TUTORIAL / name).read_text("utf-8") for name in shown}
    [rows] = [block.text for block in blocks_of(PAGE) if block.kind == "csv"]
    assert (TUTORIAL / "messages.csv").read_text("utf-8").startswith(rows.removesuffix("...\n"))


@pytest.mark.slow
def test_its_commands_run_on_the_simulated_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = follow(tmp_path, "simulated", "--set", "update.epochs=1")
    assert "test split, n = 49" in printed and HEADLINE.search(printed)
    assert "score with one instinct alone" in printed
    assert (tmp_path / "library.pco.json").is_file()
    answer = ask(tmp_path, monkeypatch)
    assert set(answer) == {"answer", "prompt", "instincts"}


@pytest.mark.local
def test_it_ends_on_the_model_that_it_names_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino_genai")
    printed = follow(tmp_path, "smollm2")
    found, told = HEADLINE.search(printed), HEADLINE.search(PAGE.read_text("utf-8"))
    assert found and told and found[1] == told[1] == "Deploy"
    assert ask(tmp_path, monkeypatch)["answer"].strip()
