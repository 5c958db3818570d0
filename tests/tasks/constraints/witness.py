"""Builds an answer that keeps all constraints of a prompt at once: the proof that one exists."""

import json
from collections.abc import Mapping

from promptcodebook.tasks.constraints.checks import Constraint, check

FILLER = "zumble"


def witness(prompt: str, constraints: tuple[Constraint, ...]) -> str | None:
    """The shortest padded answer that keeps them all, None if there is none of this make."""
    asked = {str(c["kind"]): c for c in constraints}
    assert len(asked) == len(constraints), "no kind occurs twice in a prompt"
    for padding in range(200):
        text = _answer(asked, padding)
        if all(check(c, prompt, text).satisfied for c in constraints):
            return text
    return None


def _number(asked: Mapping[str, Constraint], kind: str, otherwise: int = 0) -> int:
    return int(str(asked[kind]["n"])) if kind in asked else otherwise


def _tokens(asked: Mapping[str, Constraint], padding: int) -> list[str]:
    """The words that single constraints want, and the padding."""
    tokens = [FILLER] * (padding + 1)
    if "include" in asked:
        tokens += asked["include"]["words"]  # type: ignore[arg-type]
    tokens += ["[gap]"] * _number(asked, "placeholders")
    tokens += ["7"] * _number(asked, "exact_numbers")
    if "letter_count" in asked:
        tokens.append(str(asked["letter_count"]["letter"]) * _number(asked, "letter_count"))
    return tokens


def _answer(asked: Mapping[str, Constraint], padding: int) -> str:
    tokens = _tokens(asked, padding)
    if "json" in asked:
        keys: list[str] = asked["json"]["keys"]  # type: ignore[assignment]
        values = {key: FILLER for key in keys} | {keys[0]: " ".join(tokens)}
        return json.dumps(values)
    text = _prose(asked, tokens)
    if "two_versions" in asked:
        first, rest = text.split(FILLER, 1)
        text = f"{first}{FILLER}\n******\n{rest.strip() or FILLER * 2}"
    if "quoted" in asked:
        text = f'"{text}"'
    if "uppercase" in asked:
        text = text.upper()
    return text


def _prose(asked: Mapping[str, Constraint], tokens: list[str]) -> str:
    closing = [str(asked["end_with"]["text"])] if "end_with" in asked else []
    blocks = _number(asked, "paragraphs", 2 if "postscript" in asked else 1)
    count = max(_number(asked, "sentences", blocks + len(closing)), blocks)
    opening = f"{asked['start_with']['text']} " if "start_with" in asked else ""
    sentences = [f"{opening}{' '.join(tokens)}."]
    sentences += [f"{FILLER}."] * (count - 1 - len(closing)) + closing
    paragraphs = [*sentences[: blocks - 1], " ".join(sentences[blocks - 1 :])]
    if "postscript" in asked:
        paragraphs[-1] = f"P.S. {paragraphs[-1]}"
    lines = [f"## {FILLER}" for _ in range(_number(asked, "headings"))]
    lines += ["<<" + FILLER + ">>"] if "title" in asked else []
    bullets = _number(asked, "bullets") + _number(asked, "alphabetical")
    items = ["- " + FILLER] * bullets
    items += [f"{k}. {FILLER}" for k in range(1, _number(asked, "numbered") + 1)]
    if "paragraphs" in asked or "postscript" in asked:
        paragraphs[0] = "\n".join([*lines, paragraphs[0], *items])
        return "\n\n".join(paragraphs)
    if closing and items:
        body = paragraphs[0].removesuffix(closing[0]).strip()
        return "\n".join([*lines, body, *items, closing[0]])
    return "\n".join([*lines, *paragraphs, *items])
