"""PCO as a teleprompter of dspy's: compiled, saved, loaded elsewhere, prompted for each input."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest

import promptcodebook as pco
from promptcodebook.calls import Message, Reply, Request, Usage
from promptcodebook.errors import ConfigError, DataError, EndpointDown, MissingExtra, PolicyError
from promptcodebook.integrations.dspy import PCO, ComposedProgram
from promptcodebook.paper.rivals.mipro import dspy_model
from tests.build.dspy_programs import CONFIG, RULES, TOPICS, TwoSteps, metric, model, reply, rows

QUESTION = "7: what are clocks?"


def compile(tmp_path: Path, lm: Any = None, **more: Any) -> ComposedProgram:
    options: Any = {"config": {**CONFIG, **more.pop("config", {})}, "runs_dir": tmp_path / "runs"}
    options |= {"progress": False, "budget": more.pop("budget", None)}
    teleprompter = PCO(more.pop("metric", metric), lm if lm is not None else model(), **options)
    given = {"trainset": rows(8), "valset": rows(12)[8:], **more}
    return teleprompter.compile(given.pop("student", TwoSteps()), **given)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ComposedProgram:
    student = TwoSteps()
    student.plan.demos = [dspy.Example(question="1: what are maps?", plan="unfold")]
    return compile(tmp_path_factory.mktemp("compiled"), student=student)


def test_a_compiled_program_is_prompted_for_each_input(tmp_path: Path) -> None:
    lm, student = model(), TwoSteps()
    assert isinstance(PCO(metric), dspy.teleprompt.Teleprompter)
    compiled = compile(tmp_path, lm, student=student, testset=rows(20)[12:])
    run = compiled.run
    assert run is not None and run.rows["present"].score.mean == 0.0
    assert run.rows["learned"].score.mean == 1.0
    assert sum(usage.calls for usage in run.usage.values()) == len(lm.history)
    with compiled:
        for topic, rule in zip(TOPICS, RULES, strict=True):
            lm.history.clear()
            assert compiled(question=f"7: what are {topic}?").answer == topic.upper()
            told = [r.messages[0].content for r in lm.history if r.role == "executor"]
            assert len(told) == 2, "one call for each predictor"
            assert all(rule in text for text in told)
            assert not any(other in text for text in told for other in RULES if other != rule)
            assert "Answer in capitals." in told[1], "its own instruction stays"
    assert "Answer in capitals." in student.say.predict.signature.instructions
    assert RULES[2] not in str(student), "the student itself is as it was"


@pytest.mark.slow
def test_it_is_saved_and_loaded_in_a_new_process(tmp_path: Path, compiled: ComposedProgram) -> None:
    file = tmp_path / "program.json"
    compiled.save(file)
    command, root = ["-m", "tests.build.dspy_programs", str(file)], Path(__file__).parents[2]
    made = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=root)
    assert made.returncode == 0, made.stderr
    told = json.loads(made.stdout)
    assert told["answers"] == [topic.upper() for topic in TOPICS]
    assert told["demos"] == 1
    assert [RULES[k // 2] in text for k, text in enumerate(told["told"])] == [True] * 8
    saved = json.loads(file.read_text("utf-8"))
    assert saved["promptcodebook"]["policy"] == json.loads(compiled.policy.file.text())
    bare = TwoSteps()
    bare.load(file)
    assert len(bare.plan.demos) == 1, "what is the student's own is a student's"


def test_the_model_that_dspy_is_configured_with_answers(tmp_path: Path) -> None:
    lm = model()
    answers = {"reasoning": "hm", "plan": "think", "answer": "CLOCKS"}
    dummy = dspy.utils.DummyLM({"what are": answers})
    with dspy.context(lm=dummy):
        compiled = compile(tmp_path, lm)
        assert compiled(question=QUESTION).answer == "CLOCKS"
    assert not any(r.role == "executor" for r in lm.history)
    assert compiled.run is not None and "executor" not in compiled.run.usage
    assert RULES[2] in dummy.history[-1]["messages"][0]["content"]


class Apart(dspy.Module):
    """Its steps run in a thread of dspy's."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = TwoSteps()

    def forward(self, question: str) -> Any:
        parallel = dspy.Parallel(num_threads=1, disable_progress_bar=True)
        return parallel([(self.steps, {"question": question})])[0]


@pytest.mark.parametrize("student", [TwoSteps, Apart])
def test_what_dspy_says_that_calls_took_is_metered(tmp_path: Path, student: Any) -> None:
    """Where some calls do not say it, as of a model that counts no tokens, nothing is claimed."""

    def ask(messages: Sequence[Message]) -> Reply:
        text = reply(SimpleNamespace(role="executor", messages=messages))
        return Reply(text, usage=Usage(1, 10, 3))

    says, silent = student(), student()
    answer = {"reasoning": "hm", "answer": "CLOCKS"}
    [say] = (p for name, p in silent.named_predictors() if name.endswith("say.predict"))
    say.lm = dspy.utils.DummyLM({"what are": answer})
    rows_of: list[Any] = []
    with dspy.context(lm=dspy_model(dspy, ask, "own")):
        for each in (says, silent):
            run = compile(tmp_path, student=each, testset=rows(20)[12:]).run
            assert run is not None and run.conclusion is not None
            rows_of.append((run.usage.get("executor", Usage()), run.conclusion.rows[0]))
    (paid, row), (unknown, other) = rows_of
    assert row.metered and (row.per_query.calls, row.per_query.tokens) == (2, 26)
    assert row.per_query.cost is None and paid.tokens == 13 * paid.calls > 0
    assert not other.metered and unknown.calls == 0


def test_feedback_reaches_the_critic_and_so_does_what_could_not_be_parsed(tmp_path: Path) -> None:
    def babbling(request: Request) -> Any:
        babbles = request.role == "executor" and "rivers" in request.messages[-1].content
        if babbles:
            return "babble"
        if request.role == "encoder":
            return reply(request).replace("[1]", "[2]")
        return reply(request)

    lm = model(babbling)
    compiled = compile(tmp_path, lm)
    asked = ["\n".join(m.content for m in r.messages) for r in lm.history if r.role == "critic"]
    wrong = next(text for text in asked if "what are bridges?" in text)
    assert "Feedback of the checker: SAY IT LOUD" in wrong
    assert "Reference answer: BRIDGES" in wrong
    assert re.search(r"- plan: \d: what are bridges\? -> think\n", wrong)
    unread = next(text for text in asked if "what are rivers?" in text)
    assert "could not be parsed into the fields that it must have: plan." in unread
    assert "babble" in unread
    assert compiled.run is not None and compiled.run.ended == "finished"


def test_each_predictor_may_have_a_prompt_of_its_own(tmp_path: Path) -> None:
    lm = model()
    compiled = compile(tmp_path, lm, config={"compose_per_stage": True})
    assert compiled.policy.file.stages == ("plan", "say.predict")
    assert set(compiled.policy.compose({"question": QUESTION})[1].stages) == {"plan", "say.predict"}
    assert compiled(question=QUESTION).answer == "CLOCKS"


def test_it_is_awaited_and_copied(compiled: ComposedProgram) -> None:
    copy = compiled.deepcopy()
    assert copy.student is not compiled.student and copy.policy is compiled.policy
    made = asyncio.run(copy.acall(question=QUESTION))
    assert made.answer == "CLOCKS"
    assert compiled.explain(question=QUESTION).route.indices == (2,)


def test_a_budget_covers_the_students_calls(tmp_path: Path) -> None:
    lm = model()
    compiled = compile(tmp_path, lm, budget="9calls")
    run = compiled.run
    assert run is not None and run.ended == "budget"
    assert run.usage["executor"].calls > 0 and run.spent.calls == len(lm.history) <= 9


def test_a_model_that_is_gone_is_not_a_fault_of_the_program(tmp_path: Path) -> None:
    def gone(request: Request) -> Any:
        error = EndpointDown("nobody there", hint="start it")
        return error if request.role == "executor" else reply(request)

    lm = model(gone)
    with pytest.raises(pco.PcoError, match="nobody there") as caught:
        compile(tmp_path, lm)
    assert "LMUnexpectedError" not in str(caught.value)
    assert "correct the executor" not in caught.value.hint
    lm.reply_with(reply)
    compiled = compile(tmp_path, lm)
    lm.reply_with(gone)
    with pytest.raises(EndpointDown, match="nobody there"):
        compiled(question=QUESTION)


@pytest.mark.parametrize("metric", [
    lambda gold, pred, trace, pred_name, pred_trace: {"score": 1, "feedback": "fine"},
    lambda example, prediction, trace=None: float(
        trace is None and "answer" in prediction and example.inputs().question != ""
    ),
])  # fmt: skip
def test_metrics_of_every_form_of_dspys(tmp_path: Path, metric: Any) -> None:
    compiled = compile(tmp_path, metric=metric, trainset=rows(4), valset=rows(6)[4:])
    assert compiled.run is not None and compiled.run.best.score == 1.0


def test_several_inputs_are_read_as_trained_and_some_rows_validate(tmp_path: Path) -> None:
    class Read(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.say = dspy.Predict("context, question -> answer")

        def forward(self, context: str, question: str) -> Any:
            return self.say(context=context, question=question)

    made = [dspy.Example(context=["a", "b"], **row) for row in rows(8)]
    given = [row.with_inputs("context", "question") for row in made]
    right: Any = lambda row, made: row.answer == made.answer  # noqa: E731
    lm = model()
    compiled = compile(tmp_path, lm, student=Read(), trainset=given, valset=None, metric=right)
    assert compiled.run is not None and compiled.run.best.score == 1.0
    trained = [request.messages[-1].content for request in lm.history if request.role == "encoder"]
    assert trained and all('context: ["a", "b"]' in content for content in trained)
    explained = compiled.explain(question=QUESTION, context=["c"])
    assert explained.input == f'context: ["c"]\n\nquestion: {QUESTION}'
    assert compiled(context=["c"], question=QUESTION).answer == "CLOCKS"


def test_what_cannot_be_compiled_is_said(tmp_path: Path) -> None:
    cases: list[tuple[Any, str, Any]] = [
        (ConfigError, "a function cannot be compiled by PCO", {"student": metric}),
        (ConfigError, "Module has no predictors", {"student": dspy.Module()}),
        (ConfigError, "the metric does not take", {"metric": lambda example: 1.0}),
        (DataError, r"trainset\[0\] does not say", {"trainset": [dspy.Example(question="x")]}),
        (DataError, "the trainset is empty", {"trainset": []}),
    ]
    for kind, message, given in cases:
        with pytest.raises(kind, match=message):
            compile(tmp_path, **given)


def test_a_program_without_a_policy_says_what_to_do(
    tmp_path: Path, compiled: ComposedProgram
) -> None:
    program = ComposedProgram(TwoSteps(), model())
    with pytest.raises(PolicyError, match="no policy yet"):
        program(question=QUESTION)
    TwoSteps().save(tmp_path / "bare.json")
    with pytest.raises(PolicyError, match="contains no promptcodebook policy"):
        program.load(tmp_path / "bare.json")
    compiled.save(tmp_path / "program.json")
    with pytest.raises(ConfigError, match="names no model to route and compose with"):
        ComposedProgram(TwoSteps()).load(tmp_path / "program.json")


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "promptcodebook.integrations.dspy")
    monkeypatch.setitem(sys.modules, "dspy", None)
    with pytest.raises(MissingExtra, match="needs an optional dependency") as caught:
        __import__("promptcodebook.integrations.dspy")
    assert caught.value.hint == "pip install 'promptcodebook[baselines]'"
