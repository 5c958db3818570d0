"""`pco`: the commands by topic, and the views beside them; the only room that prints."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The console script."""
    from promptcodebook.cli.app import run

    run()
