"""The blocks of a page, and how each kind is run by one who follows the page in a folder.

- ```KIND title="FILE"``` is written to FILE; a workflow's lines `run: COMMAND` are also typed.
- ```python``` is executed; the blocks of a page share their names, as in a notebook.
- ```toml``` without a title is a part of a pco.toml: it must be a valid configuration.
- ```console```, and a block without a kind, is typed: each line after `$ `, or every line where no
  line has one. What else stands there is printed, but for numbers.
- ```text``` and ```json``` after such a block are printed by it: the text word for word but for
  what `...` leaves out, of JSON the keys.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from promptcodebook.config import load_config
from tests.build.cli import Terminal, pco, running
from tests.build.server import free_port

DOCS = Path(__file__).parents[2] / "docs"
ROOT = DOCS.parent

# Shown, and nothing to run or to read as ours.
SHOWN = ("bibtex", "csv", "json", "text", "yaml")
# What is not run, each with the reason.
NOT_RUN = {
    "pip install": "asks the package index; here the extras must exist, and .ci/run installs",
    "python3 -m venv": "the tests run in such an environment",
    ". .venv/bin/activate": "the tests run in such an environment",
    "git clone URL-OF-THE-REPOSITORY": "the tests use the copy that they are in",
    "make": "takes minutes, and .ci/run makes all but bench; here make must know it",
    "vllm serve": "needs a GPU and a download",
    "python -m sglang.launch_server": "needs a GPU and a download",
    "transformers serve Qwen": "downloads; tests/models/local serves a tiny model with it",
    "pco train --agent python pydantic_ai_": "another environment: tests/deploy/agents (local)",
}
# The reader's own model, and each that is hosted or has weights: the simulated one answers.
_MODEL = re.compile(
    r"http://localhost:8000/v1(#[\w./-]+)?(?!/)|\b(openai|anthropic|gemini|litellm)/[\w.:/-]+"
    r'|URL#MODEL|\bSPEC\b|(?<=#)SmolLM2-[\w.-]+|(?<=[ "=])smollm2(?=[\s"])'
    r'|(?<=lm=")\.\.\.(?=")|(?<=--lm )\.\.\.'
)
_BUDGET = re.compile(r"(?<![+\d])(\d+00calls|5usd)\b(?!\+)")
# What is allowed for hundreds of calls: enough for a run to begin, to stop and to be judged.
_SMALL = "60calls"
_PORT = re.compile(r"(?<=[: ])(8000|8080|8800)\b")

_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
_NUMBER = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]+\b…?")


@dataclass(frozen=True, slots=True)
class Block:
    kind: str
    title: str
    text: str

    @property
    def typed(self) -> bool:
        return self.kind in ("", "console")


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    found = list(_FENCE.finditer(text))
    fences = re.findall(r"^ *(?:```|~~~)", text, re.M)
    assert len(fences) == 2 * len(found), f"{page}: a block that is not read as one"
    return [Block(*one.groups("")) for one in found]


def run_page(page: Path, reader: "Reader") -> str:
    """Runs every block of the page, in order; returns what was printed. A failure names the
    block."""
    printed, before = "", None
    with reader.following():
        for block in blocks_of(page):
            try:
                reader.follow(block, before)
            except (Exception, SystemExit) as error:
                raise AssertionError(f"{page.name}: this block fails:\n{block.text}") from error
            if block.typed or block.kind == "python":
                printed += reader.printed
            before = block
    return printed


@dataclass
class Reader:
    """Follows a page in a folder. `names` are what its Python takes as known, `swaps` words of the
    page and their replacements here. Texts of a real model begin with one of `drawn`; only their
    levels are compared (`outside`). `acts` are what people do before a command that begins so,
    given the reader. `real` = the models that the page names answer."""

    folder: Path
    names: dict[str, Any] = field(default_factory=dict)
    swaps: Mapping[str, str] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()
    acts: Mapping[str, Any] = field(default_factory=dict)
    real: bool = False
    printed: str = ""

    def __post_init__(self) -> None:
        self.here, self.request = self.folder, ""
        self.ports: dict[str, str] = defaultdict(lambda: str(free_port()))
        self.servers: dict[str, contextlib.ExitStack] = defaultdict(contextlib.ExitStack)

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as self.patch:
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            self.patch.setenv("PATH", path)
            self.patch.setenv("COLUMNS", "80")
            try:
                yield
            finally:
                for server in self.servers.values():
                    server.close()
                for name, module in list(sys.modules.items()):
                    if str(getattr(module, "__file__", "")).startswith(str(self.folder)):
                        del sys.modules[name]

    def affordable(self, text: str) -> str:
        """With a model and a budget that a test can pay, and ports that are free."""
        for old, new in self.swaps.items():
            text = text.replace(old, new)
        if not self.real:
            text = _BUDGET.sub(_SMALL, _MODEL.sub("simulated", text))
        return _PORT.sub(lambda port: self.ports[port[1]], text).replace("req-6b3...", self.request)

    def follow(self, block: Block, before: Block | None) -> None:
        text = self.affordable(block.text)
        if block.title:
            target = self.here / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
        if block.typed or block.kind == "yaml":
            self.type(text if block.typed else "\n".join(re.findall(r"- run: (.*)", text)))
        elif block.title:
            pass
        elif block.kind == "python":
            self.printed = self._python(text)
        elif block.kind == "toml":
            tree = tomllib.loads(text)
            if "project" not in tree:  # a pyproject.toml
                load_config(tree)
        elif block.kind not in SHOWN or re.search(r"^(\$|pco) ", text, re.M):
            raise AssertionError(f"how is a block of {block.kind!r} run?")
        elif block.kind in ("json", "text") and before is not None and before.typed:
            self._compare(block)

    def _python(self, text: str) -> str:
        out = io.StringIO()
        self.patch.syspath_prepend(self.here)
        with contextlib.chdir(self.here), contextlib.redirect_stdout(out):
            exec(compile(text, "page", "exec"), self.names)
        return out.getvalue()

    def _compare(self, block: Block) -> None:
        """What the page shows beneath a command, and what the command said."""
        if block.kind == "json":
            shown, said = json.loads(block.text), json.loads(self.printed)
            assert shown.keys() == said.keys(), self.printed
        elif not block.text.startswith(self.drawn or "\0"):
            said = " ".join(self.printed.split())
            for part in re.split(r"^ *\.\.\.$", block.text, flags=re.M):
                assert " ".join(part.split()) in said, f"{part}\nin\n{self.printed}"

    def type(self, text: str) -> None:
        lines = text.replace("\\\n", " ").splitlines()
        begin = "$ " if any(line.startswith("$ ") for line in lines) else ""
        self.printed = told = ""
        for line in lines:
            if line.startswith(begin):
                self.printed += self._line(line.removeprefix(begin))
            else:
                told += line + "\n"
        said = " ".join(_NUMBER.sub("#", self.printed).split())
        for line in told.splitlines():
            shown = " ".join(_NUMBER.sub("#", line).split())
            assert shown in said, f"{line}\nin\n{self.printed}"

    def _line(self, line: str) -> str:
        words, printed = list[str](), ""
        for word in [*shlex.split(re.sub(r"(^|\s)#\s.*", "", line)), "&&"]:
            if word not in ("&&", "&"):
                words.append(os.path.expandvars(word))
            elif words:
                printed, words = printed + self._command(words), []
        return printed

    def _command(self, words: list[str]) -> str:
        typed = " ".join(words)
        for begin, act in self.acts.items():
            if typed.startswith(begin):
                act(self)
        if any(typed.startswith(begin) for begin in NOT_RUN):
            _look_up(words)
            return ""
        if words[0] == "export" or re.fullmatch(r"[A-Z]+=\S+", typed):
            for pair in words[words[0] == "export" :]:
                self.patch.setenv(*pair.split("=", 1))
            return ""
        return self._started(words)

    def _started(self, words: list[str]) -> str:
        match words:
            case ["cd", folder]:
                self.here = self.here / folder
                assert self.here.is_dir(), self.here
            case [*command, ">", file]:
                (self.here / file).write_text(self._started(command), "utf-8")
            case ["pco", "serve", "status"]:
                return self._pco(words)
            case ["pco", "serve", *_] | ["pco", "lm", "serve", *_] | ["uvicorn", *_]:
                self._serve(words)
            case ["pco", *_]:
                return self._pco(words)
            case ["curl" | "python" | "grep" | "pytest", *_]:
                return self._run(words)
            case _:
                raise AssertionError(f"how is {words[0]} run?")
        return ""

    def _pco(self, words: list[str]) -> str:
        result = pco(*words[1:], cwd=self.here, stdin=Terminal("\n" * 20))  # who presses Enter
        assert result.code in (0, 3), (words, result.code, result.err[-3000:], result.out)
        return result.out

    def _run(self, words: list[str]) -> str:
        more = ["--silent", "--show-error", "--fail"] if words[0] == "curl" else []
        command = [words[0], *more, *words[1:]]
        done = subprocess.run(command, cwd=self.here, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def _serve(self, words: list[str]) -> None:
        """Until the page is at its end, or begins another server at the same port."""
        if words[1] == "serve" and not self.real:  # it passes on what it is asked
            at = self.ports["model"]
            if at not in self.servers:
                self._serve(["pco", "lm", "serve", "simulated", "--port", at])
            spec = f"http://127.0.0.1:{at}/v1#simulated"
            self.patch.setenv("PCO_LM", spec)
            words = [spec if word == "simulated" else word for word in words]
        usual = "8080" if words[1] == "serve" else "8000"
        port = words[words.index("--port") + 1] if "--port" in words else self.ports[usual]
        command = [*words, "--port", port] if "--port" not in words else words
        self.servers[port].close()
        module = "uvicorn" if words[0] == "uvicorn" else "promptcodebook.cli"
        started = running(*command[1:], module=module, cwd=self.here)
        process = self.servers[port].enter_context(started)
        if words[0] == "pco":
            said = process.stdout.readline() if process.stdout else ""
            assert said.startswith("http://"), process.communicate()
            self._ask(said.strip().partition("#")[0])
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port))):
                break
            time.sleep(0.1)

    def _ask(self, base: str) -> None:
        """One question, as any client asks it."""
        keys = self.here / "keys"
        key = keys.read_text("utf-8").split()[0] if keys.exists() else "none"
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

        def opened(path: str, body: Any = None) -> Any:
            data = json.dumps(body).encode() if body else None
            request = urllib.request.Request(base + path, data, headers)
            return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request)

        with opened("/models") as answer:
            model = json.load(answer)["data"][0]["id"]
        question = [{"role": "user", "content": "How do I return order 7?"}]
        with opened("/chat/completions", {"model": model, "messages": question}) as answer:
            assert json.load(answer)["choices"]
            self.request = answer.headers.get("x-request-id") or ""


# A row of a verdict, and what pages say of one: its level, and which interval it must lie in.
_ROW = re.compile(
    r"^(\w+) +(\d\.\d+) +(\d\.\d+)\.\.(\d\.\d+) +\S+ +(?:([-+]\S+?)\.\.([-+]\S+)|-)", re.M
)
_LEVELS = {
    "present": r"present prompt earned ([\d.]+\d)",
    "none": r"no prompt ([\d.]+\d)",
    "learned": r"learned routes ([\d.]+\d)",
    "gain": r"([\d.]+\d) more [\w ()]+ per 100 than the present prompt",
}


def outside(page: str, printed: str) -> list[str]:
    """The levels of a page that do not lie in the intervals that were printed."""
    intervals = dict[str, tuple[float, float]]()
    told = [(row[1], float(row[2])) for row in _ROW.finditer(page)]
    for name, pattern in _LEVELS.items():
        found = re.findall(pattern, " ".join(page.split()))
        told += [(name, float(level) / (100 if name == "gain" else 1)) for level in found]
    for name, _, low, high, least, most in _ROW.findall(printed):
        intervals.setdefault(name, (float(low), float(high)))
        if name == "learned":
            intervals.setdefault("gain", (float(least), float(most)))
    assert told and intervals, printed
    wide = (0.0, 1.0)
    return [
        f"{name} {level}"
        for name, level in told
        if not intervals.get(name, wide)[0] <= level <= intervals.get(name, wide)[1]
    ]


def _look_up(words: list[str]) -> None:
    """What can be known of a command that is not run: that its extras and its goals exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = re.findall(r"(?:^|\s)(?:promptcodebook|\.)\[([\w,-]+)\]", " ".join(words))
    assert {*",".join(asked).split(",")} - {""} <= extras["optional-dependencies"].keys(), words
    if words[0] == "make":
        subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)


def generator(name: str) -> ModuleType:
    """The script docs/NAME.py, imported."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
