"""Is the answer in the language of the country that the order came from?"""

from __future__ import annotations

import re
from typing import Any

import promptcodebook as pco

SIGNS = {
    "Spain": r"\b(?:el|la|los|las|un|una|de|del|en|que|es|por|con|para|su|está)\b",
    "Japan": "[\u3040-\u30ff]",  # kana
    "China": "[\u4e00-\u9fff]",
}


def reward(example: pco.Example, output: str) -> dict[str, Any]:
    wanted = str(example.fields["country"])
    signs = {country: len(re.findall(sign, output.lower())) for country, sign in SIGNS.items()}
    found = [country for country, count in signs.items() if count > 1]
    # Japanese has Chinese signs too.
    given = "Japan" if "Japan" in found else found[-1] if found else "somewhere else"
    if given == wanted:
        return {"score": 1.0}
    said = f"This is for a customer in {wanted}; the language is that of {given}."
    return {"score": 0.0, "feedback": said}
