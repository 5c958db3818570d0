"""`pco init --from FILE`: a pco.toml for a data file of the user's own. It guesses which columns
are input and reference, the reward and the split, and says what it saw."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from math import ceil
from pathlib import Path
from typing import Any, cast

import jinja2
import typer

from promptcodebook.base.intervals import ENOUGH
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import one_line, quote, shell, toml
from promptcodebook.base.units import plural
from promptcodebook.cli.command import columns as table_text
from promptcodebook.config import load_config
from promptcodebook.config.loading import read_prompt
from promptcodebook.data import SPLITS, Dataset, Split, independent, load_settings, sample
from promptcodebook.data.dataset import split_name
from promptcodebook.data.load import first_table, read_source
from promptcodebook.data.table import SourceRow, Table
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.lm.spec import SMOLLM2, parse_spec
from promptcodebook.lm.wire import estimate_tokens
from promptcodebook.method.policy import PresentPrompt
from promptcodebook.run.decision import verdict_power, verdict_remark
from promptcodebook.tasks.rewards import apply_reward, make_reward, needs_reference, reward_factory
from promptcodebook.tasks.rewards.reading import accepted_answers
from promptcodebook.tasks.rewards.trial import RewardTable, try_on_rows
from promptcodebook.tools.proposal.columns import (
    SHORT,
    Choice,
    Column,
    ColumnRoles,
    is_missing,
    look_at,
    read_columns,
    rules,
)
from promptcodebook.types import Example, Output, Score

Ask = Callable[..., str]  # a question, our guess, and the flag that answers it
_NAMED = 8000  # characters of labels that a prompt names
_SAID = 50  # labels that a small model gets an instinct each for
_TRIED = 12  # rows that a proposed reward is tried on
_SHOWN, _EXAMPLES, _QUOTED = 20, 3, 160  # labels, rows and characters that the summary shows
# Rows that a verdict needs, and the choice between states: more cost more than they tell.
_TEST, _VALIDATION = 300, 150
# Tokens of an answer: twice those of the longest reference, and at least these, by the reward and
# for a small model; else what the preset has.
_LEAST, _ROOM = {"label": 12, "numeric": 256}, 4096


@dataclass(frozen=True, slots=True)
class Scoring:
    """A proposed reward: its kind, `setting` as pco.toml has it, why, its labels, whether a row may
    have `several` of them, and why other rewards are of no use."""

    kind: str
    setting: Any
    why: str
    labels: Sequence[str]
    several: bool
    refused: tuple[str, ...] = ()


def propose(
    source: Path,
    folder: Path,
    given: Mapping[str, str | None],
    agent: Mapping[str, Any],
    *,
    header: bool | None,
    yes: bool,
) -> tuple[str, dict[str, Any], str]:
    """Looks at `source` for a pco.toml in `folder`: its text, the settings in it, and what was
    seen, in words. `given` holds input, target, reward, lm and form, None = our guess, confirmed
    unless `yes`; `agent` the settings of an agent, or none. Raises ConfigError when a setting is
    wrong or two guesses are equally likely, DataError when the file is wrong."""
    ask = partial(_ask, yes=yes)
    tables = _read_rows(source, given["form"] or "", header, ask)
    first, parts = first_table(tables), _parts(tables)
    form: Mapping[str, str] = {"target": "", **first.settings} if first.form else {}
    given = {**given, **{n: form.get(n) for n in ("input", "target") if given[n] is None}}
    if not (rows := sum(map(len, parts.values()))):
        raise DataError(f"{source} is empty", hint="add at least three examples")
    columns = look_at([row.values for rows in parts.values() for row in rows])
    present = PresentPrompt("", agent.get("init", {}).get("prompt", ""), frozenset(columns))
    own = [] if "executor" in agent else list(dict.fromkeys(present.named))
    seen = _decide(columns, given, ask, own, separate=isinstance(tables, Mapping))
    if form:
        seen = replace(seen, id=form.get("id", ""), split=form.get("split", ""))
    input, target = seen.input.name, seen.target.name
    if present.text:
        replace(present, names=present.names - {target} | {"input"}).require_columns()
    data: dict[str, Any] = {
        "path": os.path.relpath(source, folder),
        **({"messages": seen.messages} if seen.messages else {"input": input}),
        "target": target,
        **{name: value for name in ("id", "split") if (value := getattr(seen, name))},
        **_draw(seen, columns, parts),
        **({"form": first.form} if first.form else {}),
        **({"header": False} if first.header is False else {}),
    }
    if len({str(row.values.get(seen.id)) for part in parts.values() for row in part}) < rows:
        data.pop("id", None)  # beyond the sample it repeats
    grouping, dependent = _grouping(seen, columns, drawn="fractions" in data)
    data |= grouping
    del tables, parts  # the file is read once more, as a run reads it
    looked = load_config({"data": data | {"path": str(source.resolve())}}).data
    dataset = load_settings(looked, folder)
    known = dataset.with_references() if target else dataset
    scoring = _scoring(seen, columns, known, given["reward"], form.get("reward", ""), ask)
    if scoring.kind != "judge":
        reward_factory(scoring.setting, folder)  # or a ConfigError
    dataset = known if needs_reference(scoring.setting) else dataset
    lm = given["lm"] or os.environ.get("PCO_LM", "")
    if not (lm or yes) and sys.stdin.isatty():
        lm = ask("the model, such as openai/MODEL, URL#MODEL or smollm2", Choice("none yet"))
        lm = "" if lm == "none yet" else lm
    if lm:
        parse_spec(lm)  # or a ConfigError
    if not (agent or yes) and sys.stdin.isatty():
        prompt = ask("your current prompt, as a file or text", Choice("none yet"))
        agent = {} if prompt == "none yet" else {"init": {"prompt": read_prompt(prompt)}}
    references = [e.target or "" for _, part in dataset.items() for e in part]
    tokens = [max(map(estimate_tokens, accepted_answers(each))) for each in references]
    tree = _settings(lm, scoring, max(tokens), data, agent)
    if len(dataset.test) > _TEST:
        tree["verdict_examples"] = _TEST
    if len(dataset.val) > _VALIDATION:
        tree["validation"] = {"examples": _VALIDATION}
    counts = ", ".join(f"{len(examples)} {name}" for name, examples in dataset.items())
    shown = plural(rows, "row")
    longest = plural(max(tokens), "token")
    about = {
        "seen": f"{shown} of {plural(len(columns), 'column')}",
        "counts": counts,
        "why": scoring.why,
        "longest": f"the longest of {plural(len(tokens), 'reference')} has about {longest}",
    }
    text = _render({**about, "tree": tree, "small": lm == SMOLLM2})
    own = "as given, the others drawn from train" if seen.split else "drawn"
    drawn = own if "fractions" in data else "as given"
    summary = [
        f"{source.name}: {shown}",
        *(f"read    {note}" for note in first.notes),
        "",
        *_table(seen),
        "",
    ]
    summary += _examples(dataset, str(tree.get("base_prompt", "")))
    summary += _choices(seen, scoring, columns)
    summary += [f"splits  {counts}, {drawn}", f"model   {lm or 'none yet; e.g. --lm smollm2'}"]
    has = "yours, to beat" if "prompt" in agent.get("init", {}) else ""
    starts = bool(has) and tree["init"]["kind"] == "from_prompt"
    has += " and, with our general instincts, to start from" * starts
    has += "; training starts from an instinct for each label" * (
        bool(has) and "instincts" in tree["init"]
    )
    summary.append(f"prompt  {has or 'none: pco train --prompt FILE, or TEXT, starts from yours'}")
    judged, validated = min(_TEST, len(dataset.test)), min(_VALIDATION, len(dataset.val))
    if "verdict_examples" in tree or "validation" in tree:
        what = f"on {judged} of the test rows; the best states on {validated} validation rows"
        summary.append(f"judged  {what}")
    alone = independent(sample(dataset.test, judged))
    remarks = [verdict_remark(judged, alone), dataset.remark, dependent, *scoring.refused]
    summary += filter(None, [f"shows   {power}" if (power := verdict_power(alone)) else ""])
    summary += [f"warn    {remark}" for remark in filter(None, remarks)]
    return text, tree, "\n".join(map(one_line, summary))


def _read_rows(
    source: Path, form: str, header: bool | None, ask: Ask
) -> Table | Mapping[Split, Table]:
    """The rows. Where the first line seems to be one of them, a person on a terminal decides."""
    tables = read_source(source, form=form, header=header)
    if header is None and first_table(tables).header is False:
        named = ask("whether the first line names the columns, yes or no", Choice("no"), "--header")
        if named.strip().lower() in ("y", "yes"):
            return read_source(source, form=form, header=True)
    return tables


def _parts(tables: Table | Mapping[Split, Table]) -> dict[str, Sequence[SourceRow]]:
    """The rows by their split, '' = of one file for all."""
    if isinstance(tables, Mapping):
        return {split: table.rows for split, table in tables.items()}
    return {"": tables.rows}


def _decide(
    columns: Mapping[str, Column],
    given: Mapping[str, str | None],
    ask: Ask,
    prompted: Sequence[str],
    *,
    separate: bool,
) -> ColumnRoles:
    """What the columns are, once flags and answers have settled the input and the reference. The
    input is what the user's prompt names, unless that is the reference."""
    none = "none" if "none" in columns else ""
    input, target = given["input"] or None, given["target"]
    target = none if target == "none" else target
    seen = read_columns(columns, input=input, target=target, separate=separate)
    if prompted and not input and set(prompted) <= columns.keys() - {seen.target.name}:
        input = prompted[0] if not prompted[1:] else "\n\n".join(f"{{{n}}}" for n in prompted)
        seen = read_columns(columns, input=input, target=target, separate=separate)
    if not (input or seen.messages):
        input = ask("the input, a column or a template", seen.input, "--input")
    if target is None:
        target = ask("the reference, a column or none", seen.target, "--target")
        target = none if target == "none" else target
    if (input or "", target) == (seen.input.name, seen.target.name):
        return seen
    return read_columns(columns, input=input, target=target, separate=separate)


def _draw(
    seen: ColumnRoles, columns: Mapping[str, Column], parts: Mapping[str, Sequence[SourceRow]]
) -> dict[str, Any]:
    """How the splits are drawn that the data do not name, by the rows that have a reference: for
    test a quarter, or what a verdict needs, at most half; of many rows no more than count."""
    counted = Counter[str]()
    for part, rows in parts.items():
        for row in rows:
            if not seen.target.name or not is_missing(row.values.get(seen.target.name)):
                split = part or (seen.split and split_name(row.values.get(seen.split), row.where))
                counted[split] += 1
    if len(counted) == len(SPLITS):
        return {}
    rows = max(1, counted["train"] + counted[""])
    test = max(0.25, min(0.5, ceil(100 * ENOUGH / rows) / 100))
    shares = [
        float(f"{min(s, most / rows):.4g}") for s, most in ((0.2, _VALIDATION), (test, _TEST))
    ]
    labels = seen.target.name in columns and columns[seen.target.name].labels
    fractions = [round(1 - sum(shares), 9), *shares]
    return {"fractions": fractions, **({"stratify": True} if labels else {})}


def _grouping(
    seen: ColumnRoles, columns: Mapping[str, Column], *, drawn: bool
) -> tuple[dict[str, str], str]:
    """The setting of groups, where there are enough of them for test and training; else a remark.
    Of several columns the finest counts: a conversation, not its user."""
    groups = [name for name, (kind, _) in seen.roles.items() if kind == "group"]
    group = max(groups, key=lambda name: len(columns[name].different), default="")
    if not group:
        return {}, ""
    if drawn and len(columns[group].different) >= 2 * ENOUGH:
        return {"group": group}, ""
    what = f"rows with the same {group} may depend on one another, and no interval allows for that"
    return {}, f"{what}: [data] group = {toml(group)}"


def _settings(
    lm: str, scoring: Scoring, longest: int, data: Mapping[str, Any], agent: Mapping[str, Any]
) -> dict[str, Any]:
    """All that the pco.toml sets. A model as small as SmolLM2 learns which label to say."""
    small, more, labels = lm == SMOLLM2, dict[str, Any](), list(scoring.labels)
    own = agent.get("init", {})
    init: dict[str, Any] = {"kind": "expert", **own}
    said = labels if len(labels) <= _SAID and not scoring.several else []
    if small:
        more["size"] = len(said) or 6
        more["update"] = {"batch_size": 32, "epochs": 10}
    if "executor" not in agent:  # how that answers is its own affair
        many = "one or more of these, with commas between" if scoring.several else "one of these"
        each = f"Answer with {many} and nothing else: {', '.join(labels)}."
        each = each if len(each) <= _NAMED else "Answer with a label and nothing else."
        executor: dict[str, Any] = {"temperature": 0.0} if small else {}
        tokens, room = 8 * ceil(longest / 4), _LEAST.get(scoring.kind, 64) if small else _ROOM
        if small or tokens > room // 2:  # half of it is for a model that thinks aloud
            executor["max_tokens"] = max(room, tokens) if small else tokens + room // 2
        if labels and small:
            init |= {"prompt": each, **own}
            init |= {"instincts": [f"Say only: {label}" for label in said]} if said else {}
            form = {"name": "label", "schema": {"enum": labels}}
            answers = {"type": "json_schema", "json_schema": form}
            executor |= {"extra": {"response_format": answers}} if not scoring.several else {}
        elif labels and not own:
            more["base_prompt"] = each
        if executor:
            more["roles"] = {"executor": executor}
    if own and not ("instincts" in init or "executor" in agent):
        init["kind"] = "from_prompt"
    return {
        "preset": "small" if small else "default",
        **({"lm": lm} if lm else {}),
        "reward": scoring.setting,
        **{name: agent[name] for name in ("executor", "compose_per_stage") if name in agent},
        **more,
        "data": data,
        "init": init,
        "budget": {},
    }


def _scoring(
    seen: ColumnRoles,
    columns: Mapping[str, Column],
    dataset: Dataset,
    chosen: str | None,
    usual: str,
    ask: Ask,
) -> Scoring:
    """The reward that a person chose; else the first, of the `usual` one of a published form and
    those for such references, that tells right answers from wrong ones on the user's own rows."""
    answer = columns.get(seen.target.name)
    if answer and answer.form[0] in ("label", "labels", "answers"):  # all of them, not a sample
        wanted = [e.target or "" for _, part in dataset.items() for e in part]
        if answer.form[0] == "answers":
            wanted = [accepted_answers(each)[0] for each in wanted]
        answer = Column(answer.name, wanted)
    form = _form_of(answer, seen)
    labels = (answer.members if form == "labels" else answer.labels) if answer else []
    if usual not in ("", "label"):  # answers to questions, however few
        labels = []

    def scoring(name: str) -> Scoring:
        entry = rules()["rewards"].get(name, {"why": "your choice"})
        coded = "; its numbers mean nothing to a model: say in init.prompt what they stand for"
        why = entry["why"] + coded * (name == "label" and answer is not None and answer.numbers)
        setting = {"kind": name, **entry.get("setting", {})}
        if setting["kind"] == "label" and labels:
            setting["labels"] = labels
        elif name == "json" and answer and answer.keys:
            setting["keys"] = answer.keys
        kind, listed = setting["kind"], labels if name in rules()["rewards"] else []
        written = setting if len(setting) > 1 else kind
        return Scoring(kind, written, why, listed, form == "labels")

    proposal, refused = scoring("any"), list[str]()
    names = [usual] if usual not in ("", "judge") else []
    if usual != "judge" or form in ("none", "preference"):
        names += rules()["forms"][form]
    for tried in map(scoring, names):
        fault = fault_on_rows(tried.setting, dataset.train) if tried.kind != "judge" else ""
        if not fault:
            proposal = tried
            break
        refused.append(f"the reward {tried.kind} does not work here: {fault}")
    if chosen is None:
        chosen = ask("the reward", Choice(proposal.kind), "--reward")
    if chosen == proposal.kind:
        return replace(proposal, refused=tuple(refused))
    return scoring("any" if chosen == "judge" and form != "none" else chosen)


def _form_of(answer: Column | None, seen: ColumnRoles) -> str:
    """What the references are, as [forms] of names.toml calls it."""
    if answer is None or not answer.texts:
        return "none"
    if any(kind == "worse answer" for kind, _ in seen.roles.values()):
        return "preference"
    short = "short text" if answer.words <= SHORT else "long text"
    return short if answer.form[0] == "text" else answer.form[0]


def fault_on_rows(reward: str | Mapping[str, object], examples: Sequence[Example]) -> str:
    """Why a ready-made reward cannot tell right from wrong answers to these examples; '' = it
    can."""

    async def tried() -> RewardTable:
        made = make_reward(reward, Path())

        async def score(example: Example, output: Output) -> Score:
            return await apply_reward(made, example, output, (0.0, 1.0))

        return await try_on_rows(score, examples, rows=_TRIED)

    try:
        return run_sync(tried()).fault
    except ConfigError as error:
        return str(error)


def _table(seen: ColumnRoles) -> list[str]:
    """What each column is taken for, and why."""
    rows = [
        {"column": one_line(name)[: _SHOWN * 2], "taken for": kind, "why": one_line(why)}
        for name, (kind, why) in seen.roles.items()
    ]
    return table_text(rows).splitlines()


def _choices(seen: ColumnRoles, scoring: Scoring, columns: Mapping[str, Column]) -> list[str]:
    """Input, reference and reward, each with the next likely."""
    labels, target = scoring.labels, seen.target.name
    named = ", ".join(labels[:_SHOWN]) + " …" * (len(labels) > _SHOWN)
    words = columns[target].words if target in columns else 0
    kinds = f"{len(labels)} labels: {named}" if labels else f"{words:g} words"

    def or_else(choice: Choice) -> str:
        return f"; or perhaps {choice.runner_up}" if choice.runner_up else ""

    return [
        f"input   {seen.messages or seen.input.name}{or_else(seen.input)}",
        f"target  {target}, {kinds}{or_else(seen.target)}" if target else "target  none",
        f"reward  {scoring.kind}: {scoring.why}",
    ]


def _examples(dataset: Dataset, base_prompt: str) -> list[str]:
    """Rows as the model sees them, with their references."""
    lines = [f"before each input: {quote(base_prompt, _QUOTED)}"] if base_prompt else []
    for number, example in enumerate(dataset.train[:_EXAMPLES], 1):
        reference = "" if example.target is None else f" -> {quote(example.target, _QUOTED // 2)}"
        lines.append(f"example {number}: {quote(example.input, _QUOTED)}{reference}")
    return [*lines, ""]


def _render(values: Mapping[str, Any]) -> str:
    made = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    cast("Any", made).filters["toml"] = toml
    template = resources.files(__name__).joinpath("pco.toml.jinja").read_text("utf-8")
    return made.from_string(template).render(values)


def _ask(what: str, guess: Choice, flag: str = "", *, yes: bool) -> str:
    """A person's answer on a terminal, with our guess to accept; elsewhere the guess, if `yes`.
    Raises ConfigError where a person must decide and there is none."""
    likely = [guess.name, *guess.rivals]
    if guess.doubt and (yes or not sys.stdin.isatty()):
        shown = [name for name in likely[:_EXAMPLES] if name]
        flags = [f"{flag} {shell(name)}" for name in shown] or [f"{flag} COLUMN"]
        message = ": ".join((what, guess.doubt, *([", ".join(map(repr, shown))] if shown else ())))
        raise ConfigError(message, hint=f"add {', or '.join(flags)}")
    if yes:
        return guess.name
    name = guess.name or "none"
    if not sys.stdin.isatty():
        message = f"{what}, is probably {name!r}, but cannot be confirmed without a terminal"
        raise ConfigError(message, hint="add --yes, or --input, --target and --reward")
    with contextlib.redirect_stdout(sys.stderr):  # the question must not end up in a result
        return typer.prompt(what[:1].upper() + what[1:], default=name)
