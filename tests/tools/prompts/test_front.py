"""Prompts that were made elsewhere: as a codebook, as a pool of instincts, with demonstrations."""

import json
import os
import pickle
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import gepa
import pytest
from aiohttp import web
from gepa.core.result import GEPAResult

import promptcodebook as pco
from promptcodebook.errors import ConfigError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.store.run import RunStore
from promptcodebook.tools.prompts import Front, read_front, read_prompts
from tests.build import topics
from tests.build.cli import pco as typed
from tests.build.cli import served
from tests.build.server import Server, says
from tests.build.topics import PHRASES, data, right

PROMPTS = [f"You work for a shop.\n\nWhatever comes, say {letter}." for letter in PHRASES]


def folder(place: Path, prompts: list[str]) -> Path:
    place.mkdir()
    for k, text in enumerate(prompts):
        (place / f"{k}.txt").write_text(text + "\n", "utf-8")
    return place


def result(scores: list[dict[str, float]], texts: list[str]) -> dict[str, Any]:
    """What gepa itself makes of these scores, as it writes them."""
    best = {v: max(s[v] for s in scores) for v in scores[0]}
    fronts = {v: {k for k, s in enumerate(scores) if s[v] == best[v]} for v in best}
    made: GEPAResult[Any, Any] = GEPAResult(
        candidates=[{"system": text} for text in texts],
        parents=[[None] for _ in texts],
        val_aggregate_scores=[sum(s.values()) / len(s) for s in scores],
        val_subscores=scores,
        per_val_instance_best_candidates=fronts,
        discovery_eval_counts=[0 for _ in texts],
    )
    return json.loads(json.dumps(made.to_dict()))


class Saying(gepa.GEPAAdapter[Any, Any, Any]):
    """The reward is whether the prompt holds what the row asks for."""

    propose_new_texts = None

    def evaluate(self, batch: Any, candidate: Any, capture_traces: bool = False) -> Any:
        scores = [float(row in candidate["system"]) for row in batch]
        return gepa.EvaluationBatch(list(batch), scores, list(batch) if capture_traces else None)

    def make_reflective_dataset(self, candidate: Any, eval_batch: Any, components: Any) -> Any:
        pairs = zip(eval_batch.trajectories, eval_batch.scores, strict=True)
        return {"system": [{"Feedback": f"say {row}"} for row, score in pairs if not score]}


def test_a_run_of_gepa_is_read_from_its_folder_and_from_its_result(tmp_path: Path) -> None:
    run = tmp_path / "run"
    rows = ["RED", "BLUE", "GREEN"]
    found = gepa.optimize(
        seed_candidate={"system": "Be brief."},
        trainset=rows,
        valset=rows,
        adapter=Saying(),
        reflection_lm=lambda prompt: (
            "```\nsay " + str(prompt).split("say ")[-1].split()[0] + "\n```"
        ),  # type: ignore[arg-type]
        max_metric_calls=60,
        reflection_minibatch_size=1,
        logger=SimpleNamespace(log=lambda message: None),  # type: ignore[arg-type]
        run_dir=str(run),
    )
    texts = {candidate["system"] for candidate in found.candidates}
    assert len(texts) > 2
    assert set(read_prompts(run)) == texts
    result_file = tmp_path / "front.json"
    result_file.write_text(json.dumps(found.to_dict(), default=str), "utf-8")
    front = read_front(result_file)
    assert front.best == found.best_candidate["system"] == front.prompts[0]
    assert set(front.prompts) < texts, "the first prompt is the best nowhere"


def test_the_front_keeps_what_is_needed_for_some_example(tmp_path: Path) -> None:
    """c0 is best nowhere alone, c3 equals c1 everywhere and is the worse one of the two."""
    scores = [
        {"a": 0.0, "b": 0.0, "c": 1.0, "d": 0.0},
        {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.5},
        {"a": 0.0, "b": 1.0, "c": 0.0, "d": 0.0},
        {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0},
    ]
    path = tmp_path / "front.json"
    path.write_text(json.dumps(result(scores, ["zero", "one", "two", "three"])), "utf-8")
    assert read_front(path) == Front(("one", "two"), "one")


class Opened:
    """Leaves a mark where a pickle of it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("name", ["gepa_state.bin", "program.pkl"])
def test_a_pickle_is_not_opened(tmp_path: Path, name: str) -> None:
    mark, file = tmp_path / "mark", tmp_path / name
    file.write_bytes(pickle.dumps(Opened(mark)))
    for place in (file, tmp_path) if name == "gepa_state.bin" else (file,):
        with pytest.raises(ConfigError, match="is a pickle") as refused:
            read_prompts(place)
        assert "json.dump(result.to_dict()" in refused.value.hint
    assert not mark.exists()


def test_programs_of_dspy_become_their_instructions_and_demonstrations(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (log / "evaluated_programs").mkdir(parents=True)
    for k, text in enumerate(["Say yes.", "Say no."]):
        program = dspy.Predict(dspy.Signature("question -> answer", text))
        if k:
            program.demos = [dspy.Example(augmented=True, question="Is it?", answer="no")]
        program.save(str(log / "evaluated_programs" / f"program_{k}.json"))
    shown = "Say no.\n\nExamples:\n\nQuestion: Is it?\nAnswer: no"
    assert read_prompts(log) == ("Say yes.", shown)
    one = log / "evaluated_programs" / "program_1.json"
    assert read_prompts(one) == (shown,)
    both = {
        "candidate_programs": [
            {"score": score, "program": json.loads(path.read_text("utf-8"))}
            for score, path in zip((1.0, 2.0), sorted(one.parent.iterdir()), strict=True)
        ]
    }
    (tmp_path / "mipro.json").write_text(json.dumps(both), "utf-8")
    assert read_front(tmp_path / "mipro.json") == Front((shown, "Say yes."), shown)


def test_of_several_texts_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "candidates.json"
    path.write_text(json.dumps([{"plan": "A", "say": "B"}, {"plan": "C", "say": "B"}]), "utf-8")
    with pytest.raises(ConfigError, match="has 2 texts: plan, say") as refused:
        read_prompts(path)
    assert f"{path}#plan" in refused.value.hint
    assert read_prompts(Path(f"{path}#plan")) == ("A", "C")
    assert read_prompts(Path(f"{tmp_path}#say")) == ("B",)


@pytest.mark.parametrize(
    "text", ["{", "3", '{"a": 1}', "[]", '["", " "]', "[3]", '{"candidates": []}', "[" * 100000]
)
def test_what_holds_no_prompts_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "front.json"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="cannot read prompts from") as refused:
        read_prompts(path)
    assert "a JSON list of strings" in refused.value.hint


def test_a_place_without_prompts_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ConfigError, match="cannot read prompts from"):
            read_prompts(place)


def learn(runs: Path, place: Path, size: int, reward: Any = right, **init: str) -> pco.Run:
    whole = {"kind": "prompts", "path": str(place), **init}
    config = {"size": size, "router": {"least": 1}, "init": whole}
    return topics.learn(runs, reward, config=config)


def prompts_of(run: pco.Run) -> list[str]:
    with closing(RunStore.open(run.path)) as store:
        learned = next(e for e in store.test_evaluations() if e.name == "learned")
    return [rollout.prompt for rollout in learned.rollouts]


@pytest.mark.slow
def test_whole_prompts_are_routed_as_they_are(tmp_path: Path) -> None:
    run = learn(tmp_path / "runs", folder(tmp_path / "mine", PROMPTS), 4, prompt=PROMPTS[0])
    assert run.codebook.texts == tuple(PROMPTS)
    assert "concat" not in run.rows and run.rows["present"].prompt == PROMPTS[0]
    assert run.worth and run.rows["learned"].score.mean > run.rows["best_single"].score.mean + 0.3
    assert set(prompts_of(run)) == set(PROMPTS)


@pytest.mark.slow
def test_copies_of_one_prompt_are_one_prompt_and_gain_nothing(tmp_path: Path) -> None:
    copies = folder(tmp_path / "copies", [PROMPTS[0], PROMPTS[0] + " ", PROMPTS[0].upper()])
    run = learn(tmp_path / "runs", copies, 1, prompt=PROMPTS[0])
    assert len(run.codebook) == 1 and not run.worth
    with pytest.raises(ConfigError, match="only 1 different instincts") as refused:
        learn(tmp_path / "more", copies, 2)
    assert "set size = 1" in refused.value.hint


def test_an_unknown_reader_names_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown init.kind 'gepo' \(did you mean 'gepa'") as e:
        pco.optimize(data(), right, ScriptedLM(), config={"init": {"kind": "gepo"}})
    assert "expert, random, from_prompt, file, dspy, gepa, mipro, prompts" in e.value.hint


def test_one_command_from_prompts_to_a_verdict(tmp_path: Path) -> None:
    """The rows of a data file, prompts of gepa's result, and the reward that is typed."""
    scores = [{str(v): float(v == k or v == k + 2 == 4) for v in range(5)} for k in range(4)]
    (tmp_path / "front.json").write_text(json.dumps(result(scores, PROMPTS)), "utf-8")
    rows = [
        {"text": example.input, "letter": example.target, "split": split}
        for split, examples in data().items()
        for example in examples
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")

    async def reply(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        told = " ".join(m["content"] for m in body["messages"] if m["role"] == "system")
        letters = [letter for letter in PHRASES if f"say {letter}" in told]
        return await says(letters[0] if len(letters) == 1 else "?")(request, body)

    server = Server()
    server.default = reply
    with served(server):
        made = typed(
            *("route", "front.json", "--data", "rows.jsonl", "--input", "text"),
            *("--target", "letter", "--reward", "exact", "--lm", server.spec, "--preset", "small"),
            *("--rollouts", "384", "--set", "data.split=split", "--json", "--plain"),
            cwd=tmp_path,
        )
    assert made.code == 0, made.err
    assert "4 different prompts in front.json" in made.err
    rows_made = {row["name"]: row for row in made.json["rows"]}
    assert made.json["worth"] and set(rows_made) >= {"present", "best_single", "learned"}
    assert rows_made["present"]["prompt"] == PROMPTS[2]
    assert "concat" not in rows_made
    refused = typed("route", "nowhere", "--data", "rows.jsonl", cwd=tmp_path)
    refused.error(2, "cannot read prompts from nowhere")
