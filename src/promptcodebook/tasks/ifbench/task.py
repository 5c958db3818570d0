"""`ifbench`: requests with verifiable constraints; trained on IFEval's, tested on IFBench's.

The program writes a response, then rewrites it so that every constraint is kept; both named stages
are chain-of-thought modules, and stages and field names are those of the GEPA artifact. Reward: the
loose share of the constraints that the final response keeps. A folder holds train, val
and test.jsonl with the fields key, prompt, instruction_id_list and kwargs (parallel to it), and may
hold nltk_data, which some of the checks need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from threading import Lock
from typing import Self, cast

from pydantic import model_validator

from promptcodebook.calls import Chat, Role
from promptcodebook.data import Dataset
from promptcodebook.errors import DataError, RewardError
from promptcodebook.tasks.home import BenchmarkRow, home_of, read_dataset, read_seeds
from promptcodebook.tasks.ifbench.language import Language
from promptcodebook.tasks.ifbench.score import check, describe, grade
from promptcodebook.tasks.program import make_output, think
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Output, Prompt, Score, Stage

STAGES: tuple[str, ...] = ("generate", "rewrite")

INSTRUCTIONS: dict[str, str] = {
    "generate": "Respond to the query.",
    "rewrite": "Make sure that the response is correct and keeps every constraint stated in the "
    "query; rewrite it wherever it does not. What you give is the final response.",
}

_TRIED = ("one two. three four!", "ONE TWO. THREE FOUR!")
"""Texts short enough for every check; some ask no package before they have seen the case."""


class RequestRow(BenchmarkRow):
    """A request; `kwargs` holds one object of arguments for each of its constraints."""

    input_column = "prompt"
    key: str | int
    prompt: str
    instruction_id_list: list[object]
    kwargs: list[object]

    @model_validator(mode="after")
    def _check(self) -> Self:
        ids, kwargs = self.instruction_id_list, self.kwargs
        if not ids or len(ids) != len(kwargs):
            raise DataError(
                f"{len(ids)} constraints in instruction_id_list, {len(kwargs)} in kwargs",
                hint="give at least one constraint, and one object of arguments for each ({} for "
                "none)",
            )
        if not all(isinstance(each, dict) for each in kwargs):
            raise DataError(
                "kwargs must hold one object for each constraint",
                hint="write {} for a constraint without arguments",
            )
        if not self.prompt.strip():
            raise DataError("the prompt is blank", hint="give it a text, or drop the line")
        for one, given in zip(*_constraints(self._columns()), strict=True):
            describe(one, given)
        return self

    def example(self) -> Example:
        return Example(str(self.key), self.prompt, fields=self._columns())

    def _columns(self) -> dict[str, object]:
        return {"instruction_id_list": self.instruction_id_list, "kwargs": self.kwargs}


def load_ifbench(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder ifbench/), else where `home_of` finds it.
    DataError with file and line for an unknown constraint or one whose arguments are wrong."""
    home = home_of("ifbench", data_dir)
    dataset = read_dataset("ifbench", home.folder, RequestRow, RequestRow.example)
    places = (home.folder / "nltk_data", home.folder.parent / "nltk_data")
    nltk_data = next((place for place in places if place.is_dir()), None)
    constraints = ConstraintReward(Language(nltk_data))
    return Task(
        name="ifbench",
        dataset=dataset,
        reward=asks_nobody(constraints),
        program=IFBenchProgram(constraints.report),
        seeds=read_seeds(Path(__file__).parent),
        zero_shot="Respond to the query and keep every constraint that it states.",
        description="Requests with verifiable constraints; the reward is the share of them that "
        f"the final response keeps: {len(dataset)} requests; {home.origin}.",
        output_format="Only the response itself, in exactly the form that the request asks for, "
        "without any comment on it.",
        require=partial(constraints.require, dataset),
    )


class IFBenchProgram:
    """The program. `report` says in words which constraints a text keeps ("" = not known). What it
    says of the first response joins the trace as a stage `generate: check`, so that the critic can
    tell which of the two stages is to blame; no model is shown it."""

    name = "ifbench"
    stages = STAGES
    roles: frozenset[Role] = frozenset()

    def __init__(self, report: Callable[[Example, str], str] | None = None) -> None:
        self._report = report

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        """The final response, with both stages. LMError as the chat raises it."""
        query, step = example.input, partial(think, lm, prompt=prompt)
        draft = await step(
            stage="generate",
            instruction=INSTRUCTIONS["generate"],
            fields={"query": query},
            outputs=("response",),
        )
        final = await step(
            stage="rewrite",
            instruction=INSTRUCTIONS["rewrite"],
            fields={"query": query, "response": draft["response"]},
            outputs=("final_response",),
        )
        output = make_output(final["final_response"], (draft, final))
        if self._report is None:
            return output
        # In a thread, as a pattern among the constraints may take its whole time limit.
        report = await asyncio.to_thread(self._report, example, draft["response"])
        written, rewritten = output.trace
        check = Stage("generate: check", draft["response"], report)
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
            raise RewardError(
                f"example {example.id} has no constraints to check",
                hint="give it instruction_id_list and kwargs",
            )
        said = self._describe("The final response", verdicts)
        return Score(sum(verdicts.values()) / len(verdicts), said)

    def require(self, dataset: Dataset) -> None:
        """Tries each kind of constraint that the data have, on two short texts. Raises MissingExtra
        or TaskError for a package or NLTK data that one needs."""
        kinds = dict[str, Mapping[str, object]]()
        for example in chain.from_iterable(split for _, split in dataset.items()):
            kinds |= dict(zip(*_constraints(example.fields), strict=True))
        for (one, given), text in product(kinds.items(), _TRIED):
            with self._lock:
                check(one, given, "", text, language=self._language)

    def report(self, example: Example, text: str) -> str:
        """Which constraints a stage's text keeps, in words; "" for an example without any."""
        verdicts = self._verdicts(example, text)
        return self._describe("This text", verdicts) if verdicts else ""

    def _verdicts(self, example: Example, text: str) -> dict[str, bool]:
        """Description -> kept (loosely); two constraints of one wording stay two."""
        ids, kwargs = _constraints(example.fields)
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


def _constraints(fields: Mapping[str, object]) -> tuple[list[str], list[dict[str, object]]]:
    ids = cast("list[object]", fields.get("instruction_id_list") or [])
    kwargs = cast("list[dict[str, object]]", fields.get("kwargs") or [])
    return [str(one) for one in ids], kwargs
