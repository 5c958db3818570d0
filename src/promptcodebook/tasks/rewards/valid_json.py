"""1 iff the whole answer is valid JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NoReturn

from promptcodebook.tasks.rewards.text import without_fence
from promptcodebook.types import Example, Score

__all__ = ["ValidJson", "parsed_json"]


@dataclass(frozen=True, slots=True)
class ValidJson:
    """Strict JSON (no NaN); `fenced` allows one code fence around it; `keys` must be there."""

    fenced: bool = False
    keys: tuple[str, ...] = ()

    def __call__(self, example: Example, output: str) -> Score:
        try:
            value = parsed_json(output, fenced=self.fenced)
        except ValueError as error:
            return Score(0.0, f"The answer is not valid JSON: {error}.")
        if not self.keys:
            return Score(1.0, "The answer is valid JSON.")
        if not isinstance(value, dict):
            return Score(0.0, "The answer is valid JSON, but not an object.")
        missing = [key for key in self.keys if key not in value]
        if missing:
            return Score(0.0, f"The JSON object lacks the keys {', '.join(missing)}.")
        return Score(1.0, "The answer is a JSON object with all keys.")


def parsed_json(text: str, *, fenced: bool) -> object:
    """The value that the text is the JSON of; ValueError says why it is none."""
    try:
        return json.loads(without_fence(text) if fenced else text, parse_constant=_refused)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
