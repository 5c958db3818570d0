"""`ifbench`: requests with verifiable constraints; trained on IFEval's, tested on IFBench's.

Reward: the loose share of the constraints that the final response keeps. A folder holds train, val
and test.jsonl with the fields key, prompt, instruction_id_list and kwargs (parallel to it), and may
hold nltk_data, which some of the checks need.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import cast

from promptcodebook.data import Dataset, Split
from promptcodebook.errors import DataError, RewardError
from promptcodebook.tasks.base import Task
from promptcodebook.tasks.home import home_of, jsonl_splits, unique_ids
from promptcodebook.tasks.ifbench.language import Language
from promptcodebook.tasks.ifbench.pipeline import IFBenchProgram
from promptcodebook.tasks.ifbench.score import describe, grade
from promptcodebook.types import Example, Score

__all__ = ["SEEDS", "Constraints", "load_ifbench"]

SEEDS: tuple[str, ...] = (
    "List every constraint in the request before writing, and tick each off afterwards.",
    "Take wording literally: 'exactly', 'at least' and 'less than' are different demands.",
    "Count words, sentences and paragraphs again after writing; do not estimate.",
    "When a number of sentences is set, write short ones and end each with one clear mark.",
    "Separate paragraphs with precisely the divider that is asked for, and nowhere else.",
    "Use required keywords as they are spelled, as often as demanded.",
    "Avoid forbidden words everywhere, in titles and examples too.",
    "If a punctuation mark is forbidden, recast the sentence instead of only dropping the mark.",
    "Keep to the demanded case from the first to the last letter, headings included.",
    "If only one language is allowed, let no foreign word in, not even in quotations.",
    "Give bullet lists the exact number of points, each on a line of its own, with the same mark.",
    "Wrap a title in the brackets that the request names.",
    "If the whole answer must be JSON, return one valid object and nothing around it.",
    "Start or end with a required phrase exactly, and add nothing before or after it.",
    "When the request is to be repeated, copy it character by character before answering.",
    "Add a postscript, placeholders or highlighted parts in the notation that is asked for.",
    "Position demands (first word, second last word, word n of sentence m) are checked last, "
    "after all other edits.",
    "For patterns over words (alphabet, lengths, repeats, initials), build the text word by word.",
    "If two constraints seem to clash, look for the plain text that keeps both.",
    "Never mention the constraints or comment on how they were kept.",
)


class Constraints:
    """An example's constraints judged: the reward, and what is said of any text."""

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
        return Score(sum(verdicts.values()) / len(verdicts), _said("The final response", verdicts))

    def checked(self, example: Example, text: str) -> str:
        """Which constraints a stage's text keeps, in words; "" for an example without any."""
        verdicts = self._verdicts(example, text)
        return _said("This text", verdicts) if verdicts else ""

    def _verdicts(self, example: Example, text: str) -> dict[str, bool]:
        """Description -> kept (loosely); two constraints of one wording stay two."""
        ids, kwargs = _constraints(example.fields)
        if not ids:
            return {}
        with self._lock:
            graded = grade(example.input, ids, kwargs, text, language=self._language)
        named = [
            f"{number}. {describe(one, given)}"
            for number, (one, given) in enumerate(zip(ids, kwargs, strict=True), start=1)
        ]
        return dict(zip(named, graded.loose, strict=True))


def load_ifbench(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder ifbench/), else where `home_of` finds it.

    DataError with file and line for an unknown constraint or one whose arguments are wrong.
    """
    home = home_of("ifbench", data_dir)
    dataset = _read(home.folder)
    nltk_data = next((p for p in _nltk_places(home.folder) if p.is_dir()), None)
    constraints = Constraints(Language(nltk_data))
    return Task(
        name="ifbench",
        dataset=dataset,
        reward=constraints,
        executor=IFBenchProgram(constraints.checked),
        seeds=SEEDS,
        zero_shot="Respond to the query and keep every constraint that it states.",
        description="Requests with verifiable constraints; the reward is the share of them that "
        f"the final response keeps: {len(dataset)} requests; {home.origin}.",
        output_format="Only the response itself, in exactly the form that the request asks for, "
        "without any comment on it.",
    )


def _nltk_places(folder: Path) -> tuple[Path, ...]:
    return (folder / "nltk_data", folder.parent / "nltk_data")


def _read(folder: Path) -> Dataset:
    fields = {"key": (str, int), "prompt": str, "instruction_id_list": list, "kwargs": list}
    splits: dict[Split, tuple[Example, ...]] = {
        split: tuple(_example(row) for row in rows)
        for split, rows in jsonl_splits(folder, fields).items()
    }
    unique_ids(splits)
    return Dataset(splits["train"], splits["val"], splits["test"], "ifbench", "prompt")


def _example(row: Mapping[str, object]) -> Example:
    where = str(row["_where"])
    ids, kwargs = row["instruction_id_list"], cast("list[object]", row["kwargs"])
    if not ids or len(cast("list[object]", ids)) != len(kwargs):
        count = len(cast("list[object]", ids))
        raise DataError(
            f"{where}: {count} constraints in instruction_id_list, {len(kwargs)} in kwargs",
            hint="give at least one constraint, and one object of arguments for each ({} for none)",
        )
    if not all(isinstance(each, dict) for each in kwargs):
        raise DataError(
            f"{where}: kwargs must hold one object for each constraint",
            hint="write {} for a constraint without arguments",
        )
    if not str(row["prompt"]).strip():
        raise DataError(f"{where}: the prompt is blank", hint="give it a text, or drop the line")
    held = {"instruction_id_list": ids, "kwargs": kwargs}
    for one, given in zip(*_constraints(held), strict=True):
        try:
            describe(one, given)
        except DataError as error:
            raise DataError(f"{where}: {error}", hint=error.hint) from None
    return Example(str(row["key"]), str(row["prompt"]), fields=held)


def _constraints(fields: Mapping[str, object]) -> tuple[list[str], list[dict[str, object]]]:
    ids = cast("list[object]", fields.get("instruction_id_list") or [])
    kwargs = cast("list[dict[str, object]]", fields.get("kwargs") or [])
    return [str(one) for one in ids], kwargs


def _said(what: str, verdicts: Mapping[str, bool]) -> str:
    parts = list[str]()
    for kept, words in ((True, "keeps"), (False, "does not keep")):
        named = [f"- {constraint}" for constraint, held in verdicts.items() if held is kept]
        if named:
            parts.append("\n".join([f"{what} {words}:", *named]))
    return "\n".join(parts)
