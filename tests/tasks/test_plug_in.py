"""A benchmark of somebody else's package is found without a change in ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from promptcodebook import tasks
from promptcodebook.errors import TaskError
from promptcodebook.tasks import load_task, task_names
from tests.cli.invoked import pco

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-benchmark.md"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as pip leaves it: the documentation's benchmark, and its .dist-info beside it."""
    site = tmp_path / "site"
    (site / "examples").mkdir(parents=True)
    module = PAGE.read_text("utf-8").split('title="shop_bench/orders.py"\n')[1].split("```")[0]
    (site / "orders.py").write_text(module, "utf-8")
    (site / "seeds.txt").write_text("Be brief.\n", "utf-8")
    for split in ("train", "val", "test"):
        rows = [{"id": f"{split}{n}", "question": f"{n}?", "answer": "Ada"} for n in range(10)]
        (site / "examples" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    offer(site, "orders = orders:load")
    monkeypatch.delenv("PCO_DATA", raising=False)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    return site


def offer(site: Path, line: str, name: str = "shop_bench") -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[promptcodebook.tasks]\n{line}\n")


@pytest.mark.usefixtures("site")
def test_the_benchmark_of_the_documentation_is_found_and_scores() -> None:
    task = load_task("orders")
    reward: Any = task.reward(None)
    assert (task.seeds, len(task.dataset)) == (("Be brief.",), 30)
    assert reward(task.dataset.test[0], "It was Ada.").value == 1.0


def test_the_command_trains_on_it(site: Path) -> None:
    asked = ("--task", "orders", "--lm", "simulated", "--preset", "quick")
    done = pco("train", *asked, "--set", "update.epochs=1", "--json", cwd=site.parent)
    assert done.code == 0, done.err
    assert json.loads(done.out)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("other = no_such_package:load", "cannot be loaded: ModuleNotFoundError"),
        ("other = json:dumps", "returned str"),
        ("orders = orders:Order", "several packages offer a task 'orders'"),
    ],
)
def test_a_faulty_offer_is_named(site: Path, line: str, message: str) -> None:
    offer(site, line, "other_package")
    with pytest.raises(TaskError, match=message):
        load_task(line.split(" ")[0])


def test_the_face_offers_what_it_lists() -> None:
    assert tasks.__all__ == sorted(tasks.__all__, key=lambda n: (not n[0].isupper(), n))
    assert all(getattr(tasks, name) is not None for name in tasks.__all__)
    assert (load_task("aime").name in task_names()) and "aime" in task_names()
    with pytest.raises(AttributeError, match="no attribute 'Tusk'"):
        tasks.__getattr__("Tusk")
