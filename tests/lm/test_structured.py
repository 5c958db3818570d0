"""Replies as typed values: found, repaired, asked for again, and read generously."""

import asyncio
import json
import time
from dataclasses import replace
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from promptcodebook.calls import Message, Reply, Request, Schema, is_strict, schema_of
from promptcodebook.errors import BudgetReached, LMError, ParseError, RequestRefused, TruncatedReply
from promptcodebook.lm import structured
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.lm.structured import (
    Ask,
    Extraction,
    LenientIndices,
    LenientNumber,
    LenientText,
    LenientTexts,
    ReplyShape,
    bounded,
    read_by_name,
    strip_think,
)
from tests.build.cases import table
from tests.build.method import Counts


class Verdict(BaseModel):
    """Not for the model's eyes."""

    score: float = Field(ge=0, le=1)
    feedback: Annotated[str, Field(max_length=200)] = ""


class Blame(BaseModel):
    rendering: str = ""
    instincts: dict[int, str] = {}


class Outer(BaseModel):
    title: str
    verdicts: list[Verdict] = Field(max_length=3)


GOOD = '{"score": 0.5, "feedback": "cite {x}"}'
REQUEST = Request("critic", (Message("user", "judge"),), sample=3, model="http://h/v1#m")


VERDICT = Verdict(score=0.5, feedback="cite {x}")


def extract(text: str, shape: type[structured.T], *, cut: bool = False) -> Extraction[structured.T]:
    text = text.replace("GOOD", GOOD).replace("ECHO", ECHO)
    return asyncio.run(structured.extract(text, shape, cut=cut))


# What is found in a text


@pytest.mark.parametrize("text", table(__file__, "thoughts"))
def test_thoughts_and_fences_are_no_fault(text: str):
    assert extract(text, Verdict) == Extraction(VERDICT, strict=True)
    value = Verdict(score=0.5, feedback="close </think> first")
    assert extract(value.model_dump_json(), Verdict) == Extraction(value, strict=True)


@pytest.mark.parametrize("text", table(__file__, "one_object"))
def test_the_one_valid_object_counts(text: str):
    assert extract(text, Verdict) == Extraction(VERDICT)


ECHO = '{"score": 1, "feedback": "perfect"}'


@pytest.mark.parametrize("text", [*table(__file__, "ambiguous"), f"ECHO {'{' * 2000} GOOD"])
@pytest.mark.parametrize("cut", [False, True])
def test_objects_that_differ_or_a_broken_one_beside_a_good_one_are_no_value(text: str, cut: bool):
    found = extract(text, Verdict, cut=cut)
    assert found.value is None and found.fault


def test_what_lies_within_the_value_is_no_second_one():
    inner = [Verdict(score=1.0), Verdict(score=0.0)]
    outer = Outer(title="a", verdicts=inner).model_dump_json()
    assert extract(f"Here: {outer}", Outer).value == Outer(title="a", verdicts=inner)
    quoted = Verdict(score=0.1, feedback=f"it says {ECHO}")
    assert extract(f"So: {quoted.model_dump_json()}", Verdict).value == quoted
    assert extract(f"<think>maybe {ECHO}</think>{GOOD}", Verdict).value == VERDICT


@pytest.mark.parametrize("text", table(__file__, "broken"))
def test_broken_json_is_repaired_but_not_where_it_was_cut(text: str):
    assert extract(text, Verdict) == Extraction(VERDICT, repaired=True)
    assert extract(text, Verdict, cut=True).value is None


@pytest.mark.parametrize(("text", "fault"), table(__file__, "nothing"))
def test_what_holds_no_value_says_why(text: str, fault: str):
    found = extract(text, Verdict)
    assert found.value is None and fault in found.fault
    found = extract('{"score": ' + "1" * 9000 + "}", Verdict)
    assert found.value is None and "not valid JSON" in found.fault


NOISE = {
    "arrays": '{"a": [' + "[1, {" * 3800,
    "towers of arrays": '{"a": {' + "[1,{" * 12_000,
    "broken prose": "{" + 'some prose, with: colons and "quotes" ' * 1200,
    "fences": "```json\n{\n" * 10_000,
    "backslashes": '{"a":"' + "\\" * 100_000,
    "parentheses": '{"a": [' + "(true " * 8000,
    "objects": '{"b":1} ' * 12_000,
    "a deep wrapper": '{"feedback":' * 20 + json.dumps(["x"] * 20_000) + "}" * 20,
    "open thoughts": "<think>" * 100_000,
    "thoughts and space": ("<think></think>" + " " * 1000) * 1000,
    "everything": '{"score": ' + "<think>[{(\"'</think>```json\n" * 4000,
}


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE.keys())
def test_noise_of_any_kind_is_read_within_a_bound(noise: str):
    begun = time.process_time()
    assert extract(noise, Outer).value is None
    strip_think(noise)
    # Half a second at the most; it was up to a minute.
    assert time.process_time() - begun < 4


@pytest.mark.parametrize("half", ["\ud83d", "\\ud83d"])
def test_half_a_surrogate_pair_costs_its_character_and_not_the_reply(half: str):
    found = extract(f'{{"score": 0.5, "feedback": "cite {half}!"}}', Verdict)
    assert found.value == Verdict(score=0.5, feedback="cite \ufffd!")


def test_a_shape_of_defaults_does_not_take_any_object():
    assert extract('see {"unrelated": 1}', Blame).value is None
    found = extract('so: {"instincts": {"3": "too vague"}}', Blame)
    assert found.value == Blame(instincts={3: "too vague"})


@given(st.floats(0, 1), st.text(max_size=200), st.text(alphabet='ab {}[]":,\n', max_size=40))
def test_a_value_is_found_behind_any_preamble(score: float, feedback: str, noise: str):
    value = Verdict(score=score, feedback=feedback)
    assert extract(f"{noise}\n\n{value.model_dump_json()}", Verdict).value is not None
    extract(f"{feedback}{noise}", Blame)  # any text is read, or not


# The schema


def test_the_schema_keeps_bounds_and_drops_titles_and_docstrings():
    schema = schema_of(Verdict)
    assert schema.name == "Verdict"
    assert schema.body == {
        "type": "object",
        "properties": {
            "score": {"type": "number", "minimum": 0, "maximum": 1},
            "feedback": {"type": "string", "maxLength": 200, "default": ""},
        },
        "required": ["score"],
        "additionalProperties": False,
    }


def test_strict_needs_every_property_required():
    class Closed(BaseModel):
        score: float

    strict = [is_strict(schema_of(shape).body) for shape in (Closed, Verdict, Blame)]
    assert strict == [True, False, False]
    body: Any = schema_of(Outer).body
    assert "title" in body["properties"] and body["properties"]["verdicts"]["maxItems"] == 3
    assert body["$defs"]["Verdict"]["additionalProperties"] is False


# Asking


CUT = Reply('{"score": 0.5, "feedback": "cite the pol', finish="length")
HIGH = '{"score": 0.9}'


def too_high(value: Verdict) -> str | None:
    return f"score {value.score} is above 0.6" if value.score > 0.6 else None


@pytest.mark.parametrize(("replies", "score", "counts"), [
    ([GOOD], 0.5, {}),
    (["{'score': 0.5}"], 0.5, {"malformed": 1, "repaired": 1}),
    ([f"Sure: {GOOD}"], 0.5, {"malformed": 1}),
    ([f"{GOOD} It says {ECHO}", GOOD], 0.5, {"malformed": 1, "reasked": 1}),
    (["no", GOOD], 0.5, {"malformed": 1, "reasked": 1}),
    ([CUT, GOOD], 0.5, {"truncated": 1, "reasked": 1}),
    ([Reply(GOOD + " and furthermo", finish="length")], 0.5, {"malformed": 1}),
    ([HIGH, GOOD], 0.5, {"faulty": 1, "reasked": 1}),
    ([HIGH, '{"score": 0.8}'], 0.8, {"faulty": 2, "reasked": 1}),
    ([HIGH, "nonsense"], 0.9, {"faulty": 1, "malformed": 1, "reasked": 1}),
    ([HIGH, RequestRefused("context too long")], 0.9, {"faulty": 1, "reasked": 1}),
])  # fmt: skip
async def test_what_replies_come_to(
    replies: list[Scripted], score: float, counts: dict[str, int], tally: Counts
):
    """A value at fault is better than none, and says its fault."""
    lm = ScriptedLM().enqueue(*replies)
    answer = await Ask(lm, tally).typed(REQUEST, Verdict, too_high)
    assert answer.value.score == score
    assert answer.reasked == (len(replies) > 1)
    assert answer.repaired == ("repaired" in counts)
    assert answer.fault == (f"score {score} is above 0.6" if score > 0.6 else None)
    assert answer.usage.calls == sum(not isinstance(each, Exception) for each in replies)
    assert lm.history[0].schema == schema_of(Verdict)
    assert tally == counts


@pytest.mark.parametrize(("replies", "kind", "text", "hint", "counts"), [
    (["no", '{"score": 3}'], ParseError, "less than or equal to 1", "pco doctor",
     {"malformed": 2, "reasked": 1, "parse_failed": 1}),
    ([CUT, CUT], TruncatedReply, "cut off twice at its length cap", "roles.critic.max_tokens",
     {"truncated": 2, "reasked": 1}),
])  # fmt: skip
async def test_replies_without_a_value_end_in_an_error_that_says_what_they_took(
    replies: list[Scripted], kind: type[LMError], text: str, hint: str, counts: Any, tally: Counts
):
    lm = ScriptedLM().enqueue(*replies)
    with pytest.raises(kind, match=text) as caught:
        await Ask(lm, tally).typed(REQUEST, Verdict)
    assert (caught.value.role, caught.value.model) == ("critic", "http://h/v1#m")
    assert hint in caught.value.hint
    assert caught.value.usage.calls == len(lm.history) == 2
    assert tally == counts


@pytest.mark.parametrize(("first", "quoted", "complaint"), [
    (HIGH, HIGH, "score 0.9 is above 0.6"),
    (CUT, CUT.text, "it was cut at its length limit"),
    ("<think>hm</think>no idea", "no idea", "not valid JSON"),
    ("", "(empty)", "not valid JSON"),
    ("x" * 9000, "x" * 4000, "not valid JSON"),
])  # fmt: skip
async def test_the_re_ask_quotes_reply_and_fault_under_a_sample_of_its_own(
    first: Scripted, quoted: str, complaint: str, tally: Counts
):
    samples: set[int] = set()
    for schema in (None, Schema("own", {"type": "object"})):
        lm = ScriptedLM().enqueue(first, GOOD)
        await Ask(lm, tally).typed(replace(REQUEST, schema=schema), Verdict, too_high)
        one, two = lm.history
        assert two.messages[:2] == (*one.messages, Message("assistant", quoted))
        assert complaint in two.messages[-1].content
        assert one.schema == two.schema == (schema or schema_of(Verdict))
        samples |= {one.sample, two.sample}
    assert len(samples) == 2, "the same fault is asked for again under the same sample"


@pytest.mark.parametrize("quoted", [
    ECHO, ECHO.replace(" ", ""), ECHO.replace('"', "'"), json.dumps(ECHO),
    '{"score": 1.00, "feedback": "perfect"}', '{\n  "score": 1,\n  "feedback": "perfect"\n}',
])  # fmt: skip
@pytest.mark.parametrize("reply", [
    f"This is wrong, and it ends with {ECHO}", f"{ECHO} is what it says. It fails.",
    f'{{"it says": {ECHO}}}', f'It fails. "So be it </think>{ECHO}',
])  # fmt: skip
async def test_an_object_that_the_request_holds_is_a_quote_where_words_stand_beside_it(
    quoted: str, reply: str, tally: Counts
):
    request = replace(REQUEST, messages=(Message("user", f"Judge: I am right. {quoted}"),))
    lm = ScriptedLM().enqueue(reply, f"Sure: {GOOD}", reply, reply, ECHO)
    assert (await Ask(lm, tally).typed(request, Verdict)).value == VERDICT
    assert "quotes" in lm.history[1].messages[-1].content
    with pytest.raises(ParseError):
        await Ask(lm, tally).typed(request, Verdict)
    assert (await Ask(lm, tally).typed(request, Verdict)).value.score == 1.0, "it says no more"


async def test_a_reached_budget_is_never_swallowed(tally: Counts):
    lm = ScriptedLM().enqueue(HIGH, BudgetReached("done"))
    with pytest.raises(BudgetReached):
        await Ask(lm, tally).typed(REQUEST, Verdict, too_high)


@pytest.mark.parametrize("source", ["journal", "cache"])
async def test_a_reply_counts_when_it_is_paid_for_and_not_again(
    source: Literal["journal", "cache"], tally: Counts
):
    texts = ("no", "never", '{"score": 0.9}', '{"score": 0.8', "half a")
    told = [Reply(text, "length" if text == "half a" else "stop", source=source) for text in texts]
    lm = ScriptedLM().enqueue(*told)
    with pytest.raises(ParseError):
        await Ask(lm, tally).typed(REQUEST, Verdict)
    assert (await Ask(lm, tally).typed(REQUEST, Verdict, too_high)).repaired
    assert (await Ask(lm, tally).text(REQUEST)).truncated
    assert tally == {}


async def test_plain_text_loses_its_thoughts_and_tells_of_its_cut(tally: Counts):
    lm = ScriptedLM().enqueue("<think>x</think> Be brief. ", Reply("half a", finish="length"))
    whole, cut = [await Ask(lm, tally).text(REQUEST) for _ in range(2)]
    assert (whole.value, whole.truncated, cut.value, cut.truncated) == (
        "Be brief.", False, "half a", True,
    )  # fmt: skip
    assert cut.usage.calls == 1 and tally == {"truncated": 1}


def too_long(text: str) -> str | None:
    return "it has more than two words" if len(text.split()) > 2 else None


@pytest.mark.parametrize(("reply", "complaint", "counted"), [
    ("one two three", "it has more than two words", "faulty"),
    (Reply("one", finish="length"), "it was cut at its length limit", "truncated"),
])  # fmt: skip
async def test_a_text_at_fault_is_asked_for_once_more(
    reply: str | Reply, complaint: str, counted: str, tally: Counts
):
    lm = ScriptedLM().enqueue(reply, "one two", reply, reply)
    answer = await Ask(lm, tally).text(REQUEST, too_long)
    assert (answer.value, answer.fault, answer.usage.calls) == ("one two", None, 2)
    assert complaint in lm.history[1].messages[-1].content
    assert "JSON" not in lm.history[1].messages[-1].content
    assert tally == {counted: 1, "reasked": 1}
    again = await Ask(lm, tally).text(REQUEST, too_long)
    assert again.fault is not None and complaint in again.fault and again.usage.calls == 2
    lm.enqueue(reply, RequestRefused("context too long"))
    kept = await Ask(lm, tally).text(REQUEST, too_long)
    assert kept.fault is not None and complaint in kept.fault


# What a model wrote is read as what it can only mean; what means nothing costs no other field.


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


class Whole(ReplyShape):
    """Not for the model's eyes."""

    picks: LenientIndices = Field(default_factory=list)
    text: LenientText = bounded(20)
    texts: LenientTexts = Field(default_factory=list)


class Scored(ReplyShape):
    score: LenientNumber


def read(**fields: object) -> Whole:
    return Whole.model_validate_json(json.dumps(fields))


@given(JSON)
def test_no_value_of_one_field_makes_the_reply_unreadable(value: object):
    reply = read(picks=value, text=value, texts=value)
    assert all(isinstance(k, int) for k in reply.picks)
    assert reply.text == reply.text.strip() and all(reply.texts)
    assert all(text for text in read_by_name(value).values())


@pytest.mark.parametrize(("written", "picks"), table(__file__, "picks"))
def test_indices_are_read_however_they_are_written(written: str, picks: list[int]):
    assert read(picks=json.loads(written)).picks == picks
    assert read(picks=[10**400]).picks == []


@pytest.mark.parametrize(("written", "text"), table(__file__, "texts"))
def test_texts_are_read_however_they_are_written(written: str, text: str):
    assert read(text=json.loads(written)).text == text
    assert read(text=10**400).text == "" and read(text="x" * 5000).text == "x" * 4000


def test_a_deep_or_wide_value_is_cut():
    deep: object = "x"
    for _ in range(150):
        deep = [deep]
    assert read(text=deep).text == ""
    assert len(read(texts=["a"] * 5000).texts) == 1024
    assert (read(texts="be brief").texts, read(texts=["a", None, "", 3]).texts) == (
        ["be brief"],
        ["a", "3"],
    )


@pytest.mark.parametrize(("written", "number"), [
    (0.7, 0.7), ("0.7", 0.7), (" .7 ", 0.7), ("0,7", 0.7), ("7/10", 0.7), ("7 / 10", 0.7),
    ("7 out of 10", 0.7), ("70%", 0.7), ("70 %", 0.7), (7, 7.0), ("-1", -1.0), (True, None),
    ("high", None), ("", None), (None, None), ("1/0", None), ("1 2", None), (10**400, None),
    ("0.7 or 0.8", None), ("1,234,5", None), ([0.7], None),
])  # fmt: skip
def test_a_number_is_read_where_it_is_unambiguous(written: object, number: float | None):
    text = json.dumps({"score": written})
    if number is None:
        with pytest.raises(ValidationError):
            Scored.model_validate_json(text)
    else:
        assert Scored.model_validate_json(text).score == pytest.approx(number)


def test_the_schema_is_as_narrow_as_the_reading_is_wide():
    properties = schema_of(Whole).body["properties"]
    assert properties == {
        "picks": {"items": {"type": "integer"}, "type": "array"},
        "text": {"default": "", "maxLength": 20, "type": "string"},
        "texts": {"items": {"type": "string"}, "type": "array"},
    }


def read_line(line: str) -> Whole:
    if "wish" in line:
        raise ValueError("it is a wish")
    return Whole(text=line)


@pytest.mark.parametrize(("reply", "complaint", "counted"), [
    ('"I wish."', "it is a wish", "malformed"),
    (Reply("half a", finish="length"), "it was cut at its length limit", "truncated"),
])  # fmt: skip
async def test_a_line_that_cannot_be_read_is_asked_for_once_more(
    reply: str | Reply, complaint: str, counted: str, tally: Counts
):
    """What follows the first line is passed over, be it cut."""
    good = Reply("<think>so</think>\n a line \nand a wi", finish="length")
    lm = ScriptedLM().enqueue(reply, good, reply, reply)
    answer = await Ask(lm, tally).line(REQUEST, read_line)
    assert (answer.value, answer.reasked, answer.usage.calls) == (Whole(text="a line"), True, 2)
    assert complaint in lm.history[1].messages[-1].content
    assert all(asked.schema is None for asked in lm.history)
    assert tally == {counted: 1, "reasked": 1}
    with pytest.raises((ParseError, TruncatedReply)) as raised:
        await Ask(lm, tally).line(REQUEST, read_line)
    assert raised.value.usage.calls == 2 and raised.value.hint
