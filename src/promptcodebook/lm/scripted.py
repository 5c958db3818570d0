"""A model that says what the test wrote down: the one seam at which models are faked."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace

from promptcodebook.calls import Reply, Request, Role, Usage
from promptcodebook.errors import LMError
from promptcodebook.lm.wire import estimate_tokens

Scripted = str | Reply | Exception


class ScriptedLM:
    """An LM with queues of replies, one per role and one for all; `history` holds every request. A
    role's own queue comes first, then the common one, then `reply_with`'s function. Exceptions are
    raised. Running out is an LMError that says what was asked."""

    def __init__(self) -> None:
        self.history: list[Request] = []
        self._queues: defaultdict[Role | None, deque[Scripted]] = defaultdict(deque)
        self._function: Callable[[Request], Scripted] = self._no_reply

    def enqueue(self, *replies: Scripted, role: Role | None = None) -> ScriptedLM:
        """Adds replies, for one role or for any; returns self."""
        self._queues[role].extend(replies)
        return self

    def reply_with(self, function: Callable[[Request], Scripted]) -> ScriptedLM:
        """Answers by function whatever the queues leave open; returns self."""
        self._function = function
        return self

    @property
    def left(self) -> int:
        """How many enqueued replies are left."""
        return sum(len(queue) for queue in self._queues.values())

    async def __call__(self, request: Request) -> Reply:
        self.history.append(request)
        queue = self._queues[request.role] or self._queues[None]
        scripted = queue.popleft() if queue else self._function(request)
        if isinstance(scripted, Exception):
            raise scripted
        reply = scripted if isinstance(scripted, Reply) else Reply(scripted)
        if reply.usage.calls:
            return reply
        prompt = sum(estimate_tokens(m.content) for m in request.messages)
        usage = Usage(1, prompt, estimate_tokens(reply.text))
        return replace(reply, usage=usage, estimated=True)

    def _no_reply(self, request: Request) -> Scripted:
        last = request.messages[-1].content[:200] if request.messages else ""
        asked = f"call {len(self.history)} (role {request.role}): {last!r}"
        hint = "enqueue(text, role=...) or reply_with(function)"
        raise LMError(f"the script has no reply for {asked}", hint=hint, role=request.role)
