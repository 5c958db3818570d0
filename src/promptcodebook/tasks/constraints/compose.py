"""Writes the task's prompts: `python -m promptcodebook.tasks.constraints.compose` -> data.jsonl.

Deterministic. Kinds are dealt so that each occurs about equally often in each split; kinds that
contradict each other never meet, and parameters are drawn so that all constraints of a prompt can
be kept at once (the tests build an answer that does, for every prompt). How a constraint is put to
the model is in wordings.json: several phrasings per kind, each exact about its check.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from promptcodebook.randomness import keyed_random
from promptcodebook.tasks.constraints.checks import KINDS

SIZES = {"train": 60, "val": 40, "test": 60}
_HOW_MANY = (3, 2, 5, 4, 0, 3, 6, 2, 1, 4, 3, 7, 2, 3, 5, 4, 1, 8, 2, 3)
"""Constraints per prompt, dealt round: 0 in one of 20, 2-4 in twelve, 5-8 in five."""

_DRAWN: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("compose.toml").read_text("utf-8")
)
_CLASHES: Mapping[str, Sequence[str]] = _DRAWN["clashes"]
_LETTERS = "bfgkpvwy"


def compatible(kind: str, others: Iterable[str]) -> bool:
    """Does a constraint of this kind go with the others, none of the same kind?"""
    return all(
        kind != other
        and other not in _CLASHES.get(kind, ())
        and kind not in _CLASHES.get(other, ())
        for other in others
    )


def compose(world: int = 1, kinds: Sequence[str] = ()) -> Iterator[dict[str, object]]:
    """All rows of data.jsonl, in their order; of another `world` as many others, drawn alike.

    With `kinds`, which must go together, every prompt has constraints of just these kinds.
    """
    key = "constraints" if world == 1 else f"constraints {world}"
    requests, wordings = _requests(), read_wordings()
    keyed_random(key, "requests").shuffle(requests)
    for split, size in SIZES.items():
        used = Counter[str]()
        for number in range(size):
            name = f"{split}-{number + 1:03d}"
            topic, request = requests.pop()
            rng = keyed_random(key, name)
            dealt = list(kinds) or _deal(_HOW_MANY[number % len(_HOW_MANY)], used, rng)
            # The parameters of each kind respect those that were drawn before it.
            pools = _Pools(rng)
            drawn = dict[str, dict[str, object]]()
            for kind in sorted(dealt, key=_ORDER.index):
                drawn[kind] = {"kind": kind, **_parameters(kind, drawn, pools)}
            constraints = [drawn[kind] for kind in dealt]
            prompt = _prompt(request, [_phrase(c, wordings, rng) for c in constraints], rng)
            yield {"id": name, "split": split, "topic": topic, "input": prompt,
                   "constraints": constraints}  # fmt: skip


def read_wordings() -> Mapping[str, Sequence[str]]:
    """Kind -> its phrasings, with parameters in braces."""
    return json.loads(Path(__file__).with_name("wordings.json").read_text("utf-8"))


def _phrase(
    constraint: Mapping[str, object], wordings: Mapping[str, Sequence[str]], rng: random.Random
) -> str:
    """One constraint in words, in a phrasing drawn from `rng`."""
    text = rng.choice(wordings[str(constraint["kind"])])
    for name, value in constraint.items():
        if isinstance(value, list):
            value = ", ".join(cast("list[str]", value))
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _requests() -> list[tuple[str, str]]:
    text = Path(__file__).with_name("requests.txt").read_text("utf-8")
    pairs = (line.split("\t") for line in text.splitlines())
    return [(topic, request) for topic, request in pairs]


def _deal(count: int, used: Counter[str], rng: random.Random) -> list[str]:
    """`count` kinds that go together, the least used first, ties drawn."""
    order = sorted(KINDS, key=lambda kind: (used[kind], rng.random()))
    kinds = list[str]()
    for kind in order:
        if len(kinds) < count and compatible(kind, kinds):
            kinds.append(kind)
    used.update(kinds)
    rng.shuffle(kinds)
    return kinds


# What limits others is drawn first; the two word limits look at everything else.
_ORDER = (*(k for k in KINDS if k not in ("sentences", "max_words", "min_words")),
          "sentences", "max_words", "min_words")  # fmt: skip
_SPANS = {"paragraphs": (2, 4), "bullets": (2, 6), "numbered": (3, 6), "exact_numbers": (2, 5),
          "placeholders": (1, 4), "headings": (2, 3), "alphabetical": (3, 6)}  # fmt: skip


class _Pools:
    """Words to draw from, none given out twice, so that no word is both asked for and forbidden."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.include: list[str] = rng.sample(_DRAWN["include"], len(_DRAWN["include"]))
        self.avoid: list[str] = rng.sample(_DRAWN["avoid"], len(_DRAWN["avoid"]))

    def take(self, pool: list[str], most: int) -> list[str]:
        return [pool.pop() for _ in range(self.rng.randint(1, most))]


def _parameters(kind: str, drawn: dict[str, dict[str, object]], pools: _Pools) -> dict[str, object]:
    rng = pools.rng
    match kind:
        case "include":
            return {"words": pools.take(pools.include, 3)}
        case "avoid":
            return {"words": pools.take(pools.avoid, 3)}
        case "json":
            return {"keys": rng.sample(_DRAWN["keys"], rng.randint(2, 4))}
        case "start_with" | "end_with":
            return {"text": rng.choice(_DRAWN["starts" if kind == "start_with" else "ends"])}
        case "letter_count":
            return {"letter": rng.choice(_LETTERS), "n": rng.randint(3, 8)}
        case _:
            return _count(kind, drawn, rng)


def _count(kind: str, drawn: dict[str, dict[str, object]], rng: random.Random) -> dict[str, object]:
    if kind == "sentences":
        return {"n": rng.randint(3, 6)}
    if kind == "max_words":
        return {"n": _room(drawn) + 5 * rng.randint(0, 8)}
    if kind == "min_words":
        if "max_words" in drawn:
            return {"n": int(str(drawn["max_words"]["n"])) - 5 * rng.randint(4, 6)}
        if "sentences" in drawn:
            return {"n": 10 * int(str(drawn["sentences"]["n"]))}
        return {"n": 10 * rng.randint(5, 12)}
    return {"n": rng.randint(*_SPANS[kind])} if kind in _SPANS else {}


_WORDS_EACH = {"paragraphs": 12, "bullets": 8, "numbered": 8, "alphabetical": 8, "headings": 12,
               "sentences": 10, "placeholders": 2, "letter_count": 1,
               "exact_numbers": 2}  # fmt: skip


def _room(drawn: dict[str, dict[str, object]]) -> int:
    """A word limit under which everything drawn so far fits with ease, a multiple of 5."""
    need = 35 + 4 * len(drawn)
    for kind, constraint in drawn.items():
        need += _WORDS_EACH.get(kind, 0) * int(str(constraint.get("n", 0)))
    return -(-need // 5) * 5


def _prompt(request: str, sayings: list[str], rng: random.Random) -> str:
    if not sayings:
        return request
    shape = rng.randrange(3) if len(sayings) > 1 else 0
    if shape == 0:
        return " ".join((request, *sayings))
    if shape == 1:
        return "\n".join((request, "Requirements:", *(f"* {saying}" for saying in sayings)))
    return f"{request}\n\n{' '.join(sayings)}"


if __name__ == "__main__":
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in compose()]
    Path(__file__).with_name("data.jsonl").write_text("".join(lines), "utf-8")
