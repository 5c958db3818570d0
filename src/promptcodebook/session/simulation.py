"""The simulated model in process: a world built from the run's own data, gold answers included."""

from __future__ import annotations

from collections.abc import Callable

from promptcodebook.data import Dataset
from promptcodebook.lm.base import LM
from promptcodebook.lm.spec import Spec
from promptcodebook.simulated.model import SimulatedLM
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.world import World, build_world

__all__ = ["simulated_factory", "simulated_world"]


def simulated_world(task: str, dataset: Dataset, spec: Spec) -> World:
    """The world that a `simulated?...` spec asks for."""
    examples = [*dataset.train, *dataset.val, *dataset.test]
    return build_world(task, examples, SimulatedSettings.from_params(spec.params))


def simulated_factory(task: str, dataset: Dataset) -> Callable[[Spec], LM]:
    """Builds the model behind a spec when one asks for it."""

    def build(spec: Spec) -> LM:
        settings = SimulatedSettings.from_params(spec.params)
        return SimulatedLM(simulated_world(task, dataset, spec), settings)

    return build
