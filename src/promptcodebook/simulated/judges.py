"""The simulated judges of quality and leakage: honest, by the texts shown, with a stated noise."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.pipelines import mentions
from promptcodebook.simulated.words import content_stems

__all__ = ["compare", "count_leaks", "judge"]

_MARGIN = 0.25
"""How much likeness to the known good answer may be missing before an answer counts as worse."""
_TEXTS = re.compile(
    r"(?:<response_([ab])>\s*(.*?)\s*</response_[ab]>)|"
    r"(?:^(?:#+ |\*\*)?(?:response|answer|reply)[ _]([ab])\W*:\s*(.*?)\s*"
    r"(?=^(?:#+ |\*\*)?(?:response|answer|reply)[ _][ab]\b|\Z))",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_NUMBERED = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+(.+?)\s*$", re.MULTILINE)
_UNITS = re.compile(
    r"(?:pieces?|units?|information|pii)[^:\n]*:\s*([^\n]+(?:\|\|[^\n]*)?)", re.IGNORECASE
)
_REQUEST = re.compile(
    r"^.*?\b(?:request|prompt|message)\b[^:\n]*:\s*(.*)\Z", re.DOTALL | re.IGNORECASE
)


def judge(mind: Mind) -> str:
    """The reply to: grade this answer. By likeness to the reference, else by length alone."""
    response = content_stems(mind.section("response"))
    wanted = content_stems(mind.section("reference"))
    score = len(response & wanted) / len(wanted) if wanted else min(1.0, len(response) / 20)
    score = round(min(1.0, max(0.0, score + 0.1 * (mind.draw.unit("judge") - 0.5))), 2)
    reason = f"The answer meets about {round(100 * score)} percent of what was wanted."
    return mind.asked.shape.fill({"score": score, "prose": reason}, f"{score}\n{reason}")


def compare(mind: Mind) -> str:
    """Whether response A is at least as good as B: by likeness to the answer known to be good."""
    first, second = _pair(mind.asked.request.user)
    query = mind.asked.input or _query(mind.asked.request.user)
    wanted = content_stems(mind.world.problem(query).gold or "")

    def worth(text: str) -> float:
        held = content_stems(text)
        return len(held & wanted) / max(1, len(wanted)) if wanted else min(1.0, len(held) / 40)

    good = worth(first) >= worth(second) - _MARGIN
    if mind.draw.unit("turn") < mind.settings.judge_noise:
        good = not good
    reason = "The first holds up." if good else "The second serves the query better."
    return _filled(mind, reason, good, int(good), [])


def count_leaks(mind: Mind) -> str:
    """How many of the pieces listed occur in the request shown."""
    units, request = _units(mind.asked.request.user)
    found = [u for u in units if mentions(request, u)]
    count = len(found)
    if mind.draw.unit("off") < mind.settings.judge_noise:
        count += 1 if mind.draw.unit("up") < 0.5 else -1
    count = min(len(units), max(0, count))
    return _filled(mind, f"{count} of {len(units)} occur.", count > 0, count, found)


def _pair(user: str) -> tuple[str, str]:
    held = _object(user)
    if held is not None:
        texts = {k.lower()[-1:]: str(v) for k, v in held.items() if re.search(r"[_ ][abAB]$", k)}
    else:
        texts = {(m[1] or m[3]).lower(): m[2] or m[4] or "" for m in _TEXTS.finditer(user)}
    return texts.get("a", ""), texts.get("b", "")


def _query(user: str) -> str:
    held = _object(user) or {}
    return next((str(v) for k, v in held.items() if re.search(r"query|question|input", k)), "")


def _units(user: str) -> tuple[list[str], str]:
    held = _object(user)
    if held is not None:
        lists = (cast("list[object]", v) for v in held.values() if isinstance(v, list))
        listed = next(lists, None)
        request = next((v for k, v in held.items() if re.search(r"request|prompt", k)), "")
        if listed is None:
            named = next((str(v) for k, v in held.items() if re.search(r"unit|pii|piece", k)), "")
            return _cut(named), str(request)
        return [str(u).strip() for u in listed], str(request)
    request = _REQUEST.match(user)
    before = user[: request.start(1)] if request is not None else user
    units = _NUMBERED.findall(before)
    if not units:
        named = _UNITS.search(before)
        units = _cut(named[1]) if named is not None else []
    return units, request[1] if request is not None else ""


def _cut(text: str) -> list[str]:
    return [u.strip() for u in re.split(r"\|\||[,;]", text) if u.strip()]


def _object(user: str) -> Mapping[str, object] | None:
    start = user.find("{")
    try:
        tree: object = json.loads(user[start:]) if start >= 0 else None
    except ValueError:
        return None
    return cast("Mapping[str, object]", tree) if isinstance(tree, dict) else None


def _filled(mind: Mind, reason: str, verdict: bool, count: int, found: list[str]) -> str:
    """The reply in the shape asked for: each key by the type that its schema, or name, tells."""
    shape = mind.asked.shape
    yes = mind.asked.kind == "compare"
    plain = f"{('yes' if verdict else 'no') if yes else count}\n{reason}"
    if not shape.json:
        return plain
    types = _types(mind)
    values: dict[str, object] = {}
    for key in shape.keys:
        kind = types.get(key) or _guessed(key, yes)
        values[key] = {
            "boolean": verdict,
            "integer": count,
            "number": count,
            "array": found,
        }.get(kind, reason)
    return json.dumps(values, ensure_ascii=False)


def _types(mind: Mind) -> dict[str, str]:
    schema = mind.asked.request.schema or {}
    properties = cast("Mapping[str, Mapping[str, object]]", schema.get("properties") or {})
    return {key: str(node.get("type", "")) for key, node in properties.items()}


def _guessed(key: str, compares: bool) -> str:
    if re.search(r"reason|why|explan|comment|thought|analysis", key.lower()):
        return "string"
    return "boolean" if compares else "integer"
