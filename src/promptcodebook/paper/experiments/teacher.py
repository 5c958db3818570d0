"""The scripted teacher, spec `rules`: all roles but the executor as rules. It is not a language
model, and a page with its figures must say so. It reads nothing but the text of the templates
`default`: what it knows of the task is in the checker's feedback and in what was learned from it. A
rule is an order, such as "in Spanish", with its condition: "when the message is about an
invoice"."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from promptcodebook.base.randomness import keyed_random
from promptcodebook.base.text import words_of
from promptcodebook.calls import Reply, Request, Usage
from promptcodebook.data import Dataset
from promptcodebook.errors import RequestRefused
from promptcodebook.lm.spec import Spec
from promptcodebook.paper.experiments.page import read_table
from promptcodebook.paper.simulated.world import read_params

_RULE = re.compile(r"Answer ((?:in|with) .+?)(?: when the message is about ([^.]+))?\.(?=\s|$|\")")
# How a critic that is a model says a rule; it follows the complaint.
_ADVICE = re.compile(r"When the message is about ([^.]+?), the reply must be (.+?)[.;]")
_BROKEN = re.compile(r"House rule for messages about (.+?) broken: The reply must be (.+?); it ")
_CALLS = re.compile(
    r'Words such as (".+?") call for the instinct that says to answer (.+?)\.(?=\s|$)'
)
_LEARNED = re.compile(r'^- (".+?"): answer (.+)$', re.M)
_HEADING = "Words that call for an instinct:"
_FITTING = "Leave out a strategy whose condition does not hold for the input."
_LISTED = re.compile(r"^\[(\d+)\] (.*?)(?: \((?:success ([\d.]+)|(untried))\))?$", re.M)
_NO_ORDER = "Answer the customer's message."
_MOST = 8  # words that θ keeps of an order


@dataclass(frozen=True, slots=True)
class HouseRule:
    """An order, and what a message must be about for it to hold; '' = it always does."""

    order: str
    when: str = ""

    def __str__(self) -> str:
        return f"Answer {self.order}{f' when the message is about {self.when}' * bool(self.when)}."


def rules_in(text: str) -> list[HouseRule]:
    said = [HouseRule(_order(asked), when) for when, asked in _ADVICE.findall(text)]
    return [*said, *(HouseRule(order, when) for order, when in _RULE.findall(text))]


def broken_rules(feedback: str) -> list[HouseRule]:
    """What a checker of `houserules` says was asked for and not kept."""
    return [HouseRule(_order(asked), when) for when, asked in _BROKEN.findall(feedback)]


@dataclass(frozen=True)
class TeacherBehaviour:
    """How each part of the teacher behaves; the first value named is that of a sound one.

    Attributes:
        encoder: overlap: takes what shares most words with the input, then what succeeded;
            `untried` takes what was never tried before that.
        reads: letters: a condition holds for an input with a word of it; `words`: or of its list.
        generator: joins: instincts as they are; `orders`: without conditions. Both drop what φ says
            to drop.
        critic: plain: says every broken rule; `silent`: nothing; `rubric`: languages only where ψ
            asks.
        updater: sound: takes advice that fits what the text says already; `obedient`: any, and any
            order that a complaint names; `identity`: none; `blind`: takes the condition and guesses
            the order.
        misroutes: Share of routes in which the encoder takes an instinct at random for the best.
    """

    encoder: Literal["overlap", "untried"] = "overlap"
    reads: Literal["letters", "words"] = "letters"
    generator: Literal["joins", "orders"] = "joins"
    critic: Literal["plain", "silent", "rubric"] = "plain"
    updater: Literal["sound", "obedient", "identity", "blind"] = "sound"
    misroutes: float = 0.0
    loses: float = 0.0  # share of prompts in which the generator loses the first order


def template_of(request: Request) -> str:
    """The template that a request was made of; '' = none that the teacher knows."""
    text = "\n".join(m.content for m in request.messages)
    marks: Mapping[str, str] = read_table("teacher")["marks"]
    return next((name for mark, name in marks.items() if mark in text), "")


class Teacher:
    """An LM. Raises RequestRefused for requests that neither the templates `default` nor GEPA
    make."""

    def __init__(self, manner: TeacherBehaviour = TeacherBehaviour()) -> None:
        self._manner = manner
        self._texts = read_table("teacher")
        self._answers: Mapping[str, Callable[[str], str]] = {
            "encoder": self._route,
            "generator": self._compose,
            "adversary": self._examine,
            "critic_one": self._critique_and_blame,
            "critic": lambda text: json.dumps(self._verdict(text)),
            "attribution": lambda text: json.dumps(
                self._split(text, _between(text, "\nCritic's verdict:\n", ""))
            ),
            "updater": self._improve,
            "reflection": self._reflect,
        }

    async def __call__(self, request: Request) -> Reply:
        text = "\n".join(f"\x1e{m.content}" for m in request.messages)
        answer = self._answers.get(template_of(request))
        if answer is None:
            message = "the scripted teacher knows only the requests of the templates `default`"
            hint = f"set roles.{request.role}.model to a language model"
            raise RequestRefused(message, hint=hint, role=request.role, model=request.model)
        reply = answer(text)
        return Reply(reply, usage=Usage(1, len(text) // 4, len(reply) // 4))

    def _stems(self, text: str) -> frozenset[str]:
        common = _common()
        return frozenset(w[:5] for w in words_of(text) if len(w) > 2 and w not in common)

    def _condition(self, rule: HouseRule) -> frozenset[str]:
        known = self._texts["words"].get(rule.when, "") if self._manner.reads == "words" else ""
        return self._stems(f"{rule.when} {known}")

    # The encoder.

    def _route(self, text: str) -> str:
        theta = _between(text, "\x1e", "\n\nChoose ")
        asked = text.rpartition("\x1e")[2]
        most, _, count = _between(text, "\n\nChoose ", " different").rpartition(" ")
        select, exact = int(count), most == "exactly"
        learned: dict[str, Counter[str]] = {}
        for quoted, order in _LEARNED.findall(theta):
            words = self._stems(quoted)
            learned.setdefault(order, Counter()).update(words)
        mine, ranked = self._stems(asked), list[tuple[float, bool, float, int]]()
        listed = _between(text, "(success so far):\n", "\n\n")
        for index, line, rate, untried in _LISTED.findall(listed):
            found = rules_in(line)
            fit = sum(len(mine & self._condition(rule)) for rule in found)
            fit += sum(2 * len(mine & learned.get(rule.order, Counter()).keys()) for rule in found)
            curious = bool(untried) and self._manner.encoder == "untried"
            ranked.append((-fit, not curious, -float(rate or 0.0), int(index)))
        order = [index for *_, index in sorted(ranked)]
        draw = keyed_random("misroute", text)
        if draw.random() < self._manner.misroutes:
            order = [draw.choice(order[1:] or order), *order]
        fits = {index for fit, *_, index in ranked if fit < 0}
        chosen = list(dict.fromkeys(order))[:select]
        chosen = [k for k in chosen if exact or k in fits or k == chosen[0]]
        return json.dumps({"selected_indices": sorted(chosen), "analysis": "shared words"})

    # The generator.

    def _compose(self, text: str) -> str:
        asked = self._stems(_between(text, "Input:\n", ""))
        phi = _between(text, "\x1e", "\n\nWrite")
        lines = _listed(_between(text, "Selected strategies:\n", "\nInput:\n"))
        told = list(lines.values())
        if _FITTING in phi:
            told = [t for t in told if all(self._holds(r, asked) for r in rules_in(t))] or told
        if self._manner.generator == "orders":
            orders = sorted({rule.order for t in told for rule in rules_in(t)})
            told = [str(HouseRule(order)) for order in orders] or [_NO_ORDER]
        if keyed_random("lose", text).random() < self._manner.loses:
            told = told[1:] or [_NO_ORDER]
        return "\n".join(told)

    def _holds(self, rule: HouseRule, asked: frozenset[str]) -> bool:
        return not rule.when or bool(asked & self._condition(rule))

    # The critic and the attribution.

    def _verdict(self, text: str) -> dict[str, object]:
        psi = _between(text, "\x1e", "\n\nYou are given one run")
        told = [str(rule) for rule in broken_rules(text) if self._looks_for(rule, psi)]
        score = float(_between(text, "\nReward: ", " on a scale") or 0.0)
        return {"score": min(max(score, 0.0), 1.0), "feedback": " ".join(told)}

    def _looks_for(self, rule: HouseRule, psi: str) -> bool:
        if self._manner.critic == "rubric":
            return not rule.order.startswith("in ") or "language" in psi
        return self._manner.critic != "silent"

    def _critique_and_blame(self, text: str) -> str:
        verdict = self._verdict(text)
        return json.dumps({**verdict, **self._split(text, str(verdict["feedback"]))})

    def _split(self, text: str, verdict: str) -> dict[str, object]:
        book = _listed(_between(text, "Codebook, one instinct a line:\n", "\x1e", "\n\n"))
        active = _listed(_between(text, "\nActive instincts:\n", "\n\n"))
        prompt = _between(text, "\nComposed prompt:\n", "\n\n", "\nResponse:")
        asked = _between(text, "Input:\n", "\n\n")
        blamed: dict[str, list[str]] = {}
        routing, rendering = list[str](), list[str]()
        for rule in rules_in(verdict):
            holders = [k for k, told in book.items() if rule.order in told]
            held = [k for k in holders if k in active]
            rules = {k: rules_in(t) for k, t in active.items()}
            against = {k: [r for r in own if r.order != rule.order] for k, own in rules.items()}
            wrong = [k for k, own in against.items() if any(r.when in ("", rule.when) for r in own)]
            for k in wrong if holders else ():
                dropped = " and ".join(f'"answer {r.order}"' for r in against[k])
                blamed.setdefault(str(k), []).append(f"Drop {dropped}.")
            if held and rule.order not in prompt:
                rendering.append(f"Keep the order to answer {rule.order}.")
            elif held and not wrong and any(against.values()):
                rendering.append(_FITTING)
            elif holders and not held:
                words = {w for w in words_of(asked) if len(w) > 3 and w not in _common()}
                longest = sorted(words, key=lambda w: (-len(w), w))[:3]
                named = ", ".join(f'"{word}"' for word in longest)
                called = f"call for the instinct that says to answer {rule.order}."
                routing.append(f"Words such as {named} {called}")
            elif not holders:
                empty = [k for k, t in active.items() if not rules_in(t)]
                at = str((wrong or empty or ["missing"])[0])
                blamed.setdefault(at, []).append(str(rule))
        told = {"rendering": rendering, "instinct": list(blamed), "routing": routing}
        return {
            "rendering_errors": " ".join(dict.fromkeys(rendering)),
            "instinct_errors": {k: " ".join(texts) for k, texts in blamed.items()},
            "routing_errors": " ".join(routing),
            "severity": {part: float(bool(texts)) for part, texts in told.items()},
        }

    # The adversary.

    def _examine(self, text: str) -> str:
        psi = _between(text, "Rubric:\n", "\n\nInput:\n")
        verdict = _between(text, "Critic's verdict:\n", "")
        missed = [r for r in broken_rules(text) if str(r) not in verdict]
        unread = any(r.order.startswith("in ") for r in missed) and "language" not in psi
        feedback = "Look for the language that the reply must have." if unread else ""
        return json.dumps({"feedback": feedback, "severity": float(bool(feedback))})

    # The updater.

    def _improve(self, text: str) -> str:
        now = _between(text, "Present text:\n", "\n\nFeedback:\n")
        told = _between(text, "\n\nFeedback:\n", "")
        if self._manner.updater == "identity":
            return now
        if "The text is the directive of the encoder" in text:
            return _with_words(now, told)
        if "The text is one instinct" not in text:  # φ or ψ: what is new comes at its end
            new = dict.fromkeys(s.removeprefix("- ") for s in told.splitlines())
            return "\n".join([now, *(f"- {s}" for s in new if s not in now)])
        return self._instinct(text, now, told)

    def _reflect(self, text: str) -> str:
        """GEPA's own request: the last rule of the instructions, and the first that was broken. A
        small model mixes up more than two rules, and follows the last one best."""
        now = _between(text, "```\n", "\n```")
        held = [line for line in now.splitlines() if rules_in(line)]
        new = [told for told in map(str, broken_rules(text)) if told not in now]
        return "\n".join(["```", *([*held[-1:], *new[:1]] or [now]), "```"])

    def _instinct(self, text: str, now: str, told: str) -> str:
        held, advice = rules_in(now), Counter(rules_in(told))
        unwanted = [r for r in held if f'"answer {r.order}"' in told]
        if self._manner.updater == "obedient":
            unwanted = held if "Drop " in told else []
            if not advice and not unwanted:  # a complaint about another part names an order too
                named = Counter(re.findall(r"to answer (.+?)\.(?=\s|$)", told)).most_common(1)
                kept = not named or named[0][0] in {r.order for r in held}
                return now if kept else str(HouseRule(named[0][0]))
        elif held and not unwanted:
            # What works stays: of the advice, only what corrects it.
            advice = Counter({r: n for r, n in advice.items() if r.when in {h.when for h in held}})
        if advice:
            rule = advice.most_common(1)[0][0]
            if self._manner.updater == "blind":
                order = keyed_random("guess", text).choice(self._texts["guesses"])
                rule = HouseRule(order, rule.when)
            return str(rule)
        return next((g for g in self._texts["general"] if unwanted and g not in text), now)


def _order(asked: str) -> str:
    """ "in Spanish" for a reply that must be Spanish, "with a letter" for one that must be one."""
    return f"with {asked}" if asked.startswith(("a ", "an ")) else f"in {asked}"


def _with_words(theta: str, told: str) -> str:
    head, _, _ = theta.partition(f"\n\n{_HEADING}")
    by_order: dict[str, list[str]] = {}
    for quoted, order in (*_LEARNED.findall(theta), *_CALLS.findall(told)):
        by_order.setdefault(order, []).extend(re.findall(r'"(.+?)"', quoted))
    lines: list[str] = []
    for order, words in by_order.items():
        latest = ", ".join(f'"{word}"' for word in list(dict.fromkeys(words))[-_MOST:])
        lines.append(f"- {latest}: answer {order}")
    return "\n".join([head, "", _HEADING, *lines]) if lines else theta


@cache
def _common() -> frozenset[str]:
    return frozenset(read_table("teacher")["common"].split())


def _between(text: str, start: str, *ends: str) -> str:
    """What lies after `start` and before the first of `ends`; '' where there is no such start."""
    _, found, rest = text.partition(start)
    cuts = [at for end in ends if end and (at := rest.find(end)) >= 0]
    return rest[: min(cuts)] if found and cuts else rest


def _listed(lines: str) -> dict[int, str]:
    return {int(index): told for index, told, *_ in _LISTED.findall(lines)}


def teacher_of(_task: str, _dataset: Dataset, spec: Spec) -> Teacher:
    """The teacher of a spec such as `rules?updater=identity`. Raises ConfigError when a name or a
    value is unknown."""
    return Teacher(read_params(TeacherBehaviour, spec.params, "the scripted teacher"))
