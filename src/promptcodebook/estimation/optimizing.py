"""`pco.estimate`: what `optimize` with the same keywords would take, before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Unpack

from promptcodebook.assemble import plan_run
from promptcodebook.calls import LM
from promptcodebook.data import Dataset
from promptcodebook.errors import ConfigError
from promptcodebook.estimation.estimate import Estimate
from promptcodebook.estimation.estimate import estimate as estimate_plan
from promptcodebook.lm.stack import specs_of
from promptcodebook.run.optimize import Choices, settings_of, sources_of
from promptcodebook.types import Reward

_VERB = "estimate()"


def estimate(
    data: Dataset,
    reward: Reward | str | Mapping[str, Any],
    lm: str | LM = "",
    *,
    seconds_per_call: float | None = None,
    **choices: Unpack[Choices],
) -> Estimate:
    """Calls, tokens and USD by role, low, expected and high: `pco estimate` from Python.

    The keywords are those of `optimize`. The plan is simulated with dummy replies, and no model is
    asked. An unknown price is None, not 0. The time is known where `seconds_per_call` is.
    Raises ConfigError and DataError as `optimize` would.
    """
    settings = settings_of(_VERB, reward, lm, choices)
    if not (seconds_per_call is None or (isfinite(seconds_per_call) and seconds_per_call >= 0)):
        raise ConfigError(
            f"{_VERB}: a call cannot take {seconds_per_call:g} seconds",
            hint="seconds_per_call is 0 or more, or None where it is unknown",
        )
    plan = plan_run(
        settings, sources_of(_VERB, data, reward, choices.get("executor"), lm)
    ).require_training()
    seconds = dict.fromkeys(specs_of(plan.config), seconds_per_call) if seconds_per_call else {}
    return estimate_plan(plan, seconds)
