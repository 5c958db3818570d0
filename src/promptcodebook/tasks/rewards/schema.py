"""1 iff the whole answer is JSON that a JSON schema accepts (extra: schema)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from promptcodebook.errors import ConfigError, MissingExtra
from promptcodebook.tasks.rewards.valid_json import parsed_json
from promptcodebook.types import Example, Score

__all__ = ["JsonSchema"]

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """`schema` is checked when this is built (ConfigError); references are never fetched."""

    schema: Mapping[str, object]
    fenced: bool = False
    _validator: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_validator", _validator(self.schema))

    def __call__(self, example: Example, output: str) -> Score:
        try:
            value = parsed_json(output, fenced=self.fenced)
        except ValueError as error:
            return Score(0.0, f"The answer is not valid JSON: {error}.")
        errors = sorted(cast("Iterable[Any]", self._validator.iter_errors(value)), key=_path)
        if not errors:
            return Score(1.0, "The answer satisfies the JSON schema.")
        said = "; ".join(f"at {_path(e) or 'the top'}: {e.message[:200]}" for e in errors[:_SHOWN])
        more = f"; and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
        return Score(0.0, f"The answer breaks the JSON schema: {said}{more}.")


def _path(error: Any) -> str:
    return ".".join(str(part) for part in error.absolute_path)


def _validator(schema: Mapping[str, object]) -> Any:
    try:
        import jsonschema
        import referencing
    except ImportError:
        raise MissingExtra("the schema reward", "schema") from None
    library = cast("Any", jsonschema)
    kind = library.validators.validator_for(schema, default=library.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except library.SchemaError as error:
        raise ConfigError(
            f"the JSON schema of the reward is not valid: {error.message}",
            hint="correct the schema",
        ) from None
    return kind(schema, registry=cast("Any", referencing).Registry())
