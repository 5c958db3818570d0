"""Runs a notebook's code cells in order, in this interpreter, without Jupyter.

    python notebook.py FILE

As in a kernel, the value of a cell's last expression is shown: by `_repr_html_` where it has one.
It goes to stdout, a JSON text for each cell; an error in a cell, or in what it shows, ends it. A
real kernel runs the same notebook in the local tests, whose environment has Jupyter.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(notebook: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            shown = _run_cell("".join(cell["source"]), names)
            sys.stdout.write(json.dumps(None if shown is None else _shown(shown)) + "\n")


def _run_cell(source: str, names: dict[str, Any]) -> object:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last else None


def _shown(value: Any) -> str:
    html = getattr(value, "_repr_html_", None)
    return html() if callable(html) else repr(value)


if __name__ == "__main__":
    run(Path(sys.argv[1]))


EXAMPLES = Path(__file__).parents[2] / "examples"


def interpret(script: Path, *args: str, model: str) -> str:
    """A Python of its own in the script's folder, or in the one that is named; what it printed."""
    folder = Path(args[0]).parent if args else script.parent
    environment = {**os.environ, "PCO_LM": model} if model else dict(os.environ)
    done = subprocess.run(
        [sys.executable, str(script), *args],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
