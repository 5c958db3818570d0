"""The parts of a grammar of JSON in which every text ends.

The grammars that engines derive from a schema allow endless white space, and a weak model fills it
up to its cap. Here at most one space follows a comma or a colon, every string and list is bounded,
and properties come in the schema's order.

A grammar is a tree, so that tests can draw texts from it; `ebnf` prints it for xgrammar
(openvino-genai's `StructuredOutputConfig.grammar`) and llguidance.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeAlias

_BLOCK = 32
"""Characters in a block of a long string. A counted repetition has as many states as it counts, and
each costs a pass over the vocabulary; blocks share theirs (measured: docs/smollm2.md)."""


@dataclass(frozen=True, slots=True)
class Literal:
    """The text itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of ranges, both ends included, or out of all others."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The same part, `least` to `most` times."""

    part: Node
    least: int
    most: int


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A part with a name of its own, so that the engine compiles it once. Equal only to itself."""

    part: Node


Node: TypeAlias = Literal | Chars | Row | Choice | Repeat | Rule


def row(*parts: Node | str) -> Node:
    """One after the other; a plain string means itself."""
    nodes = tuple(Literal(p) if isinstance(p, str) else p for p in parts)
    return nodes[0] if len(nodes) == 1 else Row(nodes)


def choice(options: Iterable[Node | str]) -> Node:
    """One of them, each once."""
    nodes = tuple(dict.fromkeys(Literal(o) if isinstance(o, str) else o for o in options))
    return nodes[0] if len(nodes) == 1 else Choice(nodes)


def space() -> Node:
    """The optional space after a comma or a colon."""
    return Repeat(Literal(" "), 0, 1)


@cache
def character() -> Node:
    """One character of a JSON string. `\\u....` is not among them: it is never needed."""
    plain = Chars((('"', '"'), ("\\", "\\"), ("\x00", "\x1f"), ("\x7f", "\x7f")), negated=True)
    escaped = Row((Literal("\\"), Chars(tuple((c, c) for c in '"\\/bfnrt'))))
    return Rule(Choice((plain, escaped)))


@cache
def _block() -> Node:
    return Rule(Repeat(character(), _BLOCK, _BLOCK))


@lru_cache(maxsize=256)  # its bounds are the caller's
def text(least: int, most: int) -> Node:
    """A JSON string of `least` to `most` characters."""
    char = character()
    head = (Repeat(char, least, least),) if least else ()
    left = most - least
    if left < 2 * _BLOCK:
        body: tuple[Node, ...] = (Repeat(char, 0, left),) if left else ()
    else:
        blocks = left // _BLOCK - 1
        body = (Rule(Repeat(_block(), 0, blocks)), Rule(Repeat(char, 0, left - blocks * _BLOCK)))
    return Rule(row('"', *head, *body, '"'))


@cache
def any_number(decimals: int) -> Node:
    """A number of up to nine digits before the point and `decimals` behind it; 0 = a whole one."""
    digit = Chars((("0", "9"),))
    whole = choice(["0", row(Chars((("1", "9"),)), Repeat(digit, 0, 8))])
    parts: list[Node] = [Repeat(Literal("-"), 0, 1), whole]
    if decimals:
        parts.append(Repeat(row(".", Repeat(digit, 1, decimals)), 0, 1))
    return Rule(row(*parts))


def whole_number(low: int, high: int) -> Node:
    """A whole number in [low, high], as JSON writes it."""
    return Rule(choice(_scaled(low, high, 0)))


def number(bounds: Sequence[tuple[int, int]]) -> Node:
    """A decimal number; `bounds[d]` = the range, times 10^d, of those with d decimals."""
    return Rule(choice(o for d, (low, high) in enumerate(bounds) for o in _scaled(low, high, d)))


def _scaled(low: int, high: int, decimals: int) -> list[Node]:
    options: list[Node] = []
    if low < 0:
        for digits in _spans(max(1, -high), -low, decimals + 1):
            options.append(row("-", _digits(digits, decimals)))
    if high >= 0:
        for digits in _spans(max(0, low), high, decimals + 1):
            options.append(_digits(digits, decimals))
    return options


_Span: TypeAlias = tuple[tuple[str, str], ...]


def _spans(low: int, high: int, width: int) -> list[_Span]:
    """Ranges of digits, place by place, that together are the numbers from low to high; none is
    shorter than `width`, and none longer begins with 0."""
    spans: list[_Span] = []
    for size in range(max(width, len(str(low))), max(width, len(str(high))) + 1):
        first = 0 if size == width else 10 ** (size - 1)
        start, end = max(low, first), min(high, 10**size - 1)
        if start <= end:
            spans += _same_size(f"{start:0{size}d}", f"{end:0{size}d}")
    return spans


def _same_size(low: str, high: str) -> list[_Span]:
    if not low:
        return [()]
    rest = len(low) - 1
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        return [((low[0], high[0]), *[("0", "9")] * rest)]
    if low[0] == high[0]:
        return [((low[0], low[0]), *tail) for tail in _same_size(low[1:], high[1:])]
    first = [((low[0], low[0]), *tail) for tail in _same_size(low[1:], "9" * rest)]
    last = [((high[0], high[0]), *tail) for tail in _same_size("0" * rest, high[1:])]
    after, before = chr(ord(low[0]) + 1), chr(ord(high[0]) - 1)
    between = [((after, before), *[("0", "9")] * rest)] if after <= before else []
    return [*first, *between, *last]


def _digits(span: _Span, decimals: int) -> Node:
    parts: list[Node] = [Literal(a) if a == b else Chars(((a, b),)) for a, b in span]
    if decimals:
        parts.insert(len(parts) - decimals, Literal("."))
    return row(*parts)


def states(root: Node) -> int:
    """How many an engine makes of it, about: a character is one, as often as it is repeated."""
    total, seen = 0, set[Rule]()
    left = [(root, 1)]
    while left:
        node, times = left.pop()
        match node:
            case Literal(text):
                total += times * len(text)
            case Row(parts) | Choice(parts):
                left += [(part, times) for part in parts]
            case Repeat(part, _, most):
                left.append((part, times * most))
            case Chars():
                total += times
            case Rule(part):
                total += times
                if node not in seen:
                    seen.add(node)
                    left.append((part, 1))
    return total


def ebnf(root: Node) -> str:
    """The grammar as xgrammar reads it; it begins at the rule `root`."""
    printer = _Printer()
    lines = [f"root ::= {printer.show(root, 0)}"]
    for name, part in printer.unwritten():
        lines.append(f"{name} ::= {printer.show(part, 0)}")
    return "\n".join([*lines, ""])


class _Printer:
    """A rule is written after what names it, so that no depth of rules is one of calls."""

    def __init__(self) -> None:
        self._names: dict[Rule, str] = {}
        self._unwritten: list[Rule] = []

    def unwritten(self) -> Iterator[tuple[str, Node]]:
        while self._unwritten:
            rule = self._unwritten.pop()
            yield self._names[rule], rule.part

    def show(self, node: Node, depth: int) -> str:
        """Depth 0 = a rule's whole body, 1 = within a choice, 2 = within a row or repetition."""
        match node:
            case Literal(text):
                return json.dumps(text, ensure_ascii=False)
            case Chars(ranges, negated):
                return f"[{'^' if negated else ''}{''.join(_range(a, b) for a, b in ranges)}]"
            case Row(parts):
                shown = " ".join(self.show(part, 2) for part in parts)
                return f"({shown})" if depth == 2 else shown
            case Choice(options):
                shown = " | ".join(self.show(option, 1) for option in options)
                return f"({shown})" if depth else shown
            case Repeat(part, least, most):
                return f"{self.show(part, 2)}{_times(least, most)}"
            case Rule():
                if node not in self._names:
                    self._names[node] = f"r{len(self._names)}"
                    self._unwritten.append(node)
                return self._names[node]


def _times(least: int, most: int) -> str:
    if (least, most) == (0, 1):
        return "?"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"


def _range(low: str, high: str) -> str:
    return _in_class(low) if low == high else f"{_in_class(low)}-{_in_class(high)}"


def _in_class(char: str) -> str:
    if ord(char) < 32 or ord(char) == 127:
        return f"\\x{ord(char):02x}"
    return f"\\{char}" if char in '\\]-^"' else char
