"""How good is an answer? `pco train` calls `reward` for every answer; change it to fit your task.

`example.input` and `example.target` are the row's input and target; `example.fields` has all
columns. Return a number in reward_range (0 to 1 unless pco.toml says otherwise), or a Score whose
feedback tells the critic what was wrong. The more precise the feedback, the better the codebook
learns."""

from __future__ import annotations

import re

import promptcodebook as pco

SCRIPTS = {
    "Japanese": "[\u3040-\u30ff]",  # kana
    "Korean": "[\uac00-\ud7a3]",
    "Chinese": "[\u4e00-\u9fff]",
}
SPANISH = r"\b(?:el|la|los|las|un|una|de|del|en|y|que|es|no|se|por|con|para|su|nos|lo|al|está)\b"


def language_of(text: str) -> str:
    """The language, by script. In Latin script it knows only Spanish, by its small words."""
    found = {name: len(re.findall(script, text)) for name, script in SCRIPTS.items()}
    if 2 * sum(found.values()) >= sum(map(str.isalpha, text)) > 0:
        return "Korean" if found["Korean"] else "Japanese" if found["Japanese"] else "Chinese"
    words, small = len(re.findall(r"\w+", text)), len(re.findall(SPANISH, text.lower()))
    return "Spanish" if 4 * small >= words > 0 else "another language"


def reward(example: pco.Example, output: str) -> pco.Score:
    wanted, given = example.fields["language"], language_of(output)
    if given == wanted:
        return pco.Score(1.0, feedback=f"The answer is in {wanted}, as it should be.")
    return pco.Score(0.0, feedback=f"The answer should be in {wanted}; it is in {given}.")
