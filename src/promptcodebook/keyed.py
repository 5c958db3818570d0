"""Randomness keyed by what it is for, so that a draw depends on nothing that happened before it."""

from __future__ import annotations

import hashlib
import random

__all__ = ["keyed_int", "keyed_random"]


def keyed_int(*key: object) -> int:
    """A 63-bit integer decided by the key alone (str, int, float, bytes or None parts)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]) >> 1


def keyed_random(*key: object) -> random.Random:
    """A generator keyed by e.g. (seed, step, example id, purpose)."""
    return random.Random(keyed_int(*key))
