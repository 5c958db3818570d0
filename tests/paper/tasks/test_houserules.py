"""The shipped messages are sound, and the reward is the share of house rules kept."""

import re

import pytest

from promptcodebook.calls import Message, Reply
from promptcodebook.data import Dataset, examine
from promptcodebook.errors import DataError, TaskError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.paper.tasks.constraints.checks import sentences
from promptcodebook.paper.tasks.houserules.task import (
    KINDS,
    MARKS,
    RULES,
    SIX,
    check,
    guess_language,
    plain,
    present_prompt,
    reward,
    right_rules,
    spoiled,
    topics_of,
)
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example, Output, Prompt
from tests.build.paper_tasks import KEPT, PLAIN, REPLIES, cases

SIZES = {"train": 308, "val": 108, "test": 232}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load_task("houserules").dataset


def everything(dataset: Dataset) -> list[Example]:
    return [example for _, part in dataset.items() for example in part]


def test_sizes_splits_and_topics(dataset: Dataset) -> None:
    assert {split: len(part) for split, part in dataset.items()} == SIZES
    assert len({e.id for e in everything(dataset)}) == len(dataset) == 648
    for _, part in dataset.items():
        assert {topic for e in part for topic in topics_of(e)} == set(RULES)


def test_no_two_messages_share_half_of_their_words(dataset: Dataset) -> None:
    """The runs of eight words that `examine` compares say little about short messages."""
    found = examine(dataset)
    assert found.clean and not found.duplicates and not found.near and not found.warnings()
    bags = [(e.id, set(re.findall(r"\w+", e.input.lower()))) for e in everything(dataset)]
    for n, (one, words) in enumerate(bags):
        for other, others in bags[:n]:
            assert 2 * len(words & others) < len(words | others), (one, other)


def test_the_present_prompt_has_a_sentence_for_each_rule(dataset: Dataset) -> None:
    texts = {topic: right_rules(Example("x", "", fields={"topics": [topic]})) for topic in RULES}
    assert all(len(rule) == 1 for rule in texts.values())
    rules = [rule for (rule,) in texts.values()]
    assert len(set(rules)) == len(rules) == 14
    parts = sentences(present_prompt())
    assert list(parts[-14:]) == rules, "a rule is one sentence, so that a split keeps it whole"
    assert len(parts) >= 16
    assert load_task("houserules").seeds == parts
    for example in everything(dataset):
        assert right_rules(example) == tuple(texts[topic][0] for topic in topics_of(example))


def with_topics(*topics: str) -> Example:
    return Example("x", "message", fields={"topics": list(topics)})


def test_the_reward_is_the_share_kept_and_names_what_was_broken() -> None:
    example = with_topics("damaged", "refund")
    score = reward(example, "We are on it 🙂")
    assert score.value == 0.5
    assert "something that arrived broken or does not work kept: The reply had to" in score.feedback
    assert (
        "House rule for messages about a refund that has not come broken: The reply must be a "
        'letter with a line "Dear ..."; it has none.'
    ) in score.feedback
    assert reward(example, "Dear customer, we are on it 🙂").value == 1.0
    assert reward(example, "").value == 0.0
    assert reward(example, "We are on it.").value == 0.0


def test_what_was_counted_is_said_in_its_number() -> None:
    assert check("python", "no").explanation.endswith("it has 0 lines of Python.")
    assert check("one_sentence", "No.").explanation.endswith("it has 1 sentence, 1 word on 1 line.")


def test_a_message_without_a_rule_wants_a_plain_reply() -> None:
    reply = "Thank you for your kind words, we will pass them on to the team."
    assert reward(with_topics(), reply).value == 1.0
    for text in ("", "Gracias por su mensaje, es para nosotros un placer.", f"{reply} 🙂"):
        score = reward(with_topics(), text)
        assert score.value == 0.0
        assert "must be plain English" in score.feedback


async def test_the_prompt_stands_after_the_message() -> None:
    lm = ScriptedLM().enqueue("fine", Reply("cut", finish="length"))
    program = load_task("houserules").program
    chat = BoundChat(lm, lambda purpose: 7, greedy=True)
    output = await program(Prompt("Be brief."), Example("e", "Where is it?"), chat)
    assert output == Output("fine")
    assert lm.history[0].messages == (Message("user", "Where is it?\n\nBe brief."),)
    assert (await program(Prompt(""), Example("e", "Where is it?"), chat)).truncated
    assert lm.history[1].messages == (Message("user", "Where is it?"),)


def test_the_six_topics_are_a_part_with_a_prompt_of_their_own(
    dataset: Dataset,
) -> None:
    six = load_task("houserules_six")
    for split, part in six.dataset.items():
        assert list(part) == [e for e in getattr(dataset, split) if {*topics_of(e)} <= {*SIX}]
        assert {topic for e in part for topic in topics_of(e)} == set(SIX)
    assert six.oracle is not None
    for e in six.dataset.test:
        prompt = six.oracle(e)
        assert all(rule in present_prompt(SIX) for rule in prompt.splitlines())
        assert bool(prompt) == bool(topics_of(e))
    assert len(six.seeds) == 8 and all(seed in present_prompt(SIX) for seed in six.seeds)


# Each house rule holds where it is kept and fails where it is nearly kept.


BROKEN: dict[str, list[str]] = REPLIES["broken"]
BOTH = [(k, t, kept) for d, kept in ((KEPT, True), (BROKEN, False)) for k in d for t in d[k]]


@pytest.mark.parametrize(("kind", "text", "kept"), BOTH)
def test_each_rule_is_kept_or_broken(kind: str, text: str, kept: bool) -> None:
    result = check(kind, text)
    assert result.satisfied == kept, result.explanation
    assert result.explanation.startswith("The reply had to " if kept else "The reply must ")
    assert "; it " in result.explanation
    assert set(KEPT) == set(BROKEN) == set(KINDS) == set(RULES.values()) and len(RULES) == 14


@pytest.mark.parametrize("kind", KINDS)
def test_a_worthless_reply_keeps_no_rule_and_no_rule_is_kept_by_another(kind: str) -> None:
    for text in ("", " \n\t", "\n".join([KEPT[kind][0].splitlines()[0]] * 4)):
        assert not check(kind, text).satisfied
    others = [other for other in KINDS if other != kind and check(other, KEPT[kind][0]).satisfied]
    assert set(others) <= {"one_sentence"}


def test_an_unknown_kind_is_named_with_what_is_near() -> None:
    with pytest.raises(TaskError, match=r"unknown house rule 'sotry'.*did you mean 'story'"):
        check("sotry", "text")
    with pytest.raises(DataError, match="the topic 'weather', which has no house rule"):
        reward(with_topics("weather"), "Sunny.")


SPOILED = cases("houserules-spoiled")


@pytest.mark.parametrize(("text", "fault"), [(t, f) for f, texts in SPOILED.items() for t in texts])
def test_spoiled(text: str, fault: str) -> None:
    assert spoiled(text) == fault


TONGUES = ("spanish", "french", "japanese", "chinese", "russian")


def test_plain_is_english_without_a_mark() -> None:
    assert plain(PLAIN).satisfied
    assert plain("Thank you, that is kind of you.").satisfied, "one sentence will do"
    for kind in MARKS:
        assert kind in TONGUES or not plain(f"{PLAIN}\n{KEPT[kind][0]}").satisfied
        assert not plain(KEPT[kind][0]).satisfied, kind
    assert plain("").explanation.endswith("; it is empty.")
    assert "looks as if it had to carry an emoji" in plain(f"{PLAIN} 🙂").explanation
    assert "one_sentence" not in MARKS


@pytest.mark.parametrize(("text", "language"), cases("houserules-guess-language"))
def test_guess_language(text: str, language: str) -> None:
    assert guess_language(text) == language
