"""`pco init --from FILE`: a pco.toml for a data file of the user's own. It guesses which columns
are input and reference, the reward and the split, and says what it saw."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import resources
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, cast

import jinja2
import typer

from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import one_line, parse_json, toml
from promptcodebook.base.units import plural
from promptcodebook.config import load_config
from promptcodebook.data import load_settings
from promptcodebook.data.dataset import split_name
from promptcodebook.data.load import read_source
from promptcodebook.data.table import parse_input_template
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.lm.spec import SMOLLM2, parse_spec
from promptcodebook.run.verdict import ENOUGH, verdict_remark
from promptcodebook.tasks.rewards import apply_reward, make_reward, reward_factory
from promptcodebook.tasks.rewards.reading import boxed_answer
from promptcodebook.tasks.rewards.trial import RewardTable, try_on_rows
from promptcodebook.types import Example, Output, Score

_LABELS = 500  # different references at most that count as labels
_NAMED = 8000  # characters of labels that a prompt names
_SAID = 50  # labels that a small model gets an instinct each for
_TRIED = 12  # rows that a proposed reward is tried on
_SHOWN = 20  # labels that the summary names
_SHORT = 4  # words of a short reference at most
# Rows that a verdict needs, and the choice between states: more cost more than they tell.
_TEST, _VALIDATION = 300, 150


@dataclass(frozen=True)
class Column:
    """A column by its values, those that are missing left out."""

    name: str
    values: Sequence[object]

    @cached_property
    def texts(self) -> list[str]:
        return [v if isinstance(v, str) else json.dumps(v) for v in self.values]

    @cached_property
    def words(self) -> float:
        return median([len(text.split()) for text in self.texts] or [0])

    @cached_property
    def labels(self) -> list[str]:
        """Its different values, where they are few and short; else none."""
        found = sorted({text.strip() for text in self.texts})
        few = 2 <= len(found) <= min(_LABELS, len(self.texts) // 3)
        return found if few and self.words <= _SHORT else []

    @cached_property
    def numbers(self) -> bool:
        return bool(self.texts) and all(map(_is_number, self.texts))

    @cached_property
    def keys(self) -> list[str]:
        """The keys that all its values have, where each is a JSON object."""
        objects = [_as_object(value) for value in self.values]
        if not objects or not all(objects):
            return []
        return [key for key in objects[0] if all(key in other for other in objects)]

    @property
    def is_split(self) -> bool:
        with contextlib.suppress(DataError):
            return len({split_name(value) for value in self.values}) > 1
        return False

    @property
    def is_chat(self) -> bool:
        first = next(iter(self.values), None)
        return isinstance(first, list) and "role" in str(cast("list[object]", first)[:1])


def _is_number(text: str) -> bool:
    """Also at the end of a worked solution: in a LaTeX box, or behind ####."""
    final = boxed_answer(text) or text.rpartition("####")[2]
    try:
        float(final.replace(",", ""))
    except ValueError:
        return False
    return True


def _as_object(value: object) -> dict[str, object]:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = parse_json(value)
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


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
    seen, in words. `given` holds input, target, reward and lm, None = our guess, confirmed unless
    `yes`; `agent` the settings of an agent, if there is one. Raises ConfigError when a setting is
    wrong, DataError when the file is."""
    tables = read_source(source, form=given["form"] or "", header=header)
    first = next(iter(tables.values())) if isinstance(tables, Mapping) else tables
    separate = isinstance(tables, Mapping)
    rows = [row for table in (tables.values() if separate else [tables]) for row in table.rows]
    heads = dict.fromkeys(name for row in rows for name in row.values)
    columns = {
        name: Column(name, [v for r in rows if (v := r.values.get(name)) is not None])
        for name in heads
    }
    found = _find(columns, len(rows), separate=separate)
    if first.form:
        found |= {"messages": "", "target": "", "id": "", "split": "", **first.settings}
    ask = partial(_ask, yes=yes)
    messages, asked = ("", given["input"]) if given["input"] else (found["messages"], "")
    if not messages:
        asked = asked or ask("the input, a column or a template", found["input"])
    target = given["target"]
    if target is None:
        target = ask("the reference, a column or none", found["target"] or "none")
    target = "" if target == "none" and target not in columns else target
    of = columns.get(target) or Column(target, [])
    drawn = _fractions(len(rows)) if not (found["split"] or separate) else None
    data = {
        "path": os.path.relpath(source, folder),
        **({"messages": messages} if messages else {"input": asked}),
        "target": target,
        **{name: found[name] for name in ("id", "split") if found[name]},
        **({"fractions": drawn} if drawn else {}),
        **({"form": first.form} if first.form else {}),
        **({"header": False} if first.header is False else {}),
    }
    looked = data | {"path": str(source.resolve())}
    dataset = load_settings(load_config({"data": looked}).data, folder)
    guess, refused = _reward_for(of, dataset.train)
    reward = given["reward"] or ask("the reward", found.get("reward", guess))
    if reward != "judge":
        reward_factory(_scored(reward, of), folder)  # or a ConfigError
    lm = given["lm"] or os.environ.get("PCO_LM", "")
    if not (lm or yes) and sys.stdin.isatty():
        lm = ask("the model, such as openai/MODEL, URL#MODEL or smollm2", "none yet")
        lm = "" if lm == "none yet" else lm
    if lm:
        parse_spec(lm)  # or a ConfigError
    reasons: dict[str, str] = _read("names.toml", tomllib.loads)["rewards"]
    labels = of.labels if reward in reasons else []
    tree = _settings(lm, reward, of, labels, data, agent)
    counts = ", ".join(f"{len(examples)} {name}" for name, examples in dataset.items())
    judged, validated = len(dataset.test) > _TEST, len(dataset.val) > _VALIDATION
    if judged:
        tree["verdict_examples"] = _TEST
    if validated:
        tree["validation"] = {"examples": _VALIDATION}
    why = reasons.get(reward, "the one that you chose")
    shown = plural(len(rows), "row")
    about = {"seen": f"{shown} of {plural(len(columns), 'column')}", "counts": counts, "why": why}
    text = _render({**about, "tree": tree, "small": lm == SMOLLM2})
    named = ", ".join(labels[:_SHOWN]) + " …" * (len(labels) > _SHOWN)
    kinds = f"{len(labels)} labels: {named}" if labels else f"{of.words:g} words"
    summary = [
        f"{source.name}: {shown}",
        *(f"read    {note}" for note in first.notes),
        f"input   {messages or asked}",
        f"target  {target}, {kinds}" if target else "target  none",
        f"reward  {reward}: {why}",
        f"splits  {counts}, {'drawn' if drawn else 'as given'}",
        f"model   {lm or 'none yet'}",
    ]
    if judged or validated:
        test, val = min(_TEST, len(dataset.test)), min(_VALIDATION, len(dataset.val))
        summary.append(f"judged  on {test} of the test rows; the best states on {val} of val")
    remarks = [verdict_remark(len(dataset.test)), *(() if given["reward"] else refused)]
    summary += [f"warn    {remark}" for remark in filter(None, remarks)]
    return text, tree, "\n".join(map(one_line, summary))


def _settings(
    lm: str,
    reward: str,
    target: Column,
    labels: Sequence[str],
    data: Mapping[str, Any],
    agent: Mapping[str, Any],
) -> dict[str, Any]:
    """All that the pco.toml sets. A model as small as SmolLM2 learns which label to say."""
    small, scored, more = lm == SMOLLM2, _scored(reward, target), dict[str, Any]()
    init: dict[str, Any] = {"kind": "expert", **agent.get("init", {})}
    said = labels if len(labels) <= _SAID else ()
    if small:
        more["size"] = len(said) or 6
        more["update"] = {"batch_size": 32, "epochs": 10}
    if not agent:  # how that answers is its own affair
        each = f"Answer with one of these and nothing else: {', '.join(labels)}."
        each = each if len(each) <= _NAMED else "Answer with a label and nothing else."
        executor: dict[str, Any] = {"temperature": 0.0}
        executor["max_tokens"] = 12 if target.words <= _SHORT else 96
        if labels and small:
            init |= {"prompt": each}
            init |= {"instincts": [f"Say only: {label}" for label in said]} if said else {}
            form = {"name": "label", "schema": {"enum": labels}}
            executor["extra"] = {"response_format": {"type": "json_schema", "json_schema": form}}
        elif labels:
            more["base_prompt"] = each
        if small:
            more["roles"] = {"executor": executor}
    return {
        "preset": "small" if small else "default",
        **({"lm": lm} if lm else {}),
        "reward": scored,
        **{name: agent[name] for name in ("executor", "compose_per_stage") if name in agent},
        **more,
        "data": data,
        "init": init,
        "budget": {},
    }


def _find(columns: Mapping[str, Column], rows: int, *, separate: bool) -> dict[str, str]:
    """The likeliest column for each purpose, '' = none, by names first and values second."""
    names: dict[str, list[str]] = _read("names.toml", tomllib.loads)["columns"]
    lower = {name.lower(): name for name in columns}

    def called(kind: str, fits: Callable[[Column], bool] = lambda _: True) -> str:
        known = (lower[name] for name in names[kind] if name in lower)
        return next((name for name in known if fits(columns[name])), "")

    split = "" if separate else called("split", lambda c: c.is_split)
    id = called("id", lambda c: len(set(c.texts)) == rows)
    messages = called("messages", lambda c: c.is_chat)
    free = [c for name, c in columns.items() if name not in (split, id, messages)]
    target = called("target") or next((c.name for c in reversed(free) if c.labels), "")
    title, body = called("title"), called("body")
    input = f"{{{title}}}\n{{{body}}}" if title and body else called("input")
    texts = [c for c in free if c.name != target and not c.numbers] or free
    if not input and texts:
        input = max(texts, key=lambda c: c.words).name
    used = [input] if input in columns else parse_input_template(input).columns
    target = target or next((c.name for c in reversed(free) if c.name not in used), "")
    return {"split": split, "id": id, "messages": messages, "input": input, "target": target}


def _reward_for(target: Column, examples: Sequence[Example]) -> tuple[str, list[str]]:
    """The first reward for such references that tells right answers from wrong ones on the user's
    own rows, and why others do not."""
    refused, kinds = list[str](), ["contains", "exact"] if target.words <= _SHORT else ["f1"]
    if not target.values:
        return "judge", []
    if target.labels:
        kinds = ["label", "exact"]
    elif target.numbers:
        kinds = ["numeric", "exact"]
    elif target.keys:
        kinds = ["fields"]
    for kind in kinds:
        if not (fault := fault_on_rows(_scored(kind, target), examples)):
            return kind, refused
        refused.append(f"the reward {kind} is of no use here: {fault}")
    return "judge", refused


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


def _scored(reward: str, target: Column) -> Any:
    """The reward as the pco.toml has it."""
    match reward:
        case "judge":
            return {"kind": "judge", "rubric": "Say here what a good answer does."}
        case "label" if target.labels:
            return {"kind": "label", "labels": target.labels}
        case "json" if target.keys:
            return {"kind": "json", "fenced": True, "keys": target.keys}
        case "fields":
            return {"kind": "fields", "fenced": True}
        case _:
            return reward


def _fractions(rows: int) -> list[float]:
    """Shares of train, val, test: for test a quarter, or what a verdict needs, at most half."""
    test = max(0.25, min(0.5, ceil(100 * ENOUGH / rows) / 100)) if rows else 0.25
    return [round(0.8 - test, 2), 0.2, test]


def _read(name: str, parse: Callable[[str], Any]) -> Any:
    return parse(resources.files(__name__).joinpath(name).read_text("utf-8"))


def _render(values: Mapping[str, Any]) -> str:
    made = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    cast("Any", made).filters["toml"] = toml
    return _read("pco.toml.jinja", made.from_string).render(values)


def _ask(what: str, guess: str, *, yes: bool) -> str:
    """A person's answer on a terminal, with our guess to accept; elsewhere the guess, if `yes`."""
    if yes:
        return guess
    if not sys.stdin.isatty():
        message = f"{what}, is probably {guess!r}, and there is no terminal to ask on"
        raise ConfigError(message, hint="add --yes, or --input, --target and --reward")
    with contextlib.redirect_stdout(sys.stderr):  # the question must not end up in a result
        return typer.prompt(what[:1].upper() + what[1:], default=guess)
