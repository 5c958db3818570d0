"""The blocks of a page of docs/, and how each kind is run where the page stands alone in a folder.

- ```KIND title="FILE"``` is written to FILE.
- ```python``` is executed; the blocks of a page share their names, as in a notebook.
- ```toml``` without a title is a part of a pco.toml: it must be a valid configuration.
- ```console``` is typed: each line after `$ `; those that begin with `pco ` are run.
"""

import importlib.util
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from promptcodebook.config import load_config
from tests.build.cli import pco

DOCS = Path(__file__).parents[2] / "docs"
# The reader's own model: the simulated one answers in its place.
_ADDRESS = re.compile(r'http://localhost:8000/v1#[\w-]+|openai/[\w.-]+|(?<=lm=")\.\.\.(?=")')
_BUDGET = re.compile(r"\b(\d+00calls|5usd)\b")
# What is allowed for hundreds of calls: enough for a run to begin, to stop and to be judged.
_SMALL = "60calls"

_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
_TYPED = re.compile(r"^\$ ((?:.*\\\n)*.+)", re.M)
_NOT_RUN = ("pip ", "curl ", "python ", "cd ", "git ", "export ")


@dataclass(frozen=True, slots=True)
class Block:
    kind: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found.groups("")) for found in _FENCE.finditer(page.read_text("utf-8"))]


def run_page(page: Path, folder: Path, names: dict[str, Any] | None = None) -> str:
    """Runs every block of the page in `folder`, in order; returns what was printed. `names` are
    what its Python takes as known. A failure names the block."""
    names = {} if names is None else names
    printed = ""
    for block in blocks_of(page):
        text = _affordable(block.text)
        try:
            if block.title:
                target = folder / block.title
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, "utf-8")
            elif block.kind == "python":
                exec(compile(text, f"{page.name}", "exec"), names)
            elif block.kind == "toml":
                tree = tomllib.loads(text)
                if "project" not in tree:  # a pyproject.toml
                    load_config(tree)
            elif block.kind == "console":
                printed += _type(text, folder)
        except Exception as error:
            raise AssertionError(f"{page.name}: this block fails:\n{block.text}") from error
    return printed


def _affordable(text: str) -> str:
    """The block with a model and a budget that a test can pay."""
    return _BUDGET.sub(_SMALL, _ADDRESS.sub("simulated", text))


def commands_of(text: str) -> list[list[str]]:
    """The words of each line that is typed, comments left out."""
    lines = [line.replace("\\\n", " ") for line in _TYPED.findall(text)]
    return [shlex.split(line, comments=True) for line in lines]


def _type(text: str, folder: Path) -> str:
    printed = ""
    for words in commands_of(text):
        if words[0] != "pco":
            assert f"{words[0]} " in _NOT_RUN, f"is {words[0]} to be run?"
            continue
        result = pco(*words[1:], cwd=folder)
        assert result.code in (0, 3), (words, result.code, result.err)
        printed += result.out
    return printed


def generator(name: str) -> ModuleType:
    """The script docs/NAME.py, imported."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
