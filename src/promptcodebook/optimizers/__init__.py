"""Optimizers: ours, the fixed prompts it is measured against, and the Protocol they share."""
