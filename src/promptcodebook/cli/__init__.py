"""`pco`: one file per command; the only place that prints."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The console script."""
    from promptcodebook.cli.app import run

    run()
