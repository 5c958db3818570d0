"""One run from its first call to its verdict."""
