"""What examples/ shows is done as its pages say: on the simulated model, and with real weights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.invoked import pco
from tests.docs.blocks import blocks_of, commands_of
from tests.examples import notebook
from tests.local.served import served_by_us

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = ("comments", "orders", "recipes")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The examples in a folder of the test's own."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))


@pytest.fixture
def smaller(copy: Path) -> Path:
    """The same with a third of the rows: a real model reads each in every row of a verdict."""
    for data in (*copy.glob("*/*.csv"), *copy.glob("*/*.jsonl")):
        rows = data.read_text("utf-8").splitlines(keepends=True)
        data.write_text("".join(rows[: len(rows) // 3]), "utf-8")
    return copy


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SmolLM2 behind a server: loaded once, where every command by itself would load it anew."""
    pytest.importorskip("openvino_genai")
    with served_by_us("smollm2", tmp_path_factory.mktemp("smollm2")) as server:
        yield server.spec


def follow(page: Path) -> str:
    """Types every `pco` command of the page, in its folder; what they printed."""
    printed = ""
    for block in blocks_of(page):
        for words in commands_of(block.text) if block.kind == "console" else ():
            if words[0] == "pco":
                result = pco(*words[1:], cwd=page.parent)
                assert result.code == 0, (words, result.err)
                printed += result.out
    return printed


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


def run_example(folder: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Does what a folder's page says, under a model; '' = the one that the files name."""
    if model:
        monkeypatch.setenv("PCO_LM", model)
    printed = follow(folder / "README.md")
    if folder.name == "comments":
        assert "test split" in printed and (folder / "comments.html").stat().st_size > 10_000
        assert "The lamps in the hall are broken." in printed
    elif folder.name == "orders":
        assert "Answer in Spanish when the country is Spain." in printed
        answered = (folder / "answered.jsonl").read_text("utf-8").splitlines()
        assert len(answered) == len((folder / "orders.jsonl").read_text("utf-8").splitlines())
    else:
        said = interpret(folder / "train.py", model=model)
        assert "learned - all instincts in one prompt, n = " in said
        [block] = [
            block.text for block in blocks_of(folder / "README.md") if block.kind == "python"
        ]
        script = folder / "page.py"
        script.write_text(block.replace('"smollm2"', repr(model)) if model else block)
        assert interpret(script, model="").strip()


def run_notebook(file: Path, model: str) -> None:
    """Runs the notebook; every cell that ends with a value shows it."""
    lines = interpret(Path(notebook.__file__), str(file), model=model).splitlines()
    shown = [json.loads(line) for line in lines]
    cells = [c for c in json.loads(file.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
    assert len(shown) == len(cells) and all(shown), shown
    html = [text for text in shown if "<table" in text]
    assert len(html) >= 6, (
        "an estimate, a run, a codebook, an explanation, two frames, a comparison"
    )
    assert ("simulated" in "".join(shown)) is (model == "simulated")


@pytest.mark.parametrize("name", FOLDERS)
def test_an_example_does_what_its_page_says(
    copy: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    run_example(copy / name, "simulated", monkeypatch)


def test_the_notebook_runs_from_its_first_cell_to_its_last(copy: Path) -> None:
    pytest.importorskip("pandas")
    run_notebook(copy / "first-run.ipynb", "simulated")


def test_the_notebook_is_kept_without_outputs_and_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text("utf-8")
    for path in EXAMPLES.iterdir():
        assert path.name in ("README.md", "__pycache__") or f"]({path.name}" in listed, path.name
    tree = json.loads((EXAMPLES / "first-run.ipynb").read_text("utf-8"))
    for cell in tree["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.local
def test_an_example_runs_on_the_model_that_its_files_name(
    smaller: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino_genai")
    run_example(smaller / "comments", "", monkeypatch)


@pytest.mark.local
@pytest.mark.parametrize("name", [name for name in FOLDERS if name != "comments"])
def test_an_example_runs_on_a_real_model(
    smaller: Path, name: str, smollm2: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_example(smaller / name, smollm2, monkeypatch)


def run_in_kernel(file: Path) -> list[str]:
    """Runs the notebook in a Jupyter kernel of this interpreter; what its cells show, as HTML where
    they have it."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    Path.home().mkdir(parents=True, exist_ok=True)  # IPython keeps a folder there
    notebook = nbformat.read(file, as_version=4)
    at = {"metadata": {"path": str(file.parent)}}
    nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3", resources=at).execute()
    shown = list[str]()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            assert output.output_type != "error", output
            data = output.get("data", {})
            shown += [data.get("text/html") or data["text/plain"]] if data else []
    return shown


@pytest.mark.local
def test_the_notebook_runs_in_a_kernel(copy: Path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("openvino_genai")
    shown = run_in_kernel(copy / "first-run.ipynb")
    tables = [text for text in shown if "<table" in text]
    assert len(tables) >= 6, shown
    assert any("verdict" in text for text in shown if text.startswith("<div>")), "a run, as HTML"
    assert "simulated" not in "".join(shown)
