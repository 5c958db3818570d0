"""Chains that run side by side without a barrier between their stages."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from promptcodebook.errors import LMError

__all__ = ["all_of"]

_T = TypeVar("_T")


async def all_of(chains: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Every chain's result, in order.

    When one must stop, the others first bring home what they have already paid for, and no call is
    left running; then the first error is raised, one that ends the run before a model's.
    """
    results = await asyncio.gather(*chains, return_exceptions=True)
    errors = [r for r in results if isinstance(r, BaseException)]
    if errors:
        raise next((e for e in errors if not isinstance(e, LMError)), errors[0])
    return [r for r in results if not isinstance(r, BaseException)]
