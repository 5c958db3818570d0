"""What a run will take, before anything is spent: its plan counted, its prompts measured.

Exact are the schedule, which examples explore (the draws are keyed), and what validation and the
verdict evaluate. Ranges are how many examples go unsolved, how many variables are rewritten, how
long texts grow and replies are, and how the model's tokenizer differs from our estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from promptcodebook.config import Budget
from promptcodebook.lm.prices import PriceTable
from promptcodebook.lm.tokens import TOKENIZER
from promptcodebook.session.estimate_calls import CallCounts, Kind, counted_calls
from promptcodebook.session.estimate_lengths import Lengths, Texts
from promptcodebook.session.models import any_simulated, specs_of
from promptcodebook.session.plan import RunPlan
from promptcodebook.session.span import Span
from promptcodebook.types import ROLES, Parameters, Role, Usage

__all__ = ["Estimate", "RoleEstimate", "estimate"]

ROLE_OF: Mapping[Kind, Role] = {
    "route": "encoder",
    "compose": "generator",
    "execute": "executor",
    "execute present": "executor",
    "execute concat": "executor",
    "outside": "untrusted",
    "judge": "judge",
    "critique": "critic",
    "own gradient": "critic",
    "attribute": "attribution",
    "rewrite instinct": "updater",
    "rewrite directive": "updater",
    "first codebook": "updater",
}


@dataclass(frozen=True, slots=True)
class RoleEstimate:
    """One role's share; `usd` is None where the model's price is unknown."""

    role: Role
    model: str
    calls: Span
    prompt_tokens: Span
    completion_tokens: Span
    usd: Span | None

    @property
    def tokens(self) -> Span:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Estimate:
    """All roles that the run calls, what it plans, and what the ranges assume."""

    roles: tuple[RoleEstimate, ...]
    updates: int
    simulated: bool
    assumptions: tuple[str, ...]

    @property
    def calls(self) -> Span:
        return sum((r.calls for r in self.roles), Span())

    @property
    def tokens(self) -> Span:
        return sum((r.tokens for r in self.roles), Span())

    @property
    def usd(self) -> Span | None:
        """None when any role's price is unknown: a sum over the others would mislead."""
        known = [r.usd for r in self.roles if r.usd is not None]
        return sum(known, Span()) if len(known) == len(self.roles) else None


def estimate(plan: RunPlan, parameters: Parameters) -> Estimate:
    """Calls, tokens and money by role for the plan, from its first codebook on.

    Raises ConfigError when a role has no model.
    """
    config = plan.config
    specs_of(config)
    counts = counted_calls(plan)
    lengths = Lengths(config, Texts.of(plan, parameters))
    prices = PriceTable(config.prices)
    by_role = [_role(role, plan, counts, lengths, prices) for role in ROLES]
    roles = tuple(r for r in by_role if r.calls.high > 0)
    made = Estimate(roles, counts.updates, any_simulated(r.model for r in roles), ())
    said = (*counts.assumptions, *_assumed(made), *_budget(made, config.budget))
    return Estimate(roles, counts.updates, made.simulated, said)


def _role(
    role: Role, plan: RunPlan, counts: CallCounts, lengths: Lengths, prices: PriceTable
) -> RoleEstimate:
    settings = plan.config.roles.get(role)
    model = (settings.model if settings is not None else None) or plan.config.lm
    kinds: list[Kind] = [
        kind for kind, name in ROLE_OF.items() if name == role and kind in counts.calls
    ]
    calls = _total(counts.calls[k] for k in kinds)
    prompt = _total(counts.calls[k] * lengths.prompt(k) for k in kinds)
    completion = _total(counts.calls[k] * lengths.completion(k) for k in kinds)
    usd = _money(prices, model, prompt, completion)
    return RoleEstimate(role, model, calls.rounded(), prompt.rounded(), completion.rounded(), usd)


def _total(spans: Iterable[Span]) -> Span:
    return sum(spans, Span())


def _money(prices: PriceTable, model: str, prompt: Span, completion: Span) -> Span | None:
    pairs = zip(prompt.values, completion.values, strict=True)
    costs = [prices.cost(model, Usage(1, round(p), round(c))) for p, c in pairs]
    low, expected, high = costs
    if low is None or expected is None or high is None:
        return None
    return Span(low, expected, high)


def _assumed(made: Estimate) -> list[str]:
    unknown = sorted({r.model for r in made.roles if r.usd is None})
    said = [
        f"tokens are an {TOKENIZER}, taken a third lower and half higher for other tokenizers",
        "high: executor replies at their length cap; a model that thinks aloud may pass the other "
        "roles' high, up to roles.ROLE.max_tokens",
        "nothing is taken from the reply cache; no call fails",
    ]
    if unknown:
        said.append(f'no price is known for {", ".join(unknown)}: add [prices."SPEC"] to pco.toml')
    return said


def _budget(made: Estimate, budget: Budget) -> list[str]:
    usd = made.usd
    limits: list[tuple[str, float | None, float | None]] = [
        ("calls", budget.calls, made.calls.expected),
        ("tokens", budget.tokens, made.tokens.expected),
        ("usd", budget.usd, usd.expected if usd is not None else None),
    ]
    return [
        f"budget.{name} = {limit:g} lies below the {need:g} expected: the run will stop there, "
        "and can be resumed"
        for name, limit, need in limits
        if limit is not None and need is not None and limit < need
    ]
