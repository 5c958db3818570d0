"""Amounts as people read them: money, time, sizes and counts. An unknown price is never 0."""

from __future__ import annotations

from decimal import Decimal

from promptcodebook.calls import Limits, Usage


def number(
    value: float | None, digits: int = 3, *, signed: bool = False, missing: str = "-"
) -> str:
    """0.123, with `signed` +0.123; `missing` where there is none or it is not finite."""
    if value is None or value - value != 0.0:
        return missing
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def money(usd: float | None) -> str:
    """USD; small amounts keep two leading digits, an unknown price is 'unknown'."""
    if usd is None:
        return "unknown"
    if usd == 0:
        return "$0"
    if usd >= 0.1:
        return f"${usd:,.2f}"
    return f"${Decimal(f'{usd:.2g}'):f}"  # never '5e-05'


def percent(share: float) -> str:
    """0.25 as 25 %."""
    return f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """640 as '10 min 40 s', 0.25 as '250 ms'."""
    whole = round(seconds)
    if seconds < 0.95:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def count_text(value: float) -> str:
    """1234567 as 1.23M: at most three digits and a unit."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * unit:  # where three digits round up to the next unit
            share = value / unit
            return f"{share:.3g}{name}" if share < 999.5 else f"{share:.0f}{name}"
    return f"{value:.0f}"


def bytes_text(count: int) -> str:
    """Bytes as 1.5 MB."""
    if count < 1000:
        return f"{count} B"
    value, unit = count / 1000, "kB"
    for bigger in ("MB", "GB"):
        if value < 1000:
            break
        value, unit = value / 1000, bigger
    return f"{value:.1f} {unit}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """'1 reply', '2 replies'; `nouns` where the plural is not the noun with an s. 'line of Python'
    takes the s before its 'of'."""
    head, of, rest = noun.partition(" of ")
    return f"{count} {noun if count == 1 else nouns or f'{head}s{of}{rest}'}"


def ordinal(number: int) -> str:
    """'1st', '2nd', '3rd', '11th'."""
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(last, 'th')}"


def cost_text(usd: float | None) -> str:
    """USD in a line of text, where a bare 'unknown' would not say what is unknown."""
    return "cost unknown" if usd is None else money(usd)


def lost_text(lost: Usage) -> str:
    """What attempts whose answers were lost can have cost, shown apart from what was paid."""
    price = "" if not lost.cost else f" and {money(lost.cost)}"
    most = f"{count_text(lost.tokens)} tokens{price}"
    return f"lost to failures: {plural(lost.calls, 'call')}, up to {most}"


def spent_parts(spent: Usage, limits: Limits, *, past: bool = False) -> tuple[str, str, str]:
    """Calls, tokens, cost, beside their limits: '372 of 400 calls'. `past` = past the meter."""
    calls = "calls" if (limits.calls or spent.calls) != 1 else "call"
    if limits.calls is not None:
        calls = f"of {limits.calls} {calls}"
    allowed = "" if limits.tokens is None else f" of {count_text(limits.tokens)}"
    cost = cost_text(spent.cost)
    if limits.usd is not None:
        cost = f"{cost} of {money(limits.usd)}"
    cost += ", and the program's own calls, which are not metered" if past else ""
    return f"{spent.calls} {calls}", f"{count_text(spent.tokens)}{allowed} tokens", cost
