"""The simulated judges: of an answer, of two answers, and of leaks. Honest, with a stated noise."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.stages import mentions
from promptcodebook.simulated.words import content_stems, patterns, says

_MARGIN = 0.25
"""How much likeness to the known good answer may be missing before an answer counts as worse."""
_NUMBERED = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+(.+?)\s*$", re.MULTILINE)


def judge(mind: Mind) -> str:
    """The reply to: grade this answer. By likeness to the reference, else by length alone."""
    response = content_stems(mind.section("response"))
    score = _likeness(response, content_stems(mind.section("reference")), 20)
    score = round(min(1.0, max(0.0, score + 0.1 * (mind.unit("judge") - 0.5))), 2)
    reason = f"The answer meets about {round(100 * score)} percent of what was wanted."
    return mind.fill({"score": score, "prose": reason}, f"{score}\n{reason}")


def _likeness(held: frozenset[str], wanted: frozenset[str], enough: int) -> float:
    """Share of the wanted words; where none is known, of so many words as are enough."""
    return len(held & wanted) / len(wanted) if wanted else min(1.0, len(held) / enough)


def compare(mind: Mind) -> str:
    """Whether response A is at least as good as B: by likeness to the answer known to be good."""
    user = mind.asked.request.user
    shown = _object(user)
    texts = {k.lower()[-1:]: str(v) for k, v in shown.items() if re.search(r"[_ ][abAB]$", k)}
    if not texts:
        found = patterns("said")["texts"].finditer(user)
        texts = {(m[1] or m[3]).lower(): m[2] or m[4] or "" for m in found}
    asked = (str(v) for k, v in shown.items() if re.search(r"query|question|input", k))
    wanted = content_stems(mind.world.problem(mind.asked.input or next(asked, "")).gold or "")
    first, second = (_likeness(content_stems(texts.get(k, "")), wanted, 40) for k in "ab")
    good = first >= second - _MARGIN
    good ^= mind.happens(mind.settings.judge_noise, "turn")
    reason = "The first holds up." if good else "The second serves the query better."
    return _filled(mind, reason, good, int(good), "yes" if good else "no")


def count_leaks(mind: Mind) -> str:
    """How many of the pieces listed occur in the request shown."""
    user = mind.asked.request.user
    shown = _object(user)
    lists = [cast("list[object]", v) for v in shown.values() if isinstance(v, list)]
    text = next((str(v) for k, v in shown.items() if re.search(r"request|prompt", k)), "")
    units = [str(u).strip() for u in lists[0]] if lists else []
    request = says("request", user)
    if request is not None and not units:
        text, units = request[1], _NUMBERED.findall(user[: request.start(1)])
    count = sum(mentions(text, u) for u in units)
    if mind.happens(mind.settings.judge_noise, "off"):
        count = min(len(units), max(0, count + (1 if mind.happens(0.5, "up") else -1)))
    return _filled(mind, f"{count} of {len(units)} occur.", count > 0, count, str(count))


def _object(user: str) -> Mapping[str, object]:
    start = user.find("{")
    try:
        tree: object = json.loads(user[start:]) if start >= 0 else None
    except ValueError:
        tree = None
    return cast("Mapping[str, object]", tree) if isinstance(tree, dict) else {}


def _filled(mind: Mind, reason: str, verdict: bool, count: int, plain: str) -> str:
    """The reply in the shape asked for: each key by the type that its schema, or name, tells."""
    shape = mind.asked.shape
    if not shape.json:
        return f"{plain}\n{reason}"
    schema = mind.asked.request.schema or {}
    nodes = cast("Mapping[str, Mapping[str, object]]", schema.get("properties") or {})
    guess = "boolean" if mind.asked.kind == "compare" else "integer"
    types: Mapping[str, object] = {"boolean": verdict, "integer": count, "number": count}
    said: dict[str, object] = {}
    for key in shape.keys:
        prose = re.search(r"reason|why|explan|comment|thought|analysis", key.lower())
        kind = str(nodes.get(key, {}).get("type") or ("string" if prose else guess))
        said[key] = [] if kind == "array" else types.get(kind, reason)
    return json.dumps(said, ensure_ascii=False)
