"""A GGUF file as a test wants it: fields of a few kinds, and tensors of 32 bits."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ALIGNMENT = 32
_INT, _FLOAT, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9


def write_gguf(
    path: Path, fields: Mapping[str, Any], tensors: Mapping[str, tuple[tuple[int, ...], bytes]]
) -> None:
    """Tensors by name: a shape whose last number varies fastest, and its numbers as bytes."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(fields))]
    head += [_text(key) + _value(value) for key, value in fields.items()]
    body = b""
    for name, (shape, data) in tensors.items():
        body += bytes(-len(body) % _ALIGNMENT)
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head.append(_text(name) + sizes + struct.pack("<IQ", 0, len(body)))
        body += data
    before = b"".join(head)
    path.write_bytes(before + bytes(-len(before) % _ALIGNMENT) + body)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    kind, data = _typed(value[0] if isinstance(value, list) else value)
    if not isinstance(value, list):
        return struct.pack("<I", kind) + data
    items = b"".join(_typed(each)[1] for each in value)
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + items


def _typed(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return _BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return _INT, struct.pack("<I", value)
    if isinstance(value, float):
        return _FLOAT, struct.pack("<f", value)
    return _STRING, _text(value)
