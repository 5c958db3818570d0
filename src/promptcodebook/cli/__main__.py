"""`python -m promptcodebook.cli`."""

from promptcodebook.cli import main

if __name__ == "__main__":
    main()
