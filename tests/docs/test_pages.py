"""Generated pages are current, examples of options are accepted, every page stands in the site."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from promptcodebook.config import load_config
from promptcodebook.config.loading import describe
from promptcodebook.policy.file import PolicyFile
from promptcodebook.tasks.rewards import make_reward, reward_kinds
from tests.docs.blocks import DOCS, blocks_of


def generator(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_rewards_is_current() -> None:
    page = (DOCS / "reference" / "rewards.md").read_text("utf-8")
    assert page == generator("generate_rewards").page(), "python docs/generate_rewards.py"


def test_the_picture_of_the_verdict_is_current() -> None:
    picture = (DOCS / "verdict.svg").read_text("utf-8")
    assert picture == generator("generate_verdict").picture(), "python docs/generate_verdict.py"


def test_every_reward_has_an_example_that_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "answer.schema.json").write_text('{"type": "object"}', "utf-8")
    shown: set[str] = set()
    for block in blocks_of(DOCS / "reference" / "rewards.md"):
        spec = tomllib.loads(block.text)["reward"]
        make_reward(spec, tmp_path, ask=lambda *_: None)  # type: ignore[arg-type, return-value]
        shown.add(spec if isinstance(spec, str) else spec["kind"])
        load_config(tomllib.loads(block.text))
    assert shown == set(reward_kinds())


def test_every_key_of_a_policy_file_is_described() -> None:
    page = (DOCS / "reference" / "policy-file.md").read_text("utf-8")
    missing = [key for key in PolicyFile.model_fields if f"`{key}" not in page]
    assert missing == []


@pytest.mark.parametrize("name", ["policy-file", "events"])
def test_blocks_of_the_reference_are_python(name: str) -> None:
    for block in blocks_of(DOCS / "reference" / f"{name}.md"):
        compile(block.text, name, "exec")


def test_links_lead_somewhere_where_the_page_lies() -> None:
    """In the repository; that they do so in the site, mkdocs tells."""
    lost: list[str] = []
    for page in (*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")):
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        links = re.findall(r"\]\((?!https?:)([^)#\s]+)[^)\s]*\)", text)
        lost += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
    assert lost == []


def test_every_configuration_that_a_page_shows_is_one() -> None:
    for page in DOCS.rglob("*.md"):
        for block in blocks_of(page):
            tree = tomllib.loads(block.text) if block.kind == "toml" else {"project": None}
            if "project" not in tree:
                load_config(tree)


def test_the_settings_that_pages_name_exist() -> None:
    keys = {key.key for key in describe()}
    groups = "|".join(sorted({key.split(".")[0] for key in keys if "." in key} - {"data"}))
    span = re.compile(rf"`((?:{groups})\.(?!py`)[a-z_]+(?:\.[a-z_]+)?)(?: ?[=:].*?)?`")
    lost, found = set[str](), 0
    for page in (DOCS.parent / "README.md", *DOCS.rglob("*.md")):
        named = span.findall(page.read_text("utf-8"))
        found += len(named)
        roles = {re.sub(r"^(roles|prices)\.[a-z]+", r"\1", key) for key in named}
        several = {re.sub(r"^(roles|prices)\.\w+", r"\1", key) for key in keys}
        lost |= {f"{page.name}: {key}" for key in roles - several - {"roles", "prices"}}
    assert lost == set() and found > 100


def test_every_page_stands_in_the_site_s_contents() -> None:
    """mkdocs tells it as well, minutes later."""
    contents = (DOCS.parent / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    named = set(re.findall(r"[\w/-]+\.md", contents))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    root = {"project/contributing.md", "project/security.md", "project/changelog.md"}
    examples = {
        path.relative_to(DOCS.parent).as_posix()
        for path in (DOCS.parent / "examples").glob("**/README.md")
    }
    assert named == pages | root | examples
