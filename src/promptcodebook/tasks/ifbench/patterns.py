"""Regular expressions that come from data: keywords, markers, section names.

IFEval uses its keywords as patterns, unescaped. One with a repetition or an alternative can take
exponential time, which nothing in a thread can stop, so it runs in a worker process that is
killed at its limit. The rest, nearly all, run here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from promptcodebook.tasks.worker import Worker, shared_worker

__all__ = ["Patterns", "count_each"]

_LIMIT_S = 1.5
_HARMLESS = re.compile(r"[^*+?{|]{0,200}")
_HERE = f"{__name__}:count_each"


class Patterns:
    """Counts matches of untrusted patterns; the worker is started when the first one needs it."""

    def __init__(self, worker: Worker | None = None, limit_s: float = _LIMIT_S) -> None:
        self._worker = worker
        self._limit_s = limit_s

    def counts(
        self,
        patterns: Sequence[str],
        text: str,
        *,
        prefix: str = "",
        suffix: str = "",
        ignore_case: bool = True,
    ) -> list[int]:
        """For each pattern, the number of matches of prefix + pattern + suffix.

        A pattern that is no regular expression is looked for literally (the public scorer
        raises). Raises TimeoutError when the whole takes longer than the limit.
        """
        if all(_HARMLESS.fullmatch(pattern) for pattern in patterns):
            return count_each(list(patterns), text, (prefix, suffix), ignore_case)
        worker = self._worker or shared_worker()
        args = [list(patterns), text, (prefix, suffix), ignore_case]
        result = worker.call(_HERE, args, self._limit_s)
        if not result.done:
            raise TimeoutError("a pattern took too long")
        return cast("list[int]", result.value)


def count_each(
    patterns: list[str], text: str, around: tuple[str, str], ignore_case: bool
) -> list[int]:
    """The matches of each pattern between `around`'s two; runs in the worker too."""
    flags = re.IGNORECASE if ignore_case else re.NOFLAG
    return [
        sum(1 for _ in _compiled(pattern, around, flags).finditer(text)) for pattern in patterns
    ]


def _compiled(pattern: str, around: tuple[str, str], flags: re.RegexFlag) -> re.Pattern[str]:
    before, after = around
    try:
        return re.compile(before + pattern + after, flags)
    except (re.error, RecursionError, OverflowError):
        return re.compile(before + re.escape(pattern) + after, flags)
