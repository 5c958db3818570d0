"""Sends each request to the endpoint its model names."""

from __future__ import annotations

from collections.abc import Mapping

from promptcodebook.errors import ConfigError
from promptcodebook.lm.base import LM, Reply, Request

__all__ = ["Dispatch"]


class Dispatch:
    """An LM over several, by `request.model` (a full spec)."""

    def __init__(self, table: Mapping[str, LM]) -> None:
        self._table = dict(table)

    async def __call__(self, request: Request) -> Reply:
        lm = self._table.get(request.model)
        if lm is None:
            raise ConfigError(
                f"no endpoint is connected for model {request.model!r} (role {request.role})",
                hint=f"connected: {', '.join(self._table) or 'none'}",
            )
        return await lm(request)
