"""The safety clause of the critic's rubric, and what happens to a harmful instinct. The paper has
this safeguard and prints nothing of it: all is ours. The clause (method/prompts/safety.md) belongs
neither to ψ nor to a set of templates. A harmful instinct costs its rollout the whole penalty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from promptcodebook.calls import Message, Schema
from promptcodebook.lm.structured import ReplyShape, leading_index, read_by_name
from promptcodebook.types import Check, Codebook, Critique, Trace, Variable, variable_name

# Share of solved examples that the critic reads for the clause alone. A reward that pays for harm
# is full where harm is done, and full rewards are not critiqued: else it would never be seen.
LOOK = 0.1
_MOST, _REASON = 2, 120  # Harmful texts asked for in one reply, and characters of each reason.
_ROOM = 400  # Characters less for the feedback in a reply of verdict and blame: all fits the cap.
_PROMPT = "prompt"

# Why, by the name of a variable: 'c3', or 'generator' for a prompt harmful of its own accord.
Harmful = Mapping[str, str]


class HarmReply(ReplyShape):
    """What the clause adds to a reply; a schema asks for it by `SafetyClause.widen`."""

    harmful: SkipJsonSchema[Annotated[dict[str, str], BeforeValidator(read_by_name)]] = Field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class SafetyClause:
    """The clause as a part of a request and of its schema."""

    text: str

    @classmethod
    def read(cls) -> SafetyClause:
        file = resources.files("promptcodebook.method") / "prompts" / "safety.md"
        return cls(file.read_text("utf-8").strip())

    def close(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages, the system turn ending in the clause: nothing learned follows it."""
        turns = list(messages)
        place = next((i for i, m in enumerate(turns) if m.role == "system"), None)
        if place is None:
            return (Message("system", self.text), *turns)
        turn = turns[place]
        turns[place] = replace(turn, content=f"{turn.content}\n\n{self.text}")
        return tuple(turns)

    def widen(self, schema: Schema, active: Sequence[int]) -> Schema:
        """The schema with room for the active instincts that are harmful."""
        fields = dict(cast("Mapping[str, Any]", schema.body["properties"]))
        claim = {
            "type": "object",
            "properties": {
                "index": {"type": "string", "enum": [*map(str, active), _PROMPT]},
                "reason": {"type": "string", "maxLength": _REASON},
            },
            "required": ["index", "reason"],
            "additionalProperties": False,
        }
        if "routing_errors" in fields:
            feedback = fields["feedback"]
            fields["feedback"] = {**feedback, "maxLength": feedback["maxLength"] - _ROOM}
        fields["harmful"] = {"type": "array", "maxItems": _MOST, "items": claim}
        return Schema(schema.name, {**schema.body, "properties": fields})


def harm_of(reply: HarmReply, active: Sequence[int]) -> Harmful:
    """What of the reply is about an active instinct or the prompt."""
    found: dict[str, str] = {}
    for key, reason in reply.harmful.items():
        k = leading_index(key)
        if k in active and k is not None:
            found[variable_name(k)] = reason
        elif key.lower() == _PROMPT:
            found["generator"] = reason
    return found


def find_orders(check: Check | None, codebook: Codebook, active: Sequence[int]) -> Harmful:
    """What the rules find in the active instincts; no model is asked."""
    texts = {k: codebook[k].text for k in active} if check is not None else {}
    found = {k: check(k, text, text, ()) for k, text in texts.items() if check is not None}
    return {variable_name(k): reason for k, reason in found.items() if reason is not None}


def with_harm(trace: Trace, harmful: Harmful, weight: float, *, rewrites: bool) -> Trace:
    """The trace with what is harmful in its verdict: ρ is whole, whatever the reward, and the
    gradient of each harmful text is to become harmless (unless texts are not rewritten)."""
    if not harmful:
        return trace
    verdict = replace(trace.verdict or Critique(1.0, ""), harmful=dict(harmful))
    gradients = trace.gradients
    if rewrites:
        # What a reason quotes is left out: it is not to be repeated.
        faults = {name: why.partition(":")[0].strip().rstrip(".") for name, why in harmful.items()}
        mended = {
            name: f"The text is harmful: {fault}. Remove that completely, even if it raises the "
            "reward. Let the text give honest advice about the task instead."
            for name, fault in faults.items()
        }
        phi = mended.pop("generator", gradients.generator)
        book = {**gradients.codebook, **{int(name[1:]): text for name, text in mended.items()}}
        gradients = replace(gradients, codebook=dict(sorted(book.items())), generator=phi)
    return replace(trace, verdict=verdict, penalty=weight, gradients=gradients)


def calls_harmful(trace: Trace, variable: Variable) -> bool:
    """Whether the trace's verdict calls the variable's text harmful."""
    return trace.verdict is not None and variable_name(variable) in trace.verdict.harmful
