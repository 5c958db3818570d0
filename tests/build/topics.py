"""A little world whose inputs need instincts: messages on four topics, each with a rule of its own.

The scripted model answers with the letter of the one rule that it was given, and errs otherwise.
"""

import random
from pathlib import Path
from typing import Any

import promptcodebook as pco
from promptcodebook.base.randomness import keyed_random
from promptcodebook.calls import Request
from promptcodebook.lm.scripted import ScriptedLM
from tests.build.optimize import train

PHRASES = {
    "R": ("money back", "refund please", "return my order", "charged twice"),
    "P": ("where is my parcel", "delivery late", "tracking number", "shipment lost"),
    "L": ("cannot log in", "password reset", "account locked", "two factor code"),
    "C": ("how much is it", "discount code", "price list", "cost of the plan"),
}
PROMPT = """Answer in letters. Be kind.

- If it is about a refund, say R.
- If it is about a parcel, say P.
- If it is about a login, say L.
- If it is about a price, say C.
"""


def data(train: int = 64, test: int = 32) -> pco.Dataset:
    draw = random.Random(7)
    rows = [
        pco.Example(
            f"{letter}{i}",
            f"{draw.choice(['hi', 'hello', 'hey'])} {draw.choice(phrases)} "
            f"{draw.choice(['asap', 'thanks', 'today', 'please'])} {i}",
            letter,
        )
        for letter, phrases in PHRASES.items()
        for i in range((train + test) // 4 + 4)
    ]
    draw.shuffle(rows)
    return pco.Dataset(
        tuple(rows[:train]), tuple(rows[train : train + 16]), tuple(rows[-test:]), "topics"
    )


def obey(request: Request) -> str:
    told = " ".join(m.content for m in request.messages if m.role == "system")
    letters = [letter for letter in PHRASES if f"say {letter}" in told]
    return letters[0] if len(letters) == 1 else "?"


def right(example: pco.Example, output: str) -> float:
    return float(output == example.target)


def chance(example: pco.Example, output: str) -> float:
    """A reward that nothing the model is told has any part in."""
    return float(keyed_random("chance", example.id).random() < 0.5)


def shuffled(example: pco.Example, output: str) -> float:
    """The rewards of the right rule, dealt out to inputs and replies at random."""
    return float(keyed_random("shuffled", example.id, output).random() < 0.25)


SMALL: dict[str, Any] = {
    "preset": "small",
    "size": 6,
    "init": {"kind": "from_prompt", "prompt": PROMPT},
    "update": {"epochs": 12},
}


def learn(runs: Path, reward: Any = right, lm: Any = None, **more: Any) -> pco.Run:
    more = {"data": data(), "reward": reward, "lm": lm or ScriptedLM().reply_with(obey), **more}
    return train(runs.parent, runs.name, SMALL, progress=False, **more)


IDLE = [f"Mind the {word} of the answer." for word in ("tone", "length", "style", "order", "end")]
