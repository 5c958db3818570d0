"""Half a point for JSON with the right keys, and the rest for what stands in them."""

from __future__ import annotations

import json
from typing import Any

import promptcodebook as pco


def reward(example: pco.Example, output: str) -> dict[str, Any]:
    try:
        order = json.loads(output[output.index("{") : output.rindex("}") + 1])
    except ValueError:
        return {"score": 0.0, "feedback": "There is no JSON object in the answer."}
    if not isinstance(order, dict) or not {"item", "count"} <= order.keys():
        return {"score": 0.25, "feedback": "The object needs the keys item and count."}
    item = str(example.fields["item"]) in str(order["item"]).lower()
    count = str(order["count"]) == str(example.fields["count"])
    wrong = [] if item else [f"The item is {example.fields['item']}."]
    wrong += [] if count else [f"The count is {example.fields['count']}."]
    return {"score": 0.5 + 0.25 * item + 0.25 * count, "feedback": " ".join(wrong)}
