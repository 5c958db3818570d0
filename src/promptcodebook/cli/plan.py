"""Before anything is spent: `pco init`, `pco config` and `pco templates` start a project, `pco
data` looks at the data, `pco doctor` at all else, and `pco estimate` says what a run will take."""

from __future__ import annotations

import gc
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcodebook.assemble import Sources, plan_run
from promptcodebook.base.paths import runs_dir
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import one_line, printable, shell, toml
from promptcodebook.cli import command
from promptcodebook.cli.app import COMMAND_GROUP
from promptcodebook.cli.command import Json, columns, emit, note, options, show, wrap_text
from promptcodebook.config.loading import Key, describe, describe_group, written
from promptcodebook.data import examine, load
from promptcodebook.data.dataset import DataCheck
from promptcodebook.doctor.checkup import checkup
from promptcodebook.doctor.probe import DiagnosisGroup
from promptcodebook.errors import ConfigError, did_you_mean, import_part
from promptcodebook.estimation.estimate import Estimate, estimate_plan
from promptcodebook.lm.spec import parse_spec
from promptcodebook.method.templates import copy_templates
from promptcodebook.run.decision import verdict_remark

app = command.command_group()
_TEMPLATES = "Copy the prompt templates that surround the learned texts, for editing."
templates = command.command_group(_TEMPLATES)
app.add_typer(templates, name="templates")
data = command.command_group("Check a data file before training on it; fetch a benchmark's data.")
app.add_typer(data, name="data")

SETTINGS = "pco.toml"
FILES = (SETTINGS, "data.jsonl", "reward.py")
_NO_MODEL = '# lm = ""\n'
_AS_IT_IS = """Train this example unchanged, on a model that you name.
Then replace its data and reward with your own."""
_MOST_INPUT = 1 << 28  # bytes of standard input
_SHOWN = 10  # inputs in two splits that are listed; the rest is counted


@app.command()
def init(
    folder: Path = typer.Argument(Path(), help="Folder to write to; created if missing."),
    file: Path | None = typer.Option(
        None, "--from", help="Data file to write a pco.toml for; '-' reads stdin."
    ),
    input: str | None = typer.Option(None, help="With --from: the input column or template."),
    target: str | None = typer.Option(None, help="With --from: the reference column; '' = none."),
    reward: str | None = typer.Option(None, help="With --from: the reward, e.g. contains or f1."),
    form: str = typer.Option("auto", help="With --from: a published format, e.g. squad."),
    header: bool | None = typer.Option(
        None, help="With --from: whether the first line names the columns."
    ),
    agent: command.AgentCommand = None,
    prompt: command.PromptOption = None,
    question: command.Question = "",
    lm: command.ModelOption = None,
    yes: command.Yes = False,
    as_json: Json = False,
) -> None:
    """Write pco.toml, data.jsonl and reward.py: a working example to adapt.

    With --from FILE, `pco init` looks at your data, asks about anything unclear and writes a
    pco.toml. If you also give --agent, the pco.toml trains your agent. Existing files are never
    overwritten."""
    own = command.prompt_settings(agent, prompt, question)
    if file is None:
        source = resources.files("promptcodebook.cli") / "scaffold"
        texts = {name: (source / name).read_text("utf-8") for name in FILES}
        tree, message = tomllib.loads(texts[SETTINGS]), wrap_text(_AS_IT_IS, "")
        if lm:
            tree["lm"] = parse_spec(lm).text
            texts[SETTINGS] = texts[SETTINGS].replace(_NO_MODEL, f"lm = {toml(tree['lm'])}\n")
    else:
        propose = import_part(COMMAND_GROUP, "init.from", "pco init --from", "start")
        given = {"input": input, "target": target, "reward": reward, "lm": lm, "form": form}
        file = _keep_input(folder) if file == Path("-") else file
        text, tree, message = propose(file, folder, given, own, header=header, yes=yes)
        texts = {SETTINGS: text}
    texts[SETTINGS] = written(texts[SETTINGS], tree)
    files = [str(folder / name) for name in texts]
    if present := [file for file in files if Path(file).exists()]:
        hint = "pco init OTHER_FOLDER, or move the file away"
        raise ConfigError(f"{present[0]} already exists; nothing was written", hint=hint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            # 'x': a file that appears at this very moment is not overwritten either.
            with (folder / name).open("x", encoding="utf-8") as target_file:
                target_file.write(text)
    except OSError as error:
        fault = f"cannot write to {folder}: {error.strerror or error}"
        other = f"FOLDER --from {shell(folder)}" if folder.is_file() else "OTHER_FOLDER"
        raise ConfigError(fault, hint=f"pco init {other}") from None
    steps = ["pco doctor", "pco estimate", "pco train"]
    if not (tree.get("lm") or os.environ.get("PCO_LM")):
        first = "smollm2  # or openai/MODEL," if file is None else "openai/MODEL  # or"
        steps.insert(0, f"export PCO_LM={first} http://host:8000/v1#MODEL")
    if folder != Path():
        steps[0] = f"cd {shell(folder)} && {steps[0]}"
    wrote = (one_line(f"wrote {name}") for name in files)
    text = printable("\n".join([*wrote, "", message, *(f"  {step}" for step in steps)]))
    show(lambda: {"folder": str(folder), "files": files}, lambda: text, as_json=as_json)


def _keep_input(folder: Path) -> Path:
    """Standard input as a file next to the pco.toml, since training reads it again. It is kept even
    if no proposal follows."""
    content: bytes = sys.stdin.buffer.read(_MOST_INPUT + 1)
    if not content or len(content) > _MOST_INPUT:
        fault = "exceeds 256 MiB" if content else "is empty"
        raise ConfigError(f"standard input {fault}", hint="pco init --from FILE")
    path = folder / "data.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)
    except OSError as error:
        fault = f"cannot write {path}: {error.strerror or error}"
        raise ConfigError(fault, hint="pco init OTHER_FOLDER --from -") from None
    return path


@app.command()
def config(
    key: str = typer.Argument("", help="A key or a group, such as update or roles.critic.top_p."),
    every: bool = typer.Option(False, "--all", help="List every setting."),
    as_json: Json = False,
) -> None:
    """List the settings of pco.toml and --set: key, default, accepted values and meaning.

    Without a key, only the settings that `pco init` writes are listed."""
    known = describe()
    keys = _select_keys(known, key) if key or every else usual_settings(known)
    if as_json:
        emit([asdict(each) for each in keys])
        return
    blocks: list[str] = []
    for group, members in groupby(keys, key=lambda each: each.group):
        shown = list(members)
        if len(shown) > 1 or not key:
            line = describe_group(group) if group else "Top-level settings."
            blocks.append(f"[{group}]\n{wrap_text(line, '')}" if group else line)
        for each in shown:
            default = f" = {each.default}" if each.default else "   (must be given)"
            head, *text = f"{each.key}{default}", each.text, each.kind
            blocks.append("\n".join([wrap_text(head, ""), *map(wrap_text, text)]))
    print("\n\n".join(blocks))
    if len(keys) < len(known) and not key:
        note(f"{len(known) - len(keys)} more: pco config --all, or one group: pco config update")


def usual_settings(keys: Sequence[Key]) -> list[Key]:
    """Those in the pco.toml that `pco init` writes, in its order, even those commented out."""
    text = (resources.files("promptcodebook.cli") / "scaffold" / SETTINGS).read_text("utf-8")
    usual: dict[str, Key] = {}
    group = ""
    for table, name in re.findall(r"^(?:# )?(?:\[(\S+)\]|(\w+) = )", text, re.M):
        group = f"{table}." if table else group
        if name:
            [key] = _select_keys(keys, f"{group}{name}")
            usual[key.key] = key
    return [*usual.values()]


def _select_keys(keys: Sequence[Key], name: str) -> list[Key]:
    """The key of that name or all keys of that group, else those that end with the name; every key
    if none is named. ROLE and MODEL in a key match any name."""
    parts = name.split(".") if name else []

    def matches(key: Sequence[str]) -> bool:
        pairs = zip(key, parts, strict=False)
        return len(parts) <= len(key) and all(o in (p, "ROLE", "MODEL") for o, p in pairs)

    selected = [each for each in keys if matches(each.key.split("."))]
    selected = selected or [each for each in keys if each.key.endswith(f".{name}")]
    if not selected:
        known = [part for each in keys for part in (each.key, *each.key.split("."))]
        raise ConfigError(f"no key {name!r}{did_you_mean(name, known)}", hint="pco config")
    return selected


@templates.command()
def copy(
    folder: Annotated[Path, typer.Argument(help="Folder to write to; created if missing.")],
    name: str = typer.Option("default", "--set", help="default, few-shot or paper."),
    as_json: Json = False,
) -> None:
    """Write a set of templates to edit; existing files are never overwritten."""
    files = [str(file) for file in copy_templates(folder, name)]
    setting = str(folder) if folder.is_absolute() else f"./{folder}"
    lines = [*(f"wrote {file}" for file in files), "", f'In pco.toml: templates = "{setting}"']
    lines += ["If you delete a file there, the original is used instead."]
    lines += ["next: edit them, then pco estimate"]
    tree = {"templates": setting, "files": files}
    show(lambda: tree, lambda: "\n".join(lines), as_json=as_json)


@data.command()
def check(
    path: Annotated[Path, typer.Argument(help="jsonl, csv, xlsx, parquet, ..., or a folder.")],
    input: str = typer.Option("input", help="A column, or '{title}\\n{body}'."),
    target: str = typer.Option("target", help="The reference column; '' = none."),
    messages: str = typer.Option("", help="A column of chat messages."),
    id: str = typer.Option("", help="A column of ids."),
    split: str = typer.Option("", help="A column that names each row's split."),
    group: str = typer.Option("", help="A column that groups dependent rows."),
    form: str = typer.Option("auto", help="A published format, such as squad; '' = none."),
    header: bool = typer.Option(True, help="Whether the first line names the columns."),
    as_json: Json = False,
) -> int:
    """Show sizes, duplicates and conflicting targets; exit 1 if an input is in two splits."""
    named = {"target": target, "messages": messages, "id": id, "split": split}
    given: dict[str, Any] = {key: column or None for key, column in named.items()}
    # Rows hold no cycles; looking for some among millions of values took a tenth of the time.
    gc.disable()
    try:
        given |= {"form": form, "header": header, "group": group}
        checked = examine(load(path, input=input, allow_overlap=True, **given))
    finally:
        gc.enable()
    few = verdict_remark(checked.counts["test"], checked.independent.get("test"))
    warnings = [*checked.warnings(), *([f"{few}."] if few else [])]
    facts = {"clean": checked.clean, "warnings": warnings}
    show(lambda: asdict(checked) | facts, lambda: _check_text(checked, warnings), as_json=as_json)
    return 0 if checked.clean else 1


def _check_text(checked: DataCheck, warnings: Sequence[str]) -> str:
    rows = [
        {"split": split, "examples": count, "without target": checked.missing_targets[split]}
        for split, count in checked.counts.items()
    ]
    lines = [f"{checked.name}: {sum(checked.counts.values())} examples", "", columns(rows), ""]
    lines += [f"read  {printable(note)}" for note in checked.notes]
    lines += [f"warn  {printable(warning)}" for warning in warnings]
    lines += [f"fail  {leak} have the same input" for leak in checked.overlaps[:_SHOWN]]
    if (more := len(checked.overlaps) - _SHOWN) > 0:
        lines.append(f"fail  and {more} more (--json shows all)")
    mend = ["next: remove them from one split, or let pco draw the splits"]
    ok = ["ok    no input appears in two splits", "next: pco estimate, then pco train"]
    return "\n".join([*lines, *(ok if checked.clean else mend)])


@data.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A benchmark, such as ifbench.")],
    cache: Path | None = typer.Option(
        None, help="Folder for the downloads; default: the user's cache folder."
    ),
    accept: bool = typer.Option(
        False, "--accept", help="Accept files that have changed at the source."
    ),
    as_json: Json = False,
) -> None:
    """Download a benchmark from its public source; its task then finds it without --data."""
    source = import_part(COMMAND_GROUP, "data.fetch", "pco data fetch", "bench")(name)
    rows = source.fetch(cache, accept=accept)
    if as_json:
        counts, files = dict(rows.counts), dict(rows.files)
        emit({"name": name, "folder": str(rows.folder), "rows": counts, "sha256": files})
        return
    print(f"{name}: in {rows.folder}\n")
    print(columns([{"file": f"{file}.jsonl", "rows": n} for file, n in rows.counts.items()]))
    print(f"\nnote  {source.note}" if source.note else "")
    print(f"next: pco train --task {shell(name)}{f' --data {shell(cache)}' if cache else ''}")


@dataclass(frozen=True)
class _Examined(command.TrainOptions):
    """What is examined is not run: it takes no budget and no seed."""

    budget: None = None
    seed: None = None


@app.command()
@options
def doctor(wanted: _Examined, as_json: Json = False) -> int:
    """Check settings, data, reward, every endpoint, prices and disk; exit 1 if anything fails.

    The check makes about fifteen short calls to each model."""
    settings, base = wanted.gather()
    note("making about fifteen short calls to each model")
    sections: list[DiagnosisGroup] = []

    async def look() -> None:
        async for section in checkup(settings, base, runs_dir()):
            sections.append(section)
            if as_json:
                continue
            lines = [wrap_text(section.title, "")]
            for each in section.findings:
                lines.append(wrap_text(f"{each.name}: {each.what}", f"  {each.level:<5} "))
                if each.next_step:  # a command is not wrapped: it is meant to be copied
                    lines.append(f"        next: {printable(each.next_step)}")
            print("\n".join(lines), flush=True)

    run_sync(look())
    ok = all(section.ok for section in sections)
    again = command.typed_again(flags=("--json",))
    warned = any(each.level == "warn" for section in sections for each in section.findings)
    after = "nothing fails, but read the warnings" if warned else "all is well"
    after += f"; next: {again.replace(' doctor', ' estimate', 1)}"
    text = f"\n{after}" if ok else f"\nfix the failures; next: {again}"
    tree = {"ok": ok, "sections": [asdict(section) for section in sections]}
    show(lambda: tree, lambda: text, as_json=as_json)
    return 0 if ok else 1


@app.command()
@options
def estimate(wanted: command.TrainOptions, as_json: Json = False) -> None:
    """Estimate calls, tokens and cost (low, expected, high) with a dry run; no model is called.

    Unknown prices are shown as unknown, not 0."""
    settings, base = wanted.gather()
    plan = plan_run(settings, Sources(base)).require_training()
    made = estimate_plan(plan)
    shares = (*made.roles, made.total)
    *roles, total = (asdict(each) | {"tokens": asdict(each.tokens)} for each in shares)
    del total["role"], total["model"]
    tree = {"roles": roles, "total": total, "updates": made.updates}
    tree |= {"simulated": made.simulated, "assumptions": list(made.assumptions)}
    show(lambda: tree, lambda: _estimate_text(made), as_json=as_json)


def _estimate_text(made: Estimate) -> str:
    roles, total = made.roles, made.total
    models = {share.model for share in roles}
    one = f"model {total.model}" if len(models) == 1 else "models by role"
    lines = [wrap_text(f"{made.updates} updates; {one}; low / expected / high", ""), ""]
    if len(models) > 1:
        lines += [columns([{"role": r.role, "model": r.model} for r in roles]), ""]
    rows: list[dict[str, str]] = []
    for share in (*roles, total):
        role, _, calls, tokens, cost = share.cells()
        rows.append({"role": role, "calls": calls, "tokens": tokens, "cost": cost})
    lines += [columns(rows), "", *(wrap_text(text, "- ") for text in made.assumptions)]
    return "\n".join([*lines, "next: pco train, with --budget as a limit"])
