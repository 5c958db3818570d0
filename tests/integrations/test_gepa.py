"""GEPAAdapters as tasks of ours."""

import re
import threading
from pathlib import Path
from typing import Any

import gepa
import pytest
from gepa.adapters.default_adapter.default_adapter import DefaultAdapter, EvaluationResult

import promptcodebook as pco
from promptcodebook.calls import Request
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.integrations.gepa import AdapterTask, TaskModel
from promptcodebook.lm.scripted import ScriptedLM
from tests.build.dspy_programs import CONFIG, RULES, TOPICS
from tests.build.method import routed, talkative


class Shouting(gepa.GEPAAdapter[dict[str, str], dict[str, Any], str]):
    """Written against gepa's interface alone: says what each of its texts tells it to say."""

    def __init__(self) -> None:
        self.candidates: list[dict[str, str]] = []
        self.lock = threading.Lock()

    def evaluate(
        self, batch: list[dict[str, str]], candidate: dict[str, str], capture_traces: bool = False
    ) -> Any:
        with self.lock:
            self.candidates += [dict(candidate) for _ in batch]
        outputs = [self.say(candidate) for _ in batch]
        scores = [float(o == i["answer"]) for o, i in zip(outputs, batch, strict=True)]
        traces = list(zip(batch, outputs, strict=True))
        return gepa.EvaluationBatch(outputs, scores, traces if capture_traces else None)

    def say(self, candidate: dict[str, str]) -> str:
        return " ".join(re.findall(r"say ([A-Z]+)\.", "\n".join(candidate.values())))

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, Any]]]:
        records = [
            {"Inputs": {"input": row["input"]}, "Generated Outputs": out,
             "Feedback": f"THE ANSWER IS {row['answer']}"}
            for row, out in eval_batch.trajectories
        ]  # fmt: skip
        return {name: records for name in components_to_update}


def instances(count: int, start: int = 0) -> list[dict[str, str]]:
    pairs = [(f"{k}: what are {topic}?", topic.upper()) for k in range(9) for topic in TOPICS]
    return [{"input": text, "answer": answer} for text, answer in pairs[start : start + count]]


def reply(request: Request) -> Any:
    """Routes to the topic's rule; does what the system prompt says."""
    if request.role == "encoder":
        text = request.messages[-1].content
        return routed(next(k for k, topic in enumerate(TOPICS) if f"what are {topic}?" in text))
    if request.role == "executor":
        words = re.findall(r"say ([A-Z]+)\.", request.messages[0].content)
        return " ".join(words) or "no idea"
    return talkative(request)


def task(adapter: Any, seed: dict[str, str] | None = None, tests: int = 0) -> AdapterTask:
    seed = seed if seed is not None else {"system_prompt": "Be brief."}
    return AdapterTask(adapter, seed, instances(8), instances(4, 8), instances(tests, 12))


def learn(tmp_path: Path, made: AdapterTask, lm: Any = None, **config: Any) -> pco.Run:
    options: Any = {"executor": made.executor, "config": {**CONFIG, **config}, "progress": False}
    options |= {"runs_dir": tmp_path / "runs"}
    return pco.optimize(made.data, made.reward, lm or ScriptedLM().reply_with(reply), **options)


def test_an_adapter_is_a_task(tmp_path: Path) -> None:
    adapter = Shouting()
    run = learn(tmp_path, task(adapter, tests=8))
    assert run.rows["present"].score.mean == 0.0 and run.rows["learned"].score.mean == 1.0
    assert run.policy.file.program == "Shouting"
    told = {candidate["system_prompt"] for candidate in adapter.candidates}
    assert {"Be brief.", *(f"{rule}\n\nBe brief." for rule in RULES)} <= told


def test_its_reflective_dataset_reaches_the_critic(tmp_path: Path) -> None:
    def astray(request: Request) -> Any:
        return routed(0) if request.role == "encoder" else reply(request)

    lm = ScriptedLM().reply_with(astray)
    learn(tmp_path, task(Shouting(), {"one": "", "two": "Be brief."}), lm)
    asked = ["\n".join(m.content for m in r.messages) for r in lm.history if r.role == "critic"]
    wrong = next(text for text in asked if "0: what are clocks?" in text)
    assert wrong.count("THE ANSWER IS CLOCKS") == 1
    assert "Reference answer: CLOCKS" in wrong
    assert "- one: 0: what are clocks? -> RIVERS" in wrong, "each component is a stage"


def test_each_component_may_have_a_prompt_of_its_own(tmp_path: Path) -> None:
    adapter = Shouting()
    made = task(adapter, {"one": "", "two": "Be brief."})
    run = learn(tmp_path, made, compose_per_stage=True)
    assert run.policy.file.stages == ("one", "two")
    assert set(RULES) <= {candidate["one"] for candidate in adapter.candidates}


def test_the_packages_own_adapter_asks_within_our_budget(tmp_path: Path) -> None:
    def evaluate(data: Any, response: str) -> EvaluationResult:
        return EvaluationResult(float(response == data["answer"]), f"want {data['answer']}")

    lm = ScriptedLM().reply_with(reply)
    run = learn(tmp_path, task(DefaultAdapter(TaskModel(), evaluate), tests=8), lm)
    assert run.rows["learned"].score.mean == 1.0
    asked = sum(r.role == "executor" for r in lm.history)
    assert run.usage["executor"].calls == asked > 0
    with pytest.raises(ConfigError, match="outside an evaluation"):
        TaskModel()([{"role": "user", "content": "x"}])


def test_instances_of_other_kinds_are_read_as_one_says(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="an instance of type tuple") as caught:
        _ = AdapterTask(Shouting(), {"one": ""}, [("x", "y")]).data
    assert "read=" in caught.value.hint
    read = AdapterTask(Shouting(), {"one": ""}, [("x", "y")], read=lambda row: row).data
    assert (read.train[0].input, read.train[0].target) == ("x", "y")
    assert AdapterTask(Shouting(), {"one": ""}, ["just text"]).data.train[0].target is None
