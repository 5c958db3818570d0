"""The task ifbench: its data, its two stages, and what its reward says."""

import json
import sys
from pathlib import Path

import pytest

from promptcodebook.calls import Chat, Reply
from promptcodebook.errors import DataError, MissingExtra, RewardError, TaskError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.tasks.ifbench.language import Language
from promptcodebook.tasks.ifbench.task import (
    INSTRUCTIONS,
    STAGES,
    ConstraintReward,
    IFBenchProgram,
    load_ifbench,
)
from promptcodebook.types import Example, Prompt, Score
from tests.tasks.shared import shared

TWO = Example(
    "1",
    "Say something about boats, without commas and with the word keel.",
    fields={
        "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
        "kwargs": [{}, {"keywords": ["keel"]}],
    },
)


def chat(lm: ScriptedLM) -> Chat:
    return BoundChat(lm, lambda purpose: 7)


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
    constraints = ConstraintReward(Language())
    made = await IFBenchProgram(constraints.report)(Prompt("PROMPT"), TWO, chat(lm))
    assert made.text == "A keel\n  holds"
    assert [s.name for s in made.trace] == ["generate", "generate: check", "rewrite"]
    assert tuple(s.name for s in made.trace if s.name in STAGES) == STAGES
    assert "does not keep" in made.trace[1].output
    first, second = lm.history
    assert first.messages[0].content.startswith(f"PROMPT\n\n{INSTRUCTIONS['generate']}")
    assert second.messages[0].content.startswith(f"PROMPT\n\n{INSTRUCTIONS['rewrite']}")
    assert first.messages[1].content == f"<query>\n{TWO.input}\n</query>"
    assert "<response>\nBoats, of course {query}\n</response>" in second.messages[1].content
    # What the check said is for the critic alone.
    assert all("keep:" not in m.content for r in lm.history for m in r.messages)


async def test_a_prompt_per_stage() -> None:
    lm = ScriptedLM().enqueue("response: a", "final_response: b")
    await IFBenchProgram()(Prompt("x", {"generate": "G", "rewrite": "R"}), TWO, chat(lm))
    assert [r.messages[0].content.split("\n")[0] for r in lm.history] == ["G", "R"]


async def test_a_cut_draft_is_rewritten_and_said_to_be_cut() -> None:
    lm = ScriptedLM().enqueue(Reply("reasoning: so", finish="length"), "final_response: keel")
    made = await IFBenchProgram(ConstraintReward(Language()).report)(Prompt("P"), TWO, chat(lm))
    assert made.text == "keel"
    assert made.truncated
    assert "<response>\n\n</response>" in lm.history[1].messages[1].content


async def test_without_constraints_nothing_is_checked_on_the_way() -> None:
    lm = ScriptedLM().enqueue("response: a", "final_response: b")
    bare = Example("1", "Tell me about boats.")
    made = await IFBenchProgram(ConstraintReward(Language()).report)(Prompt("P"), bare, chat(lm))
    assert [s.name for s in made.trace] == ["generate", "rewrite"]
    with pytest.raises(RewardError, match="no constraints to check"):
        ConstraintReward(Language())(bare, made.text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("The keel holds", 1.0), ("The keel, too", 0.5), ("Sails, masts", 0.0), ("", 0.0)],
)
def test_the_reward_is_the_share_kept_and_names_both_kinds(text: str, value: float) -> None:
    score = ConstraintReward(Language())(TWO, text)
    assert score.value == value
    kept, _, unkept = score.feedback.partition("The final response does not keep:")
    assert kept.count("\n- ") == round(2 * value)
    assert unkept.count("\n- ") == round(2 * (1 - value))


def test_the_share_is_the_loose_one() -> None:
    # The first line breaks the constraint; without it the text keeps it.
    score = ConstraintReward(Language())(TWO, "Well, here it is:\nA keel holds")
    assert score.value == 1.0


def test_our_own_examples_load_and_can_be_solved() -> None:
    task = load_ifbench()
    answers = {
        "own-1": "A lantern swings while a gull calls",
        "own-5": "Dear neighbour\n\nThe fence leans. Talk soon!",
        "own-6": '{"colour": "green", "taste": "sour"}',
        "own-10": "My Answer: yes. My Conclusion: build. Future Outlook: good.",
        "own-12": "Ash",
        "own-13": "Yellow zebras amble by",
    }
    examples = {e.id: e for _, part in task.dataset.items() for e in part}
    for key, answer in answers.items():
        score = task.reward(None)(examples[key], answer)
        assert isinstance(score, Score)
        assert score.value == 1.0, score.feedback


def test_a_folder_of_rows(tmp_path: Path) -> None:
    (example,) = load_ifbench(folder(tmp_path, row("a"))).dataset.train
    assert (example.id, example.target) == ("a", None)
    assert example.input == "Name a boats without a comma."


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (row("b", kwargs=None), "the field 'kwargs' must be a list, not null"),
        (row("b", kwargs=[None]), "one object for each constraint"),
        (row("b", kwargs=[]), "1 constraints in instruction_id_list, 0 in kwargs"),
        (row("b", instruction_id_list=[], kwargs=[]), "0 constraints"),
        (row("b", instruction_id_list=["punctuation:no_coma"]), "unknown instruction id"),
        (row("b", instruction_id_list=["count:numbers"]), "needs the argument 'N'"),
        (row("b", prompt=" "), "the prompt is blank"),
        ({"key": "b"}, "the field 'prompt' is missing"),
        ([1], "expected a JSON object"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path: Path, bad: object, said: str) -> None:
    folder(tmp_path, row("a"), bad)
    with pytest.raises(DataError) as caught:
        load_ifbench(tmp_path)
    assert f"{tmp_path / 'train.jsonl'}:2" in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.hint


def test_the_benchmarks_rows_load_and_can_be_scored() -> None:
    task = load_ifbench(shared("data", "ifbench"))
    reward = task.reward(None)
    for _, part in task.dataset.items():
        for example in part:
            score = reward(example, "One short sentence here. Another follows it, I think.")
            assert isinstance(score, Score)
            assert 0.0 <= score.value <= 1.0
            assert score.feedback


@pytest.mark.parametrize(
    ("constraint", "package"),
    [
        ("words:odd_even_syllables", "syllapy"),
        ("format:emoji", "nltk"),
        ("change_case:english_capital", "langdetect.detector_factory"),
        ("change_case:english_lowercase", "langdetect.detector_factory"),
    ],
)
def test_a_package_that_some_constraint_needs_is_missed_before_a_call_is_paid(
    constraint: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    plain = load_ifbench(folder(tmp_path / "plain", row("1")))
    plain.require()  # it has no such constraint
    needy = row("1", instruction_id_list=["punctuation:no_comma", constraint], kwargs=[{}, {}])
    task = load_ifbench(folder(tmp_path / "needy", needy))
    with pytest.raises(MissingExtra) as caught:
        task.require()
    assert caught.value.hint == "pip install 'promptcodebook[bench]'"


def test_nltk_data_that_are_missing_are_missed_before_a_call_is_paid(tmp_path: Path) -> None:
    (tmp_path / "nltk_data").mkdir()
    needy = row("1", instruction_id_list=["ratio:sentence_type"])
    with pytest.raises(TaskError, match="punkt_tab"):
        load_ifbench(folder(tmp_path, needy)).require()
