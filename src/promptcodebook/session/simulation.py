"""The simulated model in process: a world built from the run's own data, gold answers included."""

from __future__ import annotations

from collections.abc import Callable

from promptcodebook.data import Dataset
from promptcodebook.lm.base import LM
from promptcodebook.lm.spec import Spec

__all__ = ["simulated_factory"]


def simulated_factory(task: str, dataset: Dataset) -> Callable[[Spec], LM]:
    """Builds the model behind `simulated?...` when a spec asks for it."""

    def build(spec: Spec) -> LM:
        from promptcodebook.simulated.model import SimulatedLM
        from promptcodebook.simulated.parameters import SimulatedSettings
        from promptcodebook.simulated.world import build_world

        settings = SimulatedSettings.from_params(spec.params)
        examples = [*dataset.train, *dataset.val, *dataset.test]
        return SimulatedLM(build_world(task, examples, settings), settings)

    return build
