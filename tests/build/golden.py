"""The golden trace of Algorithm 1: its settings, draws, rows and scripted model."""

import json
from dataclasses import dataclass

from promptcodebook.lm.scripted import ScriptedLM
from tests.build.method import attributed, config, routed, verdict

CONFIG = config(
    seed=3,
    explore={"epsilon": 0.5, "gamma": 0.5, "epsilon_min": 0.2, "alpha": 0.5, "tau": 0.5},
    update={
        "mode": "online", "batch_size": 3, "steps_per_epoch": "all", "epochs": 3,
        "encoder_on_explored": True,
    },
)  # fmt: skip


DRAWS = [  # step, example, rand(), Gumbel noise of c0..c3
    (0, "x2", 0.431, (-1.12, 1.24, 0.04, 1.30)), (1, "x1", 0.640, None), (2, "x0", 0.903, None),
    (3, "x1", 0.873, None), (4, "x0", 0.646, None), (5, "x2", 0.029, (0.77, 0.14, -0.57, 1.04)),
    (6, "x0", 0.703, None), (7, "x1", 0.178, (0.27, 2.73, -0.18, -0.15)), (8, "x2", 0.765, None),
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What the hand-made trace says of one step."""

    epoch: int
    epsilon: float
    example: str
    explored: bool
    z: tuple[int, int]
    reward: float
    rho: float
    updates: dict[str, str]
    ema: tuple[float, float, float, float]
    success: tuple[float, float, float, float]
    selected: tuple[int, int, int, int]


TRACE = [
    Row(0, 0.5, "x2", True, (1, 3), 0.8, 0.3,
        {"encoder": "theta 1", "generator": "phi 1", 1: "one v1", "critic": "psi 1"},
        (0, 0.25, 0, 0.25), (0, 0.8, 0, 0.8), (0, 1, 0, 1)),
    Row(0, 0.5, "x1", False, (0, 2), 0.9, 1.0,
        {"encoder": "theta 2"},
        (-0.05, 0.25, -0.05, 0.25), (0.9, 0.8, 0.9, 0.8), (1, 1, 1, 1)),
    Row(0, 0.5, "x0", False, (1, 2), 1.0, 0.0,
        {},
        (-0.05, 0.625, 0.475, 0.25), (0.9, 0.96, 29/30, 0.8), (1, 2, 2, 1)),
    Row(1, 0.25, "x1", False, (0, 3), 0.6, 0.0,
        {"critic": "psi 2"},
        (0.275, 0.625, 0.475, 0.425), (0.7, 0.96, 29/30, 2/3), (2, 2, 2, 2)),
    Row(1, 0.25, "x0", False, (1, 2), 0.9, 0.2,
        {"generator": "phi 2", 1: "one v2", 2: "two v1"},
        (0.275, 0.6625, 0.5875, 0.425), (0.7, 12/13, 13/14, 2/3), (2, 3, 3, 2)),
    Row(1, 0.25, "x2", True, (1, 3), 0.5, 0.5,
        {"encoder": "theta 3", "generator": "phi 3", 1: "one v3", 3: "three v1",
         "critic": "psi 3"},
        (0.275, 0.33125, 0.5875, 0.2125), (0.7, 28/45, 13/14, 4/7), (2, 4, 3, 3)),
    Row(2, 0.2, "x0", False, (0, 1), 0.0, 1.0,
        {},
        (-0.3625, -0.334375, 0.5875, 0.2125), (0.3, 28/173, 13/14, 4/7), (3, 5, 3, 3)),
    Row(2, 0.2, "x1", True, (1, 2), 0.7, 0.0,
        {2: "two v2"},
        (-0.3625, 0.1828125, 0.64375, 0.2125), (0.3, 1036/2145, 177/230, 4/7), (3, 6, 4, 3)),
    Row(2, 0.2, "x2", False, (0, 3), 0.6, 0.25,
        {"encoder": "theta 4"},
        (-0.00625, 0.1828125, 0.64375, 0.28125), (0.46, 1036/2145, 177/230, 68/115),
        (4, 6, 4, 4)),
]  # fmt: skip


def script() -> ScriptedLM:
    """Every reply of the nine steps, in the order in which Algorithm 1 asks for it."""

    def own(feedback: str = "") -> str:
        return json.dumps({"feedback": feedback})

    lm = ScriptedLM()
    lm.enqueue(
        *(routed(*z) for z in [(0, 2), (2, 1), (0, 3), (1, 2), (1, 0), (3, 0)]), role="encoder"
    )
    lm.enqueue(*(f"prompt {step}" for step in range(9)), role="generator")
    lm.enqueue(*(str(row.reward) for row in TRACE), role="executor")
    lm.enqueue(
        verdict(0.7), own("psi 0 misses units"), verdict(0.0), own(),
        verdict(0.9, ""), own("psi 1 invents faults"), verdict(0.8), own(),
        verdict(0.5), own("psi 2 misses order"), verdict(0.0), own(),
        verdict(1.0, "fine, yet"), own(), verdict(0.75), own(),
        role="critic",
    )  # fmt: skip
    lm.enqueue(
        attributed("blurred", {1: "vague"}, "wrong pick"),
        attributed(routing="wrong pick"),
        attributed("blurred", {1: "vague", 2: "vague"}),
        attributed("blurred", {1: "vague", 3: "vague"}, "wrong pick"),
        attributed(),
        attributed(instincts={0: "inactive, so not heard", 2: "vague"}),
        attributed(routing="wrong pick"),
        role="attribution",
    )
    lm.enqueue(*(text for row in TRACE for text in row.updates.values()), role="updater")
    return lm  # fmt: skip
