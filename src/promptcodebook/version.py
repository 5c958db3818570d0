"""The installed version, looked up when asked for."""

from __future__ import annotations

__all__ = ["version"]


def version() -> str:
    """The distribution's version, e.g. '0.1.0'."""
    from importlib.metadata import version as installed

    return installed("promptcodebook")
