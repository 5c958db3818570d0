"""The modules that compound executors are made of: one model call each, with named fields.

A chain-of-thought module (`think`) asks for its reasoning and then for its outputs under labels;
a plain one (`ask`) takes the whole reply as its output; `outside` asks the untrusted model, which
sees the message it is given and nothing else. Texts are data: they are joined, never formatted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from promptcodebook.lm.base import Chat
from promptcodebook.method.policy import Composed
from promptcodebook.types import Output, Stage

__all__ = ["Said", "ask", "finished", "outside", "prompt_for", "read_outputs", "shown", "think"]

_REASONING = "reasoning"
_FENCED = re.compile(r"\A\s*```(?:json)?[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL | re.IGNORECASE)


class Said(dict[str, str]):
    """A module's outputs by name ("" = it gave none), its `stage` for the trace, and `truncated`.

    `reasoning` is among them for a chain-of-thought module.
    """

    __slots__ = ("stage", "truncated")
    stage: Stage
    truncated: bool

    def __init__(self, outputs: Mapping[str, str], stage: Stage, truncated: bool = False) -> None:
        super().__init__(outputs)
        self.stage = stage
        self.truncated = truncated


async def think(
    chat: Chat,
    *,
    prompt: str,
    stage: str,
    instruction: str,
    fields: Mapping[str, str],
    outputs: Sequence[str],
) -> Said:
    """One chain-of-thought module: its own part of the composed prompt, then its instruction.

    `fields` are the named inputs, `outputs` the names asked for; `prompt` is whole or `Composed`.
    The role is always `executor`: a composed prompt is for no other. LMError as the chat raises it.
    """
    system = _joined(prompt_for(prompt, stage), instruction, _form(outputs))
    given = shown(fields)
    reply = await chat(given, system=system, purpose=stage)
    cut = reply.finish == "length"
    return Said(read_outputs(reply.text, outputs, cut), Stage(stage, given, reply.text), cut)


async def ask(
    chat: Chat,
    *,
    prompt: str,
    stage: str,
    instruction: str,
    fields: Mapping[str, str],
    output: str,
) -> Said:
    """One plain module: as `think`, but the whole reply is its one output."""
    given = shown(fields)
    system = _joined(prompt_for(prompt, stage), instruction)
    reply = await chat(given, system=system, purpose=stage)
    cut = reply.finish == "length"
    return Said({output: reply.text.strip()}, Stage(stage, given, reply.text), cut)


async def outside(chat: Chat, *, stage: str, message: str, output: str) -> Said:
    """The untrusted model's reply to `message`, which is all that it is sent."""
    reply = await chat(message, role="untrusted", purpose=stage)
    cut = reply.finish == "length"
    return Said({output: reply.text.strip()}, Stage(stage, message, reply.text), cut)


def finished(text: str, steps: Iterable[Said]) -> Output:
    """y with the stages on the way, in order; cut when any of their replies was."""
    taken = tuple(steps)
    return Output(text, tuple(s.stage for s in taken), any(s.truncated for s in taken))


def prompt_for(prompt: str, stage: str) -> str:
    """The composed prompt's part for one stage; the whole where it has no parts."""
    return prompt.of(stage) if isinstance(prompt, Composed) else prompt


def shown(fields: Mapping[str, str]) -> str:
    """Named inputs as one message, each between tags of its name; a text is never interpreted."""
    return "\n\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in fields.items())


def read_outputs(text: str, outputs: Sequence[str], cut: bool = False) -> dict[str, str]:
    """The outputs (and the reasoning) found in a reply, "" for those that are missing.

    Understood: labels in any case, plain, bold, as headings or tags; a JSON object; and, where one
    output was asked for, a bare text. The labels count in the order asked for, the first of each,
    and the last output runs to the end, so that it may hold words that look like labels. A reply
    that was `cut` before its first output has none.
    """
    found = {name: "" for name in (_REASONING, *outputs)}
    held = _object(text, outputs)
    if held is not None:
        return found | held
    marks = _marks(text, (_REASONING, *outputs))
    for index, (name, _, start) in enumerate(marks):
        end = marks[index + 1][1] if index + 1 < len(marks) else len(text)
        found[name] = _value(text[start:end], name)
    if len(outputs) == 1 and outputs[0] not in {name for name, _, _ in marks}:
        reasoned = bool(marks)
        if not (reasoned and cut):
            found[outputs[0]] = found[_REASONING] if reasoned else _value(text, outputs[0])
    return found


def _form(outputs: Sequence[str]) -> str:
    lines = [f"{_REASONING}: (your thoughts, step by step)", *(f"{n}: (the {n})" for n in outputs)]
    return "Reply with these parts, each behind its label:\n" + "\n".join(lines)


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part.strip())


def _marks(text: str, names: Sequence[str]) -> list[tuple[str, int, int]]:
    """(name, where its label starts, where its value starts), in the order asked for."""
    marks: list[tuple[str, int, int]] = []
    position = 0
    for name in names:
        hit = _label(name).search(text, position)
        if hit is not None:
            marks.append((name, hit.start(), hit.end()))
            position = hit.end()
    return marks


def _label(name: str) -> re.Pattern[str]:
    word = r"[ _-]?".join(re.escape(part) for part in re.split(r"[ _-]+", name))
    if not name.lower().startswith("final"):
        word = f"(?:final[ _-])?{word}"  # models like to announce their final answer as such
    forms = (
        rf"(?:\#{{1,6}}[ \t]+)?(?P<m>[*_`]{{0,3}}){word}(?:(?P=m)[ \t]*:|[ \t]*:[ \t]*(?P=m))",
        rf"(?:\#{{1,6}}[ \t]+|\*\*){word}(?:\*\*)?[ \t]*$",
        rf"\[\[[ \t]*\#\#[ \t]*{word}[ \t]*\#\#[ \t]*\]\]",
        rf"<{word}>",
    )
    return re.compile(rf"^[ \t]*(?:{'|'.join(forms)})", re.IGNORECASE | re.MULTILINE)


def _value(text: str, name: str) -> str:
    """A value without what surrounds it; the indent of a value on lines of its own stays."""
    body = text.rstrip()
    closing = f"</{name}>"
    if body[-len(closing) :].lower() == closing.lower():
        body = body[: -len(closing)].rstrip()
    head, newline, rest = body.partition("\n")
    return rest.lstrip("\r\n") if newline and not head.strip() else body.lstrip()


def _object(text: str, outputs: Sequence[str]) -> dict[str, str] | None:
    """The outputs of a reply that is one JSON object with a key for at least one of them."""
    fenced = _FENCED.match(text)
    body = (fenced[1] if fenced else text).strip()
    if not body.startswith("{"):
        return None
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    held = {
        k.strip().lower().replace(" ", "_"): v for k, v in cast("dict[str, object]", value).items()
    }
    if not any(name.lower() in held for name in outputs):
        return None
    names = (_REASONING, *outputs)
    return {n: _text(held[n.lower()]) for n in names if n.lower() in held}


def _text(value: object) -> str:
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
