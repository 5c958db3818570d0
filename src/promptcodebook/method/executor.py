"""M: the frozen program answers with a prompt (Eq. 5), and a reward judges what came out. A bad
rollout is recorded, not raised (method decision 15); only what ends the run is raised."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel

from promptcodebook.base.incidents import Incident, Tally, no_tally
from promptcodebook.base.randomness import Draws, Randomness
from promptcodebook.calls import (
    LM,
    Message,
    Reply,
    Request,
    Role,
    Sampling,
    Schema,
    Tree,
    Usage,
    schema_of,
)
from promptcodebook.errors import ConfigError, LMError, Stop, StoreError
from promptcodebook.lm.structured import THOUGHT, strip_think
from promptcodebook.lm.wire import beyond_texts
from promptcodebook.method.failures import attempt, gather_all
from promptcodebook.method.policy import Prompter
from promptcodebook.types import (
    Evaluation,
    Example,
    Output,
    Program,
    Prompt,
    PromptLength,
    Rollout,
    Score,
)

# A reward made uniform: async, checked against its range, RewardError when it misbehaves.
Scorer = Callable[[Example, Output], Awaitable[Score]]
_NO_PROMPT = Prompt("")


class BoundChat:
    """A Chat for one example, which sums its calls up and strips thoughts. No paragraph of `prompt`
    reaches the untrusted role (decision 13). `ended` keeps what ended the run, since an agent that
    catches every error must not turn it into an answer."""

    def __init__(
        self,
        lm: LM,
        sample: Callable[[str], int],
        greedy: bool = False,
        tally: Tally = no_tally,
        prompt: Prompt = _NO_PROMPT,
    ) -> None:
        self.usage = Usage()
        self.truncated = False
        self.prompt_length = PromptLength()
        self.ended: Stop | StoreError | None = None
        self._lm, self._sample, self._greedy, self._tally = lm, sample, greedy, tally
        self._prompts = [p for p in (prompt.text, *prompt.stages.values()) if p.strip()]
        self._asked: Counter[str] = Counter()

    async def __call__(
        self,
        messages: str | Sequence[Message],
        *,
        system: str = "",
        role: Role = "executor",
        schema: Schema | type[BaseModel] | None = None,
        purpose: str = "",
        extra: Tree | None = None,
    ) -> Reply:
        """Asks; a plain string is one user message, `system` comes first."""
        turns = (Message("user", messages),) if isinstance(messages, str) else tuple(messages)
        if role == "untrusted":
            sent = "\n".join([system, *(m.content for m in turns)])
            parts = (part for text in self._prompts for part in text.split("\n\n"))
            if any(part.strip() and part in sent for part in parts):
                message = "the composed prompt was about to be sent to the untrusted role"
                raise ConfigError(
                    message, hint="give the untrusted stage only the rewritten request"
                )
        if system:
            turns = (Message("system", system), *turns)
        number = self._asked[purpose]
        self._asked[purpose] += 1
        name = f"{purpose}#{number}" if number and purpose else purpose or str(number)
        drawn = Sampling(extra=extra or {})
        form = schema_of(schema) if isinstance(schema, type) else schema
        request = Request(role, turns, form, self._sample(name), self._greedy, sampling=drawn)
        try:
            reply = await self._lm(request)
        except LMError as error:
            self.usage += error.usage
            raise
        except (Stop, StoreError) as error:
            self.ended = error
            raise
        self.usage += reply.usage
        if role == "executor":
            self._measure(request, reply)
        if reply.finish == "length":
            self.truncated = True
            if reply.source == "live":
                self._tally(Incident.TRUNCATED)
        return replace(reply, text=strip_think(reply.text)) if THOUGHT in reply.text else reply

    def _measure(self, request: Request, reply: Reply) -> None:
        """The prompt's share of the request's tokens, by letters."""
        letters, own, known = 4 * beyond_texts(request, 4), 0, self.prompt_length
        for m in request.messages:
            found = [len(p) for p in self._prompts if p in m.content]
            own += len(m.content) if m.role == "system" else max(found, default=0)
            letters += len(m.content)
        tokens = round(reply.usage.prompt_tokens * own / letters) if letters else 0
        longest, total = max(known.longest, tokens), known.total + tokens
        self.prompt_length = PromptLength(longest, total, known.estimated or reply.estimated)


@dataclass(frozen=True)
class Trial:
    """y = M(p, x) and r(y, y*): program and reward bound together. `book` counts what a program
    reports of calls of its own."""

    program: Program
    scorer: Scorer | None
    lm: LM
    greedy: bool = False
    tally: Tally = no_tally
    book: Callable[[Usage], Usage] = lambda own: own

    async def run(
        self, example: Example, prompt: Prompt, draws: Draws, rollout: Rollout
    ) -> Rollout:
        """The rollout completed by output and reward, or by the failure of either."""

        def sample(purpose: str) -> int:
            return draws.sample(f"execute {purpose}")

        chat = BoundChat(self.lm, sample, self.greedy, self.tally, prompt)
        output, failure = await attempt("execute", self._execute(example, prompt, chat))
        if chat.ended is not None:
            raise chat.ended
        usage, length = rollout.usage + chat.usage, chat.prompt_length
        own = None if output is None else output.usage
        if output is not None and not chat.usage.calls:  # what it asked, it asked past the meter
            rollout, length = replace(rollout, metered=own is not None), None
        usage += Usage() if own is None else self.book(own)
        rollout = replace(rollout, usage=usage, prompt_length=length, failure=failure)
        if output is None:
            return rollout
        rollout = replace(
            rollout,
            output=output.text,
            fields=output.fields,
            stages=output.trace,
            truncated=output.truncated or chat.truncated,
        )
        if self.scorer is None:
            return rollout
        score, failure = await attempt("reward", self.scorer(example, output))
        if score is None:
            return replace(rollout, failure=failure)
        return replace(rollout, reward=score.value, feedback=score.feedback)

    async def _execute(self, example: Example, prompt: Prompt, chat: BoundChat) -> Output:
        """The program's output, its fields as plain JSON, which a run can keep. Raises TypeError
        when they are no such thing."""
        output = await self.program(prompt, example, chat)
        if not isinstance(output.fields, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind = type(output.fields).__name__
            raise TypeError(f"the executor returned fields of type {kind}, not a mapping")
        try:
            kept = json.loads(json.dumps(dict(output.fields), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"the executor returned fields that are not JSON: {error}") from None
        return replace(output, fields=kept)


async def roll_out(prompter: Prompter, trial: Trial, example: Example, draws: Draws) -> Rollout:
    """One whole forward pass; a failure of any part is part of the result."""
    rollout = Rollout(example.id)
    made, failure = await attempt("prompt", prompter.prompt(example, draws))
    if made is None:
        return replace(rollout, failure=failure)
    route, prompt, usage = made
    rollout = replace(rollout, route=route, prompt=prompt.text, usage=usage)
    return await trial.run(example, prompt, draws, rollout)


def answers_remark(count: int, *, cut: int, empty: int, cap: int | None = None) -> str:
    """What to change where most of `count` answers were cut at the cap, or are empty; else ''.
    A server may keep to itself what a model thinks, so that an answer of thoughts is empty."""
    at = f" of {cap:,} tokens" if cap is not None else ""
    if 2 * cut > count:
        thoughts = f", {empty} of them before any text (thoughts count too)" if empty else ""
        return (
            f"{cut} of {count} answers hit their cap{at}{thoughts}: raise "
            "roles.executor.max_tokens."
        )
    if 2 * empty > count:
        return (
            f"{empty} of {count} answers had no text (only thoughts, or nothing), and {cut} "
            f"hit their cap{at}: switch the model's thinking off in roles.executor.extra, raise "
            "roles.executor.max_tokens, or set a different roles.executor.model."
        )
    return ""


# Replaces the step in evaluation draws: an input's prompt is the same at every evaluation.
EVALUATION = -1


@dataclass(frozen=True)
class Evaluator:
    """Greedy rollouts, or the mean of several `samples`; failed ones get `retries` fresh draws."""

    trial: Trial
    randomness: Randomness
    floor: float = 0.0
    retries: int = 1
    samples: int = 1

    async def evaluate(
        self,
        name: str,
        prompter: Prompter,
        examples: Sequence[Example],
        split: str,
        done: Callable[[Rollout], None] | None = None,
    ) -> Evaluation:
        """All rollouts in the examples' order; `done` hears of each as it finishes."""

        async def sampled(example: Example, randomness: Randomness) -> Rollout:
            rollout = Rollout(example.id)
            for attempted in range(1 + self.retries):
                draws = randomness.at(EVALUATION - attempted, example.id)
                again = await roll_out(prompter, self.trial, example, draws)
                rollout = replace(again, usage=rollout.usage + again.usage)
                # An answer that the reward cannot score is not asked for again.
                if rollout.failure is None or rollout.failure.stage == "reward":
                    break
            if done is not None:
                done(rollout)
            return rollout

        async def one(example: Example) -> Rollout:
            seeds = self.randomness.runs(self.samples)
            return average(await gather_all(sampled(example, each) for each in seeds), self.floor)

        rollouts = await gather_all(map(one, examples))
        grouped = any(e.group for e in examples)
        groups = tuple(e.group or e.id for e in examples) if grouped else ()
        return Evaluation(name, split, tuple(rollouts), self.floor, groups)


def average(samples: Sequence[Rollout], floor: float | None = None) -> Rollout:
    """Several samples of an example as one rollout (decision 18): their mean reward, a failure
    counting as the floor (None = left out), and all their usage; the rest is the first one's."""
    rewards = [floor if r.reward is None else r.reward for r in samples]
    known = [reward for reward in rewards if reward is not None]
    answered = any(r.reward is not None for r in samples)
    return replace(
        samples[0],
        reward=sum(known) / len(known) if answered else None,
        failure=None if answered else samples[0].failure,
        truncated=any(r.truncated for r in samples),
        usage=sum((r.usage for r in samples), Usage()),
    )
