"""What Algorithm 1 carries from one update to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from promptcodebook.method.encoder import Standing
from promptcodebook.types import Parameters, Step, Trace

__all__ = ["State"]


@dataclass(frozen=True, slots=True)
class State:
    """Θ and the routing statistics; `step` is the index of the next update."""

    step: int
    parameters: Parameters
    standing: Standing

    @classmethod
    def first(cls, parameters: Parameters) -> State:
        """Before the first step: Θ as initialised, r̄_k = 0."""
        return cls(0, parameters, Standing.fresh(len(parameters.codebook)))

    @classmethod
    def after(cls, step: Step) -> State:
        """The state that a stored step left behind."""
        return cls(step.index + 1, step.parameters, Standing(step.ema, step.success, step.selected))

    def updated(self, parameters: Parameters, traces: Sequence[Trace], alpha: float) -> State:
        """For k in z: r̄_k <- (1-α) r̄_k + α (r - ρ), example by example in batch order.

        A failed rollout joins neither EMA (method decision 15); its selection is not counted.
        """
        ema = list(self.standing.ema)
        success = list(self.standing.success)
        selected = list(self.standing.selected)
        for trace in traces:
            if trace.unit is None or trace.rollout.route is None:
                continue
            for k in trace.rollout.route.indices:
                ema[k] += alpha * (trace.unit - trace.penalty - ema[k])
                success[k] += alpha * (trace.unit - success[k])
                selected[k] += 1
        standing = Standing(tuple(ema), tuple(success), tuple(selected))
        return replace(self, step=self.step + 1, parameters=parameters, standing=standing)
