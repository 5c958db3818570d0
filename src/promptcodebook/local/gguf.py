"""What the header of a GGUF file says of its model, and where its tensors lie.

Source: the GGUF specification, version 3 (ggml, docs/gguf.md). Only what comes before the tensors
is read. Those who run a model need a few of its fields: arrays of no interest are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from promptcodebook.errors import ConfigError

_SCALARS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_CONTROL = 3
"""The type of a token that stands for a mark and not for text."""
_KEPT = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")
_LONGEST = 1 << 24
_MOST = 1 << 24
_MOST_DIMENSIONS = 4
_ALIGNMENT = 32
_UNREADABLE = (OSError, struct.error, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`control_tokens` as they are written; `cache_bytes` = keys and values of one token at 16 bits
    each, 0 where the file does not tell."""

    name: str
    architecture: str
    context_length: int
    control_tokens: tuple[str, ...]
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Its `shape`, with what varies fastest last; `kind` = the number of its type in ggml; `start`
    = the byte of the file at which it begins."""

    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True, slots=True)
class GgufContents:
    """All fields by their keys, and all tensors by their names."""

    fields: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]


def read_contents(path: str | Path) -> GgufContents:
    """Raises ConfigError for what is not a GGUF file or breaks off before the tensors."""
    try:
        with open(path, "rb") as file:
            fields, count = _fields(file, None)
            found = [_tensor(file) for _ in range(count)]
            step = fields.get("general.alignment", _ALIGNMENT)
            if not isinstance(step, int) or step < 1:
                raise ValueError("its alignment is no number")
            begin = -(-file.tell() // step) * step
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None
    placed = {name: GgufTensor(shape, kind, begin + at) for name, shape, kind, at in found}
    return GgufContents(fields, placed)


def read_gguf(path: str | Path) -> GgufHeader:
    """Raises ConfigError for what is not a GGUF file or breaks off."""
    try:
        with open(path, "rb") as file:
            fields, _ = _fields(file, _KEPT)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None
    kind = str(fields.get("general.architecture", ""))
    context = fields.get(f"{kind}.context_length")
    return GgufHeader(
        str(fields.get("general.name") or Path(path).stem),
        kind,
        context if isinstance(context, int) and context > 0 else 2048,
        _control_tokens(fields),
        _cache_bytes(fields, kind),
    )


def _unreadable(path: str | Path, error: Exception) -> ConfigError:
    return ConfigError(f"{path} cannot be read as a GGUF file: {error}", hint="download it again")


def _control_tokens(fields: Mapping[str, object]) -> tuple[str, ...]:
    tokens = cast("list[str]", fields.get(_KEPT[0], []))
    kinds = cast("list[int]", fields.get(_KEPT[1], []))
    pairs = zip(tokens, kinds, strict=False)
    return tuple(token for token, kind in pairs if kind == _CONTROL and token)


def _cache_bytes(fields: Mapping[str, object], kind: str) -> int:
    def count(name: str) -> int:
        value = fields.get(f"{kind}.{name}")
        return value if isinstance(value, int) else 0

    heads = count("attention.head_count") or 1
    width = count("attention.key_length") or count("embedding_length") // heads
    pairs = count("block_count") * (count("attention.head_count_kv") or heads)
    return 2 * 2 * pairs * width


def _fields(file: BinaryIO, kept: Collection[str] | None) -> tuple[dict[str, object], int]:
    """By their keys, of the arrays those that are `kept` (None = all); and the count of tensors."""
    if file.read(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version, tensors, count = struct.unpack("<IQQ", _take(file, 20))
    if version not in (2, 3):
        raise ValueError(f"version {version} is not known here")
    fields: dict[str, object] = {}
    for _ in range(count):
        key = _string(file)
        (kind,) = struct.unpack("<I", _take(file, 4))
        fields[key] = _value(file, kind, kept is None or key in kept)
    return fields, tensors


def _tensor(file: BinaryIO) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and offset among the tensors."""
    name = _string(file)
    (size,) = struct.unpack("<I", _take(file, 4))
    if size > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {size} dimensions")
    *shape, kind, offset = struct.unpack(f"<{size}QIQ", _take(file, 8 * size + 12))
    return name, tuple(reversed(shape)), kind, offset


def _value(file: BinaryIO, kind: int, kept: bool) -> object:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        inner, count = struct.unpack("<IQ", _take(file, 12))
        return _array(file, inner, count, kept)
    form = "<" + _SCALARS[kind]
    return struct.unpack(form, _take(file, struct.calcsize(form)))[0]


def _array(file: BinaryIO, kind: int, count: int, kept: bool) -> object:
    if count > _MOST:
        raise ValueError(f"an array of {count} values is longer than any model needs")
    if kind in _SCALARS:
        form = f"<{count}{_SCALARS[kind]}"
        data = _take(file, struct.calcsize(form))
        return list(struct.unpack(form, data)) if kept else None
    values = [_value(file, kind, kept) for _ in range(count)]
    return values if kept else None


def _string(file: BinaryIO) -> str:
    (size,) = struct.unpack("<Q", _take(file, 8))
    return _take(file, size).decode("utf-8", "replace")


def _take(file: BinaryIO, size: int) -> bytes:
    if size > _LONGEST * 8:
        raise ValueError(f"a field of {size} bytes is longer than any model needs")
    data = file.read(size)
    if len(data) < size:
        raise ValueError("it breaks off")
    return data
