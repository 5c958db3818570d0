"""Scoring of IFBench's 58 and IFEval's 25 constraints, as odd as the public scorer is. Where that
raises an error, or a check takes too long, it is "not met". Broken patterns are text."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from promptcodebook.errors import DataError, did_you_mean
from promptcodebook.paper.tasks.ifbench import checks
from promptcodebook.paper.tasks.ifbench.language import (
    Arguments,
    InstructionCheck,
    Language,
    SplitText,
    read_arguments,
    read_instructions,
)

IFBENCH: Mapping[str, InstructionCheck] = read_instructions(checks.IFBENCH)
IFEVAL: Mapping[str, InstructionCheck] = read_instructions(checks.IFEVAL)

_REMEMBERED = 32  # analysed texts: the eight variants of a few examples

_FOLDERS = ("NLTK_DATA", "PCO_DATA")
_LOOSE_S = 4.0  # then no further variant is tried (texts of 100 kB)


@dataclass(frozen=True, slots=True)
class Grade:
    """Which instructions were followed, in their order; `timed_out` has the ids that took long."""

    strict: list[bool]
    loose: list[bool]
    timed_out: tuple[str, ...] = ()

    @property
    def strict_all(self) -> bool:
        return all(self.strict)

    @property
    def loose_all(self) -> bool:
        return all(self.loose)

    @property
    def loose_share(self) -> float:
        """Followed / number, loose: the example score; 1.0 without instructions."""
        return sum(self.loose) / len(self.loose) if self.loose else 1.0


def check(
    instruction_id: str,
    kwargs: Mapping[str, object] | None,
    prompt: str,
    response: str,
    *,
    language: Language | None = None,
) -> bool:
    """Whether the unchanged `response` follows one instruction; a blank one follows none. `prompt`
    is part of the scorers' common signature; no check looks at it. Raises DataError for an unknown
    id and for kwargs that do not fit it, and as `Language` does."""
    constraint, args = _read(instruction_id, kwargs)
    known = language or _default_language(*map(os.environ.get, _FOLDERS))
    try:
        return _met(constraint, args, response, known)
    except TimeoutError:
        return False


def grade(
    prompt: str,
    instruction_id_list: Sequence[str],
    kwargs: Sequence[Mapping[str, object] | None],
    response: str | None,
    *,
    language: Language | None = None,
) -> Grade:
    """Strict and loose verdicts on an example; without a response (None) nothing is followed.
    Loose: one of eight variants passes (first line, last line, both removed; "*" deleted). Raises
    as `check`, and DataError when the two lists differ in length."""
    if len(instruction_id_list) != len(kwargs):
        message = f"{len(instruction_id_list)} instruction ids but {len(kwargs)} kwargs"
        raise DataError(message, hint="pass one kwargs object (or null) per instruction")
    read = [_read(name, given) for name, given in zip(instruction_id_list, kwargs, strict=True)]
    known = language or _default_language(*map(os.environ.get, _FOLDERS))
    end = time.monotonic() + _LOOSE_S
    given = response or ""
    lines = given.split("\n")
    cut = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    starless = [variant.replace("*", "") for variant in (given, *cut)]
    first, *others = dict.fromkeys((given, *cut, *starless))
    strict, loose, late = list[bool](), list[bool](), list[str]()
    for name, (constraint, args) in zip(instruction_id_list, read, strict=True):
        met = loosely = False
        try:
            met = loosely = _met(constraint, args, first, known)
            for variant in () if met else others:
                if time.monotonic() > end:
                    raise TimeoutError("the loose variants took too long")
                loosely = loosely or _met(constraint, args, variant, known)
        except TimeoutError:
            late.append(name)
            loosely = met
        strict.append(met)
        loose.append(loosely)
    return Grade(strict, loose, tuple(late))


def describe(instruction_id: str, kwargs: Mapping[str, object] | None) -> str:
    """The instruction as a sentence of ours. Raises DataError as `check` does."""
    constraint, args = _read(instruction_id, kwargs)
    return constraint.says.format(**args.as_texts())


def _met(constraint: InstructionCheck, args: Arguments, value: str, language: Language) -> bool:
    return bool(value.strip()) and constraint.met(_analyse(value, language), args)


_analyse = lru_cache(_REMEMBERED)(SplitText)


def _read(
    instruction_id: str, kwargs: Mapping[str, object] | None
) -> tuple[InstructionCheck, Arguments]:
    constraint = IFBENCH.get(instruction_id) or IFEVAL.get(instruction_id)
    if constraint is None:
        known = [*IFBENCH, *IFEVAL]
        message = f"unknown instruction id {instruction_id!r}{did_you_mean(instruction_id, known)}"
        hint = "the ids are those of IFBENCH and IFEVAL in promptcodebook.tasks.ifbench.score"
        raise DataError(message, hint=hint)
    return constraint, read_arguments(constraint, kwargs or {})


@cache
def _default_language(*_folders: str | None) -> Language:
    return Language()
