"""One attempt at a call: admitted by the budget, journaled before it leaves, booked when it ends.

What a server says its reply took is believed where it is possible at all; else our own count stands
in its place.
"""

from __future__ import annotations

from dataclasses import replace

from promptcodebook.calls import LM, Reply, Request, Usage
from promptcodebook.errors import LMError, PcoError, StoreError
from promptcodebook.incidents import Incident, Tally
from promptcodebook.lm.budget import BudgetGate
from promptcodebook.lm.wire import byte_size, count_usage

# A token stands for at most so many bytes of text (the longest runs of spaces are one token).
_BYTES_A_TOKEN = 128
# What a server may put around a prompt, or write beyond the cap, and still be believed.
_TIMES, _BEYOND = 4, 4096


class Attempted:
    """An LM whose every call is one attempt at `inner`, which makes one request and no more.

    Raises BudgetReached where the attempt could pass the budget. An attempt that brings no reply is
    booked by what became of it: lost ones at the most they can cost, refused ones as a call without
    tokens, and one that nobody answered the phone for not at all.
    """

    def __init__(self, inner: LM, gate: BudgetGate, tally: Tally) -> None:
        self._inner = inner
        self._gate = gate
        self._tally = tally

    async def __call__(self, request: Request) -> Reply:
        gate = self._gate
        most = gate.most(request)
        await gate.enter(most)
        try:
            return await self._attempt(request, most)
        except StoreError as error:
            gate.stop_signal.give(error)  # what is asked for from now on could not be booked
            raise
        finally:
            gate.leave(most)

    async def _attempt(self, request: Request, most: Usage) -> Reply:
        ledger = self._gate.ledger
        attempt = ledger.begin(request.role, most)
        try:
            reply = await self._inner(request)
        except BaseException as error:
            usage, lost = _toll(error, most)
            ledger.end(attempt, usage, lost=lost)
            raise
        if reply.source != "live":
            ledger.end(attempt, Usage())
            return reply
        if not credible(reply.usage, request, reply.text, most):
            usage = count_usage(request, reply.text, reply.usage.latency_s)
            reply = replace(reply, usage=usage, estimated=True)
        if reply.estimated:
            self._tally(Incident.USAGE_REPLACED)
        usage = replace(reply.usage, cost=self._gate.prices.cost(request.model, reply.usage))
        ledger.end(attempt, usage)
        return replace(reply, usage=usage)


def _toll(error: BaseException, most: Usage) -> tuple[Usage, bool]:
    """What an attempt without a reply is booked at, and whether it counts as lost."""
    if isinstance(error, LMError):
        if error.lost:
            return most, True
        return Usage(calls=int(error.sent)), False
    # A setting was wrong, so that nothing was sent; or whoever waited for the answer left.
    return (Usage(), False) if isinstance(error, PcoError) else (most, True)


def credible(usage: Usage, request: Request, text: str, most: Usage) -> bool:
    """Whether a reply can have taken so many tokens. `most` is the bound of its attempt."""
    asked = sum(byte_size(m.content) for m in request.messages)
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    written = byte_size(text)
    capped = request.sampling.max_tokens is not None
    longest = max(most.completion_tokens, written)
    return (
        usage.calls > 0
        and max(1, asked // _BYTES_A_TOKEN) <= prompt <= _TIMES * most.prompt_tokens + _BEYOND
        and -(-written // _BYTES_A_TOKEN) <= completion
        # Thoughts that are not shown: without a cap nobody knows how many.
        and (not capped or completion <= _TIMES * longest + _BEYOND)
        and 0 <= usage.cached_prompt_tokens <= prompt
    )
