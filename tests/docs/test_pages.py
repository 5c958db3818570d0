"""Generated pages are current, every page is in the site, and what pages name exists."""

import importlib
import importlib.util
import re
import shlex
import tomllib
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer

import promptcodebook
from promptcodebook.cli import app as tree
from promptcodebook.cli.usage import read_options
from promptcodebook.config import load_config
from promptcodebook.config.loading import describe
from promptcodebook.errors import ConfigError
from promptcodebook.policy.file import PolicyFile
from promptcodebook.tasks.rewards import make_reward, reward_kinds
from tests.build.blocks import DOCS, blocks_of, generator


@pytest.mark.parametrize(("script", "written"), [
    ("generate_cli", "cli.md"),
    ("generate_config", "config.md"),
    ("generate_rewards", "reference/rewards.md"),
    ("generate_verdict", "verdict.svg"),
])  # fmt: skip
def test_what_is_generated_is_current(script: str, written: str) -> None:
    made = generator(script)
    expected = made.picture() if written.endswith("svg") else made.page()
    assert (DOCS / written).read_text("utf-8") == expected, f"python docs/{script}.py"


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


def test_a_page_with_figures_of_smollm2_says_that_another_processor_gives_others() -> None:
    root = DOCS.parent
    pages = [root / "README.md", *DOCS.rglob("*.md"), *(root / "examples").rglob("*.md")]
    texts = {str(page.relative_to(root)): page.read_text("utf-8") for page in pages}
    figures = re.compile(r"\b[01]\.\d{3}\b(?!\.)|\d (?:more )?[\w ()]+ per 100")
    named = {page for page, text in texts.items() if "SmolLM2" in text or "`smollm2`" in text}
    # Options have examples of rewards, which no model earned.
    found = {page for page in named if figures.search(texts[page])} - {"docs/cli.md"}
    assert {"README.md", "docs/results/main.md"} <= found
    said = re.compile(r"another\s+draw|different\s+results")
    silent = {page for page in found if not said.search(texts[page])}
    assert silent == set()


def test_links_lead_somewhere_where_the_page_lies() -> None:
    """In the repository; that they do so in the site, mkdocs tells."""
    lost: list[str] = []
    for page in (*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")):
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        links = re.findall(r"\]\((?!https?:)([^)#\s]+)[^)\s]*\)", text)
        lost += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
    assert lost == []


def test_the_files_that_the_tutorial_shows_are_those_beside_it() -> None:
    page = DOCS / "tutorial" / "index.md"
    shown = {block.title: block.text for block in blocks_of(page) if block.title}
    assert set(shown) == {"reward.py", "agent.py", "pco.toml", "app.py"}
    assert shown == {name: (page.parent / name).read_text("utf-8") for name in shown}
    [rows] = [block.text for block in blocks_of(page) if block.kind == "csv"]
    assert (page.parent / "messages.csv").read_text("utf-8").startswith(rows.removesuffix("...\n"))


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


# Every command that a page prints exists, with the options that it is given there.

PAGES = [
    DOCS.parent / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page.name != "cli.md"),
    *sorted((DOCS.parent / "examples").glob("*/README.md")),
]
_FENCE = re.compile(r"^```\w*[^\n]*\n(.*?)^```$", re.M | re.S)
_SPAN = re.compile(r"(?<!`)`(?:PCO_\w+=\S+ )?(pco [a-z][^`]*)`(?!`)")
_END = {"&&", "||", "|", ";", ">", "2>"}


def _options(command: object) -> set[str]:
    names = {"--help"}
    for parameter in getattr(command, "params", ()):
        names |= {*parameter.opts, *parameter.secondary_opts}
    return names


def fault_of(words: list[str]) -> str:
    """What is wrong with `pco WORDS`; '' = nothing."""
    if not words or not words[0].startswith(tuple("abcdefghijklmnopqrstuvwxyz")):
        return ""
    if words[0] not in tree.commands():
        return f"there is no command {words[0]}"
    root: Any = typer.main.get_command(tree.app)
    command, path = root.get_command(None, words[0]), words[:1]
    for word in words[1:]:
        if not hasattr(command, "list_commands"):
            break
        below = command.list_commands(None)
        if word.startswith("-") or word.upper() == word or "|" in word:
            return ""
        if word not in below:
            return f"pco {' '.join(path)} has no command {word}"
        command, path = command.get_command(None, word), [*path, word]
    known = _options(command)
    for word in words[len(path) :]:
        name = word.split("=")[0]
        if name in _END:
            break
        if name.startswith("--") and name not in known:
            return f"pco {' '.join(path)} has no option {name}"
    return ""


def typed_of(text: str) -> list[str]:
    """The commands in the blocks of a page."""
    blocks = "\n".join(_FENCE.findall(text)).replace("\\\n", " ")
    return re.findall(r"^(?:\$ |.*&& |\s*- run: )?(pco [^\n]*)", blocks, re.M)


def lines_of(text: str) -> list[str]:
    """The commands of a page: typed in blocks, or named in its sentences."""
    typed = typed_of(text)
    flowing = re.sub(r"\s+", " ", _FENCE.sub("", text))
    return [*typed, *_SPAN.findall(flowing)]


def test_the_commands_that_pages_print_exist() -> None:
    faults: list[str] = []
    lines = [(page.name, line) for page in PAGES for line in lines_of(page.read_text("utf-8"))]
    assert len(lines) > 200
    for page, line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.split()
        if fault := fault_of(words[1:]):
            faults.append(f"{page}: {line}: {fault}")
    assert faults == []


def test_no_block_of_a_page_has_an_option_without_effect() -> None:
    root, faults, count = typer.main.get_command(tree.app), list[str](), 0
    for page in PAGES:
        for line in typed_of(page.read_text("utf-8")):
            words = line.partition(" #")[0].split()[1:]
            typed = list(takewhile(lambda word: word not in _END, words))
            count += 1
            try:
                read_options(root, typed)
            except ConfigError as error:
                faults.append(f"{page.name}: {line}: {error}")
    assert faults == [] and count > 100


@pytest.mark.parametrize(("line", "fault"), [
    ("train --nonesuch 3", "no option --nonesuch"),
    ("trian", "no command trian"),
    ("registry melt last", "no command melt"),
    ("registry promote REF NAME@REF --why x", ""),
])  # fmt: skip
def test_a_command_that_does_not_exist_is_told(line: str, fault: str) -> None:
    assert fault in fault_of(line.split()) and bool(fault) == bool(fault_of(line.split()))


# The pages speak of what ships: every ready-made task is described and placed in the method.

PACKAGE = Path(promptcodebook.__file__).parent
TASKS = sorted(file.parent.name for file in PACKAGE.glob("paper/tasks/*/task.py"))


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_its_page_and_its_place_in_the_method(name: str) -> None:
    page = (DOCS / "tasks" / f"{name}.md").read_text("utf-8")
    for part in ("## Data", "## Pipeline"):
        assert part in page, f"docs/tasks/{name}.md lacks {part!r}"
    assert "\n## Score" in page or "\n## Metric" in page
    assert f"--task {name}" in page
    assert f"`paper/tasks/{name}/" in (DOCS / "method.md").read_text("utf-8")


def test_the_functions_that_the_pages_name_exist() -> None:
    named: set[tuple[str, ...]] = set()
    for name in TASKS:
        page = (DOCS / "tasks" / f"{name}.md").read_text("utf-8")
        dotted = re.findall(rf"`(?:promptcodebook\.tasks\.)?({name})\.(score)\.(\w+)[`(]", page)
        named |= set(dotted)
    assert len(named) >= 6
    for name, module, symbol in sorted(named):
        found = importlib.import_module(f"promptcodebook.tasks.{name}.{module}")
        assert hasattr(found, symbol), f"docs/tasks/{name}.md names {module}.{symbol}"
