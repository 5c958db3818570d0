"""What a report shows of a run on private data: figures, routes, the codebook and the directives,
since every rewrite was checked. Lengths replace inputs, prompts and outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from promptcodebook import types
from promptcodebook.base.text import shell
from promptcodebook.store import events

Value = TypeVar("Value")
_QUOTATION = re.compile(r"""(?:^|\s)["'`‘“«]""")


def withhold_ending(state: events.RunState, run: str) -> events.RunState:
    """The state without what the error that ended the run may have quoted (version 0.1 kept the
    server's words), and without the prompts of another optimizer, which saw the data."""
    hint = f"pco train --resume {shell(run)}" if state.ended == "failed" else state.hint
    concluded = state.conclusion and withhold(state.conclusion)
    return replace(state, detail=_kind(state.detail), hint=hint, conclusion=concluded)


def _length(text: str) -> str:
    return f"(private: {len(text)} characters)" if text else ""


def _lengths(texts: Any) -> Any:
    if isinstance(texts, Mapping):
        return {name: _length(text) for name, text in cast("Mapping[Any, str]", texts).items()}
    return tuple(map(_length, texts))


def _kind(reason: str) -> str:
    """What sort of reason it is: a quotation follows a colon, or is in quotation marks."""
    return _QUOTATION.split(reason.partition(":")[0], maxsplit=1)[0].rstrip()


# By type and field, what replaces a text.
_TEXTS: Mapping[type, Mapping[str, Callable[[Any], Any]]] = {
    events.PromptCandidate: {"prompt": _length},
    types.Failure: {"message": _length, "traceback": lambda _: ""},
    types.Gradients: {
        **dict.fromkeys(("encoder", "generator", "critic"), _length),
        "codebook": _lengths,
    },
    types.RefusedReply: {"text": _length, "reason": _kind},
    types.Rewrite: {"gradient": _length, "reason": _kind},
    types.Rollout: {
        **dict.fromkeys(("prompt", "output", "feedback"), _length),
        "fields": lambda _: {},
    },
    types.Route: {"constraints": _lengths, "analysis": _length, "fault": _kind},
    types.Stage: {"input": _length, "output": _length},
    types.Turn: {"text": _length, "name": _length},
    types.Step: {"harmful": _lengths},  # a text may be called so for what it repeats
    types.Critique: {"feedback": _length, "harmful": _lengths, "notes": _lengths},
}
_AROUND = (
    *(events.Broke, events.Compared, events.Concluded, events.Stepped, events.Validated),
    *(types.Evaluation, types.Trace, *_TEXTS),
)


def withhold(value: Value) -> Value:
    """An event, or a part of one; each text that may repeat private data is its length."""
    shown: Any = value
    if isinstance(value, tuple):
        shown = tuple(map(withhold, cast("tuple[Any, ...]", value)))
    elif isinstance(value, _AROUND):
        texts = dict(_TEXTS.get(type(value), {}))
        if isinstance(value, types.Rewrite) and not value.kept:
            texts["after"] = _length  # it may have been refused for what it gave away
        names = [field.name for field in fields(shown) if field.init]
        changed = {name: texts.get(name, withhold)(getattr(value, name)) for name in names}
        shown = replace(shown, **changed)
    return shown
