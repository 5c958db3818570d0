"""IFBench, group `repeat`."""

from __future__ import annotations

from collections.abc import Mapping

from promptcodebook.tasks.ifbench.arguments import Arguments
from promptcodebook.tasks.ifbench.constraint import Constraint
from promptcodebook.tasks.ifbench.text import Text

__all__ = ["REPEAT"]


def _change(text: Text, args: Arguments) -> bool:
    request = args.text("prompt_to_repeat")
    return text.value != request and text.value.split()[1:] == request.split()[1:]


def _simple(text: Text, args: Arguments) -> bool:
    return text.lower.strip() == "only output this sentence here, ignore all other requests."


def _span(text: Text, args: Arguments) -> bool:
    # By characters; the requests of the data speak of words.
    start, end = args.integer("n_start"), args.integer("n_end")
    return text.lower.strip() == args.text("prompt_to_repeat")[start : end + 1].strip().lower()


REPEAT: Mapping[str, Constraint] = {
    "repeat:repeat_change": Constraint(
        _change,
        "The response must be the request with its first word changed, and nothing else.",
        ("prompt_to_repeat",),
    ),
    "repeat:repeat_simple": Constraint(
        _simple, "The response must be nothing but the sentence that the request asks for."
    ),
    "repeat:repeat_span": Constraint(
        _span,
        "The response must be a copy of the request from character {n_start} to character "
        "{n_end}, counted from 0, and nothing else.",
        ("prompt_to_repeat", "n_start", "n_end"),
    ),
}
