"""A step: what one update of Algorithm 1 tried, what it rewrote, and what it left behind."""

from __future__ import annotations

from dataclasses import dataclass

from promptcodebook.types import Failure, Origin, Parameters, Ranking, Trace, Variable


@dataclass(frozen=True, slots=True)
class Refused:
    """A reply that was no rewrite, and why; another was asked for."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One LLM_upd(v, g): kept, or refused and why; `failure` where the updater gave no text.

    `earlier` is the reply before `after`, where that was refused and one more was asked for;
    `origin` is what asked for the text: a gradient (of a text called harmful: "safety"), or what
    gives its `reason` for what is kept too: the maintenance of the codebook, and the trial of θ,
    which brings an earlier one back.
    """

    variable: Variable
    before: str
    after: str
    gradient: str
    kept: bool
    reason: str = ""
    failure: Failure | None = None
    earlier: Refused | None = None
    origin: Origin = "gradient"


@dataclass(frozen=True, slots=True)
class ThetaTrial:
    """A rewritten θ on trial: the last that passed, the share of routes that fell back with that
    when it was rewritten, and the routes that the new one has made, with how many fell back."""

    before: str
    share_before: float = 0.0
    routed: int = 0
    fell: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One update of Algorithm 1: what was tried, what was rewritten, and the state after it.

    `ema` is r̄ (of r - ρ), `success` the corrected EMA of r, `evidence` its weight (() = a run of
    version 0.1), `selected` the cumulative selection counts; all have length K. `reverted` are the
    variables whose rewrite passed every check and was taken back by `update.accept`. `ranking` is
    what the router has learned from outcomes by now (None = it does not); `harmful` the texts that
    verdicts called so by now; `trial` is θ's, where it is on trial.
    """

    index: int
    epoch: int
    epsilon: float
    traces: tuple[Trace, ...]
    rewrites: tuple[Rewrite, ...]
    parameters: Parameters
    ema: tuple[float, ...]
    success: tuple[float, ...]
    selected: tuple[int, ...]
    reverted: tuple[Variable, ...] = ()
    evidence: tuple[float, ...] = ()
    ranking: Ranking | None = None
    harmful: tuple[str, ...] = ()
    trial: ThetaTrial | None = None
