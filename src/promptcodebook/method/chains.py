"""Chains that run side by side without a barrier between their stages."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

__all__ = ["all_of"]

_T = TypeVar("_T")


async def all_of(chains: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Every chain's result, in order.

    When one must stop, the others first bring home what they have already paid for; then the
    first error is raised.
    """
    results = await asyncio.gather(*chains, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [r for r in results if not isinstance(r, BaseException)]
