"""The bodies that `pco serve` reads and writes, its paths, and its OpenAPI description of both."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from promptcodebook.deploy.http.admission import OPEN
from promptcodebook.deploy.http.completions import AnyText, Error
from promptcodebook.deploy.serve.responses import ResponsesRequest


class ChatTurn(BaseModel):
    role: AnyText
    content: AnyText | list[InstanceOf[dict[str, Any]]] | None = None


_Model = Annotated[
    AnyText | None,
    Field(
        description="pco/NAME or pco/sha256:DIGITS (12 or more), of the version served or one that "
        "the ref can be rolled back to; left out, it is the one served"
    ),
]
Messages = Annotated[
    list[ChatTurn],
    Field(
        min_length=1,
        description="a list of at least one message, each an object with a role, and with a text "
        "or a list of parts as its content",
    ),
]
_Choices = Annotated[
    int | None, Field(strict=True, ge=1, le=128, description="a whole number from 1 to 128")
]
_Length = Annotated[
    int | None, Field(strict=True, ge=1, description="a whole number of at least 1")
]


class RoutedChatRequest(BaseModel):
    """What is read here, the numbers that decide what a call may cost among them."""

    model: _Model = None
    messages: Messages
    n: _Choices = None
    best_of: _Choices = None
    max_tokens: _Length = None
    max_completion_tokens: _Length = None
    stream: Annotated[Any, WithJsonSchema({"type": "boolean"})] = None


class PromptRequest(BaseModel):
    """A body has one of `input` and `messages`."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["input"]}, {"required": ["messages"]}]}
    )
    model: _Model = None
    input: AnyText | None = Field(None, description="a text")
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


class _Written(BaseModel):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class ServedModel(_Written):
    """A name of the policy that is served, and its version."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "promptcodebook"
    version: str


class ModelList(_Written):
    """The policy's name, its version and its further names."""

    object: Literal["list"] = "list"
    data: list[ServedModel]


class ComposedPrompt(_Written):
    """The prompt and how it came about."""

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
    """What was committed."""

    object: Literal["feedback"] = "feedback"
    request_id: str
    reward: float
    key: str


class ServerState(BaseModel):
    """`recording` is there with --feedback, both others while a canary is under way."""

    status: str
    version: str | None = None
    recording: Literal["ok", "failed"] | None = None
    canary: str | None = None
    canary_state: str | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A path: the body that it `takes`, and what it `gives` (a body, text, or by default the
    model's own answer). Its summary and its own statuses are in openapi.toml."""

    takes: type[BaseModel] | None = None
    gives: type[BaseModel] | Literal["text", "completion"] = "completion"

    @property
    def composes(self) -> bool:
        return self.gives in ("completion", ComposedPrompt)


# A path belongs here, in openapi.toml, and in the table of `Proxy.serving`, which names what
# answers it.
OPERATIONS: Mapping[str, Operation] = {
    "/v1/chat/completions": Operation(RoutedChatRequest),
    "/v1/responses": Operation(ResponsesRequest),
    "/v1/prompt": Operation(PromptRequest, ComposedPrompt),
    "/v1/feedback": Operation(FeedbackRequest, FeedbackKept),
    "/v1/models": Operation(gives=ModelList),
    "/v1/models/{name}": Operation(gives=ServedModel),
    "/metrics": Operation(gives="text"),
    "/healthz": Operation(gives=ServerState),
    "/readyz": Operation(gives=ServerState),
}


def method(path: str) -> str:
    known = OPERATIONS.get(path)
    return "POST" if known is not None and known.takes is not None else "GET"


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def _content(gives: type[BaseModel] | str) -> dict[str, Any]:
    if not isinstance(gives, str):
        reference = {"$ref": f"#/components/schemas/{gives.__name__}"}
        return {"application/json": {"schema": reference}}
    text = {"schema": {"type": "string"}}
    if gives == "text":
        return {"text/plain": text}
    return {"application/json": {"schema": {"type": "object"}}, "text/event-stream": text}


def _described(path: str, operation: Operation, texts: Mapping[str, Any]) -> dict[str, Any]:
    gives, takes, closed = operation.gives, operation.takes, path not in OPEN
    kinds = {
        "reads": takes is not None,
        "composes": operation.composes,
        "admits": closed,
        "asks": gives == "completion",
    }
    own, statuses = dict[str, str](texts[path]), dict[str, str]()
    summary = own.pop("summary")
    for kind in (kind for kind, holds in kinds.items() if holds):
        statuses |= texts[kind]
    refused = _content(Error if closed else gives)
    responses = {
        status: {"description": text} | ({} if status == "default" else {"content": refused})
        for status, text in {**statuses, **own}.items()
    }
    named = list(texts["headers"].items())[: None if operation.composes else 1]
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in named}
    about = summary if isinstance(gives, str) else gives.__doc__ or summary
    responses["200"] = {"description": about, "headers": headers, "content": _content(gives)}
    tree: dict[str, Any] = {"summary": summary, "responses": responses}
    tree["operationId"] = re.sub(r"\W+", "_", path.removeprefix("/v1")).strip("_")
    if takes is not None:
        tree["requestBody"] = {"required": True, "content": _content(takes)}
    if name := re.search(r"{(\w+)}", path):
        text = {"type": "string", "minLength": 1}
        tree["parameters"] = [{"name": name[1], "in": "path", "required": True, "schema": text}]
    return tree if closed else {**tree, "security": []}


def description(paths: Collection[str]) -> dict[str, Any]:
    """OpenAPI 3.1 of a server that answers these `paths`."""
    text = resources.files("promptcodebook.deploy.serve").joinpath("openapi.toml")
    texts = tomllib.loads(text.read_text("utf-8"))
    read = [each.takes for each in OPERATIONS.values() if each.takes is not None]
    written = [each.gives for each in OPERATIONS.values() if not isinstance(each.gives, str)]
    _, schemas = models_json_schema(
        [
            *((each, "validation") for each in read),
            *((e, "serialization") for e in (Error, *written)),
        ],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Untitled,
    )
    return {
        "openapi": "3.1.0",
        "info": texts["info"],
        "security": [{"key": []}, {}],
        "paths": {
            path: {method(path).lower(): _described(path, operation, texts)}
            for path, operation in OPERATIONS.items()
            if path in paths
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas["$defs"],
        },
    }
