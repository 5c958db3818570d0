"""The bodies that `pco serve` reads and writes, and the OpenAPI description made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from promptcodebook.serve.completions import Refusal

Text = InstanceOf[str]
"""Pydantic's own text refuses half of a surrogate pair, which models and their callers do send."""


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
        place = error.errors(include_url=False, include_context=False, include_input=False)[0][
            "loc"
        ]
    field = str(place[0])
    message = f"{field} must be a text"
    if field == "messages":
        message = "each message must be an object with a role"
        if "content" in place:
            message = "message content must be text or a list of parts"
        elif len(place) == 1:
            message = "messages must be a list of at least one message"
    raise Refusal(message, param=field)


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
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    own = {"default": {"description": "The model's own error."}}
    chat = _answers(
        "What the model answers; a stream where that was asked for.",
        {"type": "object"},
        {**_BODY, **_NAME, **_KEY, **_UPSTREAM},
        _HEADERS,
    )
    chat["200"]["content"] |= stream
    prompt = _answers(
        "The prompt and how it came about.", _ref("Prompt"), {**_BODY, **_NAME, **_KEY}, _HEADERS
    )
    ready = _answers("It does.", _ref("State"), {})
    ready["503"] = {**ready["200"], "description": "It is stopping."}
    counts = {
        "200": {
            "description": "The text format.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    }
    named = {
        "name": "name",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }
    chat_does = "A completion under the composed prompt"
    models_do = "The names of the policy that is served"
    paths = {
        "/v1/chat/completions": _post("chat", chat_does, "ChatRequest", chat | own),
        "/v1/prompt": _post("prompt", "The composed prompt alone", "PromptRequest", prompt),
        "/v1/models": _get(
            "models", models_do, _answers("Its name and its version.", _ref("ModelList"), _KEY)
        ),
        "/v1/models/{name}": _get(
            "model",
            "One of them",
            _answers("It.", _ref("Model"), {**_NAME, **_KEY}),
            parameters=[named],
        ),
        "/metrics": _get("metrics", "Counts for Prometheus", counts | _errors(_KEY)),
        "/healthz": _get(
            "healthz",
            "Whether the server lives",
            _answers("It does.", _ref("State"), {}),
            security=[],
        ),
        "/readyz": _get("readyz", "Whether it takes requests", ready, security=[]),
    }
    about = (
        "A learned policy behind an OpenAI-compatible endpoint. Each request gets the prompt that "
        "the policy composes for it; all else is passed on to the model as it came."
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "pco serve", "version": "1", "description": about},
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas["$defs"],
        },
    }


def _ref(model: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model}"}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _errors(told: Mapping[str, str]) -> dict[str, Any]:
    return {s: {"description": why, "content": _json(_ref("Error"))} for s, why in told.items()}


def _answers(
    what: str,
    schema: Mapping[str, Any],
    errors: Mapping[str, str],
    headers: Mapping[str, str] = {"x-request-id": _HEADERS["x-request-id"]},
) -> dict[str, Any]:
    """The answers of a path: the one it gives, and the errors it may give."""
    listed = {n: {"description": d, "schema": {"type": "string"}} for n, d in headers.items()}
    done = {"description": what, "headers": listed, "content": _json(schema)}
    return {"200": done, **_errors(errors)}


def _get(name: str, summary: str, answers: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"get": {"operationId": name, "summary": summary, "responses": answers, **more}}


def _post(name: str, summary: str, body: str, answers: Mapping[str, Any]) -> dict[str, Any]:
    sent = {"required": True, "content": _json(_ref(body))}
    does = {"operationId": name, "summary": summary, "requestBody": sent, "responses": answers}
    return {"post": does}
