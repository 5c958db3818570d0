"""The simulated model: a test instrument (docs/simulated.md). Nothing heavy is imported here."""
