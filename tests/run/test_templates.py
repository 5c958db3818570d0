"""Templates in a folder of one's own, from pco.toml to a run that is resumed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from promptcodebook.method.templates import copy_templates
from tests.cli.conftest import QUICK
from tests.cli.invoked import pco


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as `pco init` leaves it, with templates of its own beside its pco.toml."""
    made = tmp_path / "mytask"
    assert pco("init", str(made), cwd=tmp_path).code == 0
    copy_templates(made / "my-prompts")
    (made / "my-prompts" / "theta.md").write_text("Choose what fits this shop.")
    toml = (made / "pco.toml").read_text("utf-8")
    (made / "pco.toml").write_text(f'templates = "./my-prompts"\n{toml}', "utf-8")
    return made


@pytest.fixture
def stopped(folder: Path) -> Path:
    """The folder with a run that its budget stopped."""
    result = pco("train", *QUICK, "--budget", "200calls", cwd=folder)
    assert result.code == 3, result.err
    return folder


def edit(folder: Path, name: str, old: str, new: str) -> None:
    file = folder / "my-prompts" / name
    assert old in file.read_text("utf-8")
    file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")


def test_the_folder_is_found_from_the_configuration_and_its_texts_are_used(
    folder: Path, tmp_path: Path
) -> None:
    """Not from where the command was typed."""
    result = pco("train", "mytask", *QUICK, "--set", "encoder.mode=static", cwd=tmp_path)
    assert result.code == 0, result.err
    [run] = (tmp_path / "runs").iterdir()
    assert '"encoder": "Choose what fits this shop."' in (run / "policy.json").read_text("utf-8")


@pytest.mark.parametrize("command", ["train", "estimate"])
def test_a_faulty_template_is_refused_before_anything_is_paid_for(
    folder: Path, tmp_path: Path, command: str
) -> None:
    edit(folder, "attribution.md", "{verdict}", "{verdct}")
    line = (folder / "my-prompts" / "attribution.md").read_text().count("\n")
    result = pco(command, "mytask", cwd=tmp_path)
    where = f"mytask/my-prompts/attribution.md:{line}: unknown placeholder {{verdct}}"
    result.error(2, where, "did you mean 'verdict'?")
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_a_resumed_run_whose_template_changed_names_the_file(stopped: Path) -> None:
    edit(stopped, "updater.md", "the smallest rewrite", "a small rewrite")
    edit(stopped, "set.toml", "(untried)", "(new)")
    result = pco("train", "--resume", "last", "--budget", "90000calls", cwd=stopped)
    said = result.error(2, "other settings: templates/set.toml: ", "; templates/updater.md: ")
    assert "theta.md" not in said
    shutil.rmtree(stopped / "my-prompts")
    result = pco("train", "--resume", "last", "--budget", "90000calls", cwd=stopped)
    result.error(2, "there is no folder", "my-prompts")


def test_a_run_with_a_folder_is_resumed_from_anywhere(stopped: Path, tmp_path: Path) -> None:
    [run] = (stopped / "runs").iterdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = pco("train", "--resume", str(run), "--budget", "90000calls", cwd=elsewhere)
    assert result.code == 0, result.err


def test_a_run_is_read_without_its_folder(stopped: Path) -> None:
    shutil.rmtree(stopped / "my-prompts")
    for command in (
        ("report", "last", "-o", "report.html"),
        ("explain", "last", "How long is delivery?"),
        ("eval", "last", "--split", "val", "--n", "2"),
    ):
        result = pco(*command, cwd=stopped)
        assert result.code == 0, (command, result.err)
