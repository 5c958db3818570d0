"""The same worlds as the simulated model's own tests have."""

from tests.simulated.conftest import examples, world

__all__ = ["examples", "world"]
