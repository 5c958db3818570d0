"""Prompts with verifiable constraints, ours: the demo's task."""
