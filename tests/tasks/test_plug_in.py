"""A benchmark of somebody else's package is found without a change in ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from promptcodebook import tasks
from promptcodebook.tasks import load_task, task_names

THEIRS = """\
from pathlib import Path

import promptcodebook as pco
from promptcodebook.calls import Chat
from promptcodebook.tasks import BenchmarkRow, Task, asks_nobody, make_output, read_rows, think


class Row(BenchmarkRow):
    id: str
    question: str
    answer: str


class Program:
    name = "theirs"
    stages = ("answer",)
    roles = frozenset()

    async def __call__(self, prompt: pco.Prompt, example: pco.Example, lm: Chat) -> pco.Output:
        step = await think(
            lm,
            prompt=prompt,
            stage="answer",
            instruction="Answer the question.",
            fields={"question": example.input},
            outputs=("answer",),
        )
        return make_output(step["answer"], [step], {"words": len(step["answer"].split())})


def reward(example: pco.Example, output: pco.Output) -> pco.Score:
    right = (example.target or "") in output.text
    words = output.fields["words"]
    return pco.Score(float(right), f"{words} words; the right answer is {example.target}")


def load(data_dir: Path | None) -> Task:
    rows = read_rows((data_dir or Path(__file__).parent) / "rows.jsonl", Row)
    examples = tuple(pco.Example(row.id, row.question, row.answer) for _, row in rows)
    third = len(examples) // 3
    data = pco.Dataset(
        examples[:third], examples[third : 2 * third], examples[2 * third :], name="theirs"
    )
    return Task("theirs", data, asks_nobody(reward), Program())
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as pip leaves it: the package, and its .dist-info beside it."""
    package = tmp_path / "site" / "their_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(THEIRS)
    rows = [
        {"id": str(n), "question": f"What is {n} plus {n}?", "answer": str(2 * n)}
        for n in range(1, 31)
    ]
    (package / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    offer(tmp_path / "site", "theirs = their_package:load")
    return tmp_path / "site"


def offer(site: Path, line: str, name: str = "their_package") -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[promptcodebook.tasks]\n{line}\n")


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "PCO_CACHE": str(site / "cache.sqlite"),
        "NO_COLOR": "1",
    }
    environment.pop("PCO_DATA", None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=site.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


PCO = ("-c", "from promptcodebook.cli import main; raise SystemExit(main())")
LOAD = "from promptcodebook.tasks import load_task; task = load_task('theirs'); print(task.name)"


def test_the_command_trains_on_it(site: Path) -> None:
    done = python(
        site, *PCO, "train", "--task", "theirs", "--lm", "simulated", "--preset", "quick",
        "--set", "update.epochs=1", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("theirs = no_such_package:load", "cannot be loaded: ModuleNotFoundError"),
        ("theirs = json:dumps", "returned str"),
        ("theirs = their_package:Program", "several packages offer a task 'theirs'"),
    ],
)
def test_a_faulty_offer_is_named(site: Path, line: str, message: str) -> None:
    if "several" not in message:
        (site / "their_package-1.0.dist-info" / "entry_points.txt").unlink()
    offer(site, line, "other_package")
    done = python(site, "-c", LOAD)
    assert done.returncode != 0
    assert "TaskError: " in done.stderr and message in done.stderr


def test_the_face_offers_what_it_lists() -> None:
    assert tasks.__all__ == sorted(tasks.__all__, key=lambda n: (not n[0].isupper(), n))
    assert all(getattr(tasks, name) is not None for name in tasks.__all__)
    assert (load_task("aime").name in task_names()) and "aime" in task_names()
    with pytest.raises(AttributeError, match="no attribute 'Tusk'"):
        tasks.__getattr__("Tusk")


def test_the_benchmark_of_the_documentation_loads(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-benchmark.md"
    module = page.read_text("utf-8").split('title="shop_bench/orders.py"\n')[1].split("```")[0]
    (tmp_path / "examples").mkdir()
    (tmp_path / "orders.py").write_text(module, "utf-8")
    (tmp_path / "seeds.txt").write_text("Be brief.\n", "utf-8")
    for split in ("train", "val", "test"):
        row = {"id": split, "question": f"Who opened {split}?", "answer": "Ada"}
        (tmp_path / "examples" / f"{split}.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    offer(tmp_path, "orders = orders:load")
    script = (
        "import promptcodebook as pco; from promptcodebook.tasks import load_task; "
        "task = load_task('orders'); (example,) = task.dataset.test; "
        "print(task.seeds, task.reward(None)(example, 'It was Ada.').value)"
    )
    done = python(tmp_path, "-c", script)
    assert done.stdout == "('Be brief.',) 1.0\n", done.stderr
