"""The simulated model: an honest behavioural model of every role, for tests and the demo.

It proves that the machinery works, never that a method beats another on real models.
Import what you need from the modules; nothing heavy is imported here.
"""

from promptcodebook.simulated.parameters import SimulatedSettings

__all__ = ["SimulatedSettings"]
