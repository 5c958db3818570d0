"""`python -m promptcodebook.cli`."""

from __future__ import annotations

from promptcodebook.cli import main

if __name__ == "__main__":
    main()
