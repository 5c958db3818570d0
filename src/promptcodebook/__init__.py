"""Prompt Codebook Optimization."""
