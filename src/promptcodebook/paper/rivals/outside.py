"""Optimizers of others: libraries that are not async run in a thread of their own. What they ask
goes to the run's loop and models. Draws are keyed by how often the same was asked: a resumed run
meets its paid replies again, if the library is a function of its seed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from promptcodebook.base.incidents import Incident
from promptcodebook.base.units import plural
from promptcodebook.calls import Message, Request
from promptcodebook.errors import LMError, PcoError, RequestRefused, message_of
from promptcodebook.lm.structured import strip_think
from promptcodebook.method.failures import FailureWatch, gather_all
from promptcodebook.method.policy import FixedPrompt, join_prompts
from promptcodebook.optimizers.base import Problem, Result, spending
from promptcodebook.optimizers.fixed import baselines
from promptcodebook.optimizers.reserve import VerdictReserve, train_to_reserve
from promptcodebook.progress import Note, Phase
from promptcodebook.store.events import Amended, EndReason, PromptCandidate, Resumed
from promptcodebook.tasks.user_code import hush
from promptcodebook.types import Example, Prompt, Rollout, Trace

_T = TypeVar("_T")


class LibraryEnded(BaseException):
    """Raised in the library's threads once the run has stopped. No Exception: none swallows it."""


class LibraryThread:
    """One thread of a library beside the run's loop, in which it may have things done."""

    def __init__(self, name: str) -> None:
        self._name = f"promptcodebook {name}"
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._ended: BaseException | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[], _T]) -> _T:
        """What `work` returns or raises in a thread of its own. Raises what ended the run first."""
        done: asyncio.Future[tuple[list[_T], BaseException | None]] = self._loop.create_future()

        def hand_over(made: list[_T], raised: BaseException | None) -> None:
            if not done.done():
                done.set_result((made, raised))

        def thread() -> None:
            made, raised = list[_T](), None
            try:
                with hush():
                    made.append(work())
            except BaseException as error:
                raised = error
            with suppress(RuntimeError):  # the loop is closed: nothing waits any more
                self._loop.call_soon_threadsafe(hand_over, made, raised)

        threading.Thread(target=thread, name=self._name, daemon=True).start()
        try:
            made, error = await done
        except BaseException:
            self._end(LibraryEnded())
            for task in list(self._running):
                task.cancel()
            raise
        ended = self._ended
        self._end(LibraryEnded())
        # What other threads of the library have in flight comes home before the budget continues.
        while self._running:
            await asyncio.wait(self._running)
        if ended is not None:
            raise ended
        if error is not None:
            raise error
        return made[0]

    def _end(self, reason: BaseException) -> None:
        with self._lock:
            if self._ended is None:
                self._ended = reason

    def wait_for(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """The coroutine's result, from a thread. Ended, once the run has stopped."""
        if self._ended is not None:
            coroutine.close()
            raise LibraryEnded
        try:
            return asyncio.run_coroutine_threadsafe(self._tracked(coroutine), self._loop).result()
        except CancelledError:
            raise LibraryEnded from None
        except Exception as error:
            if _is_its_own(error):
                raise
            self._end(error)
            raise LibraryEnded from error

    async def _tracked(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._running.add(task)
        try:
            if self._ended is not None:
                coroutine.close()
                raise asyncio.CancelledError
            return await coroutine
        finally:
            self._running.discard(task)


def _is_its_own(error: BaseException) -> bool:
    """Whether only this request was no good, so that the library may continue."""
    return isinstance(error, RequestRefused) or (isinstance(error, LMError) and error.answered)


WHOLE = "prompt"  # names the one text of a program whose stages get no prompt each
_RECENT = 60  # rollouts that measure what those of the verdict will take
_FEW = 10  # failures that are no accident
_ROOM = 1024  # tokens that a reply has at least, even where the updater's cap is lower


@dataclass(frozen=True)
class RivalLibrary:
    """An optimizer of others. `work` runs in a thread of its own and returns the texts by stage;
    `rollouts` is how many it makes at most (None = it alone knows)."""

    name: str
    title: str
    settings: Mapping[str, Any]
    work: Callable[[Outside], Mapping[str, str]]
    rollouts: int | None = None


@dataclass(slots=True)
class _Candidate:
    texts: Mapping[str, str]
    rewards: dict[str, float] = field(default_factory=lambda: dict[str, float]())
    rollouts: int = 0

    @property
    def mean(self) -> float:
        return sum(self.rewards.values()) / len(self.rewards)


class Outside(LibraryThread):
    """The problem, as the threads of a library see it."""

    def __init__(self, problem: Problem, library: RivalLibrary) -> None:
        super().__init__(library.name)
        assembled = problem.assembled
        dataset, config = assembled.dataset, assembled.config
        self.problem = problem
        self.stages = assembled.plan.prompt_stages or (WHOLE,)
        self.train, self.val = dataset.train, assembled.plan.validated
        self.failed = 0  # rollouts
        self._library, self._asked = library, Counter[object]()
        self._drawn, self._greedy = assembled.trial(), assembled.trial(greedy=True)
        self._validating = {e.id for e in self.val or dataset.train}
        self._candidates: dict[tuple[str, ...], _Candidate] = {}
        self._made = 0
        self.replies = {"replies": 0, "replies_cut": 0}
        self._recent: deque[Rollout] = deque(maxlen=_RECENT)
        rows = len(baselines()) + 1
        self.reserve = VerdictReserve(problem, rows * len(assembled.plan.judged))
        self._watch = FailureWatch(max(_FEW, min(config.update.batch_size, len(dataset.train))))

    @property
    def first(self) -> dict[str, str]:
        """By stage the present prompt, else the task's zero-shot prompt, as its authors begin."""
        plan = self.problem.assembled.plan
        return dict.fromkeys(self.stages, plan.present.bare)

    def prompt_of(self, texts: Mapping[str, str]) -> Prompt:
        base = self.problem.assembled.config.base_prompt
        whole = {stage: join_prompts(base, texts[stage]) for stage in self.stages}
        return Prompt(whole[WHOLE]) if self.stages == (WHOLE,) else Prompt.of_stages(whole)

    def roll_out(self, texts: Mapping[str, str], examples: Sequence[Example]) -> list[Rollout]:
        """The examples under the prompt of these texts, side by side; called from any thread."""
        return self.wait_for(self._roll_out(texts, examples))

    async def _roll_out(
        self, texts: Mapping[str, str], examples: Sequence[Example]
    ) -> list[Rollout]:
        prompt, key = self.prompt_of(texts), self._key(texts)

        async def one(example: Example, times: int) -> Rollout:
            greedy = bool(self.val) and example.id in self._validating
            trial = self._greedy if greedy else self._drawn
            draws = self.problem.assembled.config.randomness.at(times, example.id)
            return await trial.run(example, prompt, draws, Rollout(example.id, prompt=prompt.text))

        counted = [(example, self._count((key, example.id))) for example in examples]
        made = await gather_all(one(example, times) for example, times in counted)
        candidate = self._candidates.setdefault(key, _Candidate(dict(texts)))
        candidate.rollouts += len(made)
        tell, total = self.problem.tell, self._library.rollouts
        failures = [r.failure for r in made if r.failure is not None]
        if failures and not self.failed:  # the library gets each as one that earned the least
            first = failures[0]
            tell(Note(f"a rollout failed at {first.stage}: {first.kind}: {first.message}"))
        self.failed += len(failures)
        validated = [r for r in made if r.example_id in self._validating]
        candidate.rewards.update({r.example_id: self.reward(r) for r in validated})
        self._made += len(made)
        self._recent.extend(made)
        self.reserve.measure(tuple(self._recent))
        tell(spending(self.problem.assembled.models))
        if total is not None:
            tell(Phase(f"rollouts of {self._library.name}", min(self._made, total), total))
        self._watch.see_rollouts(tuple(map(Trace, made)))
        return made

    def ask(self, messages: Sequence[Message]) -> str:
        """A reply of the role updater, at temperature 1 and with room for at least 1,024 tokens, as
        these libraries are published. Raises RequestRefused when only this request was refused."""
        return self.wait_for(self._ask(tuple(messages)))

    async def _ask(self, messages: tuple[Message, ...]) -> str:
        times, models = self._count(messages), self.problem.assembled.models
        sample = self.problem.assembled.config.randomness.integer("outside", "updater", times)
        own = models.lm.sampling_of("updater")
        cap = None if own.max_tokens is None else max(_ROOM, own.max_tokens)
        drawn = replace(own, temperature=1.0, top_p=None, max_tokens=cap)
        reply = await models.lm(Request("updater", messages, sample=sample, sampling=drawn))
        self.replies["replies"] += 1
        if reply.finish == "length":
            self.replies["replies_cut"] += 1
            if reply.source == "live":
                models.tally(Incident.TRUNCATED)
        return strip_think(reply.text)

    def _count(self, asked: object) -> int:
        self._asked[asked] += 1
        return self._asked[asked] - 1

    def _key(self, texts: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(texts[stage] for stage in self.stages)

    def reward(self, rollout: Rollout) -> float:
        """Its reward in the task's range; a failed one earned the least."""
        floor, _ = self.problem.assembled.config.reward_range
        return floor if rollout.reward is None else rollout.reward

    @property
    def best(self) -> Mapping[str, str]:
        """The first texts of best mean reward, of those that were validated on most examples."""
        measured = [c for c in self._candidates.values() if c.rewards]
        best = max(measured, key=lambda c: (len(c.rewards), c.mean), default=None)
        return self.first if best is None else best.texts

    def tried(self, texts: Mapping[str, str]) -> tuple[PromptCandidate, ...]:
        """All that was run, in order; `texts` are those that are kept."""
        return tuple(
            PromptCandidate(
                prompt=self.prompt_of(each.texts).text,
                score=each.mean if each.rewards else None,
                n=len(each.rewards),
                rollouts=each.rollouts,
                kept=key == self._key(texts),
            )
            for key, each in self._candidates.items()
        )

    def in_words(self, texts: Mapping[str, str]) -> str:
        prompts, rollouts = plural(len(self._candidates), "prompt"), plural(self._made, "rollout")
        text = f"{self._library.settings['library']} tried {prompts} in {rollouts}"
        text += f", {self.failed} of which failed" if self.failed else ""
        kept = self._candidates.get(self._key(texts))
        split = "validation" if self.val else "training"
        if kept is not None and kept.rewards:
            text += f"; its choice earned {kept.mean:.3f} on {len(kept.rewards)} {split} examples"
        return f"{text}. {self.cut_in_words}"

    @property
    def cut_in_words(self) -> str:
        cut, replies = self.replies["replies_cut"], self.replies["replies"]
        advice = ": raise roles.updater.max_tokens" if cut else ""
        asked = f"{cut} of the {replies} replies it asked for"
        return f"{asked} were cut at their length cap{advice}."


async def optimize_outside(problem: Problem, library: RivalLibrary) -> Result:
    """What the library found within the budget; of one that fails the present prompt."""
    store, now = problem.store, datetime.now(UTC).isoformat(timespec="seconds")
    outline = store.outline()
    # Where the run was begun before, what was judged then was another result.
    if outline.tests:
        store.append(Amended((), now, extended=True))
    if outline.ended is not None or store.usage():
        store.append(Resumed(outline.step, now))
    outside = Outside(problem, library)
    found: Mapping[str, str] = outside.first
    failure: Exception | None = None

    async def training() -> EndReason:
        nonlocal found, failure
        try:
            found = await outside.run(lambda: library.work(outside))
        except Exception as error:
            if isinstance(error, PcoError) and not _is_its_own(error):
                raise
            failure = error
        return "finished"

    ended, stop = await train_to_reserve(problem, training(), outside.reserve)
    found = found if stop is None else outside.best
    remark = outside.in_words(found)
    if failure is not None:
        # What it said is withheld where data are private: it may quote them.
        message = " ".join(message_of(failure).split())
        message = message if len(message) <= 300 else f"{message[:300]}..."
        if problem.assembled.task.private:
            message = "its message is withheld, since the data is private."
        remark = (
            f"{library.settings['library']} failed with {type(failure).__name__}: {message} The "
            f"prompt that it started from is used instead. {outside.cut_in_words}"
        )
        problem.tell(Note(remark))
    prompt = outside.prompt_of(found)
    return Result(
        name=library.name,
        title=library.title,
        prompter=FixedPrompt(prompt.text, prompt.stages),
        ended=ended,
        remark=remark,
        settings={**library.settings, **outside.replies},
        candidates=outside.tried(found),
        stop=stop,
    )
