"""The public face: what is exported, and what importing it costs."""

from __future__ import annotations

import ast
import re
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


def test_only_public_faces_list_what_they_export() -> None:
    faces = {
        "integrations/dspy.py",
        "tasks/ifbench/score.py",
        "tasks/rewards/library.py",
    }
    for path in SOURCE.rglob("*.py"):
        listed = re.search(r"^__all__\b", path.read_text("utf-8"), re.MULTILINE)
        name = path.relative_to(SOURCE).as_posix()
        assert not listed or path.name == "__init__.py" or name in faces, name


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
        commands = path.parent.name == "cli" or path.name == "cli.py"
        if not commands and path != SOURCE / "experiments" / "demo.py":
            prints = [
                node.lineno
                for node in ast.walk(tree)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
            ]
            assert not prints, f"{path.relative_to(SOURCE)} prints at lines {prints}"
