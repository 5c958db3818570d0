"""Instincts that are templates, in an export whose tool has a template engine of its own.

Promptfoo renders what a prompt function returns with Nunjucks, whose expressions reach all of Node.
The engine is the one that promptfoo 0.121 installs (`requirements/npm`); here stands how it is
called there. What the other tools make of such texts: tests/deploy/exports/test_exports.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.policy.file import PolicyFile
from tests.build.exports import fresh, live, written

_ENGINE = Path(__file__).parents[2] / "requirements" / "npm" / "node_modules" / "nunjucks"
_NODE = shutil.which("node")
_RENDER = Path(__file__).with_name("render.js")
INPUT = "{{ range.constructor('return 1')() }} of {% raw %}{# mine #}"
COMPOSE = f"""
from prompts import compose
print(json.dumps(compose({{"vars": {{"input": {INPUT!r}}}}})))
"""


HOSTILE = (
    "{{ range.constructor('CODE')() }}",
    "{% set x = range.constructor('CODE')() %}",
    "{{ env.LOOT }} {%- if true -%} shown {%- endif -%} {# hidden #}",
    "{% raw %} {{ '{' }} {% endraw %} {{ env.LOOT }} {# hidden #} {{%{{#{",
)
"""They write to the disk, read the environment, or hide what comes behind them."""


def writing(marker: Path) -> str:
    """JavaScript without a quotation mark, so that it is one in every quotation."""
    fs, path = (",".join(str(ord(c)) for c in text) for text in ("fs", str(marker)))
    written = f"String.fromCharCode({path}),process.env.LOOT"
    return f"process.getBuiltinModule(String.fromCharCode({fs})).writeFileSync({written})"


def rendered(folder: Path, chat: Any, mode: str) -> Any:
    assert _NODE is not None
    done = subprocess.run(
        [_NODE, _RENDER, str(_ENGINE), json.dumps(chat), mode],
        cwd=folder, env={"LOOT": "sk-victim"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(
    _NODE is None or not _ENGINE.is_dir(), reason="needs node, and npm ci in requirements/npm"
)
@pytest.mark.parametrize("mode", ["object", "text"])
@pytest.mark.parametrize("instinct", HOSTILE)
def test_promptfoo_runs_no_instinct(instinct: str, mode: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    text = instinct.replace("CODE", writing(marker))
    tree = json.loads(live().text())
    tree |= {"compose": "verbatim", "encoder": "", "select": 1, "codebook": [{"text": text}]}
    written(tmp_path, "promptfoo", PolicyFile.model_validate_json(json.dumps(tree)))
    chat = fresh(tmp_path, COMPOSE, "simulated")
    messages = rendered(tmp_path, chat, mode)
    assert not marker.exists(), f"an instinct ran: {marker.read_text('utf-8')}"
    assert "sk-victim" not in repr(messages)
    system, user = (message["content"] for message in messages)
    assert text in system, "what the model reads is what was learned"
    assert user == INPUT
