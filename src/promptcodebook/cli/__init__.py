"""`pco`: the commands by topic, and their views; the only package that prints."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The console script; the exit code says how it went (0, 1, 2, 3 or 130)."""
    import sys

    try:
        from promptcodebook.base.signals import stop_signals

        with stop_signals():  # signals count while modules are imported, too
            from promptcodebook.cli.app import guard

            code = guard()
    except KeyboardInterrupt:
        code = 130
        print("pco: interrupted", file=sys.stderr)
    sys.exit(code)
