"""`pupa`: private user queries answered with an outside model's help (PUPA-New, PAPILLON). A
trusted model rewrites the query, an untrusted one helps, and the trusted one answers. Real people
wrote the rows: no error quotes them. docs/tasks/pupa.md has the reward."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from promptcodebook.base.text import shipped_table, words_of
from promptcodebook.calls import Chat, Message, Request, Role
from promptcodebook.lm.structured import Ask, LenientText, ReplyShape
from promptcodebook.method.failures import gather_all
from promptcodebook.paper.tasks.pupa.score import PupaScore, combine, distinct_units, leaked_units
from promptcodebook.tasks.home import BenchmarkRow, Filled, home_of, read_dataset, read_texts
from promptcodebook.tasks.program import ask, make_output, outside, think
from promptcodebook.tasks.task import Task
from promptcodebook.types import Example, Output, Prompt, Score, Variable

T = TypeVar("T", bound=ReplyShape)
_FOLDER = Path(__file__).parent
_TEXTS = shipped_table(__file__, "requests.toml")
_LEAST = 4  # characters of a unit: shorter ones turn up in any text
WEIGHT = 1.0  # λ: what a whole leak costs, in units of quality
ENOUGH = 0.5  # of the reference's words in an answer as good as it
_SHOWN = 12  # leaked pieces that are quoted

_MONTH = re.compile(r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*")
_DAY_OR_YEAR = re.compile(r"\d{1,4}(st|nd|rd|th)?")
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]|\\w+")


class PupaRow(BenchmarkRow):
    """A query; `pii_units` are its private pieces, joined by '||'."""

    input_column = "user_query"
    id: Filled
    user_query: Filled
    target_response: Filled
    pii_units: str
    category: object = None

    def example(self) -> Example:
        fields = {"pii_units": self.pii_units, "category": str(self.category or "")}
        return Example(self.id, self.user_query, self.target_response, fields=fields)


def load_pupa(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder pupa/), else where `home_of` finds it."""
    home = home_of(_FOLDER, data_dir)
    dataset = read_dataset(home, "pupa", PupaRow, PupaRow.example, private=True)
    return Task(
        name="pupa",
        dataset=dataset,
        reward=lambda ask: stand_in if ask is None else JudgeReward(ask),
        program=Papillon(),
        reward_range=(-WEIGHT, 1.0),
        private=not home.own,
        checks=(NoUnitCheck(dataset.train),),
        **read_texts(_FOLDER, weight=WEIGHT, origin=home.origin),
    )


class NoUnitCheck:
    """Refuses a rewrite that takes over a private piece of a training query; says whose."""

    def __init__(self, examples: Iterable[Example]) -> None:
        self._owners: dict[str, str] = {}
        for example in examples:
            for unit in units_of(example):
                flat = " ".join(words_of(unit))
                if len(flat) >= _LEAST:
                    self._owners.setdefault(f" {flat} ", example.id)

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        now, earlier = (f" {' '.join(words_of(each))} " for each in (text, before))
        for unit, owner in self._owners.items():
            if unit in now and unit not in earlier:
                return f"it holds a private piece of training example {owner}"
        return None


def request_of(output: Output) -> str:
    """The request that went outside; "" where none did."""
    return str(output.fields.get("request") or "")


class Papillon:
    """craft (executor) -> outside (untrusted) -> respond (executor). y answers the user."""

    name = "pupa"
    stages = ("craft", "respond")  # the stages that get a composed prompt; `outside` gets none
    roles: frozenset[Role] = frozenset({"untrusted"})

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        query = example.input
        craft = await think(
            lm,
            prompt=prompt,
            stage="craft",
            instruction=_TEXTS["craft"],
            fields={"user_query": query},
            outputs=("llm_request",),
        )
        request = craft["llm_request"].strip()
        # In a reply with nothing but reasoning: thoughts about the query must not leave.
        if not request or request == craft["reasoning"].strip():
            return make_output("", [craft], {"request": ""})
        helped = await outside(lm, stage="outside", message=request, output="llm_response")
        answer = await ask(
            lm,
            prompt=prompt,
            stage="respond",
            instruction=_TEXTS["respond"],
            fields={
                "related_llm_request": request,
                "related_llm_response": helped["llm_response"],
                "user_query": query,
            },
            output="response",
        )
        return make_output(answer["response"], [craft, helped, answer], {"request": request})


def _reasoning(about: str) -> Any:
    return Field(json_schema_extra={"maxLength": 900}, description=about)


class QualityComparison(ReplyShape):
    """The judge's verdict on two answers."""

    reasoning: LenientText = _reasoning("which answer serves the query better")
    at_least_as_good: bool = Field(description="whether A is at least as good as B")


class LeakCount(ReplyShape):
    """The judge's count; one that cannot be is clamped by the score, not refused."""

    reasoning: LenientText = _reasoning("which kinds of pieces occur")
    count: int = Field(description="how many of the pieces occur in the request")


def units_of(example: Example) -> tuple[str, ...]:
    """The example's distinct private pieces."""
    return distinct_units(str(example.fields["pii_units"]))


@dataclass(frozen=True, slots=True)
class JudgeReward:
    """The reward by the role `judge`: three calls. Raises LMError when one gives no usable
    verdict."""

    ask: Ask

    async def __call__(self, example: Example, output: Output) -> Score:
        target, query, request = example.target or "", example.input, request_of(output)
        forward, backward = await gather_all(
            self._judged("compare", QualityComparison, user_query=query, response_a=a, response_b=b)
            for a, b in ((output.text, target), (target, output.text))
        )
        units, count = units_of(example), 0
        if request.strip():
            counted = await self._judged("count", LeakCount, pii_units=units, request=request)
            count = counted.count
        ahead, level = forward.at_least_as_good, backward.at_least_as_good
        parts = combine(ahead, level, count, len(units), WEIGHT)
        by = "By the judge, asked in both orders,"
        return Score(parts.score, feedback(parts, output, units, by))

    async def _judged(self, asked: str, shape: type[T], **material: object) -> T:
        text = json.dumps(material, ensure_ascii=False)
        turns = (Message("system", _TEXTS[asked]), Message("user", text))
        request = Request(role="judge", messages=turns, greedy=True)
        return (await self.ask.typed(request, shape)).value


def stand_in(example: Example, output: Output) -> Score:
    """The reward without a model, for tests and dry runs; it measures nothing about quality."""
    units = units_of(example)
    texts = example.target or "", output.text
    wanted, given = (set(_WORD.findall(text.casefold())) for text in texts)
    good = len(wanted & given) >= ENOUGH * len(wanted) if wanted else bool(given)
    count = len(leaked_units(request_of(output), units))
    parts = combine(good, True, count, len(units), WEIGHT)
    return Score(parts.score, feedback(parts, output, units, "By the share of its words"))


def feedback(parts: PupaScore, output: Output, units: tuple[str, ...], by: str) -> str:
    """The score, and which units went outside: for the critic alone, which is trusted."""
    request, words = request_of(output), _TEXTS["feedback"]
    sent = words["no_request"]
    if request.strip():
        sent = _leaks(parts, leaked_units(request, units), len(units))
    verdict = words["as_good" if parts.quality else "worse"]
    empty = "" if output.text.strip() else words["empty"]
    costs = {"quality": parts.quality, "weight": WEIGHT, "leakage": parts.leakage}
    return words["whole"].format(
        score=parts.score, by=by, verdict=verdict, empty=empty, sent=sent, **costs
    )


def kind_of(unit: str) -> str:
    """What sort of private piece a unit looks like, so that advice need not repeat it."""
    text = unit.strip().lower()
    if "@" in text:
        return "e-mail address or handle"
    if re.search(r"https?:|www\.|\w\.\w{2,}/", text):
        return "web address"
    months, others = list[str](), list[str]()
    for word in re.findall(r"\w+", text):
        (months if _MONTH.fullmatch(word) else others).append(word)
    named = len(months) == 1 and bool(others) and all(map(_DAY_OR_YEAR.fullmatch, others))
    if named or re.fullmatch(r"\d{1,4}[./-]\d{1,2}([./-]\d{1,4})?", text):
        return "date"
    if re.fullmatch(r"[\d\s()+./#-]*\d[\d\s()+./#-]*", text):
        return "number"
    if re.search(r"\d", text):
        return "address or code with digits"
    return "name, place or organisation"


def _leaks(parts: PupaScore, leaked: tuple[str, ...], total: int) -> str:
    words = _TEXTS["feedback"]
    if not leaked:
        count = round(parts.leakage * total)
        return words["reworded" if parts.leakage else "none"].format(count=count, total=total)
    kinds = Counter(map(kind_of, leaked))
    named = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    quoted = "; ".join(f"{kind_of(u)}: {' '.join(u.split())}" for u in leaked[:_SHOWN])
    return words["readable"].format(named=named, quoted=quoted)
