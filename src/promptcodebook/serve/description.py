"""The bodies that `pco serve` reads and writes, and the OpenAPI description made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from promptcodebook.serve.completions import Refusal, Text


class _Read(BaseModel):
    """What a caller sends. Fields that are not named here are passed on as they came."""


class Message(_Read):
    role: Text
    content: Text | list[InstanceOf[dict[str, Any]]] | None = None


Messages = Annotated[list[Message], Field(min_length=1)]
_MODEL = (
    "pco/NAME or pco/sha256:DIGITS (12 or more), of the version served or one that the ref can be "
    "rolled back to; left out: the one served."
)


class ChatRequest(_Read):
    model: Text | None = Field(None, description=_MODEL)
    messages: Messages
    stream: Annotated[Any, WithJsonSchema({"type": "boolean"})] = None


class PromptRequest(_Read):
    """One of `input` and `messages` is there."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["input"]}, {"required": ["messages"]}]}
    )
    model: Text | None = Field(None, description=_MODEL)
    input: Text | None = None
    messages: Messages | None = None


class _Written(BaseModel):
    """What the server answers."""

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
    prompt: str


class State(BaseModel):
    status: str
    version: str | None = None


class Fault(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Error(BaseModel):
    error: Fault


_T = TypeVar("_T", bound=_Read)


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


_HEADERS = {
    "x-request-id": "For `pco explain`.",
    "x-pco-version": "The policy: sha256 of its file.",
    "x-pco-route": "Indices of the instincts, parted by commas.",
    "x-pco-mode": "Model calls that an answer takes: one-call, two-call or three-call.",
    "x-pco-cache": "no, route or input: by what the prompt was known.",
    "x-pco-fallback": "What had to do without a model, and why.",
}
_KEY = {
    "401": "No key, or a wrong one.",
    "403": "Without keys only this machine may ask, and no page of another site.",
    "429": "Too many requests, of this key or at once.",
}
_NAME = {"404": "Another model than the one served."}
_BODY = {
    "400": "The body cannot be read.",
    "408": "The body did not come in time.",
    "413": "The body is too long, or has too many values in it.",
    "415": "The body is compressed, or not said to be application/json.",
}
_UPSTREAM = {
    "502": "The model failed or cannot be reached.",
    "504": "The model did not answer in time.",
}
_TEXT = {"schema": {"type": "string"}}


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        return False


@cache
def description() -> dict[str, Any]:
    """OpenAPI 3.1 of `pco serve`."""
    read, written = (ChatRequest, PromptRequest), (Model, ModelList, Prompt, State, Error)
    _, schemas = models_json_schema(
        [*((each, "validation") for each in read), *((each, "serialization") for each in written)],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Untitled,
    )
    composed = _BODY | _NAME | _KEY
    chat = _answers(
        "What the model answers; a stream where that was asked for.", None, composed | _UPSTREAM
    )
    chat["200"]["content"]["text/event-stream"] = _TEXT
    chat["default"] = {"description": "The model's own error."}
    prompt = _answers("The prompt and how it came about.", "Prompt", composed)
    for answers in (chat, prompt):
        answers["200"]["headers"] = {
            name: {"description": about, **_TEXT} for name, about in _HEADERS.items()
        }
    metrics = _answers("The text format.", None, _KEY)
    metrics["200"] = {"description": "The text format.", "content": {"text/plain": _TEXT}}
    ready = _answers("It does.", "State")
    ready["503"] = {**ready["200"], "description": "It is stopping."}
    models = _answers("Its name and its version.", "ModelList", _KEY)
    schema = {"type": "string", "minLength": 1}
    named = {"name": "name", "in": "path", "required": True, "schema": schema}
    rows: Sequence[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = (
        ("/v1/chat/completions", "chat", "A completion under the composed prompt", chat,
         {"requestBody": {"required": True, "content": _json("ChatRequest")}}),
        ("/v1/prompt", "prompt", "The composed prompt alone", prompt,
         {"requestBody": {"required": True, "content": _json("PromptRequest")}}),
        ("/v1/models", "models", "The names of the policy that is served", models, {}),
        ("/v1/models/{name}", "model", "One of them", _answers("It.", "Model", _NAME | _KEY),
         {"parameters": [named]}),
        ("/metrics", "metrics", "Counts for Prometheus", metrics, {}),
        ("/healthz", "healthz", "Whether the server lives", _answers("It does.", "State"),
         {"security": []}),
        ("/readyz", "readyz", "Whether it takes requests", ready, {"security": []}),
    )  # fmt: skip
    about = (
        "A learned policy behind an OpenAI-compatible endpoint. Each request gets the prompt that "
        "the policy composes for it; all else is passed on to the model as it came."
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "pco serve", "version": "1", "description": about},
        "security": [{"key": []}, {}],
        "paths": {
            path: {
                "post" if "requestBody" in more else "get": {
                    "operationId": name, "summary": summary, "responses": answers, **more
                }
            }
            for path, name, summary, answers, more in rows
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas["$defs"],
        },
    }  # fmt: skip


def _json(model: str | None) -> dict[str, Any]:
    schema = {"type": "object"} if model is None else {"$ref": f"#/components/schemas/{model}"}
    return {"application/json": {"schema": schema}}


def _answers(
    about: str, model: str | None, errors: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """The answers of a path: the one it gives, and the errors it may give."""
    headers = {"x-request-id": {"description": _HEADERS["x-request-id"], **_TEXT}}
    done = {"description": about, "headers": headers, "content": _json(model)}
    failed = {s: {"description": why, "content": _json("Error")} for s, why in errors.items()}
    return {"200": done, **failed}
