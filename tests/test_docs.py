"""The pages speak of what ships: every ready-made task is described and placed in the method."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import promptcodebook

DOCS = Path(__file__).parents[1] / "docs"
TASKS = sorted(f.parent.name for f in Path(promptcodebook.__file__).parent.glob("tasks/*/task.py"))


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_page_with_its_data_pipeline_and_score(name: str) -> None:
    page = (DOCS / "tasks" / f"{name}.md").read_text("utf-8")
    for part in ("## Data", "## Pipeline"):
        assert part in page, f"docs/tasks/{name}.md lacks {part!r}"
    assert "\n## Score" in page or "\n## Metric" in page
    assert f"--task {name}" in page


@pytest.mark.parametrize("name", TASKS)
def test_the_page_of_the_method_places_every_task(name: str) -> None:
    """It once said that benchmarks which ship are no part of the version."""
    assert f"`tasks/{name}/" in (DOCS / "method.md").read_text("utf-8")


def test_all_six_benchmarks_are_among_them() -> None:
    benchmarks = {"aime", "hotpotqa", "hover", "ifbench", "livebench_math", "pupa"}
    assert benchmarks | {"constraints", "houserules"} == set(TASKS)


def test_the_functions_that_the_pages_name_exist() -> None:
    named: set[tuple[str, ...]] = set()
    for name in TASKS:
        page = (DOCS / "tasks" / f"{name}.md").read_text("utf-8")
        dotted = re.findall(rf"`(?:promptcodebook\.tasks\.)?({name})\.(score)\.(\w+)[`(]", page)
        named |= set(dotted)
    assert len(named) >= 6
    for name, module, symbol in sorted(named):
        found = importlib.import_module(f"promptcodebook.tasks.{name}.{module}")
        assert hasattr(found, symbol), f"docs/tasks/{name}.md names {module}.{symbol}"
