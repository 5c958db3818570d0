"""The batch of openvino-genai's pipeline, and the thread that steps it.

`ContinuousBatchingPipeline.step()` makes the next token of every running job. New jobs join and
cancelled ones leave between steps. Prompts with an equal beginning share its computation (prefix
caching). Only the thread uses the pipeline. `step()` holds the interpreter's lock, so other Python
code runs between steps.

The pipeline keeps every grammar that it compiled. When it has too many, and its jobs are done, a
new pipeline replaces it; new jobs wait meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from promptcodebook.errors import PcoError, RequestRefused, ServerFault
from promptcodebook.local.engine import Generation, Job, Load, TokenLogprob
from promptcodebook.local.schema import Grammar

AT_ONCE = 64
"""Jobs that share a step; further ones wait for a place."""

_MOST_STATES = 2_000_000
"""Of the grammars that a pipeline keeps: measured, 100 to 240 bytes each, so 480 MB at the most."""
_MOMENT_S = 0.003
"""How long after a job another one is of the same moment. Once the pipeline steps, it holds the
interpreter's lock, so jobs are prepared only between steps."""

Event = str | Generation | PcoError
"""What a job receives: text in pieces, then the whole, or the error."""


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


@dataclass(eq=False, slots=True)
class Place:
    """A job on its way through the pipeline."""

    prompt: Any
    prompt_tokens: int
    settings: Any
    job: Job
    tell: Callable[[Event], None]
    streams: bool
    grammar: Grammar | None = None
    handle: Any = None
    left: bool = False
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    shown: str = ""


class Batch:
    """The thread that steps the pipeline while there is something to do."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._pipeline: Any = load()
        self._tokenizer: Any = self._pipeline.get_tokenizer()
        self.end = int(self._tokenizer.get_eos_token_id())
        self._kept: set[str] = set()
        self._states = 0
        self._change = threading.Condition()
        self._new: list[Place] = []
        self._running: list[Place] = []
        self._number = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def tokenizer(self) -> Any:
        """That of the pipeline, whose grammars it keeps: not to be held. Raises ServerFault."""
        if (tokenizer := self._tokenizer) is None:
            raise ServerFault("the local model has been closed")
        return tokenizer

    @property
    def load(self) -> Load:
        with self._change:
            waiting, running = len(self._new), len(self._running)
        places = min(running, AT_ONCE)
        return Load(places, waiting + running - places)

    def add(self, place: Place) -> None:
        with self._change:
            if self._closed:
                raise ServerFault("the local model has been closed")
            self._new.append(place)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="openvino", daemon=True)
                self._thread.start()
            self._change.notify()

    def remove(self, place: Place) -> None:
        """Drops the job at the next step; nothing happens to one that is finished."""
        with self._change:
            place.left = True
            self._change.notify()

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join()
        # The last reference: its memory goes back here and not whenever it is collected.
        self._pipeline = self._tokenizer = None

    def _work(self) -> None:
        while self._wait():
            fresh = self._admit()
            try:
                if self._running and self._pipeline.has_non_finished_requests():
                    self._pipeline.step()
            except RuntimeError as error:
                # Those that were new in it are to blame, if there were any: a grammar, for
                # instance, is only then read.
                self._refuse(fresh or self._running, error)
            for place in list(self._running):
                self._deliver(place)
        closed = ServerFault("the local model was closed before it was done")
        self._fail([*self._running, *self._new], closed)

    def _wait(self) -> bool:
        """Until there is work; False when closed. Jobs of one moment begin in one step."""
        with self._change:
            while not (self._closed or self._new or self._running):
                self._change.wait()
            come = 0
            while not (self._closed or self._running) and come < len(self._new) < AT_ONCE:
                come = len(self._new)
                self._change.wait(_MOMENT_S)
            return not self._closed

    def _admit(self) -> list[Place]:
        """Takes in what is new and lets go of who left; returns the new ones."""
        with self._change:
            gone = [place for place in self._running if place.left]
            self._running = [place for place in self._running if not place.left]
            self._new = [place for place in self._new if not place.left]
            renews = bool(self._new) and not self._running and self._states > _MOST_STATES
            if renews:
                self._kept.clear()
                self._states = 0
            fresh = self._take()
            self._running += fresh
        for place in gone:
            self._drop(place)
        if renews or self._pipeline is None:
            try:
                # Free the old pipeline's memory before the new one is loaded.
                self._pipeline = None
                self._pipeline = self._load()
                self._tokenizer = self._pipeline.get_tokenizer()
            except (RuntimeError, OSError) as error:
                again = "the local model could not be loaded again"
                self._fail(fresh, ServerFault(f"{again}: {first_line(error)}"))
                return []
        pipeline: Any = self._pipeline
        admitted: list[Place] = []
        for place in fresh:
            self._number += 1
            try:
                place.handle = pipeline.add_request(self._number, place.prompt, place.settings)
                admitted.append(place)
            except RuntimeError as error:
                self._refuse([place], error)
        return admitted

    def _take(self) -> list[Place]:
        """New jobs, as long as the pipeline has room for their grammars."""
        taken: list[Place] = []
        while self._new and self._states <= _MOST_STATES:
            place = self._new.pop(0)
            taken.append(place)
            if place.grammar is not None and place.grammar.text not in self._kept:
                self._kept.add(place.grammar.text)
                self._states += place.grammar.states
        return taken

    def _refuse(self, places: list[Place], error: RuntimeError) -> None:
        self._fail(places, RequestRefused(f"the local model refused: {first_line(error)}"))

    def _fail(self, places: list[Place], error: PcoError) -> None:
        for place in list(places):
            place.tell(error)
            self._finish(place)
            self._drop(place)

    def _finish(self, place: Place) -> None:
        with self._change:
            if place in self._running:
                self._running.remove(place)

    def _drop(self, place: Place) -> None:
        if place.handle is not None:
            place.handle.cancel()

    def _deliver(self, place: Place) -> None:
        """Tells what a step made for the job."""
        reason = ""
        while place.handle.can_read():
            for output in place.handle.read().values():
                place.tokens += output.generated_ids
                place.logprobs += output.generated_log_probs
                reason = output.finish_reason.name
        status = place.handle.get_status().name
        if status == "IGNORED":
            self._finish(place)
            place.tell(
                ServerFault(
                    "the local model ran out of memory for keys and values",
                    hint="lower concurrency, or shorten prompts and replies",
                )
            )
            return
        if place.streams:
            last = status != "RUNNING"
            text = self._decode(place.tokens)
            # A character may lie across tokens: its first bytes are no character yet.
            whole = text if last else text.rstrip("\ufffd")
            if len(whole) > len(place.shown) and whole.startswith(place.shown):
                place.tell(whole[len(place.shown) :])
                place.shown = whole
        if status != "RUNNING":
            self._finish(place)
            place.tell(self._generation(place, "length" if reason == "LENGTH" else "stop"))

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens)) if tokens else ""

    def _generation(self, place: Place, finish: Literal["stop", "length"]) -> Generation:
        logprobs = None
        if place.job.logprobs is not None:
            pairs = zip(place.tokens, place.logprobs, strict=False)
            logprobs = tuple(
                TokenLogprob(self._decode([t]), value) for t, value in pairs if t != self.end
            )
        text = self._decode(place.tokens)
        return Generation(text, finish, place.prompt_tokens, len(place.tokens), None, logprobs)
