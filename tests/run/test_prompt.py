"""A prompt of the user's: what a run must beat and starts from, and what is scored alone."""

import inspect
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.config.loading import read_prompt
from promptcodebook.errors import ConfigError, PcoError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.policy import PresentPrompt
from promptcodebook.store.run import RunStore
from tests.build.optimize import data, rows, train

NAMES = frozenset({"question", "text", "language", "input"})
PROMPT = "You answer questions. Answer in one short sentence.\nQuestion: {question}\nAnswer:"
SENTENCES = {"init": {"split": "sentences"}}


@pytest.mark.parametrize(("text", "bare"), [
    ("Answer the question: {question}", "Answer the question."),
    ("Be brief.\n\nQuestion: {question}\nAnswer:", "Be brief.\nAnswer:"),
    ("Turn the {text} into {language}. Be kind.", "Turn the text into the language. Be kind."),
    ("What is asked here: {{ question }}\nBe kind.", "What is asked here.\nBe kind."),
    ('Sum up "{text}" in a line.', 'Sum up "the text" in a line.'),
    ("Translate: {text}", "Translate: the text"),
    *((f"{text} or {{{{other}}}}.",) * 2 for text in ('{"a": 1}', "\\boxed{text}", "${text}")),
])  # fmt: skip
def test_what_is_advice_in_it_leaves_its_columns_out(text: str, bare: str) -> None:
    assert PresentPrompt("", text, NAMES, frozenset({"question"})).bare == bare


async def test_a_column_is_filled_in_and_the_input_is_not_sent_twice() -> None:
    seen = list[list[tuple[str, str]]]()

    def answer(request: pco.Request) -> str:
        seen.append([(m.role, m.content) for m in request.messages])
        return "use rivers 2"

    async def asked(prompt: str, **more: Any) -> list[tuple[str, str]]:
        seen.clear()
        lm = ScriptedLM().reply_with(answer)
        found = await pco.aevaluate(prompt, data(), "contains", lm, n=1, **more)
        assert found.evaluation.rollouts and found.kind == "learned"
        return seen[0]

    (first,) = [r for r in rows() if r["question"] in (await asked("Be {question} brief."))[0][1]]
    question = first["question"]
    assert await asked("Q: {question}\nA:") == [("user", f"Q: {question}\nA:")]
    assert await asked("Q: {{question}}, {{x}}") == [("user", f"Q: {question}, {{x}}")]
    assert await asked("Q: {input}\nA:") == [("user", f"Q: {question}\nA:")]
    assert await asked('Say {"a": 1}.') == [("system", 'Say {"a": 1}.'), ("user", question)]


def test_the_verdict_begins_with_it_and_the_codebook_is_made_from_it(tmp_path: Path) -> None:
    run = train(tmp_path, prompt=PROMPT, config=SENTENCES)
    assert run.rows["present"].prompt == PROMPT and run.policy.file.about["present"] == PROMPT
    with closing(RunStore.open(run.path)) as store:
        assert store.header.present == PROMPT and store.header.settings["init"]["prompt"] == PROMPT
        texts = store.started().parameters.codebook.texts
    assert texts[:2] == ("You answer questions.", "Answer in one short sentence.")
    assert "{" not in "".join(texts)
    judged = pco.evaluate(run, row="present")
    assert judged.score == run.rows["present"].score and judged.replies.startswith("from the")
    again = pco.evaluate(run, row="present", again=True)
    assert again.score == judged.score
    beside = pco.compare(run, PROMPT)
    assert beside.b.rewards == judged.rewards and beside.gain.n == judged.score.n


def test_each_row_of_the_verdict_is_asked_under_the_executor_s_schema_and_answers_are_labels(
    tmp_path: Path,
) -> None:
    schema = {"name": "label", "schema": {"enum": ["use", "no"]}}
    form = {"response_format": {"type": "json_schema", "json_schema": schema}}
    lm = ScriptedLM().reply_with(lambda request: '"use"')
    settings = {"preset": "small", "size": 1, "roles": {"executor": {"extra": form}}}
    texts = [{"question": f"q{n}", "answer": "use"} for n in range(40)]
    run = pco.optimize(
        pco.load(texts, input="question", target="answer"), "exact", lm, prompt="Say use.",
        config=settings, runs_dir=tmp_path, progress=False,
    )  # fmt: skip
    assert lm.history and all(dict(r.sampling.extra) == form for r in lm.history)
    assert run.rows["present"].score.mean == run.rows["learned"].score.mean == 1.0
    assert run.policy.answer("q") == "use"


def test_it_comes_from_a_file_too_and_own_instincts_stay(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Be brief. Be kind.\n", "utf-8")
    own = {"init": {"instincts": ["Say use."]}}
    run = train(tmp_path, prompt=tmp_path / "p.txt", config=own)
    assert run.rows["present"].prompt == "Be brief. Be kind."
    with closing(RunStore.open(run.path)) as store:
        assert store.started().parameters.codebook.texts[0] == "Say use."
    assert pco.evaluate(str(tmp_path / "p.txt"), data(), "contains", "simulated", n=2).name


@pytest.mark.parametrize(("prompt", "message"), [
    ("Answer {questoin} now.", r"names \{questoin\}, which is not an input.*mean 'question'"),
    ("The answer is {answer}.", r"names \{answer\}, which is not an input column"),
    ("Answer {question in one word.", r"does not close the brace of \{question"),
])  # fmt: skip
def test_a_column_that_is_not_there_is_an_error_before_anything_is_paid_for(
    tmp_path: Path, prompt: str, message: str
) -> None:
    lm = ScriptedLM()
    for use in (
        lambda: train(tmp_path, prompt=prompt, lm=lm),
        lambda: pco.estimate(data(), "contains", lm, prompt=prompt),
        lambda: pco.evaluate(prompt, data(), "contains", lm),
        lambda: pco.compare("Be brief.", prompt, data(), "contains", lm),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            use()
        assert caught.value.hint.startswith(
            ("write {input}, the whole input, ", "write {question}")
        )
        assert not lm.history


def test_what_is_neither_a_file_nor_a_prompt_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(" \n", "utf-8")
    for given, part in (
        (tmp_path / "promt.txt", "did you mean 'prompt.txt'"),
        (tmp_path, "Is a directory"),
        (tmp_path / "prompt.txt", "prompt.txt is empty"),
        ("word", "cannot read 'word'"),
        ("", "the prompt is empty"),
    ):
        with pytest.raises(ConfigError, match="--prompt: ") as caught:
            read_prompt(given)
        assert part in str(caught.value) and caught.value.hint
    assert read_prompt("Answer with yes/no") == "Answer with yes/no"
    assert read_prompt("Long. " * 200).startswith("Long. Long.")


@pytest.mark.parametrize(("call", "meant"), [
    (lambda: pco.optimize(data(), "contains", model="x"), "optimize.*'model'.*'lm'"),  # type: ignore
    (lambda: pco.optimize(data(), metric="x"), "optimize.*'metric'.*'reward'"),  # type: ignore
    (lambda: pco.optimize(dataset=data(), reward="x"), "'dataset'.*'data'"),  # type: ignore
    (lambda: pco.optimize(data(), "x", prompt_template="x"), "'prompt_template'.*'prompt'"),  # type: ignore
    (lambda: pco.estimate(data(), "x", llm="x"), "estimate.*'llm'.*'lm'"),  # type: ignore
    (lambda: pco.evaluate("a b", data(), "x", model="x"), "evaluate.*'model'.*'lm'"),  # type: ignore
    (lambda: pco.evaluate(prompt="a b", data=data()), "'prompt'.*'policy'"),  # type: ignore
    (lambda: pco.compare("a b", "c d", data(), scorer="x"), "'scorer'.*'reward'"),  # type: ignore
    (lambda: pco.load("x.csv", label="x"), "load.*'label'.*'target'"),  # type: ignore
    (lambda: pco.load_policy("x.json", engine="x"), "load_policy.*'engine'.*'lm'"),  # type: ignore
])  # fmt: skip
def test_a_keyword_of_other_libraries_is_answered_with_ours(call: Any, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"{meant}"):
        call()


def test_a_prompt_has_no_row_and_a_word_is_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a prompt has no verdict"):
        pco.evaluate("Be brief.", data(), "contains", "simulated", row="concat")
    with pytest.raises(PcoError, match=r"there is no run|no run 'brief'"):
        pco.evaluate("brief", data(), "contains", "simulated", runs_dir=tmp_path)
    said = pco.evaluate(pco.Prompt("Brief"), data(), "contains", "simulated", n=2)
    assert said.name == "'Brief'" and said.simulated


def test_what_is_awaited_stays_a_coroutine_function() -> None:
    names = ("aoptimize", "aevaluate", "acompare", "aeffect")
    assert all(inspect.iscoroutinefunction(getattr(pco, name)) for name in names)
    assert not inspect.iscoroutinefunction(pco.optimize)
