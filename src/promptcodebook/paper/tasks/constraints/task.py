"""`constraints`: our own instruction-following task, shipped with the package; the demo.

160 everyday writing requests with 0 to 8 verifiable constraints each, over 24 kinds; the reward is
the share of a prompt's constraints that the answer keeps.

`python -m promptcodebook.paper.tasks.constraints.task` writes data.jsonl. Deterministic. Kinds are
dealt so that each occurs about equally often in each split; kinds that contradict each other never
meet, and parameters are drawn so that all constraints of a prompt can be kept at once."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from promptcodebook.base.randomness import keyed_random
from promptcodebook.base.text import shipped_table
from promptcodebook.data import Dataset, load
from promptcodebook.paper.tasks.constraints import checks
from promptcodebook.tasks.home import read_texts
from promptcodebook.tasks.program import SingleCall
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Score

_FOLDER = Path(__file__).parent
_FEWEST_WORDS = 5  # of an answer to a prompt without constraints


def load_constraints(_data_dir: Path | None = None) -> Task:
    """The task; its data ships with the package, so no folder is read."""
    shipped = _FOLDER / "data.jsonl"
    return Task(
        name="constraints",
        dataset=load(shipped, target=None, id="id", split="split", name="constraints"),
        reward=asks_nobody(reward),
        program=SingleCall(),
        **read_texts(_FOLDER),
    )


def draw_constraints(world: int, kinds: Sequence[str] = ()) -> Dataset:
    """Other prompts in place of the shipped ones (world 1), drawn alike, as `compose` does."""
    rows = list(compose(world, kinds))
    return load(rows, target=None, id="id", split="split", name="constraints")


def constraints_of(example: Example) -> tuple[checks.Constraint, ...]:
    """The constraints an example carries in `fields["constraints"]`, in the prompt's order."""
    return tuple(cast("list[checks.Constraint]", example.fields.get("constraints") or []))


def reward(example: Example, output: str) -> Score:
    """The share of constraints kept. Without any: 1 for an answer of five words or more, else 0."""
    constraints = constraints_of(example)
    if not constraints:
        if len(checks.words(output)) >= _FEWEST_WORDS:
            return Score(1.0, "The request sets no constraints, and it was answered.")
        return Score(0.0, "The request was not answered: there are fewer than five words.")
    return score_of([checks.check(constraint, example.input, output) for constraint in constraints])


def score_of(results: Sequence[checks.CheckResult]) -> Score:
    """The share of the constraints that hold, and what was found of each."""
    kept = [result.explanation for result in results if result.satisfied]
    broken = [result.explanation for result in results if not result.satisfied]
    parts = [f"{len(kept)} of {len(results)} constraints are satisfied."]
    if broken:
        parts.append("Not satisfied: " + " ".join(broken))
    if kept:
        parts.append("Satisfied: " + " ".join(kept))
    return Score(len(kept) / len(results), " ".join(parts))


SIZES = {"train": 60, "val": 40, "test": 60}
_DRAWN: Mapping[str, Any] = shipped_table(__file__, "compose.toml")
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
    """The rows of data.jsonl, or as many of another `world`; with `kinds`, of just these kinds."""
    key = "constraints" if world == 1 else f"constraints {world}"
    wordings = read_wordings()
    lines = _FOLDER.joinpath("requests.txt").read_text("utf-8").splitlines()
    requests = [line.split("\t") for line in lines]
    keyed_random(key, "requests").shuffle(requests)
    for split, size in SIZES.items():
        used = Counter[str]()
        for number in range(size):
            name = f"{split}-{number + 1:03d}"
            topic, request = requests.pop()
            rng = keyed_random(key, name)
            many = _DRAWN["how_many"]
            dealt = list(kinds) or _deal(many[number % len(many)], used, rng)
            # The parameters of each kind respect those that were drawn before it.
            include, avoid = (rng.sample(_DRAWN[p], len(_DRAWN[p])) for p in ("include", "avoid"))
            draw = _Draw(rng, include, avoid, {})
            for kind in sorted(dealt, key=_ORDER.index):
                draw.drawn[kind] = {"kind": kind, **draw.parameters(kind)}
            constraints = [draw.drawn[kind] for kind in dealt]
            prompt = _prompt(request, [_phrase(c, wordings, rng) for c in constraints], rng)
            yield {"id": name, "split": split, "topic": topic, "input": prompt,
                   "constraints": constraints}  # fmt: skip


def read_wordings() -> Mapping[str, Sequence[str]]:
    """Kind -> its phrasings, with parameters in braces."""
    return json.loads(_FOLDER.joinpath("wordings.json").read_text("utf-8"))


def _phrase(
    constraint: Mapping[str, object], wordings: Mapping[str, Sequence[str]], rng: random.Random
) -> str:
    text = rng.choice(wordings[str(constraint["kind"])])
    for name, value in constraint.items():
        if isinstance(value, list):
            value = ", ".join(cast("list[str]", value))
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _deal(count: int, used: Counter[str], rng: random.Random) -> list[str]:
    order = sorted(checks.KINDS, key=lambda kind: (used[kind], rng.random()))
    kinds = list[str]()
    for kind in order:
        if len(kinds) < count and compatible(kind, kinds):
            kinds.append(kind)
    used.update(kinds)
    rng.shuffle(kinds)
    return kinds


# What limits others is drawn first; the two word limits look at everything else.
_ORDER = (*(k for k in checks.KINDS if k not in ("sentences", "max_words", "min_words")),
          "sentences", "max_words", "min_words")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Draw:
    """The pools, each word given out once, and what was drawn already, by kind."""

    rng: random.Random
    include: list[str]
    avoid: list[str]
    drawn: dict[str, dict[str, object]]

    def parameters(self, kind: str) -> dict[str, object]:
        rng, drawn = self.rng, self.drawn
        match kind:
            case "include" | "avoid":
                pool = self.include if kind == "include" else self.avoid
                return {"words": [pool.pop() for _ in range(rng.randint(1, 3))]}
            case "json":
                return {"keys": rng.sample(_DRAWN["keys"], rng.randint(2, 4))}
            case "start_with" | "end_with":
                return {"text": rng.choice(_DRAWN["starts" if kind == "start_with" else "ends"])}
            case "letter_count":
                return {"letter": rng.choice(_LETTERS), "n": rng.randint(3, 8)}
            case "max_words":
                # A limit under which everything drawn so far fits with ease, a multiple of 5.
                need = 35 + 4 * len(drawn)
                for other, constraint in drawn.items():
                    need += _DRAWN["words_each"].get(other, 0) * int(str(constraint.get("n", 0)))
                return {"n": -(-need // 5) * 5 + 5 * rng.randint(0, 8)}
            case "min_words" if "max_words" in drawn:
                return {"n": int(str(drawn["max_words"]["n"])) - 5 * rng.randint(4, 6)}
            case "min_words" if "sentences" in drawn:
                return {"n": 10 * int(str(drawn["sentences"]["n"]))}
            case "min_words":
                return {"n": 10 * rng.randint(5, 12)}
            case _:
                span = _DRAWN["spans"].get(kind)
                return {"n": rng.randint(*span)} if span else {}


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
    _FOLDER.joinpath("data.jsonl").write_text("".join(lines), "utf-8")
