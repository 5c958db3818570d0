"""A router that tells inputs by embeddings; thresholds were fixed before a figure was seen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook.assemble import Sources, plan_run
from promptcodebook.calls import Reply, Request
from promptcodebook.config import load_config
from promptcodebook.errors import LMError, PolicyError
from promptcodebook.estimation.counting import Manner
from promptcodebook.estimation.dry import dry_run
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.policy import deploy
from promptcodebook.randomness import keyed_random
from promptcodebook.routing.ranking import Ranker
from promptcodebook.store.run import RunStore

from .topics import PHRASES, SMALL, learn, obey, right

LETTERS = tuple(PHRASES)
NOBODY = "http://localhost:9/v1#nobody"
SIZE = 12
USUAL = Manner(solved=0.5, blamed=0.5, reasked=0.0, refused=0.0, agent_calls=1)
BOTH = {"router": {"kind": "outcomes", "features": "both"}, "update": {"epochs": 8}}


def data() -> pco.Dataset:
    """Messages whose words say nothing of their topic: a number, and nothing else."""
    rows = tuple(pco.Example(f"n{i}", f"message {i}", LETTERS[i % 4]) for i in range(112))
    return pco.Dataset(rows[:64], rows[64:80], rows[80:], "numbers")


def vector(text: str) -> tuple[float, ...]:
    """What a model might read out of a message: its topic, among much else."""
    draw = keyed_random("vector", text)
    noise = [draw.gauss(3.0, 0.5) for _ in range(SIZE)]
    noise[int(text.split()[-1]) % 4] += 2.0
    return tuple(noise)


def reads(request: Request) -> Reply | str:
    if request.embeds:
        return Reply("", vector=vector(request.messages[0].content))
    return obey(request)


def model() -> ScriptedLM:
    return ScriptedLM().reply_with(reads)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    return learn(tmp_path_factory.mktemp("both"), lm=model(), data=data(), config=BOTH)


def test_what_only_an_embedding_tells_is_learned_from_it(run: pco.Run) -> None:
    assert run.rows["learned"].score.mean >= 0.8
    assert run.deploy == "learned"


@pytest.mark.parametrize("features", ["words", "both"])
def test_what_nothing_tells_is_not_learned(tmp_path: Path, features: str) -> None:
    """The other side: words that say nothing, and embeddings of something else."""

    def other(request: Request) -> Reply | str:
        if request.embeds:
            draw = keyed_random("other", request.messages[0].content)
            return Reply("", vector=tuple(draw.gauss(3.0, 0.5) for _ in range(SIZE)))
        return obey(request)

    config = {**BOTH, "router": {"kind": "outcomes", "features": features}}
    lm = ScriptedLM().reply_with(other)
    null = learn(tmp_path, lm=lm, data=data(), config=config)
    assert null.rows["learned"].score.mean <= 0.5


def test_every_input_is_read_once_and_paid_for_once(run: pco.Run) -> None:
    usage = run.usage
    assert set(usage) == {"encoder", "executor"}
    assert usage["encoder"].calls == 64 + 32, "training inputs, and those of the verdict"
    assert run.rows["learned"].calls_per_query == 2.0
    assert run.rows["concat"].calls_per_query == 1.0


def test_a_run_that_is_stopped_ends_at_the_same_policy(run: pco.Run, tmp_path: Path) -> None:
    part = learn(tmp_path, lm=model(), data=data(), config=BOTH, budget="150calls")
    assert part.ended == "budget"
    lm = model()
    rest = learn(tmp_path, lm=lm, data=data(), config=BOTH, budget="9999calls", resume=part.id)
    assert rest.policy.file.digest == run.policy.file.digest
    assert sum(request.embeds for request in lm.history) <= 32, "what was read is in the journal"


def test_a_saved_policy_routes_as_the_run_did(run: pco.Run, tmp_path: Path) -> None:
    run.policy.save(tmp_path / "policy.json")
    file = read_policy_file(tmp_path / "policy.json")
    assert file.digest == run.policy.file.digest
    ranking, texts = file.statistics.ranking, file.parameters.codebook.texts
    assert ranking is not None
    ranker = Ranker(ranking, texts)
    for example in data().test[:8]:
        explained = run.policy.explain(example)
        text = example.input
        assert explained.route.indices == ranker.choose(text, file.select, vector(text))
        assert explained.expected == ranker.expected(text, vector(text))


def test_an_explanation_reads_its_input_once(run: pco.Run) -> None:
    lm = model()
    file = run.policy.file
    policy = deploy(file, file.settings({"lm": "own", "cache": False}), Sources(lm=lm))
    assert policy.explain(data().test[0]).expected is not None
    assert sum(request.embeds for request in lm.history) == 1


def test_embeddings_of_another_model_are_told_apart(run: pco.Run) -> None:
    ranking = run.policy.file.statistics.ranking
    assert ranking is not None
    ranker = Ranker(ranking, run.policy.file.parameters.codebook.texts)
    with pytest.raises(PolicyError, match="12 numbers, and this model makes 2"):
        ranker.choose("message 1", 1, (1.0, 2.0))


def test_a_model_that_makes_none_ends_the_run_before_a_rollout(tmp_path: Path) -> None:
    lm = ScriptedLM().reply_with(obey)
    with pytest.raises(LMError, match="embedding") as refused:
        learn(tmp_path, lm=lm, data=data(), config=BOTH)
    assert "router.features = 'words'" in refused.value.hint
    assert {request.role for request in lm.history} == {"encoder"}


def test_the_estimate_counts_what_is_read() -> None:
    def calls(features: str) -> float:
        settings = {**SMALL, "router": {"kind": "outcomes", "features": features}, "lm": NOBODY}
        plan = plan_run(load_config(settings, where="the test"), Sources(data=data(), reward=right))
        work = asyncio.run(dry_run(plan, USUAL))
        return sum(done.calls for (_, role), done in work.items() if role == "encoder")

    assert calls("words") == 0
    assert calls("both") == 64 + 32


def test_steps_hold_how_embeddings_are_scaled(run: pco.Run) -> None:
    ranking = next(iter(RunStore.open(run.path).steps())).ranking
    assert ranking is not None and len(ranking.center) == len(ranking.spread) == SIZE
    assert ranking.words == 0.5 and {len(row) for row in ranking.weights} == {4096 + SIZE}
    assert abs(ranking.center[5] - 3.0) < 0.5
