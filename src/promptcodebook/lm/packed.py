"""A reply as bytes, for the cache and the journal."""

from __future__ import annotations

from promptcodebook.errors import StoreError
from promptcodebook.lm.base import Reply
from promptcodebook.sqlite import Packer, unpack
from promptcodebook.types import Usage

__all__ = ["pack_reply", "unpack_reply"]


def pack_reply(reply: Reply, packer: Packer) -> bytes:
    """The reply with the usage it had when it was live, so that what it cost stays on record."""
    u = reply.usage
    usage = (
        u.calls,
        u.prompt_tokens,
        u.completion_tokens,
        u.cached_prompt_tokens,
        u.cost,
        u.latency_s,
    )
    return packer.pack((reply.text, reply.finish, usage, reply.dropped, reply.estimated))


def unpack_reply(blob: bytes) -> Reply:
    """What `pack_reply` was given, source 'live'. Raises StoreError for damaged bytes."""
    try:
        text, finish, usage, dropped, estimated = unpack(blob)
        return Reply(text, finish, Usage(*usage), tuple(dropped), estimated)
    except (TypeError, ValueError) as error:
        raise StoreError(f"a stored reply is damaged: {error}") from error
