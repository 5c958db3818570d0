"""A policy carries the texts it prompts with: it makes the same prompts without the folder, or the
version, that they came from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.calls import Request
from promptcodebook.errors import PolicyError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import EVALUATION
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.templates import copy_templates, load_templates
from promptcodebook.policy.file import PolicyFile, read_policy_file
from promptcodebook.policy.policy import deploy
from promptcodebook.policy.references import resolve
from promptcodebook.run.subject import Given
from promptcodebook.store.run import RunStore
from promptcodebook.types import Example
from tests.method.build import World, config, parameters, said, talkative
from tests.run.test_optimize import train

X = Example("x", "What are lamps good for?")
STATE = State(3, parameters(), RoutingStatistics((0.1, 0.4, 0, 0), (0.2, 0.5, 0, 0), (2, 1, 0, 0)))


def own_folder(path: Path) -> Path:
    """Our set with a generator of its own, and the codebook listed in another way."""
    copy_templates(path)
    (path / "generator.md").write_text("## user\nMINE: {phi} / {instincts} / {task}")
    manifest = (path / "set.toml").read_text()
    mine = manifest.replace('rate = "success"', 'rate = "ema"').replace("[{index}]", "#{index}")
    (path / "set.toml").write_text(mine)
    return path


def policy_file(templates: str) -> PolicyFile:
    settings = config(templates=templates)
    return PolicyFile.of(STATE, settings, load_templates(templates), "", ())


async def requests_in_training(templates: str) -> list[Request]:
    """What encoder and generator are asked where the set itself is at hand."""
    world = World(config(templates=templates))
    draws = world.config.randomness.at(EVALUATION, X.id)
    route, *_ = await world.composer.route(STATE.parameters, STATE.statistics, X, draws)
    await world.composer.compose(STATE.parameters, route, X, draws)
    return world.lm.history


async def requests_of(file: PolicyFile) -> list[Request]:
    """What a deployed policy asks."""
    lm = ScriptedLM().reply_with(talkative)
    policy = deploy(file, file.settings(above={"lm": "own"}), Sources(lm=lm))
    await policy.aprompt(X)
    return lm.history


def same(deployed: list[Request], trained: list[Request]) -> bool:
    return [(r.role, r.messages) for r in deployed] == [(r.role, r.messages) for r in trained]


@pytest.mark.parametrize("templates", ["default", "paper"])
async def test_a_policy_prompts_as_in_training(templates: str) -> None:
    trained = await requests_in_training(templates)
    assert [r.role for r in trained] == ["encoder", "generator"]
    assert same(await requests_of(policy_file(templates)), trained)


async def test_a_policy_needs_no_folder_to_prompt_as_in_training(tmp_path: Path) -> None:
    mine = own_folder(tmp_path / "mine")
    trained = await requests_in_training(str(mine))
    policy_file(str(mine)).save(tmp_path / "policy.json")
    shutil.rmtree(mine)
    deployed = await requests_of(read_policy_file(tmp_path / "policy.json"))
    assert same(deployed, trained)
    assert "#1 rule one (success 0.40)" in said(deployed[0])
    assert said(deployed[1]).startswith("MINE: phi 0 / ")


async def test_a_shipped_set_that_was_reworded_does_not_change_a_policy(tmp_path: Path) -> None:
    """The file of another version, whose default set had other words."""
    tree = json.loads(policy_file("default").text())
    tree["templates"]["encoder"] = tree["templates"]["encoder"].replace("Choose exactly", "Pick")
    (tmp_path / "policy.json").write_text(json.dumps(tree))
    route, _ = await requests_of(read_policy_file(tmp_path / "policy.json"))
    assert "Pick 2 different instincts" in said(route) and "Choose exactly" not in said(route)


@pytest.mark.parametrize("templates", ["default", "paper"])
async def test_a_file_of_version_01_names_its_set_and_still_loads(
    tmp_path: Path, templates: str
) -> None:
    now = json.loads(policy_file(templates).text())
    then = {k: v for k, v in now.items() if k not in ("program", "stages", "sampling")}
    then |= {"format": "promptcodebook policy 1", "templates": templates}
    (tmp_path / "old.json").write_text(json.dumps(then))
    old = read_policy_file(tmp_path / "old.json")
    assert same(await requests_of(old), await requests_in_training(templates))
    old.save(tmp_path / "new.json")
    assert read_policy_file(tmp_path / "new.json") == old


def test_an_unknown_placeholder_in_a_policy_file_is_told(tmp_path: Path) -> None:
    tree = json.loads(policy_file("default").text())
    tree["templates"]["encoder"] += "{taks}"
    (tmp_path / "edited.json").write_text(json.dumps(tree))
    with pytest.raises(PolicyError, match=r"encoder:14: unknown placeholder \{taks\}"):
        read_policy_file(tmp_path / "edited.json")


def test_equal_texts_give_equal_bytes_wherever_their_folder_lies(tmp_path: Path) -> None:
    here, there = own_folder(tmp_path / "here"), own_folder(tmp_path / "there")
    assert policy_file(str(here)).text() == policy_file(str(there)).text()
    assert policy_file(str(here)).digest != policy_file("default").digest
    assert str(tmp_path) not in policy_file(str(here)).text()


def test_a_run_speaks_of_its_templates_as_they_were(tmp_path: Path) -> None:
    """Its policy needs the folder no more."""
    mine = own_folder(tmp_path / "mine")
    update = {"epochs": 1, "batch_size": 2}
    run = train(tmp_path, config={"templates": str(mine), "update": update})
    shutil.rmtree(mine)
    found = resolve(tmp_path / "runs", run.id)
    assert found.file.text() == (run.path / "policy.json").read_text("utf-8")
    assert found.file.templates.generator.startswith("## user\nMINE")
    assert Given("").settings(found)[0].templates == "default"
    store = RunStore.open(run.path)
    header = store.header
    store.close()
    assert header.templates is not None and header.config["templates"] == str(mine)
