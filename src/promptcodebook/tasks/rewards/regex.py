"""1 iff a regular expression matches the answer.

A pattern with quantifiers can take exponential time on an unlucky answer, and Python's engine
cannot be interrupted, so such a pattern runs in a worker process that is killed at its limit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from promptcodebook.errors import ConfigError
from promptcodebook.tasks.rewards.text import quoted
from promptcodebook.tasks.worker import shared_worker
from promptcodebook.types import Example, Score

__all__ = ["Regex", "matches"]

_QUANTIFIERS = frozenset("*+?{")


def matches(pattern: str, flags: int, full: bool, text: str) -> bool:
    """Whether `pattern` is found in `text`, or is all of it (`full`)."""
    return (re.fullmatch if full else re.search)(pattern, text, flags) is not None


@dataclass(frozen=True, slots=True)
class Regex:
    """`pattern` is searched for, or must match the whole stripped answer (`full`).

    `seconds` limits one match; an answer on which it is reached counts as not matching.
    """

    pattern: str
    full: bool = False
    ignore_case: bool = False
    seconds: float = 2.0

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern, self._flags)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(
                f"the pattern {quoted(self.pattern)} of the regex reward is not valid: {error}",
                hint="test it with python -c 'import re; re.compile(...)'",
            ) from None

    @property
    def _flags(self) -> int:
        return int(re.IGNORECASE) if self.ignore_case else 0

    async def __call__(self, example: Example, output: str) -> Score:
        text = output.strip() if self.full else output
        found = await self._found(text)
        whole = "as a whole " if self.full else ""
        if found is None:
            return Score(
                0.0,
                f"The pattern {quoted(self.pattern)} gave no result on the answer within "
                f"{self.seconds:g} s; this counts as no match.",
            )
        said = "matches" if found else "does not match"
        return Score(float(found), f"The answer {whole}{said} the pattern {quoted(self.pattern)}.")

    async def _found(self, text: str) -> bool | None:
        """True, False, or None when the limit was reached."""
        if not _QUANTIFIERS & set(self.pattern):
            return matches(self.pattern, self._flags, self.full, text)
        result = await shared_worker().acall(
            f"{__name__}:matches", (self.pattern, self._flags, self.full, text), self.seconds
        )
        if result.error:
            raise RuntimeError(f"the regex process failed: {result.error}")
        return None if result.timed_out else result.value is True
