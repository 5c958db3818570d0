"""A chat call as the jobs of an engine, and a generation as the wire writes it.

An unknown field is refused, as OpenAI does, and so is one that would change the text and cannot be
obeyed. A known field that does not change the text is ignored.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import struct
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from promptcodebook.calls import Reply, Usage
from promptcodebook.local.engine import Embedding, Engine, Generation, Job, TokenLogprob
from promptcodebook.randomness import keyed_int
from promptcodebook.serve.completions import ChatCall, Refusal, parse_body, read_number

_MOST_CHOICES = 32
_MOST_STOPS = 16
_IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "parallel_tool_calls", "tool_choice", "function_call"),
        *("reasoning_effort", "verbosity", "prediction"),
    }
)
_NOT_OBEYED = frozenset(
    {"tools", "functions", "logit_bias", "audio", "modalities", "web_search_options"}
)
_PLAIN: tuple[object, ...] = (None, [], {}, ["text"])
"""What a field that is not obeyed may hold all the same."""
_PENALTIES = frozenset({"presence_penalty", "frequency_penalty"})


def to_jobs(call: ChatCall) -> tuple[Job, ...]:
    """A job for each choice: the first is drawn by the call's own seed. Raises Refusal."""
    sampling = call.request.sampling
    for name, value in sampling.extra.items():
        _check_extra(name, value)
    if call.choices > _MOST_CHOICES:
        raise Refusal(f"n must be at most {_MOST_CHOICES}", param="n")
    if len(call.stop) > _MOST_STOPS or not all(call.stop):
        raise Refusal(f"stop must be at most {_MOST_STOPS} texts, none of them empty", param="stop")
    schema = call.request.schema
    any_object: Mapping[str, object] | None = {"type": "object"} if call.json_mode else None
    penalties = [_penalty(sampling.extra, name) for name in sorted(_PENALTIES)]
    seed = call.request.sample if call.seeded else secrets.randbits(63)
    return tuple(
        Job(
            messages=call.request.messages,
            temperature=_within("temperature", sampling.temperature, (0.0, 2.0), 1.0),
            top_p=_within("top_p", sampling.top_p, (0.0, 1.0), 1.0),
            max_tokens=sampling.max_tokens,
            stop=call.stop,
            seed=seed if choice == 0 else keyed_int(seed, choice, "choice"),
            frequency_penalty=penalties[0],
            presence_penalty=penalties[1],
            schema=any_object if schema is None else schema.body,
            logprobs=call.logprobs,
        )
        for choice in range(call.choices)
    )


def _check_extra(name: str, value: object) -> None:
    if name in _IGNORED or name in _PENALTIES:
        return
    if name not in _NOT_OBEYED:
        raise Refusal(f"unrecognized request argument: {name}", param=name)
    if value not in _PLAIN:
        raise Refusal(f"{name} is not supported by this server", param=name)


def _penalty(body: Mapping[str, Any], name: str) -> float:
    return _within(name, read_number(body, name), (-2.0, 2.0), 0.0)


def _within(name: str, value: float | None, limits: tuple[float, float], default: float) -> float:
    least, most = limits
    if value is not None and not least <= value <= most:
        raise Refusal(f"{name} must be between {least:g} and {most:g}", param=name)
    return default if value is None else value


def to_reply(generation: Generation) -> Reply:
    """The part of a generation that every completion has."""
    tokens = generation.prompt_tokens, generation.completion_tokens, generation.cached_tokens or 0
    return Reply(generation.text, generation.finish, Usage(1, *tokens, None))


def logprobs_tree(generation: Generation) -> Mapping[str, object] | None:
    """As a choice's `logprobs`; None where none were asked for."""
    if generation.logprobs is None:
        return None
    return {"content": [_token(each) for each in generation.logprobs], "refusal": None}


def _token(at: TokenLogprob) -> dict[str, object]:
    top = [_alternative(token, logprob) for token, logprob in at.top]
    return {**_alternative(at.token, at.logprob), "top_logprobs": top}


def _alternative(token: str, logprob: float) -> dict[str, object]:
    # JSON has no infinity; this wire writes it as -9999.
    written = list(token.encode("utf-8", "replace"))
    return {"token": token, "logprob": max(logprob, -9999.0), "bytes": written}


async def generate_all(engine: Engine, jobs: Sequence[Job]) -> list[Generation]:
    """All results; when one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(engine.generate(job)) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def stream_all(
    engine: Engine, jobs: Sequence[Job]
) -> AsyncGenerator[tuple[int, str | Generation], None]:
    """The pieces of all jobs as they come, each with its job's number."""
    pieces: asyncio.Queue[tuple[int, str | Generation | Exception]] = asyncio.Queue()

    async def follow(index: int, job: Job) -> None:
        try:
            async for piece in engine.stream(job):
                pieces.put_nowait((index, piece))
        except Exception as error:
            pieces.put_nowait((index, error))

    following = [asyncio.ensure_future(follow(index, job)) for index, job in enumerate(jobs)]
    left = len(jobs)
    try:
        while left:
            index, piece = await pieces.get()
            if isinstance(piece, Exception):
                raise piece
            left -= isinstance(piece, Generation)
            yield index, piece
    finally:
        await _end(following)


async def _end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels what is not done, and waits for it."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)


@dataclass(frozen=True, slots=True)
class EmbeddingsCall:
    """What /v1/embeddings is asked for. `base64` = little-endian float32 in place of numbers."""

    texts: tuple[str, ...]
    model: str = ""
    base64: bool = False


def read_embeddings(data: bytes) -> EmbeddingsCall:
    """A request body. Raises Refusal with the field at fault."""
    body = parse_body(data)
    given = body.get("input")
    listed = cast("list[object]", given if isinstance(given, list) else [given])
    texts = tuple(each for each in listed if isinstance(each, str) and each)
    if not listed or len(texts) != len(listed):
        raise Refusal("input must be a text or a list of texts, none of them empty", param="input")
    if body.get("dimensions") is not None:
        raise Refusal("dimensions is not supported by this server", param="dimensions")
    encoding = body.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise Refusal("encoding_format must be float or base64", param="encoding_format")
    return EmbeddingsCall(texts, str(body.get("model") or ""), encoding == "base64")


def embeddings_body(
    found: Sequence[Embedding], model: str, *, as_base64: bool
) -> Mapping[str, object]:
    rows = [
        {"object": "embedding", "index": index, "embedding": _vector(each.vector, as_base64)}
        for index, each in enumerate(found)
    ]
    tokens = sum(each.tokens for each in found)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": rows, "model": model, "usage": usage}


def _vector(vector: Sequence[float], as_base64: bool) -> str | list[float]:
    if as_base64:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    return list(vector)
