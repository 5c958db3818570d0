"""The house in figures: lines of code beside their limits, size of files, circles, who builds
models, the longest of things.

python -m bench.house [ROOT]      ROOT is a checkout; the default is this one
"""

import ast
import io
import statistics
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "promptcodebook"
EXAMPLE = "examples/algorithm1.py"
# What one reads after EXAMPLE, to the last function that decides a route, a prompt, a gradient or
# an update. What only words a request or reads a reply is left out: templates, schemas, shapes. A
# name that there is no longer is an error.
READING: Mapping[str, tuple[str, ...]] = {
    "method.exploration": ("success_weighted", "gamma_for", "epsilon_at"),
    "method.policy": ("route_fault", "repair_route", "Composer", "join_instincts", "join_prompts"),
    "method.executor": ("Trial",),
    "method.critic": (
        *("score_fault", "History", "Critic", "critique_of", "Attribution", "gradients_of"),
        *("nearest_instinct", "split_shared", "_long_words", "unit_reward", "penalty", "rho"),
        *("rate", "additivity_residual"),
    ),
    "method.update": (
        *("PendingUpdate", "collect_gradients", "_mending", "apply_rewrites", "Updater"),
    ),
    "method.rewrite_checks": ("word_cap", "LengthCheck"),
    "method.state": (
        *("RoutingStatistics.fresh", "RoutingStatistics.known", "RoutingStatistics.standing"),
        *("RoutingStatistics.discount", "State.advance", "Schedule"),
    ),
}
# The same steps as `pco train` runs them, with batches and failures.
LOOP = {"method.train": ("train", "Learner", "Credit")}
BUILDS_MODELS = "Models.build("
SMALL = 80
# Lines of code. Blank lines, comments and docstrings are free, so that no reason is dropped or
# packs lines to stay below a limit.
LIMITS = {"src": 44_000, "tests": 39_000, "bench": 2_500}
# Of all pages and the README.
WORDS = 50_000
_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Functions of other libraries that take any number of equal things.
_ANY_NUMBER = {"chain", "create_subprocess_exec", "format", "gather", "pack", "pack_into", "zip"}


@dataclass(frozen=True)
class House:
    """Modules by name with their text, and what each imports, under TYPE_CHECKING too."""

    texts: Mapping[str, str]
    imports: Mapping[str, frozenset[str]]

    @property
    def lines(self) -> dict[str, int]:
        return {name: len(text.splitlines()) for name, text in self.texts.items()}

    def small_with_one_importer(self) -> list[str]:
        """Files under 80 lines that only one other imports: each belongs in that one."""
        importers = {
            name: [other for other, wanted in self.imports.items() if name in wanted]
            for name in self.texts
        }
        packages = {name.rpartition(".")[0] for name in self.texts}
        return sorted(
            name
            for name, count in self.lines.items()
            if count < SMALL and len(importers[name]) == 1 and name not in packages
        )

    def builders(self) -> list[str]:
        """The modules that build models from a configuration, once for each place."""
        return [name for name, text in self.texts.items() for _ in range(text.count(BUILDS_MODELS))]


def read_house(root: Path) -> House:
    """The package below `root`/src."""
    source = root / "src"
    files = {_module(path, source): path for path in sorted((source / PACKAGE).rglob("*.py"))}
    texts = {name: path.read_text("utf-8") for name, path in files.items()}
    return House(texts, {name: _imports(name, text, files) for name, text in texts.items()})


def _module(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(name: str, text: str, known: Mapping[str, Path]) -> frozenset[str]:
    wanted: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module in known:
            module = node.module
            inner = {f"{module}.{alias.name}" for alias in node.names}
            wanted |= {each if each in known else module for each in inner}
        elif isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names if alias.name in known}
    return frozenset(wanted - {name})


def circles(imports: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or not."""
    reached = {name: _reached(name, imports) for name in imports}
    groups = {
        frozenset({name, *(other for other in reached[name] if name in reached[other])})
        for name in imports
    }
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reached(name: str, imports: Mapping[str, frozenset[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(imports[name])
    while waiting:
        other = waiting.pop()
        if other not in seen:
            seen.add(other)
            waiting += imports.get(other, ())
    return seen


def _longest(house: House) -> tuple[tuple[int, str], tuple[int, str]]:
    """The longest function in lines, and the longest parameter list outside of cli."""
    functions: list[tuple[int, str]] = []
    parameters: list[tuple[int, str]] = []
    for name, text in house.texts.items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            label = f"{name}.{node.name}"
            functions.append(((node.end_lineno or 0) - node.lineno + 1, label))
            if not name.startswith(f"{PACKAGE}.cli"):
                given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                parameters.append((len(given), label))
    return max(functions), max(parameters)


def reading(house: House, path: Mapping[str, Sequence[str]]) -> int:
    """Lines of the functions and classes on a path. KeyError: one that there is not."""
    return sum(
        _defined(house.texts[f"{PACKAGE}.{module}"])[name]
        for module, names in path.items()
        for name in names
    )


def _defined(text: str) -> dict[str, int]:
    """Lines of each function, class and method by its name."""
    found: dict[str, int] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = (node.end_lineno or 0) - node.lineno + 1
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (inner.end_lineno or 0) - inner.lineno + 1
                    found[f"{node.name}.{inner.name}"] = lines
    return found


def code_lines(text: str) -> int:
    """Lines without blank lines, comments and docstrings."""
    free: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, *_SCOPES)) and ast.get_docstring(node) is not None:
            text_of = node.body[0]
            free |= set(range(text_of.lineno, (text_of.end_lineno or 0) + 1))
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - free)


def spread_tuples(house: House) -> list[str]:
    """Calls that hide arguments in a tuple: `f(*x)` where the code beside it writes out what x is.
    A function of ours that takes any number of arguments may get them so."""
    trees = {name: ast.parse(text) for name, text in house.texts.items()}
    any_number = _ANY_NUMBER | {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.vararg
    }
    found: set[str] = set()
    for name, tree in trees.items():
        # An attribute is set in one method and spread in another.
        attributes = {text for text in _packed(ast.walk(tree)) if "." in text}
        for scope in (tree, *(node for node in ast.walk(tree) if isinstance(node, _SCOPES))):
            packed = attributes | set(_packed(_own(scope)))
            for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call)):
                called = ast.unparse(call.func).rpartition(".")[2]
                found |= {
                    f"{name}: {called}(*{ast.unparse(each.value)})"
                    for each in call.args
                    if isinstance(each, ast.Starred) and called not in any_number
                    if isinstance(each.value, ast.Tuple) or ast.unparse(each.value) in packed
                }
    return sorted(found)


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """What a scope says itself, without the functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _own(child)


def _packed(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names and attributes whose value is written out as a tuple."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _tuples(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield from _tuples(node.target, node.value)


def _tuples(target: ast.expr, value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.IfExp):
        yield from _tuples(target, value.body)
        yield from _tuples(target, value.orelse)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, its in zip(target.elts, value.elts, strict=False):
            yield from _tuples(each, its)
    elif isinstance(value, ast.Tuple):
        yield ast.unparse(target)


def shared_names(house: House) -> dict[str, list[str]]:
    """Names of classes that more than one module defines, with these modules."""
    homes: dict[str, list[str]] = {}
    for name, text in house.texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    return {name: where for name, where in homes.items() if len(where) > 1}


def outer_parts(root: Path) -> tuple[str, ...]:
    """The packages and modules that core can do without, as pyproject.toml lists them."""
    tree = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    contracts = tree["tool"]["importlinter"]["contracts"]
    (listed,) = (c["protected_modules"] for c in contracts if c["type"] == "protected")
    return tuple(listed)


def _total(lines: Mapping[str, int]) -> str:
    return f"files {len(lines)}, lines {sum(lines.values())}"


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    house = read_house(root)
    lines = house.lines
    function, parameters = _longest(house)
    small = house.small_with_one_importer()
    for folder, limit in LIMITS.items():
        texts = [path.read_text("utf-8") for path in sorted((root / folder).rglob("*.py"))]
        code, whole = sum(map(code_lines, texts)), sum(len(text.splitlines()) for text in texts)
        print(f"{folder}: {code:,} lines of code (limit {limit:,}), {whole:,} with all, "
              f"{len(texts)} files")  # fmt: skip
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    words = sum(len(page.read_text("utf-8").split()) for page in pages)
    print(f"docs: {words:,} words (limit {WORDS:,}), {len(pages)} pages")
    print(f"src: {_total(lines)}, median {_median(lines):g}")
    outer = tuple(f"{part}." for part in outer_parts(root))
    core = {name: n for name, n in lines.items() if not f"{name}.".startswith(outer)}
    print(f"core: {_total(core)}")
    print(f"outer parts: {_total({name: n for name, n in lines.items() if name not in core})}")
    example = len((root / EXAMPLE).read_text("utf-8").splitlines())
    print(f"lines to read of the method: {example + reading(house, READING)} from {EXAMPLE}")
    print(f"  and its loop in method/train.py: {reading(house, LOOP)}")
    print(f"under 100 lines {sum(n < 100 for n in lines.values())}")
    print(f"over 400 lines {[name for name, n in lines.items() if n > 400]}")
    print(f"under {SMALL} lines with one importer {len(small)}: {small}")
    print(f"circles {circles(house.imports)}")
    print(f"classes of one name {shared_names(house)}")
    print(f"arguments hidden in a tuple {spread_tuples(house)}")
    print(f"places that build models from a configuration {house.builders()}")
    print(f"longest function {function}, longest parameter list (outside of cli) {parameters}")


def _median(lines: Mapping[str, int]) -> float:
    return statistics.median(lines.values())


if __name__ == "__main__":
    main()
