"""Optimizes an agent of our own from Python, and looks at what came of it: python train.py"""

from __future__ import annotations

import os
from pathlib import Path

from agent import menu_line, reward

import promptcodebook as pco

HERE = Path(__file__).parent
SETTINGS = {
    "preset": "small",  # for weak models: sentences stay as they are, routes are learned
    "init": {
        "kind": "expert",
        "instincts": (
            "Answer in one short sentence.",
            "Name what the dish is made of.",
            "Use at most six words.",
            "Write like a cook who loves the dish.",
        ),
    },
    "size": 4,
    "select": 2,
    "update": {"epochs": 2, "batch_size": 8},
    "validation": {"every": 2, "subset": 4},
    "roles": {"executor": {"temperature": 0.0, "max_tokens": 16}},
}


def main() -> None:
    lm = os.environ.get("PCO_LM", "smollm2")
    data = pco.load(
        HERE / "dishes.jsonl", input="dish", target="ingredient", fractions=(0.3, 0.12, 0.58)
    )
    run = pco.optimize(data, reward, lm, executor=menu_line, config=SETTINGS, name="menu")
    print(run.verdict)

    everything = pco.evaluate(run, row="concat")
    compared = pco.compare(run, everything)
    print(f"learned - all instincts in one prompt, n = {compared.gain.n}: {compared.sentence}")

    said = run.policy.respond(data.test[0])
    print(f"{data.test[0].input}: {said.text}\n  instincts {said.route.indices}: {said.prompt}")
    run.policy.save("menu.pco.json")


if __name__ == "__main__":
    main()
