"""What every section of a report may need to know about the run, read once; what a section is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from markupsafe import Markup

from promptcodebook.assemble import OWN_LM
from promptcodebook.calls import Limits, Role, Usage
from promptcodebook.config.loading import default_tree
from promptcodebook.method.state import State
from promptcodebook.optimizers.fixed import UNTRAINED
from promptcodebook.policy.references import Best, kept_state
from promptcodebook.report.charts import Chart, draw
from promptcodebook.report.pages import Picture, render
from promptcodebook.report.private import withhold_ending
from promptcodebook.store.events import Event, RunState
from promptcodebook.store.header import Header, specs_in
from promptcodebook.store.lock import holder
from promptcodebook.store.run import RunStore
from promptcodebook.types import Codebook, Rollout

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class DeployedState:
    """The state that is used of the run, as far as it has come."""

    state: State
    best: Best

    @property
    def step(self) -> int:
        """The step that left it behind; -1 = untrained."""
        return self.best.step


@dataclass(frozen=True)
class Context:
    """The run as a whole: header, state, spend and counts; `deployed` is None without a codebook.

    `inputs` are texts by example id, `defaults` the configuration that sets nothing; `lost` is the
    most that attempts lost to failures can have cost, which is not part of `usage`; `running` = it
    was being written when this was read.
    """

    header: Header
    state: RunState
    deployed: DeployedState | None
    usage: Mapping[Role, Usage]
    tallies: Mapping[str, int]
    elapsed_s: float
    inputs: Mapping[str, str]
    defaults: Mapping[str, Any]
    lost: Usage
    running: bool = False

    @classmethod
    def of(cls, store: RunStore, inputs: Mapping[str, str]) -> Context:
        """Reads all but the steps."""
        state = store.outline()
        if store.header.private:
            state = withhold_ending(state, store.header.id)
        return cls(
            store.header,
            state,
            None if state.parameters is None else DeployedState(*kept_state(store)),
            store.usage(),
            store.tallies(),
            store.elapsed_s,
            inputs,
            default_tree(store.header.settings),
            sum(store.lost().values(), Usage()),
            holder(store.path) is not None,
        )

    def setting(self, key: str) -> Any:
        """A dotted key of the run's configuration; the default where the run does not have it.

        The configuration is read as it was stored and never checked: another version wrote it.
        """
        return _at(self.header.config, key, _at(self.defaults, key, None))

    @property
    def spent(self) -> Usage:
        """All that was paid, or may have been."""
        return sum(self.usage.values(), self.lost)

    @property
    def limits(self) -> Limits:
        """The budget that the run was given."""
        calls, tokens, usd = (self.setting(f"budget.{name}") for name in ("calls", "tokens", "usd"))
        return Limits(calls, tokens, usd)

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
        return f"pco train --resume {self.header.id}"

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
        return self.deployed.state.parameters.codebook if self.deployed else Codebook(())

    def instincts_of(self, row: str, rollout: Rollout, first: Codebook) -> list[tuple[int, str]]:
        """What a rollout of this row of the verdict was routed over: of the run's `first` codebook
        where the row is that one untrained, else of the deployed one."""
        book = first if row == UNTRAINED else self.codebook
        indices = rollout.route.indices if rollout.route is not None else ()
        return [(k, book[k].text) for k in indices if k < len(book)]

    @property
    def models(self) -> dict[Role, str]:
        """The model of each role; '' is the user's own LM object."""
        return models_of(self.header)

    @property
    def simulated(self) -> bool:
        """Whether any model was simulated, in process or served: figures must say so."""
        return self.header.simulated

    @property
    def source(self) -> str:
        """Whose numbers these are, in the words of an exported file."""
        return f"{'simulated, ' if self.simulated else ''}run {self.header.id}"

    def draw(self, chart: Chart) -> Picture | None:
        """The drawing of a chart, which says where its numbers are simulated."""
        return draw(chart, "simulated" if self.simulated else "")


class Section:
    """A part of the report: it takes every event once, in order, and then shows what it kept.

    It keeps only what it will show, so that a long run takes no more memory than a short one. Its
    `anchor` names its template.
    """

    title = ""
    anchor = ""

    def __init__(self, context: Context) -> None:
        self.context = context

    def add(self, event: Event) -> None:
        """One event, with its traces and full rollouts."""

    def values(self) -> Mapping[str, Any]:
        """What its template is filled with, beside the context."""
        return {}

    def render(self) -> Markup:
        """The section's body."""
        template = f"report/templates/{self.anchor}.html.jinja"
        return render(template, context=self.context, **self.values())


def models_of(header: Header) -> dict[Role, str]:
    """The model of each role of a run; '' is the user's own LM object."""
    return {
        role: "" if spec == OWN_LM else without_credentials(spec)
        for role, spec in specs_in(header.config).items()
    }


def render_sections(sections: Sequence[Section], events: Iterable[Event]) -> Markup:
    """Every event to every section, once; then the sections under their titles."""
    for event in events:
        for section in sections:
            section.add(event)
    return render("report/templates/sections.html.jinja", sections=sections)


def without_credentials(text: str) -> str:
    """The text without a name and password before the host of an address."""
    return _CREDENTIALS.sub("", text)


def step_name(index: int) -> str:
    """Steps count from 1 where people see them; -1 is the untrained policy."""
    return "untrained" if index < 0 else f"step {index + 1}"


def state_name(index: int) -> str:
    """The state that a step left behind."""
    return "the untrained state" if index < 0 else f"the state after {step_name(index)}"


def _at(tree: Mapping[str, Any], key: str, default: Any) -> Any:
    here: Any = tree
    for part in key.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return default
        here = cast("Mapping[str, Any]", here)[part]
    return here
