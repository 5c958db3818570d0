"""`pco templates`: a set of prompts copied, edited and trained with."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import QUICK
from tests.cli.invoked import pco


def test_the_sets_are_listed_with_their_templates(tmp_path: Path) -> None:
    sets = pco("templates", "list", "--json", cwd=tmp_path).json
    assert set(sets) == {"default", "paper"}
    assert {"critic", "encoder", "generator", "updater", "theta"} <= set(sets["paper"])
    out = pco("templates", "list", cwd=tmp_path).out
    assert "default  " in out and "paper    " in out and "pco templates copy DIR" in out


def test_a_copied_set_says_what_to_put_in_pco_toml_and_is_used(folder: Path) -> None:
    copied = pco("templates", "copy", "mine", cwd=folder)
    assert copied.code == 0 and 'templates = "./mine"' in copied.out
    written = {file.name for file in (folder / "mine").iterdir()}
    assert {"critic.md", "theta.md", "set.toml"} <= written
    theta = folder / "mine" / "theta.md"
    theta.write_text("Pick what fits, and nothing else.\n")
    run = pco("train", *QUICK, "--set", "templates=./mine", "--json", cwd=folder)
    assert run.code == 0, run.err
    log = pco("codebook", "log", "last", "--part", "theta", "--json", cwd=folder).json
    shown = pco("codebook", "show", "last", "--json", cwd=folder).json
    first = log[0]["before"] if log else shown["encoder"]
    assert first == "Pick what fits, and nothing else."


def test_the_paper_s_set_can_be_copied(tmp_path: Path) -> None:
    result = pco("templates", "copy", "p", "--set", "paper", "--json", cwd=tmp_path).json
    assert result["templates"] == "./p"
    assert (tmp_path / "p" / "set.toml").is_file()
    assert all((tmp_path / file).is_file() for file in result["files"])


def test_nothing_is_overwritten_and_an_unknown_set_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "critic.md").write_text("my own")
    pco("templates", "copy", "mine", cwd=tmp_path).error(2, "critic.md")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["critic.md"]
    assert (tmp_path / "mine" / "critic.md").read_text() == "my own"
    pco("templates", "copy", "p", "--set", "papre", cwd=tmp_path).error(2, "paper")
