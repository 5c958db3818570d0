"""`pco learn`: a router refitted to what users said, and what it is worth before any traffic.

Four topics, each with a rule of its own. Training saw three of them; the fourth drifts in.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.deploy.online import learning
from promptcodebook.deploy.online.learning import Learned, estimate, learn, within_share
from promptcodebook.deploy.online.sequences import ValueCounts
from promptcodebook.deploy.online.served_log import Logged, Served, ServedLog
from promptcodebook.deploy.registry.log import version_of
from promptcodebook.deploy.registry.registry import Facts, open_registry
from promptcodebook.errors import ConfigError, DataError, PolicyError
from promptcodebook.policy.file import read_policy_file
from promptcodebook.routing.outcomes import OutcomeModel
from promptcodebook.routing.ranking import buckets_of
from promptcodebook.types import Ranking
from tests.build.cli import pco as command
from tests.build.learning import LONG, NEW, OLD, World, keep, message
from tests.build.learning import places as places
from tests.build.learning import world as world


def ranking(made: Learned | World) -> Ranking:
    return learning.require_router(made.file)


def saved(world: World, places: Path) -> str:
    """The version of the policy as a file that names its run."""
    world.file.with_about(run=world.run.id).save(places / "tickets.pco.json")
    return version_of((places / "tickets.pco.json").read_bytes())


def test_training_is_read_back_whole(world: World) -> None:
    """Fitted to training alone, the router is the policy's own."""
    model = OutcomeModel(world.trained.inputs, priors=world.trained.priors)
    fitted = model.fit(world.trained.outcomes, world.trained.versions)
    assert fitted.ranking(ranking(world).least) == ranking(world)
    assert world.trained.selected == tuple(entry.selected for entry in world.file.codebook)


@pytest.fixture(scope="module")
def taught(world: World) -> Learned:
    return learn(world.file, world.trained, world.log(500, 0.5), {"v"}, LONG)


def test_feedback_teaches_the_routes_of_a_topic_that_training_never_saw(
    world: World, taught: Learned
) -> None:
    before, made = world.earns(world.file), taught
    assert before <= 0.1 and world.earns(made.file) >= before + 0.6
    assert world.earns(made.file, OLD) >= 0.95, "what was known stays known"
    assert made.file.parameters == world.file.parameters
    assert made.logged == 500 and made.training == len(world.trained.outcomes)
    uses = sum(e.selected for e in made.file.codebook) - sum(world.trained.selected)
    assert uses == sum(len(each.served.route) for each in world.log(500, 0.5))


def test_shuffled_feedback_teaches_nothing(world: World) -> None:
    made = learn(world.file, world.trained, world.log(500, 0.5, shuffled=True), {"v"}, LONG)
    assert world.earns(made.file) <= 0.3
    assert not (made.worth.known and made.worth.gain.low > 0)


def test_the_estimate_says_what_new_routes_earn_and_not_what_they_promise(
    world: World, taught: Learned
) -> None:
    """Judged by a log of its own: the true gain lies in the interval, and where feedback is
    shuffled the same promising routes gain nothing."""
    gains = list[float]()
    for shuffled in (False, True):
        held = world.log(1500, 1.0, seed=7, shuffled=shuffled)
        worth = estimate(world.file, ranking(taught), held)
        assert worth.known and worth.effective >= 40 and 500 <= worth.differing <= 1000
        gains.append(worth.gain.low)
        if not shuffled:
            gain = (world.earns(taught.file) - world.earns(world.file)) / 2
            assert worth.gain.low <= gain <= worth.gain.high <= worth.gain.low + 0.4
            assert worth.new.mean == pytest.approx(worth.today.mean + worth.gain.mean)
    assert gains[0] > 0.2 and gains[1] <= 0


def request(text: str, route: tuple[int, ...], chance: float, reward: float = 1.0) -> Logged:
    rest = 200, 0.1, None, route, chance, buckets_of(text)
    return Logged(Served("req", 0.0, "tickets", "v", "", "", *rest), reward)


def routes_of(world: World, made: Learned, letters: str) -> list[tuple[str, tuple[int, ...], bool]]:
    """Messages with their new routes, and whether today's are others."""
    draw = random.Random(5)
    texts = [message(letter, draw) for letter in letters]
    new, today = (world.routes(ranking(each), texts) for each in (made, world))
    return [(t, n, n != o) for t, n, o in zip(texts, new, today, strict=True)]


def test_no_request_weighs_more_than_twenty_of_the_likeliest(world: World, taught: Learned) -> None:
    """One of a thousand would else be the whole estimate."""
    (a, new, apart), (b, again, too) = routes_of(world, taught, NEW * 2)
    assert apart and too
    held = [request(a, new, 0.5), request(b, again, 0.001)]
    worth = estimate(world.file, ranking(taught), held)
    assert worth.effective == pytest.approx((2 + 40) ** 2 / (2**2 + 40**2))


def test_a_gain_that_nobody_saw_may_be_one_either_way(world: World, taught: Learned) -> None:
    rows = [each for each in routes_of(world, taught, OLD * 40) if not each[2]]
    assert len(rows) >= 40
    held = [request(text, route, 1.0) for text, route, _ in rows]
    gain = estimate(world.file, ranking(taught), held).gain
    unseen = 1 - 0.025 ** (1 / len(rows))  # the most requests that differ, seen in none of these
    assert gain.mean == 0.0 and gain.low == -gain.high
    assert gain.high == pytest.approx(unseen, abs=1e-4)


@pytest.mark.parametrize("answered", [900, 300])
def test_no_gain_is_claimed_where_explored_requests_get_other_shares_of_feedback(
    world: World, taught: Learned, answered: int
) -> None:
    """Else the claim says how unequally content users must answer until it is none."""
    counted = ValueCounts.share(answered, 3_000), ValueCounts.share(300, 3_000)
    worth = estimate(world.file, ranking(taught), world.log(1_500, 1.0, seed=7), counted)
    assert worth.answered == [answered / 3_000, 0.1] and worth.gain.low > 0
    assert worth.unequal == (not worth.known) == (answered > 300)
    said = "30.0% of the explored requests got feedback, but 10.0% of the others"
    assert (said in worth.text()) == worth.unequal
    assert ("times as likely to give feedback" in worth.text()) == worth.known
    assert worth.factor > 1


def test_promises_that_were_never_tried_are_not_enough(world: World) -> None:
    """The forecast flatters routes that it chose itself: it alone decides nothing."""
    made = learn(world.file, world.trained, world.log(300, 0.05), {"v"}, LONG)
    assert not made.worth.known and made.worth.effective < 20
    assert "not enough logged to say what it is worth" in made.text()
    few = learn(world.file, world.trained, world.log(30, 0.5), {"v"}, LONG)
    assert "that takes 20 held-out requests with feedback, and there are 10" in few.text()
    one = learn(world.file, world.trained, world.log(1, 0.5), {"v"}, LONG)
    assert one.logged == 1 and not one.worth.known


def test_one_key_teaches_no_more_than_its_share(world: World) -> None:
    def by(caller: str, count: int, **fields: Any) -> list[Logged]:
        rows = world.log(count, 0.5)[::-1]
        return [replace(e, served=replace(e.served, caller=caller, **fields)) for e in rows]

    honest = [each for n in range(12) for each in by(f"key {n}", 5)]
    hostile = by("x", 90)
    kept = within_share([*hostile, *honest])
    assert kept == [*hostile[:6], *honest], "a tenth of all, and the newest"
    assert within_share([*hostile, *by("y", 40)]) == [*hostile[:40], *by("y", 40)]
    assert within_share(hostile) == hostile, "there is no other key"
    assert within_share([*hostile, *honest], 1.0) == [*hostile, *honest]
    assert within_share([*by("x", 9, arm="prompt"), *by("y", 9, status=500)]) == []


@pytest.mark.parametrize(
    ("world", "seed", "praised", "would_harm"),
    [(3, 0, "R", True), (20261128, 1128, "C", False)],
    indirect=["world"],
)
async def test_a_key_that_lies_about_one_instinct_moves_no_more_than_its_share(
    world: World, seed: int, praised: str, would_harm: bool, places: Path
) -> None:
    """Twelve keys are honest. The thirteenth sends as much as all of them, and praises one rule.
    It counts for a tenth, so it may cost a tenth. That bound was fixed before the second world was
    drawn, in which all that it sent does no harm."""
    version = saved(world, places)
    rows, wrong = world.log(240, 0.5, seed=seed), world.rule(praised)

    def of(n: int, row: Logged, caller: str, **more: Any) -> Logged:
        served = replace(row.served, id=f"req-{n:024x}", caller=caller)
        return replace(row, served=served, **more)

    honest = [of(n, each, f"key {n % 12}") for n, each in enumerate(rows)]
    lies = [
        of(1000 + n, each, "hostile", reward=float(each.served.route == (wrong,)))
        for n, each in enumerate(rows)
    ]
    asked = "learn", "tickets.pco.json", "--config", str(world.folder), "--half-life", "5200w"

    def learned(*words: str) -> tuple[Any, float]:
        tree = command(*asked, "-o", "next.pco.json", "--json", *words, cwd=places).json
        return tree, world.earns(read_policy_file(places / "next.pco.json"), "RPLC")

    await keep(places, honest, "tickets", version)
    _, alone = learned()
    await keep(places, lies, "tickets", version)
    tree, fair = learned()
    assert tree["logged"] == 240 + 26
    assert tree["left_out"] == {"not shown to a user, or over one key's share": 240 - 26}
    _, open_to_all = learned("--set", "serve.key_share=1")
    assert fair >= alone - 0.1
    assert (open_to_all < alone - 0.1) == would_harm


def test_what_cannot_be_learned_from_is_left_out_and_counted(world: World) -> None:
    first, second, third, fourth, *rest = world.log(60, 0.5)
    odd = [
        replace(first, reward=None),
        replace(second, served=replace(second.served, fallback=True)),
        replace(third, served=replace(third.served, version="another")),
        replace(fourth, served=replace(fourth.served, features=())),
    ]
    made = learn(world.file, world.trained, [*rest, *odd], {"v"}, LONG)
    assert made.left_out == {
        "without feedback": 1,
        "without a route from the router": 2,
        "of another codebook": 1,
    }
    assert made.file == learn(world.file, world.trained, rest, {"v"}, LONG).file
    with pytest.raises(DataError, match=r"no logged .*\(1 of another codebook\)") as refused:
        learn(world.file, world.trained, odd[2:3], {"v"}, LONG)
    assert "pco serve REF --feedback" in refused.value.hint


@pytest.mark.slow
def test_old_feedback_fades(world: World) -> None:
    """The rule of the new topic was right until the middle of the log, and no more since."""
    logs, right_rule = world.log(600, 1.0), (world.rule(NEW),)
    turned = [
        replace(each, reward=0.0) if each.served.route == right_rule and n >= 300 else each
        for n, each in enumerate(logs)
    ]
    fades = learn(world.file, world.trained, turned, {"v"}, 40.0)
    ahead = replace(turned[-1], served=replace(turned[-1].served, id="req-ahead", time=1e9))
    same = learn(world.file, world.trained, learning.dated([*turned, ahead], 600.0), {"v"}, 40.0)
    assert abs(world.earns(same.file) - world.earns(fades.file)) <= 0.05
    stays = learn(world.file, world.trained, turned, {"v"}, LONG)
    assert world.earns(fades.file) <= 0.1 < 0.5 <= world.earns(stays.file)


def test_a_policy_that_cannot_learn_so_says_why(world: World, tmp_path: Path) -> None:
    logs = world.log(3, 0.5)
    with pytest.raises(ConfigError, match="no router that learns"):
        learn(world.file.model_copy(update={"router": None}), world.trained, logs, {"v"}, LONG)
    data = pco.load(world.folder / "rows.jsonl", input="text", target="target")
    with pytest.raises(DataError, match="does not match this policy's router"):
        learning.read_training(world.run.path, world.file, replace(data, train=data.train[1:]))
    entries = (world.file.codebook[0].model_copy(update={"text": "Else."}),)
    other = world.file.model_copy(update={"codebook": (*entries, *world.file.codebook[1:])})
    with pytest.raises(PolicyError, match="never had this policy's codebook"):
        learning.read_training(world.run.path, other, data)


async def test_a_ref_of_the_registry_gets_a_new_version(world: World, places: Path) -> None:
    text = world.file.text()
    with open_registry() as registry:
        first = registry.freeze(text, "tickets", Facts(run=world.run.id, score=0.5)).version
    await keep(places, world.log(120, 0.5), "tickets@latest", first)
    config = ("--config", str(world.folder))
    done = command("learn", "tickets@latest", *config, "--json", cwd=places).json
    assert (done["logged"], done["place"]) == (120, "tickets@latest")
    with open_registry() as registry:
        made = registry.version("tickets@latest")
        assert made.version == done["version"] != first
        assert (made.facts["parent"], made.facts["run"]) == (first, world.run.id)
        assert made.facts["score"] is None and made.facts["learned"]["logged"] == 120
    # Requests of the first version have the same prompts, and are learned from again.
    again = command("learn", "tickets@latest", *config, cwd=places).out
    assert "fitted to 120 logged requests" in again and "not enough logged" in again


async def test_the_log_says_which_requests_got_feedback(world: World, places: Path) -> None:
    """Of those by which worth is judged: before, all had some."""
    version, rows = saved(world, places), world.log(600, 0.5)
    explored = [each for each in rows if each.served.arm == "explored"]
    silent = [each for each in rows[300:] if not each.served.arm][::2]
    await keep(places, [each for each in rows if each not in silent], "tickets", version)
    log = ServedLog(places / "requests.sqlite")
    for each in silent:
        log.put(replace(each.served, ref="tickets", version=version))
    log.close()
    asked = "learn", "tickets.pco.json", "--config", str(world.folder), "-o", "next.pco.json"
    tree = command(*asked, "--half-life", "5200w", "--json", cwd=places).json
    assert len(explored) > 100 and tree["worth"]["answered"][0] == 1
    assert 0.4 < tree["worth"]["answered"][1] < 0.6 and tree["worth"]["unequal"]
    assert not tree["worth"]["known"]


async def test_a_policy_file_is_learned_into_another(world: World, places: Path) -> None:
    version = saved(world, places)
    await keep(places, world.log(90, 0.5), "tickets", version)
    asked: Any = ("learn", "tickets.pco.json", "--config", str(world.folder))
    command(*asked, cwd=places).error(2, "so -o must say where to write")
    log = ServedLog(places / "requests.sqlite")
    for each in world.log(95, 0.5)[90:]:  # these got no feedback
        log.put(replace(each.served, ref="tickets", version=version))
    log.close()
    out = command(*asked, "-o", "tickets.pco.json", "--half-life", "1h", cwd=places).out
    assert "fitted to 90 logged requests" in out and "left out: 5 without feedback\n" in out
    learned: Any = read_policy_file(places / "tickets.pco.json").about["learned"]
    assert version in learned["versions"]
    # A later file learns from the requests of all before it.
    second = version_of((places / "tickets.pco.json").read_bytes())
    command(*asked, "-o", "tickets.pco.json", cwd=places)
    await keep(places, world.log(120, 0.5)[90:], "tickets", second)
    assert "fitted to 120 logged" in command(*asked, "-o", "next.pco.json", cwd=places).out
    command(*asked[:2], "-o", "next.pco.json", cwd=places).error(2, "no data")
