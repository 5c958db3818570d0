"""Writes docs/reference/rewards.md from the ready-made rewards: python docs/generate_rewards.py"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from promptcodebook.tasks import rewards

_HEAD = """# Rewards

Written by `python docs/generate_rewards.py`.

In `pco.toml`, write `reward = "exact"` or, with options,
`reward = { kind = "contains", ignore_case = false }`. In Python, pass the same value or
`pco.rewards.contains(ignore_case=False)` ([Python](python.md#ready-made-rewards)). Each reward
ranges from 0 to 1, and its feedback says what was wrong. A reference may list several right
answers: `["Paris", "City of Paris"]`. To use your own reward, write
`reward = "reward.py:reward"` ([how](../how-to/write-a-reward.md)).
"""
_SHAPES = {**rewards.READY, "judge": rewards.RubricJudge, "sum": rewards.WeightedSum}
_EXAMPLES = {
    "exact": 'reward = "exact"',
    "normalised": 'reward = "normalised"',
    "contains": 'reward = { kind = "contains", text = "Dear customer", ignore_case = false }',
    "label": 'reward = { kind = "label", labels = ["billing", "delivery", "account"] }',
    "fields": 'reward = { kind = "fields", fenced = true }',
    "regex": 'reward = { kind = "regex", pattern = "form [0-9]+", full = true }',
    "numeric": 'reward = { kind = "numeric", tolerance = 0.01, relative = 0.001 }',
    "f1": 'reward = "f1"',
    "json": 'reward = { kind = "json", keys = ["form", "order"], fenced = true }',
    "schema": 'reward = { kind = "schema", schema = "answer.schema.json" }',
    "judge": 'reward = { kind = "judge", rubric = "The answer names the form and is polite." }',
    "sum": 'reward = { kind = "sum", parts = [{ kind = "exact", weight = 0.7 }, '
    '{ kind = "json", weight = 0.3 }] }',
}
_OPTIONS = {
    "schema": {
        "schema": "a JSON schema, or the path of its file (required)",
        "fenced": "allows one code fence around the JSON (`false`)",
    },
    "judge": {
        "rubric": "describes what a good answer does (required)",
        "shots": "puts worked examples first, for small models",
    },
    "sum": {
        "parts": "rewards, each with its options and a `weight` (1.0); "
        '`{ function = "reward.py:reward" }` names your own function (required)'
    },
}


def page() -> str:
    """The whole of docs/reference/rewards.md."""
    parts = [_HEAD]
    for kind in rewards.reward_kinds():
        lines = [f"## `{kind}`", "", inspect.cleandoc(_SHAPES[kind].__doc__ or ""), ""]
        options = list(_options(kind))
        if options:
            lines += [*options, ""]
        parts.append("\n".join([*lines, "```toml", _EXAMPLES[kind], "```", ""]))
    return "\n".join(parts).rstrip() + "\n"


def _options(kind: str) -> Iterator[str]:
    for name, text in _OPTIONS.get(kind, {}).items():
        yield f"- `{name}`: {text}"
    for field in () if kind in _OPTIONS else dataclasses.fields(_SHAPES[kind]):
        needed = field.default is dataclasses.MISSING
        if needed or field.default is None:
            yield f"- `{field.name}` ({'required' if needed else 'default: the reference'})"
        else:
            yield f"- `{field.name}={_toml(field.default)}`"


def _toml(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


if __name__ == "__main__":
    target = Path(__file__).parent / "reference" / "rewards.md"
    target.write_text(page(), "utf-8")
    sys.stderr.write(f"{target}\n")
