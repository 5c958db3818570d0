"""`python -m promptcodebook.cli`."""

from __future__ import annotations

from promptcodebook.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
