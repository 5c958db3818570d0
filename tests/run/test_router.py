"""Routes learned from outcomes, by words and by embeddings; thresholds were fixed before a figure
was seen."""

import asyncio
from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook.assemble import RewardTrial, Sources, plan_run
from promptcodebook.base.randomness import keyed_random
from promptcodebook.calls import Reply, Request, read_message
from promptcodebook.config import load_config
from promptcodebook.doctor.checkup import rehearse
from promptcodebook.errors import ConfigError, LMError
from promptcodebook.estimation.dry import DryManner, dry_run
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.paper.tasks.houserules.task import load_houserules, present_prompt
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.policy import Policy, deploy
from promptcodebook.routing.ranking import Ranker
from promptcodebook.store.run import RunStore
from tests.build.proxied import Setup, up
from tests.build.router import BOTH, LETTERS, SIZE, keeping, numbers, reads, vector
from tests.build.topics import PHRASES, SMALL, chance, data, learn, obey, right, shuffled

NOBODY = "http://localhost:9/v1#nobody"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    return learn(tmp_path_factory.mktemp("router"))


def test_where_inputs_need_instincts_each_gets_its_own(run: pco.Run) -> None:
    """The side of the control on which there is something to learn: 80 % and more is right."""
    assert run.worth is True and run.deploy == "learned"
    assert run.rows["learned"].score.mean >= 0.8
    assert run.rows["best_single"].score.mean <= 0.5
    assert list(run.rows) == ["present", "none", "concat", "untrained", "best_single", "learned"]
    assert {row.calls_per_query for row in run.rows.values()} == {1.0}


# An executor that answers alike every time: what it was asked is not asked again.
ALIKE = {"roles": {"executor": {"temperature": 0.0}}}


@pytest.mark.slow
@pytest.mark.parametrize(("reward", "config"), [(chance, {}), (shuffled, ALIKE)])
def test_where_instincts_do_not_matter_nothing_is_claimed(
    tmp_path: Path, reward: object, config: object
) -> None:
    """The other side."""
    null = learn(tmp_path, reward, config=config)
    assert null.worth is not True and null.deploy != "learned"


def test_a_training_rollout_is_one_call(run: pco.Run) -> None:
    assert set(run.usage) == {"executor"}, "no critic is asked"
    steps = list(RunStore.open(run.path).steps(traces=True))
    rollouts = [trace.rollout for step in steps for trace in step.traces]
    assert len(rollouts) == 12 * 32 and {rollout.usage.calls for rollout in rollouts} == {1}


def test_a_saved_policy_routes_without_a_call_and_says_what_each_instinct_promises(
    run: pco.Run, tmp_path: Path
) -> None:
    run.policy.save(tmp_path / "policy.json")
    policy = pco.load_policy(tmp_path / "policy.json", lm=NOBODY)
    assert policy.file.digest == run.policy.file.digest
    for example in data().test:
        assert policy.prompt(example) == run.policy.prompt(example)
    assert policy.prompt("hello, my delivery is late") == "If it is about a parcel, say P."
    explained = run.explain("hi, where is my parcel")
    assert explained.scores is not None
    best = max(range(6), key=lambda k: explained.scores.alone(k))  # type: ignore[union-attr]
    assert explained.route.indices == (best,)
    assert explained.scores.alone(best) > explained.scores.nothing + 0.4


def test_more_sentences_than_instincts_are_refused_before_anything_is_paid(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="6 sentences") as refused:
        learn(tmp_path, config={"size": 4})
    assert "size = 6" in refused.value.hint


@pytest.mark.slow
def test_no_instinct_is_a_route_too(tmp_path: Path) -> None:
    """Where every instinct hurts, the prompt stays empty."""
    config = {"update": {"epochs": 6}}
    hurt = learn(tmp_path, lambda example, output: float(output == "?"), config=config)
    policy: Policy = hurt.policy
    routes = [policy.explain(example).route.indices for example in data().test]
    kind = [r for r in routes if not r or set(r) <= {0, 1}]
    assert len(kind) >= 0.9 * len(routes), PHRASES


@pytest.mark.slow
def test_the_rows_of_a_task_of_ours_that_knows_the_right_instructions(tmp_path: Path) -> None:
    """The oracle stands above all and decides nothing; one rule for all is one rule's share."""
    run = pco.optimize(
        load_houserules().dataset,
        "",
        ScriptedLM().reply_with(keeping),
        config={
            "task": "houserules",
            "preset": "small",
            "init": {"kind": "from_prompt", "prompt": present_prompt()},
            "update": {"epochs": 2, "batch_size": 8},
        },
        runs_dir=tmp_path,
        progress=False,
    )
    rows = run.rows
    assert list(rows)[:3] == ["present", "none", "oracle"] and rows["oracle"].reference
    assert rows["oracle"].score.mean > 0.75 > 0.3 > rows["best_single"].score.mean
    assert rows["oracle"].prompt is None and run.deploy != "oracle"
    single = rows["best_single"].prompt
    assert single in present_prompt() and run.policy.row("best_single").text == single


# --- by embeddings, where the words say nothing ---
USUAL = DryManner(solved=0.5, blamed=0.5, reasked=0.0, refused=0.0, agent_calls=1)


def model() -> ScriptedLM:
    return ScriptedLM().reply_with(reads)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    return learn(tmp_path_factory.mktemp("both"), lm=model(), data=numbers(), config=BOTH)


def test_what_only_an_embedding_tells_is_learned_and_every_input_is_read_once(
    both: pco.Run,
) -> None:
    assert both.rows["learned"].score.mean >= 0.8 and both.deploy == "learned"
    usage = both.usage
    assert set(usage) == {"encoder", "executor"}
    assert usage["encoder"].calls == 64 + 32, "training inputs, and those of the verdict"
    assert both.rows["learned"].calls_per_query == 2.0
    assert both.rows["concat"].calls_per_query == 1.0


@pytest.mark.slow
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
    null = learn(tmp_path, lm=lm, data=numbers(), config=config)
    assert null.rows["learned"].score.mean <= 0.5


@pytest.mark.slow
def test_a_run_that_reads_and_is_stopped_ends_at_the_same_policy(
    both: pco.Run, tmp_path: Path
) -> None:
    part = learn(tmp_path, lm=model(), data=numbers(), config=BOTH, budget="150calls")
    assert part.ended == "budget"
    lm = model()
    rest = learn(tmp_path, lm=lm, data=numbers(), config=BOTH, budget="9999calls", resume=part.id)
    assert rest.policy.file.digest == both.policy.file.digest
    assert sum(request.embeds for request in lm.history) <= 32, "what was read is in the journal"


def test_a_saved_policy_routes_as_the_run_did(both: pco.Run, tmp_path: Path) -> None:
    both.policy.save(tmp_path / "policy.json")
    file = read_policy_file(tmp_path / "policy.json")
    assert file.digest == both.policy.file.digest
    ranking, texts = file.statistics.ranking, file.parameters.codebook.texts
    assert ranking is not None
    ranker = Ranker(ranking, texts)
    for example in numbers().test[:8]:
        explained = both.policy.explain(example)
        text = example.input
        assert explained.route.indices == ranker.choose(text, file.select, vector(text))
        assert explained.scores == ranker.expected(text, vector(text))
    lm = model()
    policy = deploy(file, file.settings({"lm": "own", "cache": False}), Sources(lm=lm))
    assert policy.explain(numbers().test[0]).scores is not None
    assert sum(request.embeds for request in lm.history) == 1


def pictures() -> pco.Dataset:
    """Messages with the same words and an image each, which alone says what they are about."""

    def row(i: int) -> pco.Example:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{i}"}}
        body = {"role": "user", "content": [{"type": "text", "text": "this one"}, part]}
        message = read_message(body)
        return pco.Example(f"p{i}", message.content, LETTERS[i % 4], (message,), digest=str(i))

    rows = tuple(map(row, range(112)))
    return pco.Dataset(rows[:64], rows[64:80], rows[80:], "pictures")


def looks(request: Request) -> Reply | str:
    if not request.embeds:
        return obey(request)
    [message] = request.messages
    seen = [part["image_url"]["url"].partition(",")[2] for part in message.media]
    return Reply("", vector=vector(f"message {seen[0] if seen else 0}"))


@pytest.mark.slow
@pytest.mark.parametrize("images", [True, False])
async def test_what_only_an_image_tells_is_learned_where_images_are_embedded(
    tmp_path: Path, images: bool
) -> None:
    router = {"kind": "outcomes", "features": "both", "images": images}
    lm, config = ScriptedLM().reply_with(looks), {**BOTH, "router": router}
    run = await asyncio.to_thread(learn, tmp_path, lm=lm, data=pictures(), config=config)
    score = run.rows["learned"].score.mean
    assert score >= 0.8 if images else score <= 0.5
    run.policy.save(tmp_path / "policy.json")
    file = read_policy_file(tmp_path / "policy.json")
    assert file.router is not None and file.router.images is images
    async with up(file, Setup(lm=ScriptedLM().reply_with(looks))) as proxy:
        routes = []
        for example in (*pictures().test[:4], pictures().test[0]):
            asked = {"model": "pco/tickets", "messages": [example.messages[0].wire]}
            _, _, headers = await proxy.ask(json=asked)
            routes.append((headers["x-pco-route"], headers["x-pco-cache"]))
    assert len({route for route, _ in routes}) == (4 if images else 1)
    assert routes[-1] == (routes[0][0], "input"), "the same image again is known"


async def test_doctor_embeds_an_image_and_names_a_model_that_does_not() -> None:
    router = {"kind": "outcomes", "features": "both", "images": True}
    for seen in (True, False):
        lm = ScriptedLM().reply_with(looks if seen else obey)
        sources = Sources(data=pictures(), reward=right, lm=lm)
        plan = plan_run(load_config({**SMALL, "router": router}), sources).require_training()
        found, *_ = await rehearse(plan, RewardTrial(), {})
        assert [len(r.messages[0].media) for r in lm.history if r.embeds] == [1]
        assert found.ok is seen, found
        message = "using embeddings" if seen else "answered an embedding request with text"
        assert message in found["router" if seen else "example"].what


def test_images_are_embedded_with_embeddings_alone() -> None:
    with pytest.raises(ConfigError, match=r"^.*router\.images needs router\.features"):
        load_config({"router": {"kind": "outcomes", "images": True}})


def test_a_model_that_makes_none_ends_the_run_before_a_rollout(tmp_path: Path) -> None:
    lm = ScriptedLM().reply_with(obey)
    with pytest.raises(LMError, match="embedding") as refused:
        learn(tmp_path, lm=lm, data=numbers(), config=BOTH)
    assert "router.features = 'words'" in refused.value.hint
    assert {request.role for request in lm.history} == {"encoder"}


@pytest.mark.slow
def test_the_estimate_counts_what_is_read() -> None:
    def calls(features: str) -> float:
        router = {"kind": "outcomes", "features": features}
        settings = {**SMALL, "router": router, "lm": NOBODY, "update": {"epochs": 2}}
        plan = plan_run(
            load_config(settings, where="the test"), Sources(data=numbers(), reward=right)
        )
        work = asyncio.run(dry_run(plan, USUAL))
        return sum(done.calls for (_, role), done in work.items() if role == "encoder")

    assert calls("words") == 0
    assert calls("both") == 64 + 32
