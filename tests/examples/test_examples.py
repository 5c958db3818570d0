"""Every example runs as it is shown, and Algorithm 1 reads as the paper has it."""

import importlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import promptcodebook
from promptcodebook.assemble import Assembled, Sources, plan_run
from promptcodebook.calls import Request
from promptcodebook.cli.command import set_layer
from promptcodebook.config import Config, load_config
from promptcodebook.data import Dataset
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.state import Schedule, State
from promptcodebook.method.train import train
from promptcodebook.optimizers.pco import build_learner
from promptcodebook.types import Example, Step
from tests.build import golden, notebook
from tests.build.blocks import outside
from tests.build.cli import pco
from tests.build.method import (
    World,
    attributed,
    book,
    config,
    examples,
    parameters,
    sent,
    talkative,
)
from tests.build.notebook import EXAMPLES, interpret


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The examples in a folder of the test's own."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))


def run_notebook(file: Path, model: str) -> None:
    """Runs the notebook; every cell that ends with a value shows it."""
    lines = interpret(Path(notebook.__file__), str(file), model=model).splitlines()
    shown = [json.loads(line) for line in lines]
    cells = [c for c in json.loads(file.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
    assert len(shown) == len(cells) and all(shown), shown
    html = [text for text in shown if "<table" in text]
    assert len(html) >= 5, "an estimate, a run, a codebook, an explanation, a comparison"
    assert ("simulated" in "".join(shown)) is (model == "simulated")


@pytest.mark.slow
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
def test_the_orders_are_worth_deploying_on_a_real_model_and_the_notebook_says_so_too(
    copy: Path,
) -> None:
    """The notebook asks what the example asked, so that the cache answers it."""
    pytest.importorskip("pandas")
    pytest.importorskip("openvino_genai")
    trained = pco("train", "--name", "orders", cwd=copy / "orders")
    assert trained.code == 0, trained.err
    assert "\nDeploy: the learned policy\n" in f"\n{trained.out}"
    assert outside((copy / "orders" / "README.md").read_text("utf-8"), trained.out) == []
    shown = run_in_kernel(copy / "first-run.ipynb")
    tables = [text for text in shown if "<table" in text]
    assert len(tables) >= 5, shown
    assert any("Deploy: the learned policy" in text for text in shown), "a run, as HTML"
    assert "simulated" not in "".join(shown)


# The method in one file gives what `train` gives in online mode, and runs as a script.

SCRIPT = EXAMPLES / "algorithm1.py"


@pytest.fixture
def algorithm1(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("algorithm1")


def often_blaming() -> ScriptedLM:
    return ScriptedLM().reply_with(talkative)


DECAYING = config(update={"mode": "online", "batch_size": 2, "epochs": 5, "encoder_on_explored": 1})


@pytest.mark.parametrize(
    ("settings", "script"), [(golden.CONFIG, golden.script), (DECAYING, often_blaming)]
)
async def test_it_gives_the_same_route_prompt_gradients_and_rewrites_as_train(
    algorithm1: ModuleType, settings: Config, script: Callable[[], ScriptedLM]
) -> None:
    start = parameters(book("zero v0", "one v0", "two v0", "three v0"))
    steps = await World(settings, script()).run(examples(3), start)
    bare = World(settings, script())
    parts = algorithm1.Parts(bare.composer, bare.trial, bare.critic, bare.attribution, bare.updater)
    rounds = [r async for r in algorithm1.learn(parts, examples(3), State.first(start), settings)]
    assert [trace for trace, _, _ in rounds] == [trace for step in steps for trace in step.traces]
    assert [rewrites for _, rewrites, _ in rounds] == [step.rewrites for step in steps]
    assert [state for _, _, state in rounds] == [State.after(step) for step in steps]
    assert any(rewrite.kept for _, rewrites, _ in rounds for rewrite in rewrites)


PRESETS = Path(promptcodebook.__file__).parent / "config/presets.toml"
# What the preset `paper` says turns it into the algorithm as it is printed.
LETTER = re.findall(r"^#   ([a-z_.]+=\S+) ", PRESETS.read_text("utf-8"), re.M)


def partly_solved(request: Request) -> Scripted:
    """Solves half of the inputs; still the critic finds faults, and blames every part."""
    if request.role == "executor":
        return "1.0" if request.messages[-1].content in ("input 0", "input 2") else "0.5"
    if request.role == "attribution":
        return attributed("say it plainly", "sharpen them", "read x")
    return talkative(request)


async def test_the_paper_preset_with_the_settings_it_names_is_the_printed_algorithm(
    algorithm1: ModuleType,
) -> None:
    """Of `pco train`, its checks and guards included, and without the settings not."""
    assert [setting.partition("=")[0] for setting in LETTER] == [
        "update.mode", "update.steps_per_epoch", "critic.skip_solved", "critic.safety"
    ]  # fmt: skip
    small = {"preset": "paper", "size": 4, "select": 2, "update": {"batch_size": 3, "epochs": 5}}
    written = {"init": {"instincts": ["Name units.", "Be brief.", "Cite it.", "Ask back."]}}
    start = State.first(parameters(book(*written["init"]["instincts"])))
    rows = tuple(examples(4))

    def reward(example: Example, output: str) -> float:
        return float(output)

    def planned(**more: Any) -> Assembled:
        lm, data = ScriptedLM().reply_with(partly_solved), Dataset(rows, rows, rows)
        layers = small, written, set_layer(LETTER), more
        return plan_run(load_config(*layers), Sources(data=data, reward=reward, lm=lm)).connect()

    async def trained(assembled: Assembled) -> tuple[list[Step], list[str]]:
        """The steps, and what was asked."""
        schedule = Schedule(rows, assembled.config.update, assembled.config.randomness)
        steps = [step async for step in train(build_learner(assembled), schedule, start)]
        lm: Any = assembled.plan.sources.lm
        return steps, [sent(request) for request in lm.history]

    bare = planned()
    parts, own = algorithm1.Parts.of(bare), bare.config
    rounds = [r async for r in algorithm1.learn(parts, rows, start, own)]
    steps, asked = await trained(planned())
    scripted: Any = bare.plan.sources.lm
    assert sorted(map(sent, scripted.history)) == sorted(asked)
    assert [step.epoch for step in steps] == [t for t in range(5) for _ in rows], "full passes"
    traces = [trace for step in steps for trace in step.traces]
    assert traces == [trace for trace, _, _ in rounds] and len(traces) == len(steps)
    assert [step.rewrites for step in steps] == [rewrites for _, rewrites, _ in rounds]
    assert [State.after(step) for step in steps] == [state for _, _, state in rounds]
    assert all(r.kept for step in steps for r in step.rewrites)
    assert {t.unit for t in traces} == {0.5, 1.0} and all(
        t.verdict and t.verdict.feedback for t in traces
    )
    ours = load_config({"preset": "paper"}).model_dump()
    for setting in LETTER:
        group, _, name = setting.partition("=")[0].partition(".")
        _, otherwise = await trained(planned(**{group: {name: ours[group][name]}}))
        assert otherwise != asked, f"{setting} matters"


def test_it_runs_as_a_script_of_at_most_150_lines() -> None:
    assert len(SCRIPT.read_text("utf-8").splitlines()) <= 150
    printed = interpret(SCRIPT, "simulated", model="")
    steps = [line for line in printed.splitlines() if line.startswith("step ")]
    assert len(steps) == 9 and all("route (" in step for step in steps)
