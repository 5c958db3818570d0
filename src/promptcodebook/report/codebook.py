"""The codebook as it is kept: what each instinct says, how it fares, how often it is selected."""

from __future__ import annotations

from collections import Counter

from promptcodebook.method.statistics import average_success, entropy, utilisation
from promptcodebook.report.context import Column, Context, Kept
from promptcodebook.report.figures import count, number, percent, step_name
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.store import Event, Stepped

__all__ = ["CodebookSection"]

_COLUMNS = (
    Column("#"),
    Column("instinct", numeric=False),
    Column("success"),
    Column("r̄"),
    Column("selected"),
    Column("usage", numeric=False),
    Column("rewritten"),
)


class CodebookSection:
    """Counts rewrites as they pass; the rest is the run's state."""

    title = "Codebook"
    anchor = "codebook"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rewritten: Counter[str] = Counter()

    def see(self, event: Event) -> None:
        kept = self._context.kept
        if isinstance(event, Stepped) and kept is not None and event.step.index <= kept.step:
            self._rewritten.update(r.variable for r in event.step.rewrites if r.kept)

    def html(self) -> Html:
        kept = self._context.kept
        if kept is None:
            return el("p.empty", "The run ended before it had a codebook.")
        most = max(kept.selected, default=0)
        rows = [self._row(kept, k, most) for k in range(len(kept.parameters.codebook))]
        caption = (
            f"The codebook after {step_name(kept.step)}. success is the moving mean of the "
            "reward, r̄ of reward minus penalty (it may fall below 0); both move only when an "
            "instinct is selected."
        )
        if kept.step < 0:
            caption = f"The codebook untrained: no selections yet. {caption.partition('. ')[2]}"
        return together(
            el("div.book", self._context.table(caption, _COLUMNS, rows)), self._sums(kept)
        )

    def _row(self, kept: Kept, k: int, most: int) -> tuple[Content, ...]:
        instinct, times = kept.parameters.codebook[k], kept.selected[k]
        frozen = el("span.tag", "frozen") if instinct.frozen else None
        tried = times > 0
        return (
            k,
            together(el("span.text", instinct.text), frozen),
            number(kept.success[k], 2) if tried else "untried",
            number(kept.ema[k], 2, signed=True) if tried else "—",
            count(times),
            _bar(times / most if most else 0.0, f"instinct {k} was selected {times} times"),
            self._rewritten[f"c{k}"],
        )

    def _sums(self, kept: Kept) -> Html:
        counts = kept.selected
        size = len(counts)
        active = sum(n > 0 for n in counts)
        facts = (
            ("entropy", f"{number(entropy(counts), 2)} bits"),
            ("utilisation", f"{percent(utilisation(counts))} ({active} of {size})"),
            ("average success", number(average_success(counts, kept.success), 3)),
        )
        return el("dl.facts", [el("div", el("dt", name), el("dd", value)) for name, value in facts])


def _bar(share: float, words: str) -> Html:
    attrs = {"viewBox": "0 0 100 8", "role": "img", "aria-label": words, "class": "bar"}
    track = {"x": 0, "y": 0, "width": 100, "height": 8, "rx": 2, "class": "track"}
    full = {"x": 0, "y": 0, "width": round(100 * share, 1), "height": 8, "rx": 2, "class": "fill"}
    return el(
        "svg",
        el("title", words),
        el("rect", attrs=track),
        el("rect", attrs=full),
        attrs={**attrs, "preserveAspectRatio": "none"},
    )
