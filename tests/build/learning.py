"""A world of requests from which a deployed policy learns."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook.deploy.online.exploring import Explorer
from promptcodebook.deploy.online.learning import TrainedRouter, read_training
from promptcodebook.deploy.online.served_log import Feedback, Logged, Served, ServedLog
from promptcodebook.policy.file import PolicyFile
from promptcodebook.routing.ranking import Ranker, buckets_of, chosen
from promptcodebook.types import Ranking, Route
from tests.build.topics import PHRASES, learn

OLD, NEW = "RPL", "C"


# A half-life under which nothing ages.
LONG = 1e9


@dataclass(frozen=True)
class World:
    folder: Path
    run: pco.Run
    file: PolicyFile
    trained: TrainedRouter

    def rule(self, letter: str) -> int:
        texts = self.file.parameters.codebook.texts
        return next(k for k, text in enumerate(texts) if f"say {letter}" in text)

    def routes(self, ranking: Ranking, texts: list[str]) -> list[tuple[int, ...]]:
        ranker = Ranker(ranking, self.file.parameters.codebook.texts)
        return [ranker.choose(text, self.file.select) for text in texts]

    def earns(self, file: PolicyFile, letters: str = NEW) -> float:
        """The share of fresh messages that a policy gives the rule of their topic."""
        draw = random.Random(99)
        asked = [(letter, message(letter, draw)) for letter in letters for _ in range(60)]
        assert file.router is not None
        routes = self.routes(file.router.ranking, [text for _, text in asked])
        pairs = zip(asked, routes, strict=True)
        return sum(route == (self.rule(each[0]),) for each, route in pairs) / len(asked)

    def log(self, count: int, explore: float, seed: int = 0, *, shuffled: bool = False) -> Logs:
        """Requests of all topics as a server routes and logs them, with feedback for each."""
        assert self.file.router is not None
        explorer, draw = Explorer(self.file, explore, seed), random.Random(seed)
        ranker = Ranker(self.file.router.ranking, self.file.parameters.codebook.texts)
        served, rewards = list[Served](), list[float]()
        for n in range(count):
            letter = NEW if draw.random() < 0.5 else draw.choice(OLD)
            text = message(letter, draw)
            expected = ranker.expected(text)
            best = Route(chosen(expected.marginal, expected.more, 1, self.file.router.least))
            tried, chance = explorer.choose(best, expected, f"{seed} {n}")
            route, name = tried.indices, f"req-{n:024x}"
            rest = 200, 0.1, None, route, chance, buckets_of(text)
            arm = "explored" if tried.explored else ""
            served.append(Served(name, float(n), "tickets", "v", "", arm, *rest))
            rewards.append(float(route == (self.rule(letter),)))
        if shuffled:
            draw.shuffle(rewards)
        return [Logged(*pair) for pair in zip(served, rewards, strict=True)]


Logs = list[Logged]


def message(letter: str, draw: random.Random) -> str:
    end = draw.choice(["asap", "thanks", "today", "please"])
    return f"{draw.choice(['hi', 'hello', 'hey'])} {draw.choice(PHRASES[letter])} {end}"


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A parameter is the seed of its rows."""
    folder = tmp_path_factory.mktemp("learning")
    draw = random.Random(getattr(request, "param", 3))
    rows = [
        {"text": f"{message(letter, draw)} {n}", "target": letter}
        for n in range(20)
        for letter in OLD
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "pco.toml").write_text(
        'reward = {kind = "exact"}\n'
        'data = {path = "rows.jsonl", input = "text", target = "target"}\n'
    )
    data = pco.load(folder / "rows.jsonl", input="text", target="target")
    run = learn(folder / "runs", data=data, config={"update": {"epochs": 8}})
    file = run.policy.file
    return World(folder, run, file, read_training(run.path, file, data))


@pytest.fixture
def places(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PCO_RUNS", str(world.folder / "runs"))
    monkeypatch.setenv("PCO_REQUESTS", str(tmp_path / "requests.sqlite"))
    monkeypatch.setenv("PCO_REGISTRY", str(tmp_path / "registry.sqlite"))
    yield tmp_path


async def keep(path: Path, logs: Logs, ref: str, version: str) -> None:
    log = ServedLog(path / "requests.sqlite")
    for each in logs:
        log.put(replace(each.served, ref=ref, version=version))
    for each in logs:
        await log.give(Feedback(each.served.id, each.reward or 0.0, each.text), None)
    log.close()
