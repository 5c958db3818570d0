"""Whether two LaTeX texts mean the same quantity. Slow on bad input: call it through a Worker."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from typing import Any

_TOLERANCE = 0.001
_ZERO = 1e-50
_POINTS = ((71, 7), (-53, 9), (37, -11), (-29, -13))
"""Where two expressions are compared, in hundredths: complex, so that sqrt(x^2) and x differ."""


def same_by_lark(gold: str, answer: str) -> bool | None:
    """By SymPy's lark grammar: equal for some pair of readings; None when one cannot be read."""
    return _same(_lark(gold), _lark(answer))


def same_by_math_verify(gold: str, answer: str) -> bool | None:
    """By math-verify's tolerant reading; None when one cannot be read."""
    return _same(_tolerant(gold), _tolerant(answer))


def _lark(text: str) -> list[Any]:
    parser, tree = _module("sympy.parsing.latex"), _module("lark").Tree
    try:
        read = parser.parse_latex(text, backend="lark")
    except Exception:  # what lark and SymPy raise on bad input is not documented
        return []
    return list(read.children) if isinstance(read, tree) else [read]


def _tolerant(text: str) -> list[Any]:
    math_verify, sympy = _module("math_verify"), _module("sympy")
    # Without its plain-text reading, which would take a number out of any sentence; without a
    # time limit of its own, which would take over the alarm that ends an orphaned worker.
    read: list[Any] = math_verify.parse(
        f"${text}$",
        [math_verify.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return [one for one in read if isinstance(one, sympy.Basic | sympy.MatrixBase)]


def _module(name: str) -> Any:
    """A library that has no type stubs."""
    return import_module(name)


def _same(golds: list[Any], answers: list[Any]) -> bool | None:
    if not golds or not answers:
        return None
    return any(_equal(a, b) for a, b in product(golds, answers))


def _equal(a: Any, b: Any) -> bool:
    """a - b simplifies to 0, or is a number of absolute value below 0.001."""
    try:
        if a == b:
            return True
        difference = a - b
        if difference == 0 or _small(difference):
            return True
        if (vanishes := _vanishes(difference, a)) is not None:
            return vanishes
        difference = _module("sympy").simplify(difference)
        return bool(difference == 0) or _small(difference)
    except Exception:  # an equation, a set, a function without a value: no difference to take
        return False


def _small(difference: Any) -> bool:
    if difference.free_symbols:
        return False
    return bool(abs(complex(difference.evalf())) < _TOLERANCE)


def _vanishes(difference: Any, part: Any) -> bool | None:
    """Whether it is 0 at all of the points, next to `part`; None when it has no value there.

    Much faster than simplifying, which may take minutes for two forms of one derivative.
    """
    sympy = _module("sympy")
    # Exact numbers, so that more digits can always be taken where large terms cancel.
    points = [sympy.Rational(a, 100) + sympy.I * sympy.Rational(b, 100) for a, b in _POINTS]
    symbols = sorted(difference.free_symbols, key=str)
    for shift in range(len(points)):
        at = {s: points[(i + shift) % len(points)] for i, s in enumerate(symbols)}
        value, beside = (e.subs(at).evalf(30, maxn=1000) for e in (difference, part))
        if not (value.is_number and value.is_finite and beside.is_number and beside.is_finite):
            return None  # a pole, or an unknown function
        if abs(value) > _ZERO * abs(beside):
            return False
    return True
