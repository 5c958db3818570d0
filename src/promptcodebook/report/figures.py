"""Numbers as a person reads them. None is an em dash; an unknown price is never 0."""

from __future__ import annotations

import math

from promptcodebook.intervals import Interval

__all__ = ["count", "duration", "interval", "money", "number", "percent", "shorten", "step_name"]


def number(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """0.123; with `signed` +0.123."""
    if value is None or not math.isfinite(value):
        return "—"
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def count(value: float) -> str:
    """1234 as 1,234."""
    return f"{value:,.0f}"


def percent(share: float | None) -> str:
    """0.25 as 25 %."""
    return "—" if share is None else f"{100 * share:.0f} %"


def money(cost: float | None) -> str:
    """USD; small amounts keep their leading digits."""
    if cost is None:
        return "unknown price"
    if cost == 0:
        return "$0"
    return f"${cost:,.2f}" if cost >= 0.1 else f"${cost:.2g}"


def duration(seconds: float) -> str:
    """640 as '10 min 40 s'."""
    whole = round(seconds)
    if seconds < 0.95:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def interval(value: Interval | None, *, signed: bool = False) -> str:
    """The ends of a 95 % interval."""
    if value is None:
        return ""
    return f"{number(value.low, signed=signed)} to {number(value.high, signed=signed)}"


def step_name(index: int) -> str:
    """Steps count from 1 where people see them; -1 is the untrained policy."""
    return "untrained" if index < 0 else f"step {index + 1}"


def shorten(text: str, limit: int) -> str:
    """The text, its middle left out where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    left_out = count(len(text) - head - tail)
    return f"{text[:head]}\n[… {left_out} characters left out …]\n{text[-tail:]}"
