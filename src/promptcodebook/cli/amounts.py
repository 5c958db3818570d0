"""Amounts as a terminal shows them: few characters, never a false 0."""

from __future__ import annotations

__all__ = ["money", "short_count", "span"]


def short_count(value: int) -> str:
    """1234567 as 1.23M."""
    for unit, name in ((1_000_000_000, "G"), (1_000_000, "M"), (1000, "k")):
        if value >= 0.9995 * unit:  # where three digits round up to the next unit
            return f"{value / unit:.3g}{name}" if value < 1000 * unit else f"{value // unit}{name}"
    return str(value)


def money(cost: float | None) -> str:
    """USD; an unknown price is not 0."""
    if cost is None:
        return "$ unknown"
    return f"${cost:.2f}" if cost >= 0.1 or cost == 0 else f"${cost:.2g}"


def span(seconds: float) -> str:
    """A time that is only an estimate: '8 s', '3 min', '2 h 10 min'."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
