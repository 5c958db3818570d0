"""The bodies that `pco serve` reads and writes, and its OpenAPI description (openapi.json)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from promptcodebook.deploy.http.completions import AnyText, Error, Refusal
from promptcodebook.deploy.serve.responses import ResponsesRequest

_MODEL = (
    "pco/NAME or pco/sha256:DIGITS (12 or more), of the version served or one that the ref can be "
    "rolled back to; left out: the one served."
)


class Message(BaseModel):
    role: AnyText
    content: AnyText | list[InstanceOf[dict[str, Any]]] | None = None


Messages = Annotated[list[Message], Field(min_length=1)]


class ChatRequest(BaseModel):
    model: AnyText | None = Field(None, description=_MODEL)
    messages: Messages
    stream: Annotated[Any, WithJsonSchema({"type": "boolean"})] = None


class PromptRequest(BaseModel):
    """One of `input` and `messages` is there."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["input"]}, {"required": ["messages"]}]}
    )
    model: AnyText | None = Field(None, description=_MODEL)
    input: AnyText | None = None
    messages: Messages | None = None


class FeedbackRequest(BaseModel):
    """`reward` is from 0 to 1; `score`, in its place, in the task's own range."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["reward"]}, {"required": ["score"]}]}
    )
    request_id: Annotated[str, Field(pattern="^req-[0-9a-f]{24}$")]
    reward: Annotated[float, Field(ge=0, le=1)] = 0.0
    score: float = 0.0
    feedback: Annotated[str, Field(max_length=10_000)] = ""
    key: Annotated[str, Field(max_length=200)] = ""


_T = TypeVar("_T", ChatRequest, PromptRequest)


def check(kind: type[_T], body: Mapping[str, Any]) -> _T:
    """The fields of a body that are read here. Raises Refusal with the field at fault."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        place = error.errors(include_url=False, include_input=False)[0]["loc"]
    message = f"{place[0]} must be a text"
    if place[0] == "messages":
        message = "each message must be an object with a role"
        if "content" in place:
            message = "message content must be text or a list of parts"
        elif len(place) == 1:
            message = "messages must be a list of at least one message"
    raise Refusal(message, param=str(place[0]))


class _Written(BaseModel):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class Model(_Written):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "promptcodebook"
    version: str


class ModelList(_Written):
    object: Literal["list"] = "list"
    data: list[Model]


class Prompt(_Written):
    object: Literal["prompt"] = "prompt"
    id: str
    model: str
    version: str
    mode: Literal["one-call", "two-call", "three-call"]
    route: Sequence[int]
    fallbacks: Sequence[str]
    cached: bool
    prompt: AnyText


class FeedbackKept(_Written):
    object: Literal["feedback"] = "feedback"
    request_id: str
    reward: float
    key: str


class State(BaseModel):
    """`recording` is there with --feedback, both others while a canary is under way."""

    status: str
    version: str | None = None
    recording: Literal["ok", "failed"] | None = None
    canary: str | None = None
    canary_state: str | None = None


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        return False


@cache
def description(feedback: bool = False) -> dict[str, Any]:
    """OpenAPI 3.1 of `pco serve`, one that takes `feedback` or not: openapi.json, and the schemas
    of the bodies above."""
    _, schemas = models_json_schema(
        [
            *((each, "validation") for each in (ChatRequest, PromptRequest, ResponsesRequest)),
            (FeedbackRequest, "validation"),
            *((e, "serialization") for e in (ModelList, Prompt, FeedbackKept, State, Error)),
        ],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Untitled,
    )
    text = (
        resources.files("promptcodebook.deploy.serve").joinpath("openapi.json").read_text("utf-8")
    )
    tree: dict[str, Any] = json.loads(text)
    tree["components"]["schemas"] = schemas["$defs"]
    if not feedback:
        del tree["paths"]["/v1/feedback"]
    return tree
