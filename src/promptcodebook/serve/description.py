"""The bodies that `pco serve` reads and writes, and the OpenAPI description made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from promptcodebook.serve.completions import Error, Refusal, Text

_MODEL = (
    "pco/NAME or pco/sha256:DIGITS (12 or more), of the version served or one that the ref can be "
    "rolled back to; left out: the one served."
)


class Message(BaseModel):
    role: Text
    content: Text | list[InstanceOf[dict[str, Any]]] | None = None


Messages = Annotated[list[Message], Field(min_length=1)]


class ChatRequest(BaseModel):
    model: Text | None = Field(None, description=_MODEL)
    messages: Messages
    stream: Annotated[Any, WithJsonSchema({"type": "boolean"})] = None


class PromptRequest(BaseModel):
    """One of `input` and `messages` is there."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["input"]}, {"required": ["messages"]}]}
    )
    model: Text | None = Field(None, description=_MODEL)
    input: Text | None = None
    messages: Messages | None = None


_T = TypeVar("_T", ChatRequest, PromptRequest)


def check(kind: type[_T], body: Mapping[str, Any]) -> _T:
    """The fields of a body that are read here; all others are passed on as they came. Raises
    Refusal with the field at fault."""
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
    prompt: Text


class State(BaseModel):
    status: str
    version: str | None = None


_HEADERS = {
    "x-request-id": "For `pco explain`.",
    "x-pco-version": "The policy: sha256 of its file.",
    "x-pco-route": "Indices of the instincts, parted by commas.",
    "x-pco-mode": "Model calls that an answer takes: one-call, two-call or three-call.",
    "x-pco-cache": "no, route or input: by what the prompt was known.",
    "x-pco-fallback": "What had to do without a model, and why.",
}
_ERRORS = {
    400: "The body cannot be read.",
    401: "No key, or a wrong one.",
    403: "Without keys only this machine may ask, and no page of another site.",
    404: "Another model than the one served.",
    408: "The body did not come in time.",
    413: "The body is too long, or has too many values in it.",
    415: "The body is compressed, or not said to be application/json.",
    429: "Too many requests, of this key or at once.",
    502: "The model failed or cannot be reached.",
    504: "The model did not answer in time.",
}
_TEXT = {"schema": {"type": "string"}}
_REF = "#/components/schemas/{model}"


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}


def _operation(
    name: str,
    summary: str,
    answer: str,
    content: Mapping[str, Any],
    errors: Sequence[int] = (),
    reads: type[BaseModel] | None = None,
) -> dict[str, Any]:
    """`answer` and `content` are those of status 200; without an error 401 it takes no key."""
    named = _HEADERS if reads else ("x-request-id",)
    headers = {each: {"description": _HEADERS[each], **_TEXT} for each in named}
    done = {"description": answer, "headers": headers, "content": content}
    failed = {str(s): {"description": _ERRORS[s], "content": _json(Error)} for s in errors}
    said = {"operationId": name, "summary": summary, "responses": {"200": done, **failed}}
    said |= {} if 401 in errors else {"security": []}
    if reads is None:
        return {"get": said}
    return {"post": {**said, "requestBody": {"required": True, "content": _json(reads)}}}


_KEY = (401, 403, 429)
_COMPOSED = (400, 408, 413, 415, 404, *_KEY)


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        return False


@cache
def description() -> dict[str, Any]:
    """OpenAPI 3.1 of `pco serve`."""
    _, schemas = models_json_schema(
        [
            *((each, "validation") for each in (ChatRequest, PromptRequest)),
            *((each, "serialization") for each in (ModelList, Prompt, State, Error)),
        ],
        ref_template=_REF,
        schema_generator=_Untitled,
    )
    paths: dict[str, Any] = {
        "/v1/chat/completions": _operation(
            "chat",
            "A completion under the composed prompt",
            "What the model answers; a stream where that was asked for.",
            {"application/json": {"schema": {"type": "object"}}, "text/event-stream": _TEXT},
            (*_COMPOSED, 502, 504),
            ChatRequest,
        ),
        "/v1/prompt": _operation(
            "prompt",
            "The composed prompt alone",
            "The prompt and how it came about.",
            _json(Prompt),
            _COMPOSED,
            PromptRequest,
        ),
        "/v1/models": _operation(
            "models",
            "The names of the policy that is served",
            "Its name and its version.",
            _json(ModelList),
            _KEY,
        ),
        "/v1/models/{name}": _operation("model", "One of them", "It.", _json(Model), (404, *_KEY)),
        "/metrics": _operation(
            "metrics", "Counts for Prometheus", "The text format.", {"text/plain": _TEXT}, _KEY
        ),
        "/healthz": _operation("healthz", "Whether the server lives", "It does.", _json(State)),
        "/readyz": _operation("readyz", "Whether it takes requests", "It does.", _json(State)),
    }
    del paths["/metrics"]["get"]["responses"]["200"]["headers"]
    schema = {"type": "string", "minLength": 1}
    named = {"name": "name", "in": "path", "required": True, "schema": schema}
    paths["/v1/models/{name}"]["get"]["parameters"] = [named]
    other = {"description": "The model's own error."}
    paths["/v1/chat/completions"]["post"]["responses"]["default"] = other
    ready = paths["/readyz"]["get"]["responses"]
    ready["503"] = {**ready["200"], "description": "It is stopping."}
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
