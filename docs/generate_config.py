"""Writes docs/config.md from the settings' own docstrings: python docs/generate_config.py"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from promptcodebook.config import Key, describe, describe_group

__all__ = ["page"]

_HEAD = """# Settings

Written by `python docs/generate_config.py` from the settings' own docstrings; a test keeps it up to
date. `pco config` prints the same.

A key stands in `pco.toml`, or on the command line as `--set key=value`; in Python it is an
argument of `pco.optimize` or part of its `config`. Command line > `PCO_*` variables > `pco.toml` >
preset. In a file, a group is a table:

```toml
task = "aime"
lm = "http://localhost:8000/v1#Qwen/Qwen3-8B"
size = 12

[update]
epochs = 30

[roles.critic]
model = "openai/MODEL"
```

A value of none means that the key is not set; `--set key=none` takes a value away (but "none" is a
choice of `encoder.mode` and `explore.policy`). An unknown key is an error that names the nearest
known one. The defaults are those of the preset `default`; `pco train --preset paper` takes the
paper's instead, and `promptcodebook/config/__init__.py` says where the two differ and why.
"""


def page() -> str:
    """The whole of docs/config.md."""
    parts = [_HEAD]
    for group, keys in groupby(describe(), key=lambda key: key.group):
        title, text = (f"`{group}`", describe_group(group)) if group else ("The run", "")
        parts.append(
            "\n".join([f"## {title}", "", *([text, ""] if text else []), *_table(keys), ""])
        )
    return "\n".join(parts)


def _table(keys: Iterable[Key]) -> list[str]:
    rows = [
        f"| `{key.key}` | {_default(key)} | {_cell(key.kind)} | {_cell(key.text)} |" for key in keys
    ]
    return ["| key | default | is | what it does |", "|---|---|---|---|", *rows]


def _default(key: Key) -> str:
    if not key.default:
        return "must be given"
    return _cell(key.default) if " (" in key.default else f"`{_cell(key.default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    target = Path(__file__).parent / "config.md"
    target.write_text(page(), "utf-8")
    sys.stderr.write(f"{target}\n")
