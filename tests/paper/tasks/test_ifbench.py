"""Verdicts of the constraint checks, each on texts of our own and on the shared vectors."""

import json
import math
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcodebook.errors import DataError, MissingExtra, RewardError, TaskError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.paper.tasks.ifbench import score as scores
from promptcodebook.paper.tasks.ifbench import task as tasks
from promptcodebook.paper.tasks.ifbench.language import Language
from promptcodebook.types import Example, Prompt
from tests.build.paper_tasks import shared, vectors

HERE = Path(__file__).parent


@pytest.mark.slow
def test_agrees_with_the_public_scorer(language: Language) -> None:
    rows = vectors("ifbench") + vectors("ifeval")
    seen = {row["instruction_id"] for row in rows}
    assert len(rows) > 3000 and seen == {*scores.IFBENCH, *scores.IFEVAL}
    assert (len(scores.IFBENCH), len(scores.IFEVAL)) == (58, 25)
    for row in rows:
        asked = (row["instruction_id"], row["kwargs"], row["prompt"], row["response"])
        assert scores.check(*asked, language=language) is row["expected"], row["id"]


@pytest.mark.slow
def test_agrees_with_the_public_scorer_on_whole_examples(language: Language) -> None:
    rows = vectors("ifbench_examples")
    assert len(rows) > 100
    for row in rows:
        asked = (row["prompt"], row["instruction_id_list"], row["kwargs"], row["response"])
        found = scores.grade(*asked, language=language)
        for key in ("strict", "loose", "strict_all", "loose_all", "loose_share"):
            assert getattr(found, key) == row[key], row["id"]


@pytest.mark.parametrize("case", (HERE / "ifbench_own.jsonl").read_text("utf-8").splitlines())
def test_own_examples(case: str) -> None:
    # None of these needs NLTK's data, so they hold on a machine without them.
    own, empty = json.loads(case), Language(Path("no-such-folder"))
    kwargs = fitting(own["instruction_id"]) if own["kwargs"] is None else own["kwargs"]
    verdict = scores.check(own["instruction_id"], kwargs, "", own["response"], language=empty)
    assert verdict is own["expected"]


@pytest.mark.parametrize("instruction_id", [*scores.IFBENCH, *scores.IFEVAL])
def test_a_blank_response_follows_nothing_and_arguments_are_named(instruction_id: str) -> None:
    kwargs = fitting(instruction_id)
    text = scores.describe(instruction_id, {**kwargs, "unused": None})
    assert not any(scores.check(instruction_id, kwargs, "", blank) for blank in (" \n", ""))
    assert text.endswith((".", "P.S.")) and "{" not in text
    whole = {"min_words": 5.0, "max_words": 7.0}
    assert "at least 5 and at most 7 words" in scores.describe("count:word_count_range", whole)
    hidden = ("prompt_to_repeat", "reference_text")
    for name, value in kwargs.items():
        if name not in hidden and not isinstance(value, list):
            assert str(value) in text


def test_loose_forgives_a_first_line_a_last_line_and_stars() -> None:
    answer = "Here it is:\n*tell*\nHope that helps!"
    asked = {"prompt_to_repeat": "Tell me", "n_start": 0, "n_end": 3}
    found = scores.grade(
        "", ["repeat:repeat_span", "punctuation:no_comma", "keywords:existence"],
        [asked, None, {"keywords": ["zebra"]}], answer,
    )  # fmt: skip
    assert found.strict == [False, True, False]
    assert found.loose == [True, True, False]
    assert (found.strict_all, found.loose_all) == (False, False)
    assert found.loose_share == 2 / 3
    # Lines that end in CRLF are read like any other.
    for lines in ("Salt is salt.\r\n\r\nTea or tea!\r\n", "Sure:\r\nSalt is *salt*.\r\nBye, all"):
        given = scores.grade("", ["words:paragraph_last_first"], [None], lines)
        assert given.loose_all and given.strict_all == lines.startswith("Salt")
    none = scores.grade("", ["punctuation:no_comma"], [{}], None)
    assert (none.strict, none.loose) == ([False], [False])


def test_an_unknown_id_names_the_nearest() -> None:
    with pytest.raises(DataError, match=r"count:numbr.*did you mean 'count:numbers'"):
        scores.check("count:numbr", {"N": 1}, "", "1")


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"N": None}, "the kwargs of count:numbers: the field 'N': Field required"),
    *(({"N": n}, "'N': Input should be a valid integer") for n in ("2", True, 2.5, math.nan)),
    ({"N": 2, "word": "salt"}, "the field 'word': Extra inputs are not permitted"),
])  # fmt: skip
def test_kwargs_that_do_not_fit(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        scores.check("count:numbers", kwargs, "", "1")
    assert caught.value.hint


def test_a_relation_that_is_none_and_lists_of_different_length() -> None:
    kwargs = {**fitting("keywords:frequency"), "relation": "exactly"}
    with pytest.raises(DataError, match=r"'relation': .*'less than' or 'at least'"):
        scores.check("keywords:frequency", kwargs, "", "salt")
    with pytest.raises(DataError, match="2 instruction ids but 1 kwargs"):
        scores.grade("", ["punctuation:no_comma", "startend:quotation"], [{}], "a")


def test_nltk_data_are_read_where_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "tokenizers/punkt_tab/english/abbrev_types.txt": "capt\n",
        "tokenizers/punkt_tab/english/collocations.tab": "a\tb\n",
        "tokenizers/punkt_tab/english/sent_starters.txt": "the\n",
        "tokenizers/punkt_tab/english/ortho_context.tab": "the\t46\n",
        "corpora/stopwords/english": "the\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    fewer = {"num_sentences": 2, "relation": "less than"}
    assert scores.check("length_constraints:number_sentences", fewer, "", "Ask capt. Noll now.")
    assert not scores.check(
        "length_constraints:number_sentences", fewer, "", "Ask now. Noll knows."
    )
    assert scores.check("ratio:stop_words", {"percentage": 50}, "", "the sea")
    assert not scores.check("ratio:stop_words", {"percentage": 49}, "", "the sea")


def test_the_guess_of_a_language_is_repeatable() -> None:
    text = "Das Salz hält den Fisch lange frisch, sagt die Köchin."
    known = Language(Path("no-such-folder"))
    assert {known.guess(text) for _ in range(5)} == {"de"}
    assert known.guess("12345") == ""


# No response makes a check raise, and none makes it take long.


@pytest.mark.slow
def test_a_pattern_that_would_never_end_is_not_met_and_counted() -> None:
    ids = ["keywords:forbidden_words", "keywords:existence", "punctuation:no_comma"]
    kwargs = [{"forbidden_words": ["(a|a)*c"]}, {"keywords": ["sa+lt"]}, None]
    begun = time.monotonic()
    found = scores.grade("", ids, kwargs, "salt " + "a" * 60)
    assert time.monotonic() - begun < 60
    assert found.strict == found.loose == [False, True, True]
    assert found.timed_out == ("keywords:forbidden_words",)
    no_pattern = {"forbidden_words": ["(salt"]}  # plain text then
    assert scores.check("keywords:forbidden_words", no_pattern, "", "salt")


AWKWARD = st.text(
    alphabet=st.one_of(
        st.sampled_from("aAb.!?'\"*-[](){}<>/,;: \n\r\t1_`😀水é\u200b\x00\x1c"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=60,
)


@settings(max_examples=10, deadline=None)
@given(response=AWKWARD)
def test_what_is_strictly_met_is_loosely_met(response: str, language: Language) -> None:
    ids = [*scores.IFBENCH, *scores.IFEVAL]
    found = scores.grade("", ids, [fitting(name) for name in ids], response, language=language)
    assert all(loose for strict, loose in zip(found.strict, found.loose, strict=True) if strict)
    singly = [scores.check(name, fitting(name), "", response, language=language) for name in ids]
    assert found.strict == singly


@pytest.mark.parametrize(("instruction_id", "response"), [
    ("detectable_content:number_placeholders", "[" * 100_000),
    ("detectable_format:title", "<<" * 50_000),
    ("detectable_format:number_bullet_lists", "x" + "\n" * 100_000 + "x"),
    ("detectable_format:json_format", "[" * 100_000),
    ("format:line_indent", "a\n" + "\n" * 100_000),
    ("custom:mcq_count_length", "Question 1" + "\n" * 100_000 + "x"),
    ("custom:csv_special_character", 'ProductID,Category,Brand,Price,Stock\n"' + "a" * 200_000),
])  # fmt: skip
def test_texts_that_defeat_naive_expressions(instruction_id: str, response: str) -> None:
    begun = time.monotonic()
    scores.check(instruction_id, fitting(instruction_id), "", response)
    assert time.monotonic() - begun < 30


# A value for every argument that any constraint takes.
KWARGS: dict[str, object] = json.loads((HERE / "ifbench_fitting.json").read_text("utf-8"))


def fitting(instruction_id: str) -> dict[str, object]:
    takes = (scores.IFBENCH.get(instruction_id) or scores.IFEVAL[instruction_id]).takes
    return {name: KWARGS[name] for name in takes}


TWO = Example(
    "1",
    "Say something about boats, without commas and with the word keel.",
    fields={
        "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
        "kwargs": [{}, {"keywords": ["keel"]}],
    },
)


def row(key: str, **changed: object) -> dict[str, object]:
    return {
        "key": key,
        "prompt": f"Name {key} boats without a comma.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
        **changed,
    }


def folder(path: Path, *train: object) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for split, rows in (("train", train), ("val", [row("v")]), ("test", [row("t")])):
        (path / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    return path


async def test_both_stages_run_and_the_second_is_the_output() -> None:
    lm = ScriptedLM().enqueue(
        "reasoning: r\nresponse: Boats, of course {query}",
        "reasoning: no commas\nfinal_response:\nA keel\n  holds",
    )
    constraints = tasks.ConstraintReward(Language())
    made = await tasks.IFBenchProgram(constraints.report)(
        Prompt("PROMPT"), TWO, BoundChat(lm, lambda purpose: 7)
    )
    assert made.text == "A keel\n  holds"
    assert [s.name for s in made.trace] == ["generate", "generate: check", "rewrite"]
    assert tasks.IFBenchProgram.stages == ("generate", "rewrite")
    assert "does not keep" in made.trace[1].output
    first, second = lm.history
    for request, (instruction, _) in zip(lm.history, tasks.MODULES.values(), strict=True):
        assert request.messages[0].content.startswith(f"PROMPT\n\n{instruction}")
    assert first.messages[1].content == f"<query>\n{TWO.input}\n</query>"
    assert "<response>\nBoats, of course {query}\n</response>" in second.messages[1].content
    # What the check said is for the critic alone.
    assert all("keep:" not in m.content for r in lm.history for m in r.messages)


async def test_without_constraints_nothing_is_checked_on_the_way() -> None:
    lm = ScriptedLM().enqueue("response: a", "final_response: b")
    bare = Example("1", "Tell me about boats.")
    made = await tasks.IFBenchProgram(tasks.ConstraintReward(Language()).report)(
        Prompt("P"), bare, BoundChat(lm, lambda purpose: 7)
    )
    assert [s.name for s in made.trace] == ["generate", "rewrite"]
    with pytest.raises(RewardError, match="no constraints to check"):
        tasks.ConstraintReward(Language())(bare, made.text)


@pytest.mark.parametrize(("text", "value"), [
    *(("The keel holds", 1.0), ("The keel, too", 0.5), ("Sails, masts", 0.0), ("", 0.0)),
    ("Well, here it is:\nA keel holds", 1.0),  # kept without the first line
])  # fmt: skip
def test_the_reward_is_the_share_kept_and_names_both_kinds(text: str, value: float) -> None:
    score = tasks.ConstraintReward(Language())(TWO, text)
    assert score.value == value
    kept, _, unkept = score.feedback.partition("The final response does not keep:")
    assert kept.count("\n- ") == round(2 * value)
    assert unkept.count("\n- ") == round(2 * (1 - value))


@pytest.mark.parametrize(("constraint", "package"), [
    ("words:odd_even_syllables", "syllapy"),
    ("format:emoji", "nltk"),
    ("change_case:english_capital", "langdetect.detector_factory"),
    ("change_case:english_lowercase", "langdetect.detector_factory"),
])  # fmt: skip
def test_a_package_that_some_constraint_needs_is_missed_before_a_call_is_paid(
    constraint: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    plain = tasks.load_ifbench(folder(tmp_path / "plain", row("1")))
    plain.require()  # it has no such constraint
    needy = row("1", instruction_id_list=["punctuation:no_comma", constraint], kwargs=[{}, {}])
    task = tasks.load_ifbench(folder(tmp_path / "needy", needy))
    with pytest.raises(MissingExtra) as caught:
        task.require()
    assert caught.value.hint == "pip install 'promptcodebook[bench]'"


def test_nltk_data_that_are_missing_are_missed_before_a_call_is_paid(tmp_path: Path) -> None:
    (tmp_path / "nltk_data").mkdir()
    needy = row("1", instruction_id_list=["ratio:sentence_type"])
    with pytest.raises(TaskError, match="punkt_tab") as caught:
        tasks.load_ifbench(folder(tmp_path, needy)).require()
    assert caught.value.hint.startswith("python -m nltk.downloader punkt_tab")
    assert str(tmp_path) in str(caught.value)


@pytest.fixture(scope="module")
def language() -> Language:
    return Language(shared("data", "ifbench", "nltk_data"))
