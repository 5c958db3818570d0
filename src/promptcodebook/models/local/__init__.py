"""Engines: models with learned weights that run in this process."""
