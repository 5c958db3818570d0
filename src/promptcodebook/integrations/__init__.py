"""Other libraries' programs under our policies: DSPy and gepa, each imported by its own module."""
