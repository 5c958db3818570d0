from __future__ import annotations

import re
import tomllib
from pathlib import Path

from promptcodebook.config import load_config
from promptcodebook.data import examine, load
from tests.cli.conftest import QUICK
from tests.cli.invoked import pco

FILES = ("pco.toml", "data.jsonl", "reward.py")


def test_it_writes_three_files_and_says_what_to_type_next(tmp_path: Path) -> None:
    result = pco("init", "mytask", cwd=tmp_path)
    assert result.code == 0
    assert sorted(p.name for p in (tmp_path / "mytask").iterdir()) == sorted(FILES)
    for step in ("pco doctor", "pco estimate", "pco train"):
        assert step in result.out


def test_what_it_writes_loads_and_equals_the_default_preset(folder: Path) -> None:
    tree = tomllib.loads((folder / "pco.toml").read_text())
    written = load_config(tree)
    own = {"lm", "reward", "data", "init"}
    assert written.model_dump(exclude=own) == load_config().model_dump(exclude=own)
    checked = examine(load(folder / "data.jsonl"))
    assert sum(checked.counts.values()) >= 12 and checked.clean and not checked.warnings()


def test_every_commented_setting_is_one_that_exists_with_its_default(folder: Path) -> None:
    """The comments show defaults: switched on, they change nothing."""
    lines: list[str] = []
    _, _, settings = (folder / "pco.toml").read_text().partition("\npreset =")
    for line in f"preset ={settings}".splitlines():
        if re.match(r"# \w+ = ", line):
            line = line[2:]
        elif line.startswith(("# [roles", "# [prices")):
            break
        lines.append(line)
    shown = tomllib.loads("\n".join(lines))
    for key in ("usd", "tokens", "calls", "seconds"):  # examples: no limit is the default
        shown["budget"].pop(key)
    for key in ("instincts", "frozen"):
        shown["init"].pop(key)
    shown["validation"].pop("patience")  # an example: unset is the default
    shown.pop("executor")
    own = {"lm", "reward", "data"}
    assert load_config(shown).model_dump(exclude=own) == load_config().model_dump(exclude=own)


def test_it_names_the_differences_of_the_default_preset_from_the_paper(folder: Path) -> None:
    import promptcodebook.config as config

    rows = [
        line.split("|")[1].strip()
        for line in (config.__doc__ or "").splitlines()
        if line.startswith("| ") and not line.startswith("| key")
    ]
    head = (folder / "pco.toml").read_text().split("\npreset =")[0]
    same = {"update.accept"}
    for key in set(rows) - same:
        assert key in head, key


def test_a_file_that_exists_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("mine")
    pco("init", cwd=tmp_path).error(2, "reward.py exists already", "nothing was written")
    assert [p.name for p in tmp_path.glob("*.*")] == ["reward.py"]
    assert (tmp_path / "reward.py").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    pco("init", "taken/here", cwd=tmp_path).error(2, "cannot write to taken/here")


def test_it_trains_as_it_stands(folder: Path) -> None:
    result = pco("train", "--lm", "simulated", *QUICK, "--json", cwd=folder)
    assert result.code == 0, result.err
    assert [row["name"] for row in result.json["rows"]] == [
        "present",
        "concat",
        "best_fixed",
        "untrained",
        "learned",
    ]
    assert result.json["verdict"].startswith("On the simulated model")
    assert Path(folder / result.json["policy"]).is_file()
