"""What a run will take, before anything is spent: calls, tokens and money, by role. Three dry runs
give the range: little, usual and much work. How many calls there are, how much the model writes and
how its tokenizer counts err independently; log errors add as squares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

from promptcodebook.assemble import OWN_LM, Plan, plan_run
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import shown_table, shown_text
from promptcodebook.base.units import count_text, money
from promptcodebook.calls import LM, ROLES, Role, Usage
from promptcodebook.config.loading import select_remark
from promptcodebook.data import Dataset, independent
from promptcodebook.errors import ConfigError
from promptcodebook.estimation.dry import (
    ANSWER,
    DryManner,
    DryWork,
    PlanScale,
    Work,
    dry_run,
    shorten_plan,
)
from promptcodebook.lm.budget import PriceTable
from promptcodebook.lm.spec import any_simulated, parse_spec
from promptcodebook.lm.wire import TOKENIZER
from promptcodebook.optimizers.fixed import SHORTLIST, has_best_fixed
from promptcodebook.optimizers.reserve import budget_remark
from promptcodebook.run.decision import verdict_remark
from promptcodebook.run.optimize import Choices, settings_of, sources_of
from promptcodebook.tasks.program import AgentProgram
from promptcodebook.types import Reward

LITTLE = DryManner(solved=0.75, blamed=0.0, reasked=0.0, refused=0.0, agent_calls=1, steady=True)
USUAL = DryManner(solved=0.5, blamed=0.5, reasked=0.02, refused=0.1, agent_calls=1)
MUCH = DryManner(solved=0.0, blamed=1.0, reasked=0.1, refused=0.5, agent_calls=5)
MANNERS = (LITTLE, USUAL, MUCH)

# The factor by which a tokenizer may count more or less than ours estimates.
OTHER_TOKENIZER = 4 / 3
OTHER_REPLIES = 2.5  # the factor by which a model may write more or less than is typical
OTHER_PROMPTS = 1.25  # how far prompts follow, which hold earlier replies beside what is given


@dataclass(frozen=True, slots=True)
class Range:
    """low <= expected <= high. Sums go value by value."""

    low: float = 0.0
    expected: float = 0.0
    high: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> Range:
        """Of little, usual and much work: little may well take more of one thing."""
        little, usual, much = values
        return cls(min(little, usual, much), usual, max(little, usual, much))

    @property
    def values(self) -> tuple[float, float, float]:
        return self.low, self.expected, self.high

    def text(self, show: Callable[[float], str]) -> str:
        return " / ".join(map(show, self.values))

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def rounded(self) -> Range:
        """Whole numbers, outwards."""
        return Range(self.low // 1, round(self.expected), -(-self.high // 1))

    def times(self, other: Range, *factors: float) -> Range:
        """The product; both, and `factors` of more or less, err independently."""
        expected = self.expected * other.expected
        if not expected:
            return Range(0.0, 0.0, self.high * other.high)
        up = (self.high / self.expected, other.high / other.expected, *factors)
        least = self.expected / self.low if self.low else math.inf
        down = (least, other.expected / other.low, *factors)
        below, above = (math.exp(math.hypot(*map(math.log, each))) for each in (down, up))
        return Range(expected / below, expected, expected * above)


@dataclass(frozen=True, slots=True)
class Share:
    """What one role takes, or all. `usd` is None where a price is unknown."""

    role: Role | Literal["total"]
    model: str
    calls: Range
    prompt_tokens: Range
    completion_tokens: Range
    usd: Range | None

    @property
    def tokens(self) -> Range:
        return self.prompt_tokens + self.completion_tokens

    def cells(self) -> tuple[str, ...]:
        """Role, model, calls, tokens and cost, each of the last three as low / expected / high."""
        calls = self.calls.text(lambda count: f"{count:,.0f}")
        cost = money(None) if self.usd is None else self.usd.text(money)
        return (self.role, self.model, calls, self.tokens.text(count_text), cost)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run will take.

    - `roles`: calls, tokens and US dollars of each role that the run calls, as ranges.
    - `total`: all together, narrower than the sum: what is uncertain of one weighs less on all.
    - `updates`: how many updates are planned.
    - `simulated`: whether a simulated model would answer.
    - `assumptions`: what the ranges assume, in sentences."""

    roles: tuple[Share, ...]
    total: Share
    updates: int
    simulated: bool
    assumptions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        calls, usd = self.total.calls, self.total.usd
        cost = "unknown" if usd is None else f"{usd.low:.2f}..{usd.high:.2f} USD"
        return f"Estimate({calls.low:.0f}..{calls.high:.0f} calls, cost {cost})"

    def _repr_html_(self) -> str:
        model = "simulated model, " if self.simulated else ""
        rows = [share.cells() for share in (*self.roles, self.total)]
        head = ("role", "model", "calls", "tokens", "cost")
        title = f"{model}{self.updates} updates; low / expected / high"
        shown = shown_table(title, head, rows)
        return f"<div>{shown}{shown_text('assumptions', chr(10).join(self.assumptions))}</div>"


def estimate(
    data: Dataset,
    reward: Reward | str | Mapping[str, Any],
    lm: str | LM = "",
    **choices: Unpack[Choices],
) -> Estimate:
    """Estimate calls, tokens and USD by role, low, expected and high: `pco estimate` from Python.

    The plan is simulated with dummy replies, and no model is asked.

    - `data`, `reward`, `lm` and all keywords: as in `optimize`.

    The result has `.roles` and `.total`; an unknown price is None, not 0.

    Raises ConfigError and DataError when `optimize` would."""
    verb = "estimate()"
    settings = settings_of(verb, reward, lm, choices)
    sources = sources_of(verb, data, reward, choices.get("executor"), lm)
    return estimate_plan(plan_run(settings, sources).require_training())


def estimate_plan(plan: Plan, short: Plan | None = None) -> Estimate:
    """What `pco train` would take; no model is asked. `short` is a shorter plan, simulated in its
    place. Raises what a run raises before its first call, and ConfigError for an optimizer that is
    not ours."""
    if plan.config.optimizer != "pco":
        message = f"only our own optimizer is estimated, and optimizer = {plan.config.optimizer!r}"
        raise ConfigError(message, hint="limit what it may spend, e.g. pco train --budget 500calls")
    for spec in map(plan.config.model_of, ROLES):
        if spec not in ("", OWN_LM):
            parse_spec(spec)  # or a ConfigError, as a run raises it
    stand_in = short or shorten_plan(plan)
    scale = PlanScale.between(plan, stand_in)

    async def dry_runs() -> list[DryWork]:
        return [scale.up(await dry_run(stand_in, manner)) for manner in MANNERS]

    little, usual, much = run_sync(dry_runs())
    sums = _Sums(plan, _with_tried(plan, little, usual, much))
    roles = tuple(sums.share(role, [role]) for role in sums.roles)
    simulated = any_simulated(share.model for share in roles)
    total = sums.share("total", sums.roles)
    made = Estimate(roles, total, scale.whole.updates, simulated)
    return replace(made, assumptions=tuple(_assumptions(plan, scale, made)))


def _with_tried(plan: Plan, little: DryWork, usual: DryWork, much: DryWork) -> list[DryWork]:
    """With what the row `best_fixed` may take, whose prompts are tried on all inputs. Little:
    without the composed ones, which may copy an input. Much: each prompt on its own input too."""
    if not has_best_fixed(plan.config):
        return [little, usual, much]
    key: tuple[str, Role] = ("validating", "executor")
    once = SHORTLIST * max(1, len(plan.task.program.stages))

    def change(works: DryWork, calls: float) -> DryWork:
        work = works.get(key, Work())
        if not work.calls:
            return works
        return {**works, key: work + work.times(max(-1.0, calls / work.calls))}

    found = usual.get(key, Work()).calls - much.get(key, Work()).calls
    more = once + max(0.0, found)
    return [change(little, -once * (len(plan.compared) - 1)), usual, change(much, more)]


class _Sums:
    """The works of little, usual and much, added up over some of the roles."""

    def __init__(self, plan: Plan, works: Sequence[DryWork]) -> None:
        asked = {role for work in works for _, role in work}
        self.roles: list[Role] = [role for role in ROLES if role in asked]
        self._config, self._works = plan.config, works
        self._prices = PriceTable(plan.config.prices)

    def share(self, name: Role | Literal["total"], roles: Sequence[Role]) -> Share:
        by_model: dict[str, list[Role]] = {}
        for role in roles:
            by_model.setdefault(self._config.model_of(role), []).append(role)
        calls, prompt, completion = self._amounts(roles)
        costs = [self._usd(model, asking) for model, asking in by_model.items()]
        usd = [cost for cost in costs if cost is not None]
        return Share(
            role=name,
            model=", ".join(by_model),
            calls=calls.rounded(),
            prompt_tokens=prompt.rounded(),
            completion_tokens=completion.rounded(),
            # A sum over the known prices alone would mislead.
            usd=sum(usd, Range()) if len(usd) == len(costs) else None,
        )

    def _amounts(self, roles: Sequence[Role]) -> tuple[Range, Range, Range]:
        """Calls, prompt and completion tokens; of a call the usual ones where little has none."""

        def total(what: str) -> Range:
            return Range.of(
                sum(getattr(done, what) for (_, role), done in work.items() if role in roles)
                for work in self._works
            )

        def tokens(what: str, other: float) -> Range:
            pairs = zip(total(what).values, calls.values, strict=True)
            each = [t / c if c else 0.0 for t, c in pairs]
            return calls.times(Range.of(one or each[1] for one in each), OTHER_TOKENIZER, other)

        calls = total("calls")
        prompt = tokens("prompt_tokens", OTHER_PROMPTS)
        return calls, prompt, tokens("completion_tokens", OTHER_REPLIES)

    def _usd(self, model: str, roles: Sequence[Role]) -> Range | None:
        _, prompt, completion = self._amounts(roles)
        costs = [
            self._prices.cost(model, Usage(1, round(p), round(c)))
            for p, c in zip(prompt.values, completion.values, strict=True)
        ]
        known = [cost for cost in costs if cost is not None]
        return Range(*known) if len(known) == len(costs) else None


def _assumptions(plan: Plan, scale: PlanScale, made: Estimate) -> Iterator[str]:
    config, whole, part = plan.config, scale.whole, scale.part

    def manners(share: str, factor: float = 1.0) -> str:
        return " / ".join(f"{factor * getattr(manner, share):g}" for manner in MANNERS)

    yield (
        f"{whole.updates} updates over {whole.rollouts} rollouts, {whole.routed} of them routed by "
        "the encoder"
    )
    few = verdict_remark(len(plan.judged), independent(plan.judged)) or budget_remark(plan)
    yield from filter(None, (select_remark(config), few))
    scaled = "" if part == whole else f", scaled up from {part.rollouts} training rollouts"
    yield f"the counts are from a dry run with dummy replies and rewards{scaled}"
    yield (
        f"low / expected / high: {manners('solved', 100)} % of the answers get the full reward, "
        f"and in the others {manners('blamed', 100)} % of the possible parts are blamed"
    )
    if plan.dataset.val and config.validation.every:
        yield "low: training ends as soon as validation.patience and target_score allow"
    yield (
        f"a typical answer has {ANSWER} tokens, or max_tokens if that is less. Replies can be "
        f"{OTHER_REPLIES:g} times longer or shorter, and prompts {OTHER_PROMPTS:g} times. A "
        "model that writes out its thinking may exceed the high estimate"
    )
    yield f"tokens are an {TOKENIZER}; the model's tokenizer may count a third more or less"
    yield "no reply comes from the cache, and no call fails"
    if isinstance(plan.task.program, AgentProgram) and not plan.task.program.stages:
        yield (
            f"your executor is assumed to make {USUAL.agent_calls} call per answer "
            f"({MUCH.agent_calls} in the high estimate)"
        )
    unknown = sorted({share.model for share in made.roles if share.usd is None})
    if unknown:
        yield f'no price is known for {", ".join(unknown)}: add [prices."SPEC"] to pco.toml'
    for name in ("calls", "tokens", "usd"):
        limit, need = getattr(config.budget, name), getattr(made.total, name)
        if limit is not None and need is not None and limit < need.expected:
            yield (
                f"budget.{name} = {limit:g} is below the {need.expected:g} expected: the run "
                "will stop there, and can be resumed"
            )
