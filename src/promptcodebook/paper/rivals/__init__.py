"""Optimizers of others, on the same ground."""
