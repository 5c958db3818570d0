"""The golden test: `online` mode against a trace of Algorithm 1 worked out by hand.

K = 4, S = 2, three examples, T = 3 epochs of one full pass each, α = 0.5, τ = 0.5, ε₀ = 0.5,
γ = 0.5, ε_min = 0.2, seed 3. θ is updated on explored routes too, as printed.

ε: 0.5, then max(0.2, 0.25) = 0.25, then max(0.2, 0.125) = 0.2.

The draws (keyed by seed, step, example; see DRAWS): the seeded order of the passes is
x2 x1 x0 | x1 x0 x2 | x0 x1 x2, and rand() < ε at steps 0, 5 and 7 only. Step 7 explores thanks to
ε_min: 0.178 lies between γ²ε₀ = 0.125 and 0.2. A Gumbel top-k draw takes the two largest of
r̄_k/τ + noise_k = 2 r̄_k + noise_k:

    step 0: r̄ =    0      0      0      0       sums  -1.12  1.24   0.04  1.30   -> 1, 3
    step 5: r̄ =    0.275  0.6625 0.5875 0.425   sums   1.32  1.465  0.605 1.89   -> 1, 3
    step 7: r̄ =   -0.3625 -0.334 0.5875 0.2125  sums  -0.455 2.06   0.995 0.275  -> 1, 2

(At steps 5 and 7 the noise alone would have chosen 0, 3 and 0, 1: r̄ decides. It is r̄ and not the
success, which lies at 0.7, 0.923, 0.929, 0.667 before step 5: its sums 2.17 1.99 1.29 2.37 would
have chosen 0, 3.)

Rewards and penalties, and what follows for the two EMAs (x <- x/2 + value/2 for both k in z).
Success is such an EMA of r divided by one of 1; both are halved when the instinct is rewritten:

    step  x   z     r    score  ρ     r-ρ    r̄ of the pair            success of the pair
    0     x2  1,3   0.8  0.7    0.3   0.5    0.25      0.25           0.8000  0.8000
    1     x1  0,2   0.9  0      1    -0.1   -0.05     -0.05           0.9000  0.9000
    2     x0  1,2   1    (full) 0     1      0.625     0.475          0.9600  0.9667
    3     x1  0,3   0.6  0.9    0*    0.6    0.275     0.425          0.7000  0.6667
    4     x0  1,2   0.9  0.8    0.2   0.7    0.6625    0.5875         0.9231  0.9286
    5     x2  1,3   0.5  0.5    0.5   0      0.33125   0.2125         0.6222  0.5714
    6     x0  0,1   0    0      1    -1     -0.3625   -0.334375       0.3000  0.1618
    7     x1  1,2   0.7  1      0     0.7    0.1828125 0.64375        0.4830  0.7696
    8     x2  0,3   0.6  0.75   0.25  0.35  -0.00625   0.28125        0.4600  0.5913

    * an empty critique: ρ = 0 whatever its score.
"""

import math

import pytest

from promptcodebook.base.randomness import keyed_random
from promptcodebook.types import Step
from tests.build import method
from tests.build.golden import CONFIG, DRAWS, TRACE, script

# Who is called, in order: E_θ, G_φ, M, D_ψ, A(ttribution), Ψ (g_ψ), and U for every update.
CALLS = ["GMDAΨUUUU", "EGMDAΨU", "EGM", "EGMDΨU", "EGMDAΨUUU", "GMDAΨUUUUU", "EGMDAΨ", "GMDAΨU",
         "EGMDAΨU"]  # fmt: skip
LETTER = {
    "encoder": "E", "generator": "G", "executor": "M", "critic": "D", "attribution": "A",
    "updater": "U",
}  # fmt: skip


async def run() -> tuple[method.World, list[Step]]:
    world = method.World(CONFIG, script())
    start = method.parameters(method.book("zero v0", "one v0", "two v0", "three v0"))
    return world, await world.run(method.examples(3), start)


def test_the_draws_written_down_above_are_those_of_the_seed():
    for step, example, uniform, noise in DRAWS:
        draw = keyed_random(3, step, example, "explore")
        assert draw.random() == pytest.approx(uniform, abs=5e-4)
        if noise is not None:
            gumbel = [-math.log(-math.log(draw.random())) for _ in range(4)]
            assert gumbel == pytest.approx(noise, abs=5e-3)


async def test_routes_rewards_and_penalties_follow_the_hand_made_trace():
    _, steps = await run()
    assert [s.index for s in steps] == list(range(9))
    for step, row in zip(steps, TRACE, strict=True):
        (trace,) = step.traces
        assert (step.epoch, step.epsilon) == (row.epoch, row.epsilon)
        assert trace.rollout.example_id == row.example
        assert trace.rollout.route is not None
        assert (trace.rollout.route.explored, trace.rollout.route.indices) == (row.explored, row.z)
        assert trace.rollout.reward == row.reward
        assert trace.penalty == pytest.approx(row.rho)
        assert step.ema == pytest.approx(row.ema, abs=1e-12)
        assert step.success == pytest.approx(row.success, abs=1e-12)
        assert step.selected == row.selected


async def test_every_update_happens_in_the_order_of_algorithm_1():
    world, steps = await run()
    held = {"encoder": "theta 0", "generator": "phi 0", "critic": "psi 0",
            0: "zero v0", 1: "one v0", 2: "two v0", 3: "three v0"}  # fmt: skip
    for step, row in zip(steps, TRACE, strict=True):
        assert [(r.variable, r.before, r.after) for r in step.rewrites] == [
            (variable, held[variable], after) for variable, after in row.updates.items()
        ]
        assert all(r.kept for r in step.rewrites)
        held.update(row.updates)
        theta = step.parameters
        assert theta.codebook.texts == (held[0], held[1], held[2], held[3])
        assert (theta.encoder, theta.generator, theta.critic) == (
            held["encoder"], held["generator"], held["critic"],
        )  # fmt: skip
    own = set(map(id, world.adversary_calls))
    letters = ["Ψ" if id(r) in own else LETTER[r.role] for r in world.lm.history]
    assert "".join(letters) == "".join(CALLS) and world.lm.left == 0
    last_encoder = method.sent(world.asked("encoder")[-1])
    assert last_encoder.startswith("theta 3"), "each call sees what the step before left"
    assert "[2] two v2 (success 0.77)" in last_encoder
    assert "[3] three v1 (success 0.57)" in last_encoder
    assert method.sent(world.asked("generator")[-1]).startswith("phi 3")
    assert method.sent(world.asked("critic")[-1]).startswith("psi 3")
    assert method.sent(world.asked("executor")[-1]) == "prompt 8\ninput 2"
