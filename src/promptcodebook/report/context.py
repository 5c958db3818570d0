"""What every section of a report may need to know about the run, read once; what a section is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from markupsafe import Markup

from promptcodebook.assemble import OWN_LM
from promptcodebook.base.text import shell, shorten
from promptcodebook.base.units import count_text, duration, lost_text, money, number, spent_parts
from promptcodebook.calls import Limits, Role, Usage
from promptcodebook.config.loading import default_tree
from promptcodebook.method.state import State
from promptcodebook.policy.references import Best, kept_state
from promptcodebook.report.pages import MISSING, Chart, Picture, draw, render
from promptcodebook.report.private import withhold_ending
from promptcodebook.store.events import Event, RunState
from promptcodebook.store.header import Header, specs_in
from promptcodebook.store.lock import holder
from promptcodebook.store.run import RunStore
from promptcodebook.types import Codebook, Example

_TITLE, _OPENING = 120, 20  # characters of an input that call an example; fewest left out of it
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")
_ENDED = {
    "finished": "finished",
    "early_stop": "stopped early: no further gain",
    "target": "stopped early: the target score was reached",
    "budget": "stopped at its budget, can be resumed",
    "interrupted": "interrupted, can be resumed",
    "failed": "failed, can be resumed",
}


@dataclass(frozen=True)
class Context:
    """The run as a whole: header, state, spend and counts. `deployed` is the state that is used of
    it, None without a codebook, and `deployed_as` how that was chosen. `inputs` are texts by
    example id, `defaults` the configuration that sets nothing; `lost` is the most that attempts
    lost to failures can have cost, which is not part of `usage`; `path` is its folder; `running` =
    it was being written when this was read."""

    header: Header
    state: RunState
    deployed: State | None
    deployed_as: Best
    usage: Mapping[Role, Usage]
    tallies: Mapping[str, int]
    elapsed_s: float
    examples: Mapping[str, Example]
    defaults: Mapping[str, Any]
    lost: Usage
    path: Path
    running: bool = False

    @classmethod
    def of(cls, store: RunStore, examples: Mapping[str, Example]) -> Context:
        """Reads all but the steps."""
        state, private = store.outline(), store.header.private
        if private:
            state = withhold_ending(state, store.header.id)
        trained = state.parameters is not None
        deployed, deployed_as = kept_state(store) if trained else (None, Best(None, -1))
        return cls(
            header=store.header,
            state=state,
            deployed=deployed,
            deployed_as=deployed_as,
            usage=store.usage(),
            tallies=store.tallies(),
            elapsed_s=store.elapsed_s,
            examples=examples,
            defaults=default_tree(store.header.settings),
            lost=sum(store.lost().values(), Usage()),
            path=store.path,
            running=holder(store.path) is not None,
        )

    def input_of(self, name: str) -> str:
        """The input of an example; '' where it is not at hand."""
        return self.examples[name].input if name in self.examples else ""

    def reference_of(self, name: str) -> str:
        """The reference of an example; '' where it has none."""
        return (self.examples[name].target or "") if name in self.examples else ""

    def title_of(self, name: str) -> str:
        """What an example is called: the beginning of its input without what all inputs begin with,
        or its id."""
        given = self.input_of(name)
        text = " ".join(given.removeprefix(self._opening).split()) or name
        text = f"… {text}" if self._opening and given else text
        return text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…"

    @cached_property
    def _opening(self) -> str:
        """The words with which a template begins every input; '' where they are few."""
        texts = [example.input for example in self.examples.values()]
        if len(texts) < 2:
            return ""
        alike = takewhile(
            lambda pair: pair[0] == pair[1], zip(min(texts), max(texts), strict=False)
        )
        shared = "".join(letter for letter, _ in alike)
        words = shared[: shared.rfind(" ") + 1]
        return words if len(words) >= _OPENING else ""

    def setting(self, key: str) -> Any:
        """A dotted key of the run's configuration; the default where the run does not have it. The
        configuration is read as it was stored and never checked: another version wrote it."""
        for tree in (self.header.config, self.defaults):
            here: Any = tree
            for name in key.split("."):
                if not isinstance(here, Mapping) or name not in here:
                    break
                here = cast("Mapping[str, Any]", here)[name]
            else:
                return here
        return None

    @property
    def title(self) -> str:
        """What the run is about: its task, or its data."""
        return self.header.task or "own data"

    @property
    def spent(self) -> Usage:
        """All that was paid, or may have been."""
        return sum(self.usage.values(), self.lost)

    @property
    def past_meter(self) -> bool:
        """Whether the judged program asked models by itself, which nothing counted."""
        rows = self.state.conclusion.rows if self.state.conclusion else ()
        return not all(row.get("metered", True) for row in rows)

    @property
    def limits(self) -> Limits:
        return Limits(*(self.setting(f"budget.{name}") for name in ("calls", "tokens", "usd")))

    @property
    def planned(self) -> int | None:
        """Steps that the run was to take; None where its settings and its header do not say."""
        epochs, each = self.setting("update.epochs"), self.setting("update.steps_per_epoch")
        if self.setting("optimizer") != "pco" or self.setting("update.mode") != "minibatch":
            return None
        if each == "all":
            size = self.header.sizes.get("train")
            each = size and math.ceil(size / int(self.setting("update.batch_size")))
        return int(epochs) * int(each) if each else None

    @property
    def next(self) -> str:
        """What to type to resume the run; '' where it has ended or is running."""
        if self.state.hint or self.state.ended is not None or self.running:
            return self.state.hint
        return f"pco train --resume {shell(self.header.id)}"

    @property
    def seed(self) -> int:
        return int(self.setting("seed"))

    @property
    def reward_range(self) -> tuple[float, float]:
        low, high = self.setting("reward_range")
        return float(low), float(high)

    @property
    def own_words(self) -> tuple[str, str]:
        """The base prompt and the output format: what prompts hold beside instincts."""
        return str(self.setting("base_prompt") or ""), str(self.setting("output_format") or "")

    @property
    def codebook(self) -> Codebook:
        """The deployed one; empty where the run has none."""
        return self.deployed.parameters.codebook if self.deployed else Codebook(())

    @property
    def models(self) -> dict[Role, str]:
        """The model of each role; '' is the user's own LM object."""
        specs = specs_in(self.header.config).items()
        return {r: "" if spec == OWN_LM else without_credentials(spec) for r, spec in specs}

    @property
    def simulated(self) -> bool:
        return self.header.simulated

    @property
    def source(self) -> str:
        """Whose numbers these are, in the words of an exported file."""
        return f"{'simulated, ' if self.simulated else ''}run {self.header.id}"

    def draw(self, chart: Chart) -> Picture | None:
        return draw(chart, "simulated" if self.simulated else "")


def without_credentials(text: str) -> str:
    """The text without a name and password before the host of an address."""
    return _CREDENTIALS.sub("", text)


def step_name(index: int) -> str:
    """Steps count from 1 where people see them; -1 is the untrained policy."""
    return "untrained" if index < 0 else f"step {index + 1}"


def state_name(index: int) -> str:
    """The state that a step left behind."""
    return "the untrained state" if index < 0 else f"the state after {step_name(index)}"


class ReportSection:
    """A part of the report: it takes every event once, in order, and then shows what it kept, which
    is no more of a long run than of a short one. Its `anchor` names its template. A `folded` one is
    a line that opens."""

    title, anchor, folded = "", "", False

    def __init__(self, context: Context) -> None:
        self.context = context

    def add(self, event: Event) -> None:
        """One event, with its traces and full rollouts."""

    def values(self) -> Mapping[str, Any] | None:
        """What its template is filled with, beside the context; None = it has nothing to show."""
        return {}

    def render(self) -> Markup:
        """Its markup; '' where it has nothing to show."""
        values, template = self.values(), f"report/templates/{self.anchor}.html.jinja"
        return Markup() if values is None else render(template, context=self.context, **values)


def render_sections(
    sections: Sequence[ReportSection], events: Iterable[Event]
) -> list[tuple[ReportSection, Markup]]:
    """Every event to every section, once; then those that have something to show."""
    for event in events:
        for section in sections:
            section.add(event)
    return [(section, shown) for section in sections if (shown := section.render())]


def facts(context: Context) -> list[tuple[str, str | int]]:
    """The run in a few words and figures."""
    header, state, deployed = context.header, context.state, context.deployed
    best, limits = state.best, context.limits
    score = number(best.score if best else None, missing=MISSING)
    sizes = ", ".join(f"{n:,} {split}" for split, n in header.sizes.items())
    done, planned = state.step + 1, context.planned
    budget = [] if limits.calls is None else [f"{limits.calls:,} calls"]
    budget += [] if limits.tokens is None else [f"{count_text(limits.tokens)} tokens"]
    budget += [] if limits.usd is None else [money(limits.usd)]
    lost = f" (of which {lost_text(context.lost)})" if context.lost.calls else ""
    try:
        started = f"{datetime.fromisoformat(header.created):%Y-%m-%d %H:%M %Z}".strip()
    except ValueError:
        started = header.created
    sessions = f", in {state.resumes + 1} sessions" if state.resumes else ""
    ended = "not yet: it is running" if context.running else "no: it was cut off"
    if state.ended is not None:
        detail = f" ({shorten(state.detail, 300)})" if state.detail else ""
        ended = f"{_ENDED[state.ended]}{detail}"
    return [
        ("task", context.title),
        ("model", _models(context)),
        ("preset", str(context.setting("preset"))),
        ("seed", context.seed),
        ("codebook", f"K = {len(context.codebook)}, S = {context.setting('select')}"),
        ("data", sizes or "sizes not recorded"),
        ("steps", f"{done:,}" if planned is None else f"{done:,} of {planned:,}"),
        ("best validation", f"{score} at {step_name(best.step)}" if best else "none"),
        ("deployed", state_name(context.deployed_as.step) if deployed else "nothing"),
        ("budget", ", ".join(budget) or "no limit"),
        ("spent", ", ".join(spent_parts(context.spent, limits, past=context.past_meter)) + lost),
        ("started", started),
        ("ran for", f"{duration(context.elapsed_s)}{sessions}"),
        ("ended", ended),
        *([("next", context.next)] if context.next else []),
        ("written by", f"promptcodebook {header.version}"),
    ]


def _models(context: Context) -> str:
    """The one that all roles ask; else the executor's, and who asks another."""
    asked: dict[str, list[str]] = {}
    for role, name in context.models.items():
        asked.setdefault(name or "your own model", []).append(role)
    own = next(name for name, roles in asked.items() if "executor" in roles)
    if len(asked) == 1:
        return own
    others = (f"{', '.join(roles)}: {name}" for name, roles in asked.items() if name != own)
    return "; ".join([f"executor: {own}", *others])
