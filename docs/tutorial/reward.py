"""Does the answer open as the library wants it for this kind of message?"""

import promptcodebook as pco


def reward(example: pco.Example, output: str) -> pco.Score:
    if output.strip().startswith(example.target):
        return pco.Score(1.0, feedback=f"It opens with {example.target!r}, as it should.")
    if example.target in output:
        return pco.Score(0.5, feedback=f"{example.target!r} should come first.")
    return pco.Score(0.0, feedback=f"It should open with {example.target!r}.")
