"""The bodies that `pco serve` reads, and its OpenAPI description: openapi.json with the schemas of
these bodies."""

from __future__ import annotations

import json
from collections.abc import Collection
from importlib import resources
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, WithJsonSchema
from pydantic.json_schema import models_json_schema

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


def description(paths: Collection[str]) -> dict[str, Any]:
    """OpenAPI 3.1 of a server that answers these `paths`."""
    text = resources.files("promptcodebook.deploy.serve").joinpath("openapi.json")
    tree: dict[str, Any] = json.loads(text.read_text("utf-8"))
    tree["paths"] = {path: found for path, found in tree["paths"].items() if path in paths}
    _, schemas = models_json_schema(
        [
            (body, "validation")
            for body in (RoutedChatRequest, PromptRequest, ResponsesRequest, Error)
        ],
        ref_template="#/components/schemas/{model}",
    )
    tree["components"]["schemas"] |= schemas["$defs"]
    return tree
