"""A pipeline of OpenVINO that a test steps through."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from promptcodebook.models.local.openvino import GgufHeader, Runtime

_END = 2


_HEADER = GgufHeader(64, ("<|end|>",), 0)


class Tokenizer:
    """A character is a token of its code; the mark `<|end|>` is token 2."""

    def encode(self, text: str, **_: Any) -> Any:
        ids: list[int] = []
        while text:
            mark = text.startswith("<|end|>")
            ids.append(_END if mark else ord(text[0]))
            text = text[7 if mark else 1 :]
        return SimpleNamespace(input_ids=SimpleNamespace(data=[ids]))

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(i) for i in ids if i != _END)

    def apply_chat_template(self, turns: list[dict[str, str]], _: bool) -> str:
        return "".join(f"{t['role'][0]}:{t['content']}<|end|>" for t in turns)

    def get_eos_token_id(self) -> int:
        return _END


@dataclass
class Handle:
    ids: list[int]
    settings: Any
    made: int = 0
    told: int = 0
    state: str = "RUNNING"
    cancelled: bool = False

    def get_status(self) -> Any:
        return SimpleNamespace(name=self.state)

    def can_read(self) -> bool:
        return self.told < self.made

    def read(self) -> Any:
        token = self.ids[self.told]
        self.told += 1
        reason = "NONE" if self.state == "RUNNING" else "LENGTH"
        if token == _END:
            reason = "STOP"
        output = SimpleNamespace(
            generated_ids=[token],
            finish_reason=SimpleNamespace(name=reason),
        )
        return {0: output}

    def cancel(self) -> None:
        self.cancelled, self.state = True, "CANCEL"


@dataclass
class Pipeline:
    """Says `hello` to every request, a letter a step; `pace` is called before each step."""

    pace: Callable[[], None] = lambda: time.sleep(0.001)
    says: str = "hello"
    breaks: Callable[[Any], bool] = lambda settings: False
    handles: list[Handle] = field(default_factory=list)
    company: list[Handle] = field(default_factory=list)
    prompts: list[Any] = field(default_factory=list)
    together: list[int] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def add_request(self, number: int, prompt: Any, settings: Any) -> Handle:
        self.threads.add(threading.get_ident())
        if hasattr(settings, "ignore_eos"):
            self.company.append(Handle([120] * settings.max_new_tokens, settings))
            return self.company[-1]
        handle = Handle([*map(ord, self.says), _END], settings)
        self.handles.append(handle)
        self.prompts.append(prompt)
        return handle

    def _live(self) -> list[Handle]:
        return [h for h in (*self.handles, *self.company) if h.state == "RUNNING"]

    def has_non_finished_requests(self) -> bool:
        return bool(self._live())

    def step(self) -> None:
        self.threads.add(threading.get_ident())
        self.pace()
        live = self._live()
        self.together.append(len(live))
        if any(self.breaks(h.settings) for h in live):
            raise RuntimeError("somewhere in grammar_parser.cc\n  line 1: no such rule\n")
        for handle in live:
            handle.made += 1
            full = handle.made >= handle.settings.max_new_tokens
            if full or handle.ids[handle.made - 1] == _END:
                handle.state = "FINISHED"


class Settings(SimpleNamespace):
    def validate(self) -> None:
        if getattr(self, "top_p", 1.0) > 1.0:
            raise RuntimeError("Exception from config.cpp\ntop_p must be at most 1")


RUNTIME = Runtime(
    SimpleNamespace(GenerationConfig=Settings, StructuredOutputConfig=SimpleNamespace),
    lambda tokens: tokens,
)
