"""What --set makes of a value."""

from __future__ import annotations

from typing import Any

import pytest

from promptcodebook.cli.settings import set_layer


@pytest.mark.parametrize(
    ("pair", "tree"),
    [
        ("size=8", {"size": 8}),
        ("data.input={title} {body}", {"data": {"input": "{title} {body}"}}),
        ('reward={kind = "exact"}', {"reward": {"kind": "exact"}}),
        ("init.instincts=['a', 'b']", {"init": {"instincts": ["a", "b"]}}),
        ('init.prompt={"role": "clerk"}', {"init": {"prompt": '{"role": "clerk"}'}}),
        ("base_prompt=42", {"base_prompt": "42"}),
        ("reward=[sic", {"reward": "[sic"}),
        ("reward=[1]\nseed = 2", {"reward": "[1]\nseed = 2"}),
        ("lm=none", {"lm": None}),
    ],
)
def test_a_value_is_json_or_toml_or_text(pair: str, tree: dict[str, Any]) -> None:
    assert set_layer([pair]) == tree
