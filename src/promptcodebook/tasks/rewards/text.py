"""What several rewards need: the reference, text for comparison, and quotation in feedback."""

from __future__ import annotations

import re
import string
import unicodedata

from promptcodebook.errors import RewardError
from promptcodebook.types import Example

__all__ = ["normalise", "quoted", "target_of", "without_fence"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*[ \t]*\n(.*)\n```\s*\Z", re.DOTALL)


def target_of(example: Example) -> str:
    """y*; RewardError when the example has none, since such a reward cannot judge without it."""
    if example.target is None:
        raise RewardError(
            f"example {example.id} has no target to compare with",
            hint="name the target column, or use a reward that needs none (json, regex, judge)",
        )
    return example.target


def normalise(text: str) -> str:
    """NFD, lower case, without ASCII punctuation and articles, white space collapsed."""
    text = unicodedata.normalize("NFD", text).lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", text).split())


def quoted(text: str, most: int = 300) -> str:
    """The text in quotation marks, cut for a critic's eyes."""
    text = text.strip()
    return f"'{text}'" if len(text) <= most else f"'{text[:most].rstrip()} …'"


def without_fence(text: str) -> str:
    """The inside of one Markdown code fence around everything, else the text as it is."""
    match = _FENCE.match(text)
    return match[1] if match else text
