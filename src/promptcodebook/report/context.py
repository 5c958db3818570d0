"""What every section of a report may need to know about the run, read once; what a section is.

Figures as files to keep: the drawing as SVG, which needs no page around it, and its numbers as
CSV. They lie in the page itself, as `data:` links that are only ever saved.
"""

from __future__ import annotations

import base64
import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from promptcodebook.assemble import OWN_LM
from promptcodebook.calls import Limits, Role, Usage
from promptcodebook.config import default_tree
from promptcodebook.method.state import State
from promptcodebook.optimizers.fixed import UNTRAINED
from promptcodebook.policy.references import Best, kept_state
from promptcodebook.report.html import Column, Content, Html, el, read_asset, table, together
from promptcodebook.report.private import withhold_ending
from promptcodebook.report.svg import (
    Chart,
    Numbers,
    Picture,
    curves_of,
    key,
    lay_out,
    legend_of,
    numbers_of,
)
from promptcodebook.store.events import Event, RunState
from promptcodebook.store.header import Header, specs_in
from promptcodebook.store.lock import holder
from promptcodebook.store.run import RunStore
from promptcodebook.text import printable
from promptcodebook.types import Codebook, Rollout

_HEAD, _LEGEND, _FOOT = 30, 22, 24
"""Height of a file's title, of its legend, and of the line that says whose numbers they are."""
_ROOT = re.compile(r"(--[\w-]+):\s*([^;]+);")
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_NO_XML = re.compile("[\ufffe\uffff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet would read as an order, not as a text."""


def downloads(
    picture: Picture, numbers: Numbers, legend: Sequence[tuple[str, str]], source: str
) -> Html:
    """Links that save the figure and its numbers; `source` says in both whose they are."""
    name = re.sub(r"[^a-z0-9]+", "-", picture.title.lower()).strip("-") or "figure"
    drawing = svg_text(picture, legend, source)
    return el(
        "p.files",
        _download(f"{name}.svg", "image/svg+xml", drawing, f"{picture.title} as SVG"),
        _download(f"{name}.csv", "text/csv", csv_text(numbers, source), f"{picture.title} as CSV"),
    )


def _download(name: str, kind: str, text: str, label: str) -> Html:
    """A link that saves a text of our own making; a browser does not open such a link as a page."""
    address = f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
    attrs = {"href": address, "download": name, "aria-label": label}
    return el("a", name.rpartition(".")[2].upper(), attrs=attrs)


def csv_text(numbers: Numbers, source: str) -> str:
    """The numbers, each row with its source; no text in it is taken for a formula."""
    if numbers.every > 1:
        source += f", one point in {numbers.every}"
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([*numbers.columns, "source"])
    writer.writerows([*map(_cell, row), source] for row in numbers.rows)
    return target.getvalue()


def _cell(value: str | float) -> str | float:
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(_FORMULA) else value)


def svg_text(picture: Picture, legend: Sequence[tuple[str, str]], source: str) -> str:
    """The drawing under its title, on white, with its colours in it."""
    width, inner = picture.size
    top = _HEAD + (_LEGEND if legend else 0)
    height = top + inner + _FOOT
    at = {"x": 0, "y": top, "width": width, "height": inner, "viewBox": f"0 0 {width:g} {inner:g}"}
    drawing = el(
        "svg",
        Html(f"<style>{_plain_style()}</style>"),  # our own file, and no text of the run
        el("rect.page", attrs={"width": width, "height": height}),
        el("text", picture.title, attrs={"class": "label heading", "x": 4, "y": 20}),
        _legend(legend),
        el("svg", picture.shapes, attrs=at),
        el("text", source, attrs={"class": "tick", "x": 4, "y": height - 8}),
        attrs={
            "xmlns": "http://www.w3.org/2000/svg",
            "width": width,
            "height": height,
            "viewBox": f"0 0 {width:g} {height:g}",
        },
    )
    return _NO_XML.sub(" ", drawing.markup)


def _legend(legend: Sequence[tuple[str, str]]) -> list[Html]:
    shapes: list[Html] = []
    x = 4.0
    for name, look in legend:
        shapes.append(el(f"rect.swatch.{look}", attrs={"x": x, "y": 36, "width": 14, "height": 5}))
        shapes.append(el("text", name, attrs={"class": "tick", "x": x + 20, "y": 43}))
        x += 34 + 7 * len(name)
    return shapes


def _plain_style() -> str:
    """The drawings' style with the colours of the light theme in the place of their names: not
    every program that opens an SVG file knows variables."""
    light = read_asset("style.css").partition("}")[0]
    colours = {name: value.strip() for name, value in _ROOT.findall(light)}
    return _VARIABLE.sub(lambda found: colours[found[1]], read_asset("figure.css"))


_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


class ReportSection(Protocol):
    """A part of the report: takes every event once, in order, and then renders what it kept.

    It keeps only what it will show, so that a long run takes no more memory than a short one.
    """

    title: str
    anchor: str

    def add(self, event: Event) -> None:
        """One event, with its traces and full rollouts."""
        ...

    def render(self) -> Html:
        """The section's body."""
        ...


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

    def figure(self, caption: Content, *body: Content, look: str = "") -> Html:
        """A figure whose caption says when its numbers are simulated."""
        badge = el("span.badge", self._word) if self.simulated else None
        return el(f"figure{look}", el("figcaption", badge, caption), *body)

    def chart(self, caption: Content, chart: Chart, look: str = "") -> Html:
        """A figure of a chart, with its files: the drawing, and the numbers in it."""
        picture = lay_out(chart)
        if picture is None:
            return self.figure(caption, el("p.empty", "Nothing to draw."), look=look)
        legend = legend_of(chart)
        curves = curves_of(chart)
        attrs = {"data-curves": curves, "data-mark": self._word} if curves else {}
        parts = (el("h4", chart.title), key(legend), picture.html())
        shown = el("div.chart", *parts, attrs=attrs)
        files = self.files(picture, numbers_of(chart), legend)
        return self.figure(caption, shown, files, look=look)

    def files(
        self, picture: Picture, numbers: Numbers, legend: Sequence[tuple[str, str]] = ()
    ) -> Html:
        """A drawing and its numbers as files to keep, which say so where they are simulated."""
        return downloads(picture, numbers, legend, source=self.source)

    @property
    def source(self) -> str:
        """Whose numbers these are, in the words of an exported file."""
        return f"{f'{self._word}, ' if self._word else ''}run {self.header.id}"

    @property
    def _word(self) -> str:
        """The badge of every figure of simulated numbers; '' for a real model."""
        return "simulated" if self.simulated else ""

    def table(
        self, caption: Content, columns: Sequence[Column], rows: Iterable[Iterable[Content]]
    ) -> Html:
        """A table under its caption, which stays in sight when the columns scroll."""
        return self.figure(caption, table(columns, rows))


def models_of(header: Header) -> dict[Role, str]:
    """The model of each role of a run; '' is the user's own LM object."""
    return {
        role: "" if spec == OWN_LM else without_credentials(spec)
        for role, spec in specs_in(header.config).items()
    }


def render_sections(sections: Sequence[ReportSection], events: Iterable[Event]) -> Html:
    """Every event to every section, once; then the sections under their titles."""
    for event in events:
        for section in sections:
            section.add(event)
    return together(
        [el("section", el("h2", s.title), s.render(), attrs={"id": s.anchor}) for s in sections]
    )


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
