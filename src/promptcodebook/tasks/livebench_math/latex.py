r"""AMPS_Hard answers as LaTeX: which part of a response is the answer, and its normal form.

The normal form is the recipe of the Minerva paper in the shape that LiveBench uses: what follows
the last "=", without wrappers such as \text, with \frac and \sqrt in braces.
"""

from __future__ import annotations

import re

from promptcodebook.tasks.livebench_math.boxed import last_boxed

__all__ = ["clean_gold", "clean_response", "compact", "normalised", "parsed_answer"]

_CONSTANTS = ("+C", "+ C", "+c", "+ c")
_DELETED = re.compile(
    r"\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\[bB]ig+[lr]?(?![a-zA-Z])|\\[,;]|\n"
)
_FRAC = re.compile(r"\\frac\s*([^{}\\\s])\s*([^{}\\\s])")
_SQRT = re.compile(r"\\sqrt\s*([^{}\[\\\s])")
_WRAPPER = re.compile(r"\\(?:text|textbf|overline|boxed)\{([^{}]*)\}")
_PLAIN_NUMBER = re.compile(r"-?[\d,]+(?:\.\d*)?")
_BLANK = re.compile(r"(?<!\d)\s+|\s+(?!\d)")


def clean_response(response: str) -> str:
    """The response without constants of integration, sizes, thin spaces and line ends."""
    for constant in _CONSTANTS:
        response = response.replace(constant, "")
    response = _DELETED.sub("", response)
    for command in (r"\dfrac", r"\tfrac"):
        response = response.replace(command, r"\frac")
    return response.replace(r"\cdot", "*")


def clean_gold(gold: str) -> str:
    r"""The gold text without \left and \right; "\ " is a product."""
    gold = gold.replace(r"\left", "").replace(r"\right", "")
    return gold.replace(" ^", "^").replace("\\ ", "*").strip()


def parsed_answer(response: str) -> tuple[str | None, str]:
    """(answer, path) of a cleaned response: its last box, else the end of its last formula."""
    box = last_boxed(response)
    if box is not None:
        return normalised(box), "box"
    formula = _last_formula(response)
    return (None, "") if formula is None else (normalised(formula), "formula")


def normalised(text: str) -> str:
    """The normal form of an answer."""
    text = text.rsplit("=", 1)[-1].strip()
    for _ in range(4):  # wrappers may stand in each other
        text = _WRAPPER.sub(r"\1", text)
    text = _FRAC.sub(r"\\frac{\1}{\2}", text)
    text = _SQRT.sub(r"\\sqrt{\1}", text).replace("$", "").strip()
    return text.replace(",", "") if _PLAIN_NUMBER.fullmatch(text) else text


def compact(text: str) -> str:
    """For comparing texts: without blanks, except between two digits."""
    return _BLANK.sub("", text.strip())


def _last_formula(text: str) -> str | None:
    """What stands between the last two "$" (or "$$"); None when there is no such pair."""
    close = text.rfind("$")
    if close > 0 and text[close - 1] == "$":
        close -= 1
    start = text.rfind("$", 0, close) if close > 0 else -1
    return text[start + 1 : close].strip() if start >= 0 else None
