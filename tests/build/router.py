"""A task whose right instinct shows in numbers, for the learned router."""

import promptcodebook as pco
from promptcodebook.base.randomness import keyed_random
from promptcodebook.calls import Reply, Request
from promptcodebook.paper.tasks.houserules.task import RULES, present_prompt
from tests.build.paper_tasks import KEPT, PLAIN
from tests.build.topics import PHRASES, obey


def keeping(request: Request) -> str:
    """A model that keeps the one house rule in its prompt, and answers plainly without one."""
    turn = request.messages[-1].content
    lines = present_prompt().partition("\n\n")[2].splitlines()
    told = [kind for kind, line in zip(RULES.values(), lines, strict=True) if line in turn]
    return KEPT[told[0]][0] if len(told) == 1 else PLAIN


LETTERS = tuple(PHRASES)


SIZE = 12


BOTH = {"router": {"kind": "outcomes", "features": "both"}, "update": {"epochs": 8}}


def numbers() -> pco.Dataset:
    """Messages whose words say nothing of their topic: a number, and nothing else."""
    rows = tuple(pco.Example(f"n{i}", f"message {i}", LETTERS[i % 4]) for i in range(112))
    return pco.Dataset(rows[:64], rows[64:80], rows[80:], "numbers")


def vector(text: str) -> tuple[float, ...]:
    """What a model might read out of a message: its topic, among much else."""
    draw = keyed_random("vector", text)
    noise = [draw.gauss(3.0, 0.5) for _ in range(SIZE)]
    noise[int(text.split()[-1]) % 4] += 2.0
    return tuple(noise)


def reads(request: Request) -> Reply | str:
    if request.embeds:
        return Reply("", vector=vector(request.messages[0].content))
    return obey(request)
