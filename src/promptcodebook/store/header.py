"""What a run was started with: written once, compared when it is resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from promptcodebook.errors import StoreError

__all__ = ["Header", "run_id"]


def _empty() -> Mapping[str, Any]:
    return {}


def _no_prints() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Header:
    """`created` is ISO 8601; `fingerprints` are the data's, by split; `id` '' = to be chosen.

    `private` = the data are real people's, so that no report shows their texts.
    `base` is the folder that the configuration's paths start from.
    `config` is the whole configuration as a JSON-able tree, `config_digest` its SHA-256.
    """

    id: str
    created: str
    version: str
    task: str = ""
    command: str = ""
    base: str = ""
    config: Mapping[str, Any] = field(default_factory=_empty)
    config_digest: str = ""
    fingerprints: Mapping[str, str] = field(default_factory=_no_prints)
    private: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=True, default=str)

    @staticmethod
    def from_json(text: str) -> Header:
        """Raises StoreError when the text is not a header."""
        try:
            return TypeAdapter(Header).validate_python(json.loads(text))
        except (ValidationError, json.JSONDecodeError):
            raise StoreError("the run's header is damaged") from None


def run_id(task: str, now: datetime) -> str:
    """A name that sorts by time and can be typed by its start: 20260131-154502-constraints."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in task.lower())
    word = "-".join(part for part in kept.split("-") if part)
    return f"{now:%Y%m%d-%H%M%S}-{word[:40] or 'run'}"
