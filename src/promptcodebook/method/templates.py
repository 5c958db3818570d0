"""Sets of prompt files: which there are, how one is read, checked, filled and copied. A set is a
folder: a file for each request, the first texts of θ, φ and ψ, and a `set.toml`. What a folder of
the user's lacks comes from the set it is based on. A prompt file holds chat turns: `## system`,
worked examples as `## user` and `## assistant`, and the real request as the last `## user`.
Placeholders are filled in a single pass: braces or role markers in a value do nothing. An example
is data: what looks like a placeholder there stays as it is."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from promptcodebook.base.paths import read_text
from promptcodebook.base.text import shell
from promptcodebook.calls import Message
from promptcodebook.config import merge
from promptcodebook.errors import ConfigError, did_you_mean
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.types import Codebook

_PLACE = re.compile(r"\{([a-z_]+)\}")
_SECTION = re.compile(r"^## (system|user|assistant)$", re.M)
_MANIFEST = "set.toml"
# Files that are no templates: first texts of the learned parts, and a list of instincts.
_TEXTS = ("theta", "phi", "psi", "instincts")
# How a reply blames instincts: one text for each by its index, or one for all (decision 4).
InstinctErrors = Literal["by_index", "one_string"]
# Templates whose reply may be one line in place of a JSON object.
OneLine = Literal["encoder", "critic", "critic_one", "attribution", "adversary"]


@dataclass(frozen=True)
class Template:
    """One prompt file, cut into its chat turns."""

    source: str

    @cached_property
    def _turns(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        turns = _turns_of(self.source)
        examples = range(turns[0][0] == "system", len(turns) - 1)
        return tuple(
            (role, (body,) if at in examples else tuple(_PLACE.split(body)))
            for at, (role, body) in enumerate(turns)
        )

    @property
    def examples(self) -> int:
        """How many worked examples it has."""
        return sum(role == "assistant" for role, _ in self._turns)

    def fill(self, values: Mapping[str, object]) -> tuple[Message, ...]:
        """The chat with every placeholder replaced. Raises KeyError when one has no value."""
        turns = ((cast(Any, role), pieces) for role, pieces in self._turns)
        return tuple(Message(role, _join(pieces, values)) for role, pieces in turns)


def _turns_of(source: str) -> list[tuple[str, str]]:
    """Each turn's role and body, as the file has them."""
    pieces = _SECTION.split(source)
    return [(r, body.strip("\n")) for r, body in zip(pieces[1::2], pieces[2::2], strict=True)]


def _join(pieces: Sequence[str], values: Mapping[str, object]) -> str:
    """Text and placeholder names alternate; a line that holds an empty value alone goes."""
    out: list[str] = []
    for i, piece in enumerate(pieces):
        if i % 2 == 0:
            alone = i > 0 and out[-1] == "" and out[-2].endswith("\n")
            out.append(piece.removeprefix("\n") if alone else piece)
        else:
            out.append(str(values[piece]))
    return "".join(out)


@cache
def _places() -> Mapping[str, Mapping[str, str]]:
    """By template, the names of the placeholders that it `must` have and `may` have."""
    return tomllib.loads(_shipped("places.toml").read_text("utf-8"))


def check_template(name: str, source: str, where: str) -> None:
    """Raises ConfigError, with the line, unless the request `name` can be made of it."""
    before, *turns = _SECTION.split(source)
    roles = turns[::2]
    if "user" not in roles:
        hint = "begin it with a line that says: ## user"
        raise ConfigError(f"{where}: there is no user turn", hint=hint)
    if before.strip():
        hint = "begin the file with a line that says: ## system"
        raise ConfigError(f"{where}:1: the text before the first turn would be lost", hint=hint)
    chat = roles[roles[0] == "system" :]
    wanted = ["user", "assistant"] * len(chat)
    if chat != wanted[: len(chat)] or chat[-1] != "user":
        hint = "## system, then examples as ## user and ## assistant, then ## user"
        raise ConfigError(f"{where}: its turns are {', '.join(roles)}", hint=hint)
    # Examples are data; their lines stay, for the numbers of those below them.
    first, last, filled = int(roles[0] == "system"), len(roles) - 1, list[str]()
    for at, (role, body) in enumerate(zip(roles, turns[1::2], strict=True)):
        kept = at < first or at == last
        filled.append(f"## {role}{body if kept else chr(10) * body.count(chr(10))}")
    places = _places()[name]
    _check_places("".join(filled), places["must"], places["may"], where)


def _check_places(source: str, required: str, optional: str, where: str) -> None:
    needed, allowed = required.split(), optional.split()
    must, may = (", ".join(f"{{{name}}}" for name in names) for names in (needed, allowed))
    hint = f"it needs {must}" + (f" and may use {may}" if may else "")
    for match in _PLACE.finditer(source):
        if match[1] not in (*needed, *allowed):
            line = source.count("\n", 0, match.start()) + 1
            at = f"{where}:{line}" if "\n" in source else where
            close = did_you_mean(match[1], (*needed, *allowed))
            raise ConfigError(f"{at}: unknown placeholder {match[0]}{close}", hint=hint)
    for name in needed:
        if name not in _PLACE.findall(source):
            raise ConfigError(f"{where}: placeholder {{{name}}} is missing", hint=hint)


@dataclass(frozen=True, slots=True)
class CodebookLines:
    """How the encoder reads the codebook: which average is shown (decision 5), and its lines."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    rate: Literal["success", "ema"]
    line: str
    untried: str

    def show(self, codebook: Codebook, statistics: RoutingStatistics) -> str:
        """The numbered codebook, one line for each instinct."""
        rates = statistics.ema if self.rate == "ema" else statistics.success
        lines: list[str] = []
        rows = zip(codebook.texts, rates, statistics.selected, strict=True)
        for k, (text, rate, n) in enumerate(rows):
            # As precise as a policy file, so that a loaded policy shows what the run itself showed.
            values = {"index": k, "text": " ".join(text.split()), "rate": f"{round(rate, 6):.2f}"}
            lines.append(_join(_PLACE.split(self.line if n else self.untried), values))
        return "\n".join(lines)


def check_lines(lines: CodebookLines, where: str) -> None:
    """Raises ConfigError, with `where`, unless each line tells index and text."""
    _check_places(lines.line, "index text", "rate", f"{where}.line")
    _check_places(lines.untried, "index text", "", f"{where}.untried")


def instinct_lines(codebook: Codebook, indices: Sequence[int]) -> str:
    """C[z], each with its index (Assumption 1 wants the index in the template). What has more lines
    than one is set in, so that a block stays one and no line of it passes for an instinct."""
    texts = ((k, "\n  ".join(codebook[k].text.strip().splitlines())) for k in indices)
    return "\n".join(f"[{k}] {text}" for k, text in texts)


@dataclass(frozen=True)
class TemplateSet:
    """θ₀, φ₀, ψ₀, the templates around them (`sources`, by name), and what goes with both; replies
    to those of `one_line` are no JSON."""

    sources: Mapping[str, str]
    lines: CodebookLines
    instinct_errors: InstinctErrors = "by_index"
    one_line: tuple[OneLine, ...] = ()

    @cached_property
    def _parsed(self) -> dict[str, Template]:
        return {name: Template(source) for name, source in self.sources.items()}

    def __getitem__(self, name: str) -> Template:
        return self._parsed[name]

    def text(self, name: str) -> str:
        """A file that is a learned part's first text (theta, phi, psi) or a list (instincts)."""
        return self.sources[name].strip()

    def fingerprint(self) -> dict[str, str]:
        """File -> start of its SHA-256; two sets make the same prompts where all are equal."""
        manifest: dict[str, object] = {"lines": asdict(self.lines)}
        manifest["instinct_errors"] = self.instinct_errors
        if self.one_line:
            manifest["one_line"] = self.one_line
        whole = {f"{name}.md": text for name, text in sorted(self.sources.items())}
        whole[_MANIFEST] = json.dumps(manifest, sort_keys=True)
        return {
            name: hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
            for name, text in whole.items()
        }


def template_sets() -> tuple[str, ...]:
    """The names of the sets that come with the package."""
    return tuple(sorted(f.name for f in _shipped().iterdir() if (f / _MANIFEST).is_file()))


def _shipped(name: str = "") -> Traversable:
    prompts = files("promptcodebook.method") / "prompts"
    return prompts / name if name else prompts


def load_templates(name: str, base: Path = Path()) -> TemplateSet:
    """The set of that name, or the one in the folder `name`, a path from `base`. Raises
    ConfigError, with file and line, when a placeholder is missing or unknown, or no set has such a
    file or key."""
    if name in template_sets():
        folder = _shipped(name)
    elif not re.search(r"[/\\]", name):  # a folder is written with a slash, be it only './'
        raise _unknown_set(name)
    else:
        folder = base / Path(name).expanduser()
        if not folder.is_dir():
            raise ConfigError(
                f"templates: there is no folder {folder}",
                hint=f"pco templates copy {shell(folder)} writes the default set to edit",
            )
    sources, tree = _read_folder(folder)
    lacking = sorted({*_places(), *_TEXTS} - sources.keys())
    if lacking:
        raise ConfigError(
            f"{folder}: {lacking[0]}.md is missing",
            hint=f'write it, or set based_on = "default" in {folder / _MANIFEST}',
        )
    manifest = _parse_manifest(tree, f"{folder / _MANIFEST}")
    return TemplateSet(
        sources, manifest.codebook, manifest.instinct_errors, tuple(sorted(set(manifest.one_line)))
    )


def copy_templates(target: Path, name: str = "default") -> list[Path]:
    """Write the whole set to `target`, to be edited there. Raises ConfigError when a file is there
    already."""
    if name not in template_sets():
        raise _unknown_set(name)
    manifest = (_shipped(name) / _MANIFEST).read_text("utf-8")
    texts = {f"{part}.md": text for part, text in sorted(load_templates(name).sources.items())}
    texts[_MANIFEST] = re.sub(r"^based_on = .*$", f'based_on = "{name}"', manifest, flags=re.M)
    existing = [target / file for file in texts if (target / file).exists()]
    if existing:
        what = f"{existing[0]} already exists, and is not overwritten"
        raise ConfigError(what, hint="name another folder")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (target / file).write_text(text, "utf-8")
    except OSError as error:
        what = f"cannot write the templates to {target}: {error.strerror}"
        raise ConfigError(what, hint="name a writable folder") from error
    return [target / file for file in texts]


def _unknown_set(name: object, where: str = "") -> ConfigError:
    known = template_sets()
    return ConfigError(
        f"{where}unknown set of templates {name!r}{did_you_mean(str(name), known)}",
        hint=f"choose one of: {', '.join(known)}; write a folder with a slash: './mine'",
    )


def _read_folder(folder: Traversable) -> tuple[dict[str, str], dict[str, Any]]:
    """Texts by name and the manifest's tree, every file checked, over those it is based on."""
    known = (*(f"{name}.md" for name in (*_places(), *_TEXTS)), _MANIFEST)
    own: dict[str, str] = {}
    manifest: dict[str, Any] = {}
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.startswith(".") or file.name.endswith("~"):
            continue
        if file.name not in known:
            message = f"{file}: not the name of a template{did_you_mean(file.name, known)}"
            raise ConfigError(message, hint=f"a folder of templates holds only: {', '.join(known)}")
        text, name = _read_text(file), file.name.removesuffix(".md")
        if file.name == _MANIFEST:
            try:
                manifest = tomllib.loads(text)
            except tomllib.TOMLDecodeError as error:
                what = f"{file} is not valid TOML: {error}"
                raise ConfigError(what, hint=f"edit {file}") from None
            continue
        if not text.strip():
            hint = "delete it to use the base set's text"
            raise ConfigError(f"{file} is empty", hint=hint)
        if name in _places():
            check_template(name, text, str(file))
        own[name] = text
    base_name, where = manifest.pop("based_on", "default"), folder / _MANIFEST
    if base_name == "":
        return own, manifest
    if base_name not in template_sets():
        raise _unknown_set(base_name, f"{where}: based_on: ")
    sources, tree = _read_folder(_shipped(base_name))
    other = manifest.get("instinct_errors", tree["instinct_errors"]) != tree["instinct_errors"]
    for name in ("attribution", "critic_one"):  # their replies blame instincts
        if other and name not in own:
            what = f"instinct_errors does not match {name}.md in the set {base_name!r}"
            hint = f"write {folder / name}.md, or delete that key"
            raise ConfigError(f"{where}: {what}", hint=hint)
    return {**sources, **own}, merge(tree, manifest)


def _read_text(file: Traversable) -> str:
    try:
        # Some editors put a byte order mark before a text.
        return read_text(file).removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}", hint="write it as UTF-8 text") from None


class _Manifest(BaseModel):
    """A set.toml, with what it leaves out filled in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instinct_errors: InstinctErrors
    one_line: tuple[OneLine, ...]
    codebook: CodebookLines


def _parse_manifest(tree: Mapping[str, Any], where: str) -> _Manifest:
    try:
        manifest = _Manifest.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        what, hint = f"{where}: {key}: {first['msg']}", f"edit {where}"
        if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            tables = {1: ("based_on", *_Manifest.model_fields), 2: ("rate", "line", "untried")}
            known = tables[len(first["loc"])]
            what = f"{where}: unknown key {key!r}{did_you_mean(key.rpartition('.')[2], known)}"
            hint = f"known keys: {', '.join(known)}"
        raise ConfigError(what, hint=hint) from None
    check_lines(manifest.codebook, f"{where}: codebook")
    return manifest
