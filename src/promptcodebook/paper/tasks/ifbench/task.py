"""`ifbench`: requests with verifiable constraints; trained on IFEval's, tested on IFBench's. The
program writes a response, then rewrites it so that every constraint is kept; stages and fields are
the GEPA artifact's. docs/tasks/ifbench.md names the fields of the data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Self, cast

from pydantic import model_validator

from promptcodebook.calls import Chat, Role
from promptcodebook.data import Dataset
from promptcodebook.errors import DataError, RewardError
from promptcodebook.paper.tasks.ifbench.language import Language
from promptcodebook.paper.tasks.ifbench.score import check, describe, grade
from promptcodebook.tasks.home import BenchmarkRow, Filled, home_of, read_dataset, read_texts
from promptcodebook.tasks.program import Chain, make_output, read_modules
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Output, Prompt, Score, Stage

_FOLDER = Path(__file__).parent
MODULES = read_modules(_FOLDER)

# Texts short enough for every check; some ask no package before they have seen the case.
_TRIED = ("one two. three four!", "ONE TWO. THREE FOUR!")


class RequestRow(BenchmarkRow):
    """A request; `kwargs` holds one object of arguments for each of its constraints."""

    input_column = "prompt"
    key: str | int
    prompt: Filled
    instruction_id_list: list[str]
    kwargs: list[dict[str, object]]

    @model_validator(mode="after")
    def _check(self) -> Self:
        ids, kwargs = self.instruction_id_list, self.kwargs
        if not ids or len(ids) != len(kwargs):
            message = f"{len(ids)} constraints in instruction_id_list, {len(kwargs)} in kwargs"
            hint = "list at least one constraint, and an object of arguments for each (or {})"
            raise DataError(message, hint=hint)
        for one, given in zip(ids, kwargs, strict=True):
            describe(one, given)
        return self

    def example(self) -> Example:
        fields = {"instruction_id_list": self.instruction_id_list, "kwargs": self.kwargs}
        return Example(str(self.key), self.prompt, fields=fields)


def load_ifbench(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder ifbench/), else as `home_of` finds it."""
    home = home_of(_FOLDER, data_dir)
    dataset = read_dataset(home, "ifbench", RequestRow, RequestRow.example)
    places = (home.folder / "nltk_data", home.folder.parent / "nltk_data")
    constraints = ConstraintReward(Language(next(filter(Path.is_dir, places), None)))
    return Task(
        name="ifbench",
        dataset=dataset,
        reward=asks_nobody(constraints),
        program=IFBenchProgram(constraints.report),
        require=partial(constraints.require, dataset),
        **read_texts(_FOLDER, count=len(dataset), origin=home.origin),
    )


class IFBenchProgram:
    """The program. `report` says in words which constraints a text keeps ("" = not known). Of the
    first response that joins the trace as a stage `generate: check`, so that the critic can tell
    which of the two stages is to blame; no model is shown it."""

    name = "ifbench"
    stages = tuple(MODULES)
    roles: frozenset[Role] = frozenset()

    def __init__(self, report: Callable[[Example, str], str]) -> None:
        self._report = report

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        chain = Chain(lm, prompt, {"query": example.input}, MODULES)
        draft = await chain.module("generate")
        output = make_output(await chain.module("rewrite", response=draft), chain.steps)
        # In a thread, as a pattern among the constraints may take its whole time limit.
        report = await asyncio.to_thread(self._report, example, draft)
        written, rewritten = output.trace
        check = Stage("generate: check", draft, report)
        return replace(output, trace=(written, check, rewritten)) if report else output


class ConstraintReward:
    """The reward: which of an example's constraints a text keeps, and that in words."""

    def __init__(self, language: Language) -> None:
        self._language = language
        # One text at a time: the guessers and tokenisers load themselves at their first use.
        self._lock = Lock()

    def __call__(self, example: Example, output: str) -> Score:
        """The loose share of constraints kept, with those kept and not kept named."""
        verdicts = self._verdicts(example, output)
        if not verdicts:
            message = f"example {example.id} has no constraints to check"
            raise RewardError(message, hint="add instruction_id_list and kwargs")
        message = self._describe("The final response", verdicts)
        return Score(sum(verdicts.values()) / len(verdicts), message)

    def require(self, dataset: Dataset) -> None:
        """Tries each kind of constraint of the data on two short texts; raises as `check` does."""
        kinds = dict[str, Mapping[str, object]]()
        for _, split in dataset.items():
            for example in split:
                kinds |= dict(zip(*_constraints(example), strict=True))
        for (one, given), text in product(kinds.items(), _TRIED):
            with self._lock:
                check(one, given, "", text, language=self._language)

    def report(self, example: Example, text: str) -> str:
        """Which constraints a stage's text keeps, in words; "" for an example without any."""
        verdicts = self._verdicts(example, text)
        return self._describe("This text", verdicts) if verdicts else ""

    def _verdicts(self, example: Example, text: str) -> dict[str, bool]:
        """Description -> kept (loosely); two constraints of one wording stay two."""
        ids, kwargs = _constraints(example)
        with self._lock:
            kept = grade(example.input, ids, kwargs, text, language=self._language).loose
        asked = enumerate(zip(ids, kwargs, kept, strict=True), start=1)
        return {f"{number}. {describe(one, given)}": held for number, (one, given, held) in asked}

    def _describe(self, what: str, verdicts: Mapping[str, bool]) -> str:
        parts = list[str]()
        for kept, words in ((True, "keeps"), (False, "does not keep")):
            named = [f"- {constraint}" for constraint, held in verdicts.items() if held is kept]
            parts += ["\n".join([f"{what} {words}:", *named])] if named else []
        return "\n".join(parts)


def _constraints(example: Example) -> tuple[list[str], list[dict[str, object]]]:
    ids = cast("list[str]", example.fields.get("instruction_id_list") or [])
    return ids, cast("list[dict[str, object]]", example.fields.get("kwargs") or [])
