"""The shape of the house, its plain English, its errors: what no reader should check by hand."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
import traceback
from functools import cache
from pathlib import Path

import pytest

import promptcodebook as pco
from bench.house import (
    EXAMPLE,
    READING,
    House,
    circles,
    code_lines,
    read_house,
    reading,
    shared_names,
    spread_tuples,
)
from bench.mutants import ROOMS
from bench.prose import check, lower
from promptcodebook.errors import ConfigError, causes_of, import_extra

ROOT = Path(__file__).parents[1]

SOURCE = Path(pco.__file__).parent
# A command that is too long for its part's cli.py.
PRINTING = ("paper/experiments/demo.py",)


@cache
def house() -> House:
    return read_house(ROOT)


@cache
def calls_and_imports() -> dict[Path, list[ast.AST]]:
    """Those of each module: to walk through all trees takes half a second."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}
    kinds = ast.Call | ast.Import | ast.ImportFrom
    return {p: [n for n in ast.walk(tree) if isinstance(n, kinds)] for p, tree in trees.items()}


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for type checking count too."""
    assert circles(house().imports) == []


def test_circles_are_found() -> None:
    imports = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a")}
    assert circles(imports) == [["a", "b", "c"]]


# Classes of one name, with the reason. Everywhere else a name means one thing.
TWICE = {"PCO": "optimizers' entry point, and the optimizer of DSPy that carries the same name"}


def test_a_name_means_one_thing_in_the_whole_house() -> None:
    assert shared_names(house()).keys() == TWICE.keys()


def test_no_call_hides_its_arguments_in_a_tuple() -> None:
    """A reader sees what a call gets: keywords, or a value with a name."""
    assert spread_tuples(house()) == []


HIDDEN = """
def f(a, b, c): ...
def g(*words): ...
def one(x):
    pair, more = (1, x), [x]
    f(*pair, x), g(*pair), f(*more, *x), f(*(1, x), 3), zip(*pair)
    return lambda: f(x, *pair)
class C:
    def __init__(self, x):
        self.both: tuple = (x, x) if x else (1, x)
    def two(self, pair):
        return f(*self.both, 1), f(*pair, 1)
"""


def test_mutants_are_drawn_from_rooms_that_exist() -> None:
    places = [place for places in ROOMS.values() for place in places]
    assert [place for place in places if not (SOURCE / place).exists()] == []


def test_arguments_in_a_tuple_are_found() -> None:
    house = House({"m": HIDDEN}, {})
    assert spread_tuples(house) == ["m: f(*(1, x))", "m: f(*pair)", "m: f(*self.both)"]
    assert spread_tuples(House({"m": HIDDEN.replace("pair, more = (1, x), [x]", "")}, {})) == [
        "m: f(*(1, x))",
        "m: f(*self.both)",
    ]


def test_lines_of_code_are_those_that_compute() -> None:
    text = '"""A\n\npage."""\n\n# why\nx = """two\nlines"""  # more\n\ndef f():\n    """D."""\n'
    assert code_lines(text) == 3


def test_no_file_imports_a_test_module() -> None:
    """What several tests share is in tests/build, where it is found and runs no test's set-up."""
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    importing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imported(node)
        if re.fullmatch(r"(tests)?\..*\b(test_\w+|conftest)(\..*)?", name)
    }
    assert importing == set()


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The dotted names that it may import."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        return names
    module = "." * node.level + (node.module or "")
    return [f"{module}.{name}" for name in names]


def test_the_method_can_be_read_in_an_hour() -> None:
    """From the example to the last function that decides a route, prompt, gradient or update."""
    example = (ROOT / EXAMPLE).read_text("utf-8").splitlines()
    assert len(example) + reading(house(), READING) <= 900


def test_every_room_is_in_the_architecture() -> None:
    """A newcomer looks there for where something is."""
    page = (
        (ROOT / "docs" / "architecture.md").read_text("utf-8").split("## Core and outer folders")[1]
    )
    rooms = {path.parent.name for path in SOURCE.glob("*/**/__init__.py")}
    assert {room for room in rooms if f"{room}/`" not in page} == set()


def test_every_group_of_entry_points_is_in_the_architecture() -> None:
    """A plug-in is written from that table."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8").split("## Packages")[0]
    asked = re.compile(
        r'(?:^[A-Z_]+ = |registered\(|plug_in\(|import_part\()"(promptcodebook\.\w+)"', re.M
    )
    groups = {group for path in SOURCE.rglob("*.py") for group in asked.findall(path.read_text())}
    assert {group for group in groups if f"`{group}`" not in page} == set()


def test_models_are_built_from_a_configuration_in_one_place() -> None:
    assert house().builders() == ["promptcodebook.assemble"]


def test_the_simulated_model_stays_small() -> None:
    """A test instrument, data included: what it may cost to read. The tour is none of it."""
    folder = SOURCE / "paper" / "simulated"
    beside = ("cli.py", "server.py")
    files = [
        p for p in folder.rglob("*.*") if p.suffix in (".py", ".toml") and p.name not in beside
    ]
    assert len(files) > 10
    assert sum(len(f.read_text("utf-8").splitlines()) for f in files) <= 3000


def test_files_get_their_names_in_one_place() -> None:
    """There their content is on disk first: a rename by itself survives no power cut."""
    renaming = set[str]()
    for path, nodes in calls_and_imports().items():
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given = len(node.args), len(node.keywords)
                moves = node.func.attr in ("rename", "renames", "link", "move", "hardlink_to")
                # Of a text, a date or a dataclass it takes two arguments, or keywords.
                if moves or (node.func.attr == "replace" and given == (1, 0)):
                    renaming.add(str(path.relative_to(SOURCE)))
    assert renaming == {"base/paths.py"}


def test_whatever_make_installs_is_checked_against_its_hash() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lines = [line for line in makefile.splitlines() if line.startswith("\t")]
    installs = [line for line in lines if "$(PIP" in line or "$(INSTALL)" in line]
    assert len(installs) > 10
    assert [line for line in installs if not ("--require-hashes" in line or " -e ." in line)] == []


# The public face


def test_the_docstring_of_each_public_function_lists_its_arguments_and_errors() -> None:
    """An asynchronous form has those of its twin."""
    lacking = list[str]()
    for name in sorted(pco.__all__):
        if inspect.isfunction(function := getattr(pco, name)) and name[1:] not in pco.__all__:
            text = inspect.getdoc(function) or ""
            wanted = [f"`{each}`" for each in inspect.signature(function).parameters]
            known = ("`choices`", "`asked`", "`beside`")  # keywords, listed where they are shared
            lacking += [f"{name}: {each}" for each in wanted if each not in (text + str(known))]
            lacking += [f"{name}: Raises"] if "Raises " not in text else []
    assert lacking == []


def test_the_import_alone_pulls_in_nothing_heavy() -> None:
    heavy = "aiohttp pydantic typer rich pyarrow pandas sqlite3 zstandard asyncio".split()  # noqa: SIM905
    code = f"import sys, promptcodebook; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_only_public_faces_list_what_they_export() -> None:
    faces = {
        "integrations/dspy.py",
        "paper/tasks/ifbench/score.py",
        "tasks/rewards/library.py",
    }
    for path in SOURCE.rglob("*.py"):
        listed = re.search(r"^__all__\b", path.read_text("utf-8"), re.MULTILINE)
        name = path.relative_to(SOURCE).as_posix()
        assert not listed or path.name == "__init__.py" or name in faces, name


def test_nothing_pickles_and_nothing_but_the_command_line_prints() -> None:
    for path, nodes in calls_and_imports().items():
        imported = set[str]()
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                imported |= {name.partition(".")[0] for name in names}
        assert not imported & {"pickle", "dill", "cloudpickle", "shelve", "marshal"}, path
        commands = path.parent.name == "cli" or path.name == "cli.py"
        if not commands and path.relative_to(SOURCE).as_posix() not in PRINTING:
            called = {
                n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
            }
            assert "print" not in called, path.relative_to(SOURCE)


# Texts stay in plain English: what `make prose` finds, and what it leaves alone.

LONG = " ".join(["word"] * 26) + "."
SETTINGS = '[instead]\ntold = "said"\n"so many" = "the number"\n\n[ceilings]\n'


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A repository with one page and one module, and a list that allows nothing."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# A page\n\nIt is plain.\n", "utf-8")
    (tmp_path / "list.toml").write_text(SETTINGS + "sentences = 0\ntold = 0\n", "utf-8")
    return tmp_path


def faults(planted: Path) -> list[str]:
    return check(planted, planted / "list.toml")[0]


@pytest.mark.parametrize(("text", "fault"), [
    ("It is told here.", "docs/page.md:3: 'told'; write said"),
    ("There are so\nmany.", "docs/page.md:3: 'so many'; write the number"),
    (LONG, "'sentences': 1, at most 0; write sentences of at most 25 words"),
    ("- " + LONG, "'sentences': 1, at most 0; write sentences of at most 25 words"),
    (f"    code\n\n{LONG}", "'sentences': 1, at most 0; write sentences of at most 25 words"),
])  # fmt: skip
def test_a_planted_sentence_is_found(planted: Path, text: str, fault: str) -> None:
    (planted / "docs" / "page.md").write_text(f"# A page\n\n{text}\n", "utf-8")
    assert fault in faults(planted)


def test_the_source_may_have_as_many_as_its_ceiling(planted: Path) -> None:
    module = planted / "src" / "module.py"
    module.write_text('"""One is told."""\n\ntold = "nothing"  # it is told here\n', "utf-8")
    head, *places = faults(planted)
    assert head == "'told': 2, at most 0; write said"
    assert places == ["  src/module.py:1", "  src/module.py:3"]
    (planted / "list.toml").write_text(SETTINGS + "sentences = 5\ntold = 3\n", "utf-8")
    assert faults(planted) == []


def test_ceilings_only_fall(planted: Path) -> None:
    listed = planted / "list.toml"
    listed.write_text(SETTINGS + "sentences = 5\ntold = 3\n", "utf-8")
    lower(listed, {"sentences": 9, "told": 2})
    assert tomllib.loads(listed.read_text("utf-8"))["ceilings"] == {"sentences": 5, "told": 2}


# Errors say what to type next, wherever they come out.


def shown(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def test_a_traceback_in_a_script_or_notebook_shows_the_hint() -> None:
    error = ConfigError("no model is named", hint="set PCO_LM")
    assert shown(error).endswith("ConfigError: no model is named\nnext: set PCO_LM\n")


def test_a_hint_that_changes_is_shown_once_beside_other_notes() -> None:
    error = ConfigError("no model is named", hint="set PCO_LM")
    error.add_note("while testing")
    error.hint = "pass lm="
    assert error.__notes__ == ["while testing", "next: pass lm="]
    error.hint = ""
    assert error.__notes__ == ["while testing"]


def test_errors_that_are_each_others_context_have_an_end() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__context__, second.__context__ = second, first
    assert list(causes_of(first)) == [first, second]


def test_an_extra_reports_its_use_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would send is seen in tests/attack/test_outbound.py; this much is quick."""
    monkeypatch.delitem(sys.modules, "openvino_telemetry", raising=False)
    monkeypatch.delenv("DO_NOT_TRACK", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "")
    assert import_extra("json", "a test", "none").dumps(1) == "1"
    assert os.environ["DO_NOT_TRACK"] == "1"
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True", "an empty one is none"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1", "what the user set stays"
    assert sys.modules["openvino_telemetry"] is None, "openvino takes its own stub"


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    cited = dict(re.findall(r"^(\S+): (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M))
    assert cited["version"] == project["version"] and cited["license"] == project["license"]
    assert f"\n## {project['version']}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")
