"""The public face: what is exported, and what importing it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import promptcodebook as pco

SOURCE = Path(pco.__file__).parent

EXPORTED = {
    "LM", "Chat", "Assessment", "Codebook", "Comparison", "Config", "Dataset", "Distillation",
    "Effect", "Estimate", "Example", "Explanation", "Instinct", "Message", "Output", "PcoError",
    "Policy", "Prompt", "Registry", "Reply", "Request", "Response", "Run", "Score", "ScriptedLM",
    "Stage", "acompare", "aeffect", "aevaluate", "aoptimize", "compare", "distill", "effect",
    "estimate", "evaluate", "load", "load_policy", "load_run", "open_registry", "optimize",
    "rewards",
}  # fmt: skip


def test_exactly_these_names_are_public_and_all_resolve() -> None:
    assert set(pco.__all__) == EXPORTED
    for name in EXPORTED:
        assert getattr(pco, name) is not None
    assert pco.__version__  # type: ignore[attr-defined]


def test_the_import_alone_pulls_in_nothing_heavy() -> None:
    heavy = "aiohttp pydantic typer rich pyarrow pandas sqlite3 zstandard asyncio".split()  # noqa: SIM905
    code = f"import sys, promptcodebook; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_every_module_says_what_it_exports() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.name in ("__init__.py", "__main__.py") or path.parent.name == "cli":
            continue
        names = [
            target.id
            for node in ast.parse(path.read_text("utf-8")).body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        ]
        assert "__all__" in names, f"{path.relative_to(SOURCE)} has no __all__"


def test_nothing_pickles_and_nothing_but_the_command_line_prints() -> None:
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        imported = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        } | {
            (node.module or "").split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        }
        assert not imported & {"pickle", "dill", "cloudpickle", "shelve", "marshal"}, path
        if path.parent.name != "cli":
            prints = [
                node.lineno
                for node in ast.walk(tree)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
            ]
            assert not prints, f"{path.relative_to(SOURCE)} prints at lines {prints}"
