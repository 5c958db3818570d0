"""What every command shares: its options, the settings they add up to (command line > PCO_* >
pco.toml > preset), and how a result is printed: on stdout, as text or JSON; notes go to stderr."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from promptcodebook.base.paths import runs_dir
from promptcodebook.base.text import printable, shell, shipped_table
from promptcodebook.calls import ROLES
from promptcodebook.config import Config, load_typed, merge
from promptcodebook.config.loading import (
    BUDGET_UNITS,
    read_prompt,
    read_toml,
    require_effect,
    start_from_prompt,
)
from promptcodebook.errors import ConfigError, did_you_mean, import_part
from promptcodebook.policy.references import Reference, resolve
from promptcodebook.run.slices import Slice, shown_slices
from promptcodebook.run.subject import EvaluationOptions, as_prompt, prompt_title
from promptcodebook.run.verdict import Headline, VerdictTable
from promptcodebook.types import Prompt

ConfigPath = Annotated[Path | None, typer.Argument(help="pco.toml or its folder.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="pco.toml or its folder.")]
TaskName = Annotated[str | None, typer.Option("--task", help="A ready-made task.")]
DataDir = Annotated[str | None, typer.Option("--data", help="Folder of the task's data.")]
ModelOption = Annotated[
    str | None, typer.Option("--lm", help="Model for all roles, e.g. URL#MODEL.")
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", help="default, full, lean, paper, quick or small.")
]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Set any key: a.b=value.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Plain = Annotated[
    bool, typer.Option("--plain", help="Print one line per step, even on a terminal.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run the code and models of runs that you did not create.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask questions.")]
BudgetOption = Annotated[
    str | None, typer.Option("--budget", help="Limit, e.g. 5usd, 2Mtok, 500calls.")
]
Count = Annotated[int | None, typer.Option("--n", help="Use this many examples, chosen by id.")]
Again = Annotated[bool, typer.Option("--again", help="Do not reuse answers from a run.")]
SamplesOption = Annotated[
    int | None,
    typer.Option("--samples", help="Sampled runs per example; 1 = greedy; default: as in the run."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed for every random draw.")]
SplitName = Annotated[str, typer.Option("--split", help="train, val or test.")]
AgentCommand = Annotated[
    str | None,
    typer.Option(
        "--agent", help="Command that runs your agent unchanged; --prompt can then be STAGE=FILE."
    ),
]
PromptOption = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt", metavar="FILE|TEXT", help="Your current prompt; {column} inserts that column."
    ),
]
Question = Annotated[
    str,
    typer.Option(
        "--question", help="With --agent: the agent's built-in question, replaced by each input."
    ),
]
RunRef = Annotated[str, typer.Argument(help="A run: its id or name, a path, or 'last'.")]
Who = Annotated[str, typer.Option("--who", help="Name for the log; default: your login name.")]
REF_HELP = (
    "A run (its id or name, a path, 'last'), a policy file, or a version in the registry "
    "(NAME@REF, sha256:DIGITS)."
)
Ref = Annotated[str, typer.Argument(help=REF_HELP)]

# Settings that have an environment variable: PCO_LM, PCO_DATA, PCO_SEED, ...
_IN_THE_SHELL = ("lm", "task", "data_dir", "preset", "budget", "seed", "size", "select")
# Keys for which 'none' is an ordinary value; for all others it means not set.
_NONE_IS_A_CHOICE = ("encoder.mode", "explore.policy")
# Keys whose value is a prompt, word for word, even if it looks like JSON.
_TEXTS = ("base_prompt", "init.prompt", "output_format")
_AS_FILES = {
    "data": "--set data.path=data.jsonl",
    "reward": "--set reward=reward.py:reward",
    "executor": "--set executor=agent.py:run",
    "lm": "--lm SPEC",
}


class CommandGroup(TyperGroup):
    """Its help lists each command with its whole first sentence, wrapped and not cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(n, c.get_short_help_str(limit=1000)) for n, c in named if c])


class Command(TyperCommand):
    """Its help lists first what people type first, and the other options as advanced."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        first = first_options().get(ctx.command_path.partition(" ")[2])
        sections: dict[str, list[Any]] = {"Arguments": [], "Options": [], "Advanced": []}
        for each in self.get_params(ctx):
            title = "Arguments" if each.param_type_name == "argument" else "Options"
            if title == "Options" and first is not None and not {*each.opts} & {*first, "--help"}:
                title = "Advanced"
            if (record := each.get_help_record(ctx)) is not None:
                sections[title].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


@cache
def first_options() -> dict[str, list[str]]:
    """For each command, the options that people type first; no entry means all."""
    table = shipped_table(__file__, "first_options.toml")
    return {name: options.split() for name, options in table.items()}


class _Commands(typer.Typer):
    def command(self, name: str | None = None, **more: Any) -> Any:
        return super().command(name, cls=Command, **more)


def command_group(help_text: str = "", kind: type[CommandGroup] = CommandGroup) -> typer.Typer:
    """An empty group of commands; without help it only holds a file's commands together."""
    plain: Any = {"rich_markup_mode": None, "add_completion": False, "no_args_is_help": True}
    return _Commands(cls=kind, help=help_text, **plain)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with an option for each annotated field of a parameter such as `Typed`."""
    flat: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        group: Any = parameter.annotation
        if not is_dataclass(group):
            flat.append(parameter)
            continue
        hints = get_type_hints(group, include_extras=True)
        options = [f for f in fields(group) if hasattr(hints[f.name], "__metadata__")]
        groups[name] = group, [f.name for f in options]
        flat += [
            inspect.Parameter(f.name, parameter.kind, default=f.default, annotation=hints[f.name])
            for f in options
        ]

    def run(**given: Any) -> Any:
        for name, (group, own) in groups.items():
            given[name] = group(**{each: given.pop(each) for each in own})
        return command(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {each.name: each.annotation for each in flat}
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return run


def flag_layer(task: str | None = None, data: str | None = None, **more: Any) -> dict[str, Any]:
    """Options as a layer of the configuration, without those that were not given."""
    folder = str(Path(data).resolve()) if data else None
    flags = {"task": task, "data_dir": folder, **more}
    return {key: value for key, value in flags.items() if value is not None}


def environment_layer() -> dict[str, Any]:
    """PCO_LM and so on, and PCO_LM_<ROLE>."""
    known = {f"PCO_LM_{role.upper()}" for role in ROLES}
    for name in sorted({each for each in os.environ if each.startswith("PCO_LM_")} - known):
        if near := get_close_matches(name, known, 1, 0.85):  # others may be people's own secrets
            what = f"{name} names no role (did you mean {near[0]!r}?)"
            raise ConfigError(what, hint=f"unset {name}; the roles are {', '.join(ROLES)}")
    names = {key: f"PCO_{key.removesuffix('_dir').upper()}" for key in _IN_THE_SHELL}
    specs = {role: os.environ.get(f"PCO_LM_{role.upper()}") for role in ROLES}
    roles = {role: {"model": spec} for role, spec in specs.items() if spec}
    layer = {**{key: os.environ.get(name) for key, name in names.items()}, "roles": roles}
    return {key: value for key, value in layer.items() if value}


def set_layer(pairs: Sequence[str]) -> dict[str, Any]:
    """--set a.b=value: TOML-like values, anything else is text."""
    layer: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"cannot read --set {pair!r}", hint="write --set key.sub=value")
        tree: Any = _parse_value(key.strip(), text.strip())
        for part in reversed(key.strip().split(".")):
            tree = {part: tree}
        layer = merge(layer, tree)
    return layer


def _parse_value(key: str, text: str) -> Any:
    if key in _TEXTS:
        return text
    if text in ("none", "null", "None") and key not in _NONE_IS_A_CHOICE:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        if not text.startswith(("{", "[")):
            return text
    try:  # a list or table, written as in pco.toml: {kind = "exact"}
        tree = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return tree["value"] if tree.keys() == {"value"} else text


def toml_path(config: Path | None) -> Path | None:
    """The pco.toml to read: the named file, or that in the named folder, else any ./pco.toml."""
    path = config or (Path("pco.toml") if Path("pco.toml").is_file() else None)
    return path / "pco.toml" if path is not None and path.is_dir() else path


def _toml_layer(config: Path | None) -> tuple[dict[str, Any], Path]:
    path = toml_path(config)
    if path is not None and not path.exists():
        name, near = str(config), [each.name for each in path.parent.glob("*")]
        what, hint = f"the folder {name!r} has no pco.toml", f"pco init {shell(name)}"
        if path == config:
            what = f"no file or folder {name!r}{did_you_mean(path.name, near)}"
            hint = "pco init writes a pco.toml" if path.suffix else f"{hint} makes one"
        if "=" in name:
            what, hint = f"{name!r} is a setting without --set before it", f"--set {shell(name)}"
        if name.lower() in BUDGET_UNITS:
            what, hint = f"no folder {name!r}: write a budget as a single word", f"--budget 5{name}"
        raise ConfigError(what, hint=hint)
    return ({}, Path()) if path is None else (read_toml(path), path.parent)


def gather_settings(
    config: Path | None, flags: Mapping[str, Any], sets: Sequence[str] | None = None
) -> tuple[Config, Path]:
    """The configuration and the folder its paths start from."""
    file, base = _toml_layer(config)
    typed = merge(environment_layer(), start_from_prompt(file, flags), set_layer(sets or ()))
    made = load_typed(file, typed=typed, where=str(toml_path(config)))
    require_effect(made, flags)
    return made, base


def prompt_settings(
    agent: str | None, prompts: Sequence[str] | None, question: str
) -> dict[str, Any]:
    """What `--agent`, `--prompt` and `--question` set. Raises ConfigError if they conflict."""
    if agent is not None:
        made = import_part("promptcodebook.programs", "typed", "--agent", "serve")
        return made(agent, prompts or (), question)
    if prompts and len(prompts) > 1:
        raise ConfigError("--prompt is given twice", hint="only --agent allows several")
    return {"init": {"prompt": read_prompt(prompts[0])}} if prompts else {}


def own_prompt(given: list[str] | None, *refs: str) -> Prompt | None:
    """The prompt of `--prompt`, to score. Raises ConfigError if one is typed as a REF."""
    for ref in refs:
        if (prompt := as_prompt(ref)) is not None:
            message = f"{prompt_title(prompt)} looks like a prompt, not a run or policy"
            raise ConfigError(message, hint=f"type --prompt before it: --prompt {shell(ref)}")
    settings = prompt_settings(None, given, "")
    return Prompt(settings["init"]["prompt"]) if settings else None


@dataclass(frozen=True)
class TrainOptions:
    """What was typed about a run to be made; None = not given."""

    config: ConfigPath = None
    task: TaskName = None
    data: DataDir = None
    lm: ModelOption = None
    preset: PresetOption = None
    budget: BudgetOption = None
    seed: Seed = None
    sets: Sets = None
    agent: AgentCommand = None
    prompt: PromptOption = None
    question: Question = ""

    @property
    def flags(self) -> dict[str, Any]:
        more = {"preset": self.preset, "seed": self.seed, "budget": self.budget or None}
        more |= prompt_settings(self.agent, self.prompt, self.question)
        return flag_layer(self.task, self.data, lm=self.lm, **more)

    def gather(self) -> tuple[Config, Path]:
        return gather_settings(self.config, self.flags, self.sets)


@dataclass(frozen=True)
class Typed:
    """What was typed with a REF; None = not given."""

    config: ConfigOption = None
    task: TaskName = None
    data: DataDir = None
    lm: ModelOption = None
    budget: BudgetOption = None
    sets: Sets = None
    trust: Trust = False
    again: Again = False

    @property
    def flags(self) -> dict[str, Any]:
        return flag_layer(self.task, self.data, lm=self.lm)

    def given(self, verb: str = "") -> EvaluationOptions:
        """The same for `Subject.resolve`; `verb` is the command."""
        return EvaluationOptions(
            verb=verb,
            overrides=merge(self.flags, set_layer(self.sets or ())),
            read_settings=lambda: _toml_layer(self.config),
            named=self.config is not None,
            environment=environment_layer(),
            budget=self.budget,
            runs_dir=runs_dir(),
            trust=self.trust,
            object_hints=_AS_FILES,
            tell=note,
            ask_anew=self.again,
        )


def require_unused(typed: Typed, why: str, **more: object) -> None:
    """Raises ConfigError for an option that was typed but has no effect. `more` are options that
    `typed` lacks, None if not typed."""
    given = {each.name.removesuffix("s"): getattr(typed, each.name) for each in fields(typed)}
    for name, value in {**given, **more}.items():
        if value and name != "trust":
            raise ConfigError(f"--{name} has no effect {why}", hint=f"leave --{name} out")


@dataclass(frozen=True)
class Unpaid(Typed):
    """`Typed` for commands that take no budget."""

    budget: None = None


def resolved(ref: str, *, trust: bool = False, use: bool = False) -> Reference:
    """What a REF names. Says on stderr which run 'last' is, and whether its verdict is against it.
    For a command that puts it to `use`, also says when no verdict is known."""
    reference = resolve(runs_dir(), ref, trust=trust, tell=note)
    if reference.caution and (use or reference.verdict):
        note(reference.caution)
    return reference


def settings_for(reference: Reference, typed: Typed) -> tuple[Config, Path]:
    """The configuration that a REF is used under, and the folder that its paths start from."""
    return typed.given().settings(reference)


# Printing

BETWEEN = ".."  # comes between the ends of an interval, as 0.120..0.340
_GAP, _LEAST_TEXT = 2, 24  # blanks between two columns; characters of running text in a line
# What is right-aligned in its column: numbers, ranges and amounts, not a run's id.
_NUMBERS = re.compile(r"[-+$~]?\d[\d.,+-]*[kMG]?( .*)?|-|unknown|not metered")


def emit(value: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def show(tree: Callable[[], object], text: Callable[[], str], *, as_json: bool) -> None:
    """A result on stdout, for machines or for people."""
    if as_json:
        emit(tree())
    else:
        print(text())


def note(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr)


def typed_again(*options: str, flags: Sequence[str] = ()) -> str:
    """The command as it was typed, without these options, their values and these flags."""
    words, kept = iter(sys.argv[1:]), ["pco"]
    for word in words:
        if word in options:
            next(words, None)
        elif word.partition("=")[0] not in (*options, *flags):
            kept.append(word)
    return shell(*kept)


def require_index(index: int, size: int) -> None:
    """Raises ConfigError unless the codebook has an instinct of that index."""
    if not 0 <= index < size:
        message = f"there is no instinct {index}: the codebook has {size}"
        raise ConfigError(message, hint=f"choose one of 0..{size - 1}" if size else "")


def announced(interrupt: Callable[[], None]) -> Callable[[], None]:
    """The same interrupt, which says what it waits for."""

    def stop() -> None:
        note("stopping: waiting for calls in flight (Ctrl-C again to stop at once)")
        interrupt()

    return stop


def confirm(question: str, refusal: str, *, yes: bool) -> None:
    """Asks on a terminal; without one, --yes is needed. Raises ConfigError with the `refusal` when
    the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{refusal} (cannot ask without a terminal)", hint="add --yes")
    with contextlib.redirect_stdout(sys.stderr):  # the question must not end up in a result
        agreed = typer.confirm(question, prompt_suffix=" ")
    if not agreed:
        raise ConfigError(refusal, hint="answer y, or add --yes")


def screen_width() -> int:
    """Columns of the terminal, or $COLUMNS; 80 where the output goes elsewhere."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def columns(rows: Sequence[Mapping[str, object]], width: int | None = None) -> str:
    """Rows as aligned text, headed by their keys, numbers to the right. Nothing is wider than
    `width` (None = the screen): running text is wrapped, and columns that do not fit follow
    below, next to the first one."""
    if not rows:
        return ""
    room = width or screen_width()
    cells = {head: [printable(str(row.get(head, ""))).rstrip() for row in rows] for head in rows[0]}
    right = {h: all(_NUMBERS.fullmatch(c) for c in cells[h] if c) for h in cells}
    widths = {head: max(map(cell_len, (head, *cells[head]))) for head in cells}
    first, *others = cells
    running = [h for h in others if not right[h] and widths[h] > max(_LEAST_TEXT, cell_len(h))]
    if running:
        text = max(running, key=lambda head: widths[head])
        taken = sum(each + _GAP for head, each in widths.items() if head != text)
        widths[text] = min(widths[text], max(room - taken, _LEAST_TEXT))
    blocks = [[first]]
    for head in others:
        taken = sum(widths[h] + _GAP for h in blocks[-1])
        if taken + widths[head] > room and len(blocks[-1]) > 1:
            blocks.append([first])
        blocks[-1].append(head)
    sides = {head: "right" if right[head] else "left" for head in cells}
    shown: list[str] = []
    for block in blocks:
        for row in ((*block,), *zip(*(cells[head] for head in block), strict=True)):
            parts = [_fitted(c, widths[h], sides[h]) for h, c in zip(block, row, strict=True)]
            high = max(map(len, parts))
            for head, lines in zip(block, parts, strict=True):
                lines += [" " * widths[head]] * (high - len(lines))
            shown += [(" " * _GAP).join(line).rstrip() for line in zip(*parts, strict=True)]
        shown.append("")
    return "\n".join(shown[:-1])


def _fitted(cell: str, width: int, side: str) -> list[str]:
    """The cell in lines of exactly `width`. A Table of rich does the same at 1 ms a row."""
    lines = [cell]
    if not cell.isprintable() or cell_len(cell) > width:
        lines = [line.plain for line in Text(cell).wrap(Console(), width, overflow="fold")]
    room = [" " * (width - cell_len(line)) for line in lines]
    return [r + t if side == "right" else t + r for r, t in zip(room, lines, strict=True)]


COPIED = ("file", "type")  # headline lines that are meant to be copied
# What commands in it need: the extra, and a module by which that is known.
_EXTRAS = {"pco lm": ("local-server", "fastapi"), "pco serve": ("serve", "prometheus_client")}


def headline_text(headline: Headline) -> str:
    """The decision, and below it what it gains and costs, and what to do next. A command is never
    wrapped."""
    lines = [wrap_text(headline.title, "")]
    for name, text in headline.lines.items():
        wanted = [found for typed, found in _EXTRAS.items() if name == "type" and typed in text]
        if absent := [extra for extra, module in wanted if find_spec(module) is None]:
            text = f"pip install 'promptcodebook[{','.join(absent)}]'\n        {text}"
        lines.append(f"  {name:<6}{text}" if name in COPIED else wrap_text(text, f"  {name:<6}"))
    return "\n".join(lines)


def verdict_text(table: VerdictTable, per: str = "per query:") -> str:
    """A verdict in two tables: the rewards, then what a query costs."""
    scores, costs = (columns(table.cells(BETWEEN, query=query)) for query in (False, True))
    return f"{scores}\n\n{per}\n\n{costs}"


def slices_text(slices: Sequence[Slice]) -> str:
    """Gains by slice, in a table; '' = there is none."""
    return f"\nby slice:\n\n{columns(shown_slices(slices))}\n" if slices else ""


def wrap_text(text: str, first: str = "  ") -> str:
    """The text in lines of the terminal's width, `first` before the first, indented below it."""
    width = min(100, screen_width())
    later = " " * len(first)
    lines: list[str] = []
    for place, line in enumerate(printable(text).splitlines() or [""]):
        lead = first if place == 0 else later
        lines += textwrap.wrap(line, width, initial_indent=lead, subsequent_indent=later) or [lead]
    return "\n".join(line.rstrip() for line in lines)
