""""""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.cli.settings import set_layer
from promptcodebook.config import load_config
from promptcodebook.config.loading import comparable
from promptcodebook.data import examine, load
from tests.cli.conftest import QUICK
from tests.cli.invoked import pco

FILES = ("pco.toml", "data.jsonl", "reward.py")


def test_it_writes_a_task_that_trains_and_says_what_to_type_next(tmp_path: Path) -> None:
    result = pco("init", "mytask", cwd=tmp_path)
    assert result.code == 0
    folder = tmp_path / "mytask"
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)
    for step in ("pco doctor", "pco estimate", "pco train"):
        assert step in result.out
    result = pco("train", "--lm", "simulated", *QUICK, "--json", cwd=folder)
    assert result.code == 0, result.err
    names = [row["name"] for row in result.json["rows"]]
    assert names == ["present", "concat", "best_fixed", "untrained", "learned"]
    assert result.json["verdict"].startswith("On the simulated model")
    assert Path(folder / result.json["policy"]).is_file()


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


def test_no_file_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("mine")
    pco("init", cwd=tmp_path).error(2, "reward.py exists already", "nothing was written")
    assert [p.name for p in tmp_path.glob("*.*")] == ["reward.py"]
    assert (tmp_path / "reward.py").read_text() == "mine"


# --- `pco config`: every key can be looked up where it is typed ---


def test_every_key_has_a_default_a_kind_and_a_line(tmp_path: Path) -> None:
    rows = pco("config", "--json", cwd=tmp_path).json
    keys = {row["key"] for row in rows}
    tree = load_config().model_dump()
    for name, value in tree.items():
        if name in ("roles", "prices") or not isinstance(value, dict):
            continue
        assert {f"{name}.{inner}" for inner in value} <= keys
    assert {"size", "lm", "roles.ROLE.temperature"} <= keys
    assert all(row["text"] and row["kind"] for row in rows)
    text = pco("config", cwd=tmp_path).out
    assert [key for key in keys if f"\n{key}" not in text] == []


def test_a_key_and_a_group_can_be_asked_for(tmp_path: Path) -> None:
    out = pco("config", "update.batch_size", cwd=tmp_path).out
    assert out.startswith("update.batch_size = 15\n") and "whole number" in out
    assert "epochs" not in out
    group = pco("config", "update", cwd=tmp_path).out
    assert group.startswith("[update]\n") and "update.epochs = 50" in group
    assert "validation" not in group.replace("validation.", "")  # its own keys alone
    for name in ("roles.critic.max_tokens", "roles.ROLE.max_tokens", "max_tokens"):
        [row] = pco("config", name, "--json", cwd=tmp_path).json
        assert row["key"] == "roles.ROLE.max_tokens"
    for name, meant in (("update.epoch", "update.epochs"), ("temprature", "temperature")):
        wrong = pco("config", name, cwd=tmp_path)
        wrong.error(2, f"no key '{name}'", f"did you mean '{meant}'")


def test_a_default_can_be_written_into_a_pco_toml_as_it_is_shown(tmp_path: Path) -> None:
    rows = pco("config", "--json", cwd=tmp_path).json
    lines = [
        f"{row['key']} = {row['default']}"
        for row in rows
        if not {"ROLE", "MODEL"} & set(row["key"].split(".")) and row["default"] != "none"
    ]
    assert len(lines) > 40
    written, default = comparable(tomllib.loads("\n".join(lines)), {})
    assert written == default


# --- What --set makes of a value ---


@pytest.mark.parametrize(
    ("pair", "tree"),
    [
        ("size=8", {"size": 8}),
        ("data.input={title} {body}", {"data": {"input": "{title} {body}"}}),
        ('reward={kind = "exact"}', {"reward": {"kind": "exact"}}),
        ("init.instincts=['a', 'b']", {"init": {"instincts": ["a", "b"]}}),
        ('init.prompt={"role": "clerk"}', {"init": {"prompt": '{"role": "clerk"}'}}),
        ("base_prompt=42", {"base_prompt": "42"}),
        ("reward=[sic", {"reward": "[sic"}),
        ("reward=[1]\nseed = 2", {"reward": "[1]\nseed = 2"}),
        ("lm=none", {"lm": None}),
    ],
)
def test_a_value_is_json_or_toml_or_text(pair: str, tree: dict[str, Any]) -> None:
    assert set_layer([pair]) == tree


# --- `pco templates`: a set of prompts copied, edited and trained with ---


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


def test_a_set_by_its_name_is_copied_and_nothing_is_overwritten(tmp_path: Path) -> None:
    made = pco("templates", "copy", "p", "--set", "paper", "--json", cwd=tmp_path).json
    assert made["templates"] == "./p" and (tmp_path / "p" / "set.toml").is_file()
    assert all((tmp_path / file).is_file() for file in made["files"])
    pco("templates", "copy", "q", "--set", "papre", cwd=tmp_path).error(2, "paper")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "critic.md").write_text("my own")
    pco("templates", "copy", "mine", cwd=tmp_path).error(2, "critic.md")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["critic.md"]
    assert (tmp_path / "mine" / "critic.md").read_text() == "my own"
