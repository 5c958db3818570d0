from __future__ import annotations

from tests.build.server import server

__all__ = ["server"]
