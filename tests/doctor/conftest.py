from __future__ import annotations

from tests.lm.conftest import server

__all__ = ["server"]
