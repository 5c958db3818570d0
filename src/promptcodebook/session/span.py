"""A figure that is not known yet: its low, its expected and its high value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Span", "exactly"]


@dataclass(frozen=True, slots=True)
class Span:
    """low <= expected <= high. Sums and products go value by value."""

    low: float = 0.0
    expected: float = 0.0
    high: float = 0.0

    @property
    def values(self) -> tuple[float, float, float]:
        return self.low, self.expected, self.high

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def __mul__(self, other: Span | float) -> Span:
        by = other if isinstance(other, Span) else exactly(other)
        return Span(self.low * by.low, self.expected * by.expected, self.high * by.high)

    def capped(self, limit: float | None) -> Span:
        """No value above the limit."""
        if limit is None:
            return self
        return Span(min(self.low, limit), min(self.expected, limit), min(self.high, limit))

    def rounded(self) -> Span:
        """Whole numbers, outwards."""
        return Span(self.low // 1, round(self.expected), -(-self.high // 1))


def exactly(value: float) -> Span:
    """A figure that is known."""
    return Span(value, value, value)
