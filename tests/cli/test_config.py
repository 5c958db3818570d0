"""`pco config`: every key can be looked up where it is typed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from promptcodebook.config import load_config
from tests.cli.invoked import pco


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


@pytest.mark.parametrize("name", ["roles.critic.top_p", "roles.ROLE.top_p"])
def test_a_role_s_key_is_the_one_of_all_roles(tmp_path: Path, name: str) -> None:
    [row] = pco("config", name, "--json", cwd=tmp_path).json
    assert row["key"] == "roles.ROLE.top_p"


@pytest.mark.parametrize(
    ("name", "meant"), [("update.epoch", "update.epochs"), ("temprature", "temperature")]
)
def test_an_unknown_key_gets_a_did_you_mean(tmp_path: Path, name: str, meant: str) -> None:
    pco("config", name, cwd=tmp_path).error(2, f"no key '{name}'", f"did you mean '{meant}'")


def test_a_default_can_be_written_into_a_pco_toml_as_it_is_shown(tmp_path: Path) -> None:
    rows = pco("config", "--json", cwd=tmp_path).json
    lines = [
        f"{row['key']} = {row['default']}"
        for row in rows
        if not {"ROLE", "MODEL"} & set(row["key"].split(".")) and row["default"] != "none"
    ]
    assert len(lines) > 40
    assert load_config(tomllib.loads("\n".join(lines))) == load_config()


def test_the_end_of_a_key_is_enough(tmp_path: Path) -> None:
    [row] = pco("config", "max_tokens", "--json", cwd=tmp_path).json
    assert row["key"] == "roles.ROLE.max_tokens"
