"""AIME: competition problems with integer answers."""
