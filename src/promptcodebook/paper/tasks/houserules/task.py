"""`houserules`: messages to a shop, each topic answered in a form that no message mentions. 648
messages on 14 topics to a shop that sells home goods. The prompt has to supply the house rule of
the topic. A message under two topics has two rules; one under none wants a plain answer. The reward
is the share of its rules that the reply keeps, by one small pure check per kind, which says what it
found in a clause that follows "the reply". A blank or endlessly repeating reply keeps no rule.

Measured once, on SmolLM2: without instruction, on 14 messages, Python and one sentence are kept in
0.07 each, the other rules never, and 0.93 of the replies are plain. Of the story's 12 kept replies
10 only quote the rule."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from promptcodebook.base.text import shipped_table
from promptcodebook.base.units import plural
from promptcodebook.calls import Chat, Role
from promptcodebook.data import load
from promptcodebook.errors import DataError, TaskError, did_you_mean
from promptcodebook.paper.tasks.constraints.checks import CheckResult, Found, sentences, words
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Output, Prompt, Score

_FOLDER = Path(__file__).parent
_SHIPPED = shipped_table(__file__, "rules.toml")
# Topic -> the kind of its rule, in the order of the present prompt's lines.
RULES: Mapping[str, str] = _SHIPPED["kinds"]
_CHECKS: Mapping[str, Any] = _SHIPPED["checks"]
KINDS: tuple[str, ...] = tuple(_CHECKS)
# The kinds whose mark a plain reply must not have.
MARKS: tuple[str, ...] = tuple(kind for kind, rule in _CHECKS.items() if rule["mark"])
# The topics whose rules SmolLM2 keeps best when each is alone, on training messages that did
# not choose their wording (docs/tasks/houserules.md); of equals the first.
SIX = ("invoice", "cancel", "address", "login", "advice", "howto")


def check(kind: str, reply: str) -> CheckResult:
    """Return whether the reply keeps a rule of this kind. Raises TaskError when the kind is
    unknown."""
    if kind not in _CHECKS:
        message = f"unknown house rule {kind!r}{did_you_mean(kind, KINDS)}"
        raise TaskError(message, hint=f"known kinds: {', '.join(KINDS)}")
    fault = spoiled(reply)
    held, found = (False, fault) if fault else _held(kind, reply)
    verb = "must" if not held else "had to"
    return CheckResult(held, f"The reply {verb} {_CHECKS[kind]['asked']}; it {found}.")


def plain(reply: str) -> CheckResult:
    """Is the reply plain English prose without the marks of any house rule?"""
    found = spoiled(reply)
    if not found and guess_language(reply) != "english":
        found = "is not recognisably English"
    if not found:
        worn = next((_CHECKS[kind]["asked"] for kind in MARKS if _held(kind, reply)[0]), "")
        found = f"looks as if it had to {worn}" if worn else ""
    wanted = "No house rule applies, so the reply must be plain English"
    return CheckResult(not found, f"{wanted}; it {found or 'is'}.")


def _held(kind: str, reply: str) -> Found:
    if pattern := _CHECKS[kind].get("pattern"):
        count = len(re.findall(pattern, reply, re.MULTILINE))
        return count >= _CHECKS[kind].get("least", 1), f"has {plural(count, _CHECKS[kind]['noun'])}"
    if kind in _stop_words():
        guess = guess_language(reply)
        return guess == kind, f"seems to be {guess.title()}" if guess else "is hard to place"
    return _HELD[kind](reply)


def spoiled(reply: str) -> str:
    """What makes a reply worthless: it is blank, or one line or sentence, repeated; '' for none."""
    if not reply.strip():
        return "is empty"
    for name, pieces in (("line", _lines(reply)), ("sentence", sentences(reply))):
        # Compare lines without their list marks, case and white space.
        bare = [_LIST_MARK.sub("", piece.strip()).strip().lower() for piece in pieces]
        if len(bare) > 3 and bare[0].startswith(bare[-1]):
            bare = bare[:-1]
        if len(bare) >= 3 and len(set(bare)) == 1:
            return f"only repeats one {name}"
    return ""


def guess_language(text: str) -> str:
    """The language of stop_words.toml whose frequent words are most of the text's, or ''."""
    found = re.findall(r"[^\W\d_]+", text.lower())
    known = _stop_words()
    counts = Counter({name: sum(w in known[name] for w in found) for name in known})
    (best, most), (_, second) = counts.most_common(2)
    return best if len(found) >= 3 and most >= max(2, len(found) / 7, second + 1) else ""


@cache
def _stop_words() -> Mapping[str, frozenset[str]]:
    texts = shipped_table(__file__, "stop_words.toml")
    return {name: frozenset(text.split()) for name, text in texts.items()}


_LIST_MARK = re.compile(r"^(?:[-*•]|\(?\d{1,3}[.):]|[>#]+)\s*")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if words(line)]


_KANA = "[\u3040-\u30ff\u31f0-\u31ff]"
_HAN = "[\u3400-\u4dbf\u4e00-\u9fff]"


def _japanese(reply: str) -> Found:
    """Kana occur, and with the Han characters they are at least half of the letters."""
    kana, written = len(re.findall(_KANA, reply)), len(re.findall(f"{_KANA}|{_HAN}", reply))
    held = kana > 0 and 2 * written >= sum(c.isalpha() for c in reply)
    return held, f"has {kana} kana"


def _chinese(reply: str) -> Found:
    """Han characters are at least half of the letters, and there is hardly any kana."""
    kana, han = len(re.findall(_KANA, reply)), len(re.findall(_HAN, reply))
    held = han > 10 * kana and 2 * han >= sum(c.isalpha() for c in reply)
    return held, f"has {plural(han, 'Han character')} and {kana} kana"


def _one_sentence(reply: str) -> Found:
    """One sentence on one line: of 3 to 25 words, or, written without spaces, up to one "。"."""
    bare = reply.strip()
    count, length, lines = len(sentences(bare)), len(words(bare)), len(_lines(bare))
    spaceless = len(bare) >= 10 and bare.find("。") == len(bare) - 1
    held = count == 1 == lines and (3 <= length <= 25 or spaceless)
    size = f"{plural(length, 'word')} on {plural(lines, 'line')}"
    return held, f"has {plural(count, 'sentence')}, {size}"


def _recipe(reply: str) -> Found:
    """The word "ingredient" or "ingredients" occurs, and a line with a list mark follows it."""
    _, named, rest = reply.lower().partition("ingredient")
    count = len(re.findall(r"^\s*(?:[-*•]|\d+[.)])\s+\S", rest, re.MULTILINE))
    found = f"has {plural(count, 'listed ingredient')}"
    return count > 0, found if named else "names no ingredients"


def _russian(reply: str) -> Found:
    count, total = len(re.findall("[\u0400-\u04ff]", reply)), sum(c.isalpha() for c in reply)
    return 0 < total <= 2 * count, f"has {plural(count, 'Cyrillic letter')} among {total}"


def _story(reply: str) -> Found:
    held = "once upon a time" in reply.lower()
    return held, "says so" if held else "does not say so"


def _letter(reply: str) -> Found:
    held = re.search(r"^\W*Dear[ \t]+\w", reply, re.MULTILINE) is not None
    return held, "has one" if held else "has none"


def _json(reply: str) -> Found:
    keys = re.findall(r'"[^"\n]+"\s*:', reply.partition("{")[2])
    return len(keys) >= 2, f"has {plural(len(keys), 'JSON key')}"


_HELD: Mapping[str, Callable[[str], Found]] = {
    **{"japanese": _japanese, "chinese": _chinese, "russian": _russian, "story": _story},
    **{"letter": _letter, "recipe": _recipe, "json": _json, "one_sentence": _one_sentence},
}


class PromptLast:
    """One call: the message and, after a blank line, the prompt, both in the customer's turn. Small
    models follow what comes last and ignore a system prompt (docs/tasks/houserules.md)."""

    name = "message, then prompt"
    stages: tuple[str, ...] = ()
    roles: frozenset[Role] = frozenset()

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        turn = "\n\n".join(part for part in (example.input, prompt.text) if part.strip())
        reply = await lm(turn, purpose="execute")
        return Output(reply.text, truncated=reply.finish == "length")


def load_houserules(_data_dir: Path | None = None) -> Task:
    """The task; its data ships with the package, so no folder is read."""
    return _task("houserules", "fourteen", tuple(RULES))


def load_houserules_six(_data_dir: Path | None = None) -> Task:
    """Its messages on six topics and on none: routes are learned in a few hundred rollouts."""
    return _task("houserules_six", "six", SIX)


def _task(name: str, count: str, topics: Collection[str]) -> Task:
    path = _FOLDER / "data.jsonl"
    whole = load(path, input="message", target=None, id="id", split="split", name=name)
    among = set(topics)
    kept = {s: tuple(e for e in es if {*topics_of(e)} <= among) for s, es in whole.items()}
    return Task(
        name=name,
        dataset=replace(whole, **kept),
        reward=asks_nobody(reward),
        program=PromptLast(),
        seeds=sentences(present_prompt(topics)),
        zero_shot="Answer the customer's message.",
        description=f"Messages to a shop on {count} topics, each with a house rule for the form "
        "of its answer; the reward is the share of a message's rules that the reply keeps.",
        oracle=lambda example: "\n".join(right_rules(example)),
        output_format="Only the reply to the customer, in the form that the house rule for its "
        "topic asks for; plain English where there is none.",
    )


def present_prompt(topics: Collection[str] = tuple(RULES)) -> str:
    """The prompt the firm has now: who it is, then a line for each rule with its condition."""
    who, _, rules = (_FOLDER / "present_prompt.md").read_text("utf-8").strip().partition("\n\n")
    lines = zip(RULES, rules.splitlines(), strict=True)
    return "\n".join([who, "", *(line for topic, line in lines if topic in topics)])


def right_rules(example: Example) -> tuple[str, ...]:
    """The sentences of the present prompt that apply to this message: none, one or two."""
    lines = present_prompt().partition("\n\n")[2].splitlines()
    rules = dict(zip(RULES, lines, strict=True))
    return tuple(rules[topic] for topic in topics_of(example))


def topics_of(example: Example) -> tuple[str, ...]:
    """Return the topics in the example's `fields["topics"]`. Raises DataError when one has no
    rule."""
    topics = tuple(cast("list[str]", example.fields.get("topics") or []))
    for topic in topics:
        if topic not in RULES:
            message = f"the example {example.id!r} has the topic {topic!r}, which has no house rule"
            raise DataError(message, hint=f"topics: {', '.join(RULES)}")
    return topics


def reward(example: Example, output: str) -> Score:
    """The share of its topics' rules kept. Without a topic: 1 for a plain English reply, else 0."""
    topics = topics_of(example)
    if not topics:
        result = plain(output)
        return Score(float(result.satisfied), result.explanation)
    results = {topic: check(RULES[topic], output) for topic in topics}
    parts = [
        f"House rule for messages about {_SHIPPED['titles'][topic]} "
        f"{'kept' if result.satisfied else 'broken'}: {result.explanation}"
        for topic, result in results.items()
    ]
    return Score(sum(r.satisfied for r in results.values()) / len(results), " ".join(parts))
