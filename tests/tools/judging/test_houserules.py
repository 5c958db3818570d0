"""A judge of 40 answers to messages of `houserules`, written by hand: half keep the rule of their
topic, half are such answers to another topic. Fixed before either was asked: the rules' own checker
as the judge is to be used, SmolLM2 is not to be trusted."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.paper.tasks.houserules.task import load_houserules, present_prompt, reward
from promptcodebook.types import Example
from tests.build.cli import pco, served
from tests.build.server import Server, says

LABELS = Path(__file__).with_name("houserules_answers.csv")
RUBRIC = f"The answer keeps the house rule of the message's topic.\n\n{present_prompt()}"


def examples() -> dict[str, Example]:
    return {example.input: example for example in load_houserules().dataset.train}


def test_the_labels_are_the_checker_s_and_the_checker_is_a_judge_to_use(tmp_path: Path) -> None:
    by_input = examples()
    with LABELS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    scores = [reward(by_input[row["input"]], row["answer"]).value for row in rows]
    assert [row["label"] for row in rows] == ["yes" if value else "no" for value in scores]
    assert len(rows) == 40 and sum(scores) == 20

    async def checks(request: Any, body: dict[str, Any]) -> Any:
        shown = json.loads(body["messages"][-1]["content"])
        score = reward(by_input[shown["input"]], shown["answer"])
        text = json.dumps({"feedback": score.feedback, "score": score.value})
        return await says(text)(request, body)

    server = Server()
    server.default = checks
    shutil.copy(LABELS, tmp_path / "labels.csv")
    with served(server):
        asked = ("labels.csv", "--rubric", RUBRIC, "--lm", server.spec, "--json")
        found = pco("judge", "calibrate", *asked, cwd=tmp_path).json
    assert found["decision"] == "use it", found["why"]


@pytest.mark.local
def test_smollm2_is_no_judge(tmp_path: Path) -> None:
    shutil.copy(LABELS, tmp_path / "labels.csv")
    asked = ("labels.csv", "--rubric", RUBRIC, "--lm", "smollm2", "--repeats", "1", "--json")
    found = pco("judge", "calibrate", *asked, cwd=tmp_path)
    assert found.code == 0, found.err
    assert found.json["decision"] == "do not trust it", found.json
