"""Small changes of meaning in our own code, one at a time: does any test notice?

    python -m bench.mutants --map                              which test runs which function (once)
    python -m bench.mutants --seed 1 --count 60 --rooms registry,audit --out drawn.json
    python -m bench.mutants --again drawn.json                 the same mutants, in the tree of now

A mutant is found again by its function and by the code that it changes, so lines may move. It is
tried in a copy of `src`, by the tests that run its function: narrow ones first, for at most 40 s.
The first failing test kills it. Equivalent mutants are for a reader to judge.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "src/promptcodebook"
MAP = ROOT / "build" / "mutants.json"
ROOMS: Mapping[str, Sequence[str]] = {
    "money": ["lm/budget.py", "lm/stack.py", "store/journal.py"],
    "verdict": ["run/verdict.py", "run/decision.py", "run/slices.py", "optimizers/reserve.py",
                "run/evaluation.py", "base/intervals.py",
                "optimizers/selection.py"],
    "routing": ["method/policy.py", "method/exploration.py", "method/theta_guard.py",
                "routing/outcome_router.py", "routing/ranking.py", "routing/outcomes.py"],
    "registry": ["deploy/registry"],
    "audit": ["deploy/audit", "policy/scan.py", "policy/decoding.py"],
    "export": ["deploy/exports"],
    "trust": ["policy/references.py", "policy/file.py", "store/header.py"],
    "loop": ["method/train.py", "method/update.py", "method/acceptance.py", "method/state.py",
             "method/rewrite_checks.py"],
    "rivals": ["optimizers/fixed.py", "paper/rivals/outside.py"],
    "serve": ["deploy/serve", "deploy/http"],
    "store": ["store"],
    "batch": ["deploy/batch"],
    "estimation": ["estimation"],
    "distilling": ["run/measuring.py"],
}  # fmt: skip
# The tests of a mutant: as many as ran this long on the code as it is.
_MOST_S = 40.0
_SWAPS: Mapping[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div,
    ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_MESSAGES = {"note", "print", "log", "warn", "info", "debug", "update_status", "echo"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the `nth` place in a function (qualified name, '' = the module) where `before`
    stands, and what stands there instead; `outcome` is 'killed', 'survived', 'gone' or ''."""

    file: str
    function: str
    before: str
    after: str
    nth: int
    line: int
    outcome: str = ""
    by: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        what = f"{self.file}:{self.line} {self.function}: {self.before}  ->  {self.after}"
        return f"{self.outcome or 'drawn':<9}{self.seconds:5.1f}s  {what}  {self.by}".rstrip()


def sites(file: str, source: str) -> Iterator[tuple[ast.AST, Mutant]]:
    """Every mutant of a file, in the order of the text, with the node that it replaces."""
    met: dict[tuple[str, str, str], int] = {}
    for function, parent in _nodes(ast.parse(source), ""):
        for node, changed in _changes(parent):
            key = (function, ast.unparse(node), ast.unparse(changed))
            met[key] = met.get(key, -1) + 1
            yield node, Mutant(file, *key, met[key], getattr(node, "lineno", 0))


def _nodes(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """What runs: no docstrings, annotations, decorators, messages, or what is for the checker."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_only_message(child):
                continue
            inner = function
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{function}.{child.name}".lstrip(".")
            yield inner, child
            yield from _nodes(child, inner)


def _is_only_message(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.JoinedStr() | ast.Import():
            return True
        case ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Expr(value=value):
            return _is_only_message(value)
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in _MESSAGES or name.endswith(("Error", "Refused")) or name == "Option"
        case ast.keyword(arg="hint" | "help" | "strict" | "indent" | "encoding" | "errors"):
            return True
    return False


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """A node, or a part of it, and what may stand in its place."""
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in _SWAPS:
            yield node, _with(node, "ops", [_SWAPS[type(op)](), *node.ops[1:]])
        case ast.BoolOp(op=op):
            yield node, _with(node, "op", _SWAPS[type(op)]())
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _SWAPS:
            if not any(isinstance(s, ast.JoinedStr) or _is_text(s) for s in (left, right)):
                yield node, _with(node, "op", _SWAPS[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, operand
        case ast.Constant(value=bool() | int() | float() as value):
            other = not value if isinstance(value, bool) else value + 1 if value != 1 else 0
            yield node, ast.Constant(other)
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            yield node, _with(node, "func", ast.Name(_NAMES[name]))
        case ast.Call(args=[ast.Name() as first, ast.Name() as second, *rest]):
            yield node, _with(node, "args", [second, first, *rest])
        case _:
            yield from _left_out(node)


def _left_out(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """A condition turned round or always met, a statement that is not there."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.Compare | ast.UnaryOp | ast.BoolOp):
                yield test, ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=[first, *_]):
            yield first, ast.Constant(True)
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.AugAssign():
            yield node, ast.Pass()
        case ast.Break() | ast.Continue() | ast.Delete():
            yield node, ast.Pass()
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield node, ast.Return(ast.Constant(None))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _with(node: ast.AST, name: str, value: object) -> Any:
    changed = copy.copy(node)
    setattr(changed, name, value)
    return changed


def _mutated(source: str, node: Any, mutant: Mutant) -> str:
    """The text with the change in its place; the lines after it keep their numbers."""
    after = mutant.after if issubclass(type(node), ast.stmt) else f"({mutant.after})"
    lines = source.encode().splitlines(keepends=True)
    head = lines[node.lineno - 1][: node.col_offset]
    tail = lines[node.end_lineno - 1][node.end_col_offset :]
    gap = b"\n" * (node.end_lineno - node.lineno)
    changed = [head, after.encode(), tail, gap if not tail.strip() else b""]
    rest = lines[node.end_lineno :]
    return b"".join([*lines[: node.lineno - 1], *changed, *rest]).decode()


def found_again(mutant: Mutant, root: Path = ROOT) -> tuple[str, Mutant] | None:
    """The text of a file with the mutant in it, and the mutant with the line of now."""
    path = root / PACKAGE / mutant.file
    if not path.is_file():
        return None
    source = path.read_text("utf-8")
    for node, each in sites(mutant.file, source):
        if replace(each, line=0) == replace(mutant, line=0, outcome="", by="", seconds=0.0):
            return _mutated(source, node, each), each
    return None


def drawn(seed: int, count: int, rooms: Sequence[str]) -> list[Mutant]:
    """As many mutants, each as likely as any other; `rooms` are names of rooms, or paths."""
    folder = ROOT / PACKAGE
    files: set[Path] = set()
    for place in (place for room in rooms for place in ROOMS.get(room, [room])):
        files |= {folder / place} if place.endswith(".py") else set((folder / place).rglob("*.py"))
    names = sorted(path.relative_to(folder).as_posix() for path in files)
    every = [m for name in names for _, m in sites(name, (folder / name).read_text("utf-8"))]
    return random.Random(seed).sample(every, min(count, len(every)))


class Mapper:
    """A pytest plugin: which functions of the package each test runs, its fixtures' too."""

    def __init__(self) -> None:
        self.tests: dict[str, tuple[float, list[str]]] = {}
        self._names: dict[CodeType, str] = {}
        self._fixtures: dict[str, set[CodeType]] = {}
        self._open: list[set[CodeType]] = []
        self._folder = str(ROOT / PACKAGE) + os.sep

    def _trace(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self._folder):
            for each in self._open:
                each.add(code)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        mine = self._fixtures.setdefault(fixturedef.argname, set())
        self._open.append(mine)
        try:
            return (yield)
        finally:
            self._open.remove(mine)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        mine: set[CodeType] = set()
        self._open.append(mine)
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        began = time.process_time()
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self._open.clear()
            mine.update(*(self._fixtures.get(name, ()) for name in item.fixturenames))
            names = sorted({self._name(code) for code in mine})
            self.tests[item.nodeid] = (time.process_time() - began, names)

    def _name(self, code: CodeType) -> str:
        if code not in self._names:
            qualified = code.co_qualname.replace(".<locals>", "").partition(".<")[0]
            file = Path(code.co_filename).relative_to(ROOT / PACKAGE).as_posix()
            self._names[code] = f"{file}::{'' if qualified.startswith('<') else qualified}"
        return self._names[code]


def make_map(arguments: Sequence[str]) -> int:
    """Runs tests once and keeps what each runs; what is known of other files stays."""
    mapper = Mapper()
    code = pytest.main(["-p", "no:cacheprovider", *arguments], plugins=[mapper])
    MAP.parent.mkdir(exist_ok=True)
    earlier = json.loads(MAP.read_text("utf-8")) if MAP.is_file() else {}
    files = {test.partition("::")[0] for test in mapper.tests}
    kept = {test: each for test, each in earlier.items() if test.partition("::")[0] not in files}
    MAP.write_text(json.dumps({**kept, **mapper.tests}), "utf-8")
    return int(code)


def tests_of(mutant: Mutant, known: Mapping[str, tuple[float, list[str]]]) -> list[str]:
    """The tests that run its function (for a module's own code: any of its functions), those that
    run little else first."""
    module, function = f"{mutant.file}::", f"{mutant.file}::{mutant.function}"

    def runs(names: Sequence[str]) -> bool:
        if mutant.function.rpartition(".")[2].lstrip("_")[:1].isupper() or not mutant.function:
            return any(name.startswith(module) for name in names)
        return function in names

    chosen: list[str] = []
    left = _MOST_S
    able = (each for each in known.items() if runs(each[1][1]))
    for test, (seconds, _) in sorted(able, key=lambda each: (len(each[1][1]), each[0])):
        if seconds <= left:
            chosen.append(test)
            left -= seconds
    return chosen


def tried(mutant: Mutant, known: Mapping[str, Any], scratch: Path) -> Mutant:
    """The mutant with what became of it."""
    found = found_again(mutant)
    if found is None:
        return replace(mutant, outcome="gone", by="")
    text, mutant = found
    began, tests = time.perf_counter(), tests_of(mutant, known)
    if not tests:
        return replace(mutant, outcome="survived", by="(no test runs it)")
    path = scratch / PACKAGE / mutant.file
    path.write_text(text, "utf-8")
    code, by = _ran(tests, scratch)
    shutil.copyfile(ROOT / PACKAGE / mutant.file, path)
    if code > 1 and _ran(tests, scratch)[0]:  # it is not the mutant that pytest cannot run
        outcome, by = "unclear", f"map the tests again: {by}"
    else:
        outcome, by = ("killed", by) if code else ("survived", f"({len(tests)} tests)")
    return replace(mutant, outcome=outcome, by=by, seconds=time.perf_counter() - began)


def _ran(tests: Sequence[str], scratch: Path) -> tuple[int, str]:
    """The exit code of pytest on the copy, and the first test that failed."""
    environment = {**os.environ, "PYTHONPATH": str(scratch / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=4 * _MOST_S
        )
    except subprocess.TimeoutExpired:
        return 1, "(it took four times as long)"
    failed = [
        line for line in ran.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))
    ]
    return ran.returncode, failed[0].split(" - ")[0] if failed else ran.stdout[-200:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--map", nargs=argparse.REMAINDER, help="run these tests, keep who runs what"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--rooms", default=",".join(ROOMS), help="names of rooms, or paths")
    parser.add_argument("--again", type=Path, help="mutants that were kept by --out")
    parser.add_argument("--out", type=Path, help="a file for the mutants and what became of them")
    parser.add_argument("--list", action="store_true", help="try none, only say which are drawn")
    given = parser.parse_args()
    if given.map is not None:
        return make_map(given.map)
    if given.again:
        mutants = [Mutant(**each) for each in json.loads(given.again.read_text("utf-8"))]
    else:
        mutants = drawn(given.seed, given.count, given.rooms.split(","))
    if given.list:
        print(*mutants, sep="\n")
        return 0
    known = json.loads(MAP.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        left_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src", scratch / "src", ignore=left_out)
        for number, mutant in enumerate(mutants):
            mutants[number] = tried(mutant, known, scratch)
            print(mutants[number], flush=True)
            if given.out:
                kept = [asdict(each) for each in mutants]
                given.out.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    lived = sum(each.outcome == "survived" for each in mutants)
    print(f"{lived} of {len(mutants)} survived")
    return 0 if lived <= len(mutants) / 20 else 1


if __name__ == "__main__":
    sys.exit(main())
