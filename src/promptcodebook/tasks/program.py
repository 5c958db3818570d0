"""The modules that compound executors are made of: one model call each, with named fields. `think`
asks for its reasoning and then for its outputs under labels; `ask` takes the whole reply as its
output; `outside` asks the untrusted model. Texts are data: they are joined, never formatted."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from promptcodebook.base.text import parse_json, strip_fence
from promptcodebook.calls import Chat, Reply, Role
from promptcodebook.config.secrets import secret_variables
from promptcodebook.errors import DataError, ExecutorError, import_part
from promptcodebook.tasks.user_code import (
    Escape,
    Overdue,
    UserCalls,
    annotated_as,
    load_function,
    place_of,
)
from promptcodebook.types import Example, Executor, Output, Program, Prompt, Stage

_REASONING = "reasoning"


class ModuleReply(dict[str, str]):
    """A module's outputs by name ("" = it gave none), with its `stage` for the trace."""

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
    prompt: Prompt,
    stage: str,
    instruction: str,
    fields: Mapping[str, str],
    outputs: Sequence[str],
) -> ModuleReply:
    """One chain-of-thought module: its own part of the composed prompt, then its instruction.
    `fields` are the named inputs, `outputs` the names asked for. The role is always `executor`: a
    composed prompt is for no other. Raises LMError when the chat does."""
    labels = {_REASONING: "your thoughts, step by step", **{n: f"the {n}" for n in outputs}}
    parts = "\n".join(f"{name}: ({what})" for name, what in labels.items())
    form = f"Reply with these parts, each behind its label:\n{parts}"
    given, system = render_fields(fields), _join(prompt.of(stage), instruction, form)
    reply = await chat(given, system=system, purpose=stage)
    values = read_outputs(reply.text, outputs, reply.finish == "length")
    return _module_reply(values, stage, given, reply)


async def ask(
    chat: Chat,
    *,
    prompt: Prompt,
    stage: str,
    instruction: str,
    fields: Mapping[str, str],
    output: str,
) -> ModuleReply:
    """One plain module: as `think`, but the whole reply is its one output."""
    given, system = render_fields(fields), _join(prompt.of(stage), instruction)
    reply = await chat(given, system=system, purpose=stage)
    return _module_reply({output: reply.text.strip()}, stage, given, reply)


async def outside(chat: Chat, *, stage: str, message: str, output: str) -> ModuleReply:
    """The untrusted model's reply to `message`, which is all that it is sent."""
    reply = await chat(message, role="untrusted", purpose=stage)
    return _module_reply({output: reply.text.strip()}, stage, message, reply)


def _module_reply(values: Mapping[str, str], stage: str, given: str, reply: Reply) -> ModuleReply:
    return ModuleReply(values, Stage(stage, given, reply.text), reply.finish == "length")


def _join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part.strip())


def make_output(
    text: str, steps: Iterable[ModuleReply], fields: Mapping[str, object] | None = None
) -> Output:
    """y with the stages on the way; cut when any reply was. `fields` (JSON) are for the reward."""
    taken = tuple(steps)
    cut = any(step.truncated for step in taken)
    return Output(text, tuple(step.stage for step in taken), cut, fields or {})


def read_modules(folder: Path) -> dict[str, tuple[str, str]]:
    """By stage, in order: its instruction and the name of its output, of modules.toml."""
    read = tomllib.loads((folder / "modules.toml").read_text("utf-8"))
    return {stage: (each["instruction"], each["output"]) for stage, each in read.items()}


@dataclass
class Chain:
    """One run of chain-of-thought modules, which all read what is `given`."""

    lm: Chat
    prompt: Prompt
    given: Mapping[str, str]
    modules: Mapping[str, tuple[str, str]]
    steps: list[ModuleReply] = field(default_factory=list[ModuleReply], kw_only=True)

    async def module(self, stage: str, **fields: str) -> str:
        """A stage's output."""
        instruction, output = self.modules[stage]
        step = await think(
            self.lm,
            prompt=self.prompt,
            stage=stage,
            instruction=instruction,
            fields={**self.given, **fields},
            outputs=(output,),
        )
        self.steps.append(step)
        return step[output]


def render_fields(fields: Mapping[str, str]) -> str:
    """Named inputs as one message, each between tags of its name; a text is never interpreted."""
    return "\n\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in fields.items())


def read_outputs(text: str, outputs: Sequence[str], cut: bool = False) -> dict[str, str]:
    """The outputs (and the reasoning) in a reply, "" for those that are missing. Understood: labels
    in any case, plain, bold, as headings or tags; a JSON object; and, where one output was asked
    for, a bare text. The last output runs to the end, so that it may hold words that look like
    labels. A reply that was `cut` before its first output has none."""
    names = (_REASONING, *outputs)
    values = dict.fromkeys(names, "")
    keyed = _json_fields(text)
    if any(name.lower() in keyed for name in outputs):
        for name in names:
            given = keyed.get(name.lower())
            if isinstance(given, str):
                values[name] = given.strip()
            elif given is not None:
                values[name] = json.dumps(given, ensure_ascii=False)
        return values
    marks, position = list[tuple[str, int, int]](), 0  # a name, where its label and value start
    for name in names:
        hit = _label(name).search(text, position)
        if hit is not None:
            marks.append((name, hit.start(), hit.end()))
            position = hit.end()
    ends = [start for _, start, _ in marks[1:]] + [len(text)]
    for (name, _, start), end in zip(marks, ends, strict=False):
        values[name] = _value(text[start:end], name)
    if len(outputs) == 1 and outputs[0] not in {name for name, _, _ in marks}:
        if not marks:
            values[outputs[0]] = _value(text, outputs[0])
        elif not cut:
            values[outputs[0]] = values[_REASONING]
    return values


def _json_fields(text: str) -> dict[str, object]:
    body = strip_fence(text)
    if not body.startswith("{"):
        return {}
    try:
        fields = cast("dict[str, object]", parse_json(body))
    except ValueError:
        return {}
    return {key.strip().lower().replace(" ", "_"): given for key, given in fields.items()}


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


SINGLE_CALL = "single call"


def body_fields(example: Example) -> dict[str, object]:
    """What the row's columns `tools` and `response_format` add to a request's body. Raises
    DataError when one cannot be sent."""
    found = dict[str, object]()
    for name, kind in (("tools", list), ("response_format", dict)):
        value: Any = example.fields.get(name) or None
        with suppress(ValueError):
            value = parse_json(value) if isinstance(value, str) else value
        if value is not None:
            found[name] = value
            if not isinstance(value, kind) or secret_variables(found):
                what = f"example {example.id}: the column {name!r} cannot be sent with a request"
                raise DataError(what, hint="write it in OpenAI's format, or rename the column")
    return found


class SingleCall:
    """The default program: p as system prompt, x (or its chat messages) as the conversation. Tool
    calls of the reply are in the output's field `tool_calls`. `labels` = each reply is one of a
    schema's labels as JSON, in quotation marks, which the answer goes without."""

    name = SINGLE_CALL
    stages: tuple[str, ...] = ()
    roles: frozenset[Role] = frozenset()

    def __init__(self, *, labels: bool = False) -> None:
        self._labels = labels

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        asked, extra = example.messages or example.input, body_fields(example)
        asked, system = (prompt.text, "") if prompt.holds_input else (asked, prompt.text)
        reply = await lm(asked, system=system, purpose="execute", extra=extra)
        fields = {"tool_calls": list(reply.tool_calls)} if reply.tool_calls else {}
        text = reply.text
        with suppress(ValueError):  # a cut one stays as it is
            text = str(parse_json(text)) if self._labels else text
        return Output(text, truncated=reply.finish == "length", fields=fields)


def asks_for_labels(extra: Mapping[str, Any]) -> bool:
    """Whether these body fields let a model say one of a schema's texts and nothing else."""
    with suppress(TypeError, KeyError):
        labels = extra["response_format"]["json_schema"]["schema"]["enum"]
        return all(isinstance(label, str) for label in labels)
    return False


_Function = Callable[[Any, Example, Chat], str | Output | Awaitable[str | Output]]


@dataclass(frozen=True)
class AgentProgram:
    """The user's own agent as a Program; it may declare `stages` and `roles` as attributes."""

    function: _Function
    name: str
    calls: UserCalls = field(default_factory=UserCalls, compare=False, repr=False)

    @property
    def stages(self) -> tuple[str, ...]:
        return tuple(getattr(self.function, "stages", ()))

    @property
    def roles(self) -> frozenset[Role]:
        return frozenset(getattr(self.function, "roles", ()))

    @cached_property
    def wants_prompt(self) -> bool:
        """Whether it takes the prompt as `Prompt`, with one for each stage."""
        return annotated_as(self.function, 0, Prompt)

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        """One run. Raises TypeError when the return is no answer, ExecutorError when it hangs or
        exits."""
        given = prompt if self.wants_prompt else prompt.text
        try:
            returned = await self.calls.run_agent(self.function, given, example, lm)
        except Overdue as error:
            message = (
                f"the executor did not return within {error.seconds:g} s (example {example.id})"
            )
            hint = "find out where it hangs; user_code.seconds limits it, excluding model calls"
            raise ExecutorError(message, hint=hint) from None
        except Escape as error:
            raise ExecutorError(
                f"the executor raised {error} ({place_of(error.error)}, example {example.id})",
                hint="an executor must return its answer, or raise an Exception",
            ) from error.error
        output = returned if isinstance(returned, Output) else Output(cast("str", returned))
        if not isinstance(output.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind = type(output.text).__name__
            raise TypeError(f"the executor returned {kind}, not a string or an Output")
        return output


def make_program(
    spec: str | Mapping[str, Any] | Executor | Program | None,
    base: Path,
    calls: UserCalls | None = None,
    *,
    labels: bool = False,
) -> Program:
    """One call to the executor, whose reply may be one of a schema's `labels`, or the user's agent:
    a function, 'agent.py:run', or a table."""
    if not spec:
        return SingleCall(labels=labels)
    if isinstance(spec, Mapping):
        made = import_part("promptcodebook.programs", "agent", "an agent's command", "serve")
        spec = cast("Executor", made(spec, base))
    if isinstance(spec, SingleCall | AgentProgram):
        return spec
    if isinstance(spec, str):
        function, name = load_function(spec, base, "executor", ("prompt", "example", "lm")), spec
    else:
        function = spec
        name = getattr(spec, "__qualname__", None) or type(spec).__qualname__
    return AgentProgram(cast("_Function", function), name, calls or UserCalls())
