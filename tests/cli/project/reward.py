"""How good is an answer? `pco train` calls `reward` for every answer; change it to fit your task.

`example.input` and `example.target` are the row's columns, `example.fields` has all of them.
Return a number in reward_range (0 to 1 unless pco.toml says otherwise), or a Score whose feedback
tells the critic what was wrong: the more precise the feedback, the better the codebook learns.
"""

import promptcodebook as pco


def reward(example: pco.Example, output: str) -> pco.Score:
    wanted = (example.target or "").strip().lower()
    answer = output.strip().strip(".").lower()
    if answer == wanted:
        return pco.Score(1.0)
    if wanted in answer:
        return pco.Score(0.5, feedback="the right answer is there, but not alone: give it bare")
    return pco.Score(0.0, feedback=f"the answer should have been {example.target!r}")
