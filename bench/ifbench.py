"""IFBench's checks: seconds for 10,000 responses on one core, warm, no verdict remembered.

Each response of about 150 words is checked once against one constraint: strict over the 58, IFEval
over its 25 (language detection among them), and loose over the 58 (up to eight variants each).
NLTK's data come from NLTK_DATA, or from the data folder in PCO_SHARED (else ../shared).

    python -m bench.ifbench
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.paper.tasks.ifbench.language import InstructionCheck, Language
from promptcodebook.paper.tasks.ifbench.score import IFBENCH, IFEVAL, check, grade

RESPONSES = 10_000
SEED = 1
SHARED = Path(os.environ.get("PCO_SHARED") or Path(__file__).parents[2] / "shared")

VOCABULARY = (
    "the a of and salt keeps fish fresh in barrels for months at sea while cooks argue about "
    "smoke, sugar and time; nobody agrees, yet everyone eats what Emma dries on her wide roof "
    '*today* 12 "quoted" (well) don\'t level - racecar 😀'
)
ENDS = (".", ".", ".", "?", "!", ".\n", ".\n\n", ".\n* ", ".\n- ")

NUMBERS = {"n": 2, "m": 3, "n_start": 0, "n_end": 40, "min_words": 100, "max_words": 200}
STRINGS = {"options": "yes/no/maybe", "language": "en", "letter": "e", "sep": "..."}


def measure() -> list[Figure]:
    given = os.environ.get("NLTK_DATA")
    language = Language(None if given else SHARED / "data" / "ifbench" / "nltk_data")
    source = random.Random(SEED)
    responses = [_response(source) for _ in range(RESPONSES)]

    def strictly(name: str, kwargs: Mapping[str, object], response: str) -> None:
        check(name, kwargs, "", response, language=language)

    def loosely(name: str, kwargs: Mapping[str, object], response: str) -> None:
        grade("", [name], [kwargs], response, language=language)

    words = sum(len(response.split()) for response in responses) / RESPONSES
    beside = f"{words:.0f} words a response"
    return [
        Figure("strict, the 58", _seconds(strictly, IFBENCH, responses), "s", 10, beside=beside),
        Figure("strict, IFEval's 25", _seconds(strictly, IFEVAL, responses), "s"),
        Figure("loose, the 58", _seconds(loosely, IFBENCH, responses), "s"),
    ]


def _seconds(
    score: Callable[[str, Mapping[str, object], str], None],
    constraints: Mapping[str, InstructionCheck],
    responses: Sequence[str],
) -> float:
    mix = [(name, _kwargs(constraint)) for name, constraint in constraints.items()]
    for name, kwargs in mix:
        score(name, kwargs, "Warm the tokenisers. Load the tables.")
    begun = time.process_time()
    for at, response in enumerate(responses):
        name, kwargs = mix[at % len(mix)]
        score(name, kwargs, response)
    return time.process_time() - begun


def _kwargs(constraint: InstructionCheck) -> dict[str, object]:
    return {name: _value(name) for name in constraint.takes}


def _value(name: str) -> object:
    if name in ("keywords", "forbidden_words"):
        return ["salt", "sea"]
    if name.endswith("relation"):
        return "at least"
    texts = ("keyword", "word", "first_word", "section_spliter", "end_phrase", "reference_text")
    if name.startswith("keyword") or name in (*texts, "prompt_to_repeat", "postscript_marker"):
        return "salt"
    return STRINGS.get(name, NUMBERS.get(name, 3))


def _response(source: random.Random) -> str:
    sentences = (
        " ".join(source.choices(VOCABULARY.split(), k=source.randint(5, 18))).capitalize()
        + source.choice(ENDS)
        for _ in range(source.randint(10, 16))
    )
    return " ".join(sentences)


if __name__ == "__main__":
    raise SystemExit(shown(measure, __doc__ or ""))
