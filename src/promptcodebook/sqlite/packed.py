"""Values as bytes: zstd-compressed JSON. Nothing is ever pickled."""

from __future__ import annotations

import json
from typing import Any

import zstandard

from promptcodebook.errors import StoreError

__all__ = ["Packer", "pack", "unpack"]


def pack(value: object) -> bytes:
    """JSON, compressed. Tuples come back as lists; NaN and lone surrogates as they were."""
    return zstandard.compress(_encode(value))


class Packer:
    """`pack` with a compressor of its own: twice as quick, and for one thread only."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor()

    def pack(self, value: object) -> bytes:
        return self._compressor.compress(_encode(value))


def unpack(blob: bytes) -> Any:
    """What `pack` was given. Raises StoreError when the bytes are not such a value."""
    try:
        return json.loads(zstandard.decompress(blob).decode("utf-8", "surrogatepass"))
    except (zstandard.ZstdError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"a stored value is damaged: {error}") from error


def _encode(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")
