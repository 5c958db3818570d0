"""What a part of a policy is worth: `pco.effect` against effects that were planted,
`pco.distill` against an encoder whose rule is known."""

import json
import random
import re
import sqlite3
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook import errors
from promptcodebook.assemble import Assembled, Sources, assemble
from promptcodebook.base.intervals import paired_interval
from promptcodebook.base.sync import run_sync
from promptcodebook.calls import Request
from promptcodebook.config import load_config
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.references import Reference
from promptcodebook.routing.ranking import Imitated
from promptcodebook.run.measuring import Distillation, Distiller, Needs, logged_routes
from promptcodebook.run.subject import Subject
from promptcodebook.store.effects import EffectStore, read_effects
from promptcodebook.store.events import Started, Stepped
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import remove_run
from promptcodebook.types import Rollout, Route, Step, Trace
from tests.build.cases import table
from tests.build.optimize import data, train
from tests.build.topics import PHRASES, learn, obey, right
from tests.build.topics import data as topics

GOOD, BAD, IDLE, UNUSED = 0, 1, 2, 5
ROUTE = json.dumps({"constraints": [], "selected_indices": [0, 1, 2], "analysis": ""})
ADDS = {GOOD: 0.3, BAD: -0.2, IDLE: 0.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    """Trained on the simulated model; what is measured below asks a scripted one."""
    folder = tmp_path_factory.mktemp("effects")
    return train(folder, size=8, select=3, config={"compose": "verbatim"}, name_it="tickets")


@pytest.fixture
def own(run: pco.Run) -> pco.Run:
    """The run with no effect measured yet."""
    for file in (run.path / "effects").glob("*"):
        file.unlink()
    return run


def worth(example: pco.Example, output: str) -> float:
    """Of an answer: the number that it is."""
    return float(output)


def adds(k: int, task: str) -> float:
    """What an instinct adds to the answer to an input: more to some than to others."""
    return round(ADDS[k] * (0.8 + sum(map(ord, task)) % 9 / 20), 3)


def planted(run: pco.Run, faults: tuple[str, ...] = ()) -> pco.ScriptedLM:
    """Routes every input to 0, 1 and 2, and answers with what these add to its own worth; cannot
    be reached for answers to inputs that hold one of `faults` while instinct 0 is left out."""
    texts = run.codebook.texts

    def answer(request: pco.Request) -> str | Exception:
        if request.role == "encoder":
            return ROUTE
        prompt = request.messages[0].content
        task = request.messages[-1].content
        if texts[GOOD] not in prompt and any(fault in task for fault in faults):
            return errors.LMError("cut off", role="executor")
        own = 0.3 + (sum(map(ord, task)) % 7) / 100
        return str(round(own + sum(adds(k, task) for k in ADDS if texts[k] in prompt), 3))

    return pco.ScriptedLM().reply_with(answer)


@pytest.mark.parametrize("k", ADDS)
def test_a_planted_effect_is_found(own: pco.Run, k: int) -> None:
    found = pco.effect(own, k, reward=worth, lm=planted(own), split="train")
    assert found.difference is not None and found.means is not None
    assert found.n == found.examples == len(data().train)
    true = sum(adds(k, example.input) for example in data().train) / found.n
    assert found.difference.mean == pytest.approx(true)
    assert found.means[0] - found.means[1] == pytest.approx(true)
    pairs = [pair for pair in found.rewards.values() if None not in pair]
    first, second = zip(*pairs, strict=True)
    assert found.difference == paired_interval(first, second)
    sure = found.difference.low > 0 or found.difference.high < 0
    assert sure is bool(ADDS[k]) and sure is ("no clear effect" not in found.sentence)
    assert repr(found).startswith(f"Effect(instinct {k}: {true:+.3f} ")


def test_nothing_but_the_route_is_another_and_without_a_route_nothing_is_measured(
    own: pco.Run,
) -> None:
    lm = planted(own)
    pco.effect(own, BAD, reward=worth, lm=lm, n=1)
    with_it, without = (r for r in lm.history if r.role == "executor")
    assert with_it.messages[1:] == without.messages[1:]
    assert (with_it.sampling, with_it.sample) == (without.sampling, without.sample)
    assert with_it.sampling.temperature == 0.0
    line = own.codebook.texts[BAD] + "\n"
    assert with_it.messages[0].content.replace(line, "") == without.messages[0].content
    lm = planted(own)
    found = pco.effect(own, UNUSED, reward=worth, lm=lm)
    assert found.difference is None and found.n == 0 and not found.rewards
    assert found.sentence == f"None of {len(data().test)} inputs in the test split is routed to it."
    assert {r.role for r in lm.history} == {"encoder"}


def test_a_failed_rollout_is_counted_and_its_pair_left_out(own: pco.Run) -> None:
    faults = tuple(example.input for example in data().train[:2])
    found = pco.effect(own, GOOD, reward=worth, lm=planted(own, faults), split="train")
    assert found.failed == (0, 2) and found.n == found.examples - 2
    assert found.difference is not None
    true = sum(adds(GOOD, example.input) for example in data().train[2:]) / found.n
    assert found.difference.mean == pytest.approx(true)  # a failure is no reward of 0
    kept, faults = read_effects(own.path), tuple(example.input for example in data().test)
    with pytest.raises(errors.TooManyFailures, match="cut off"):  # no pair is whole
        pco.effect(own, GOOD, reward=worth, lm=planted(own, faults))
    assert read_effects(own.path) == kept


def test_an_input_without_a_route_is_tried_once_more_then_counted(own: pco.Run) -> None:
    once, never = (example.input for example in data().train[:2])
    lm, failed = planted(own), list[str]()

    async def ask(request: pco.Request) -> pco.Reply:
        text = request.messages[-1].content
        for task in (once, never) if request.role == "encoder" else ():
            if task in text and (task == never or task not in failed):
                failed.append(task)
                raise errors.LMError("cut off", role="encoder")
        return await lm(request)

    found = pco.effect(own, GOOD, reward=worth, lm=ask, split="train")
    assert sorted(failed) == sorted([once, never, never])
    assert found.unrouted == 1 and found.n == found.examples - 1 == len(found.rewards)


def most_routed(run: pco.Run) -> int:
    """The instinct that the kept policy chose most often, on the test and validation splits."""
    with closing(RunStore.open(run.path)) as store:
        kept = store.validation_at(run.best.step)
        assert kept is not None
        learned = [e for e in store.test_evaluations() if e.name == "learned"]
        routes = [r.route for e in (kept.evaluation, *learned) for r in e.rollouts if r.route]
    return Counter(k for route in routes for k in route.indices).most_common(1)[0][0]


def paid(run: pco.Run) -> int:
    """Calls of all measurements of the run."""
    with closing(sqlite3.connect(run.path / "effects" / "effects.sqlite")) as db:
        return sum(calls for (calls,) in db.execute("SELECT calls FROM usage"))


def test_what_was_paid_for_is_not_asked_again(own: pco.Run) -> None:
    k = most_routed(own)
    first = pco.effect(own, k, split="test")
    asked = paid(own)
    again = pco.effect(own, k, split="test")
    assert asked > 0 and paid(own) == asked and again.rewards == first.rewards
    [kept] = read_effects(own.path)
    assert kept == again
    beside = next(i for i in range(8) if i != k)
    other = pco.effect(own, beside, split="test")
    assert paid(own) == asked + len(other.rewards)  # routes and answers with it are known
    assert [effect.instinct for effect in read_effects(own.path)] == [k, other.instinct]


def test_what_the_run_has_asked_is_not_asked_again(own: pco.Run) -> None:
    """Its verdict routed and answered the whole test split by the policy that it keeps."""
    found = pco.effect(own, most_routed(own))
    assert found.n > 0 and found.simulated
    with closing(sqlite3.connect(own.path / "effects" / "effects.sqlite")) as db:
        [(asked,)] = db.execute("SELECT COUNT(*) FROM journal")
    assert asked == paid(own) == found.n  # the answers without it


def test_a_budget_stops_it_and_the_same_words_go_on(own: pco.Run) -> None:
    k = most_routed(own)
    with pytest.raises(errors.BudgetReached, match="3 calls") as caught:
        pco.effect(own, k, split="test", budget="3calls")
    assert "with a new budget: everything paid for so far is kept" in caught.value.hint
    assert paid(own) == 3 and not read_effects(own.path)
    for _ in range(20):  # as the hint says: each time it goes on from there
        with suppress(errors.BudgetReached):
            pco.effect(own, k, split="test", budget="3calls")
    [whole] = read_effects(own.path)
    assert whole.n > 0 and whole.n == len(whole.rewards)
    stopped_and_not = paid(own)
    for file in (own.path / "effects").glob("*"):
        file.unlink()
    assert pco.effect(own, k, split="test").rewards == whole.rewards
    assert paid(own) == stopped_and_not


async def test_within_a_loop_by_name_and_for_a_policy_that_is_no_run(
    own: pco.Run, tmp_path: Path
) -> None:
    given = {"reward": worth, "lm": planted(own), "n": 3}
    found = await pco.aeffect("tickets", GOOD, data(), **given, runs_dir=own.path.parent)  # type: ignore[arg-type]
    assert found.n == 3 and read_effects(own.path) == [found]
    of_a_file = await pco.aeffect(own.policy, GOOD, data(), **given)  # type: ignore[arg-type]
    assert of_a_file.rewards == found.rewards and len(read_effects(own.path)) == 1


def test_one_process_measures_at_a_time(own: pco.Run) -> None:
    with closing(EffectStore(own.path, "pco")):
        busy = f"an instinct of the run {own.id} is being measured by process"
        with pytest.raises(errors.RunBusy, match=busy):
            pco.effect(own, GOOD, reward=worth, lm=planted(own), n=1)
        with pytest.raises(errors.RunBusy, match=busy):
            remove_run(own.path)
        assert read_effects(own.path) == [] and pco.load_run(own.path).ended == "finished"
    assert pco.effect(own, GOOD, reward=worth, lm=planted(own), n=1).n == 1


@pytest.mark.parametrize(("k", "given", "text"), table(__file__, "faults"))
def test_what_is_wrong_is_named(own: pco.Run, k: int, given: dict[str, object], text: str) -> None:
    with pytest.raises((errors.ConfigError, errors.DataError), match=text) as caught:
        pco.effect(own, k, **given)  # type: ignore[arg-type]
    assert caught.value.hint


def test_other_data_policy_model_of_a_role_or_reward_is_another_question(own: pco.Run) -> None:
    """By whom each role was asked counts, and not in which order the roles are named."""
    found = pco.effect(own, GOOD, reward=worth, lm=planted(own), n=2)
    whole = data()
    other = replace(whole, test=tuple(replace(each, target="another") for each in whole.test))
    second = pco.effect(own, GOOD, other, worth, planted(own), n=2)
    assert found.data != second.data and read_effects(own.path) == [found, second]
    both = replace(found, models={"encoder": "a", "executor": "b"})
    again = replace(both, models={"executor": "b", "encoder": "a"}, at="2027-01-01T00:00:00+00:00")
    others = (
        replace(both, models={"encoder": "b", "executor": "a"}),
        replace(both, models={"encoder": "a"}),
        replace(both, scored_by="another reward"),
        replace(both, policy="of another"),
    )
    with closing(EffectStore(own.path, "pco")) as store:
        for effect in (both, *others, again):
            store.add(effect)
    kept = read_effects(own.path)
    assert len(kept) == 7 and again in kept and both not in kept


NOBODY = "http://localhost:9/v1#nobody"


def _by_words(text: str) -> str:
    return next(letter for letter, phrases in PHRASES.items() if any(p in text for p in phrases))


def _by_number(text: str) -> str:
    """By the number at the end of the message, which no other message shares."""
    number = re.findall(r"(?:hi|hello|hey) .* (\d+)", text)[-1]
    return "RPLC"[zlib.crc32(number.encode()) % 4]


def encoder_of(topic: Callable[[str], str]) -> Callable[[Request], str]:
    """A model that routes by `topic`, and answers as the rule says."""

    def reply(request: Request) -> str:
        if request.role != "encoder":
            return obey(request)
        place = "RPLC".index(topic(request.messages[-1].content)) + 2
        return json.dumps({"constraints": [], "analysis": "", "selected_indices": [place]})

    return reply


def trained(folder: Path, topic: Callable[[str], str]) -> tuple[pco.Run, Assembled]:
    """A run whose encoder routes by `topic`, where that is what earns the reward."""
    lm = ScriptedLM().reply_with(encoder_of(topic))
    config: dict[str, Any] = {
        "router": {"kind": "encoder"},
        "explore": {"policy": "none"},
        "update": {"epochs": 3},
    }

    def reward(example: pco.Example, output: str) -> float:
        return right(pco.Example(example.id, example.input, topic(example.input)), output)

    run = learn(folder, reward, lm, config=config)
    store = RunStore.open(run.path)
    settings = load_config(store.header.settings)
    store.close()
    own = topics()
    more = pco.Dataset(own.train, many(), own.test, own.name)
    return run, assemble(settings, Sources(data=more, reward=reward, lm=lm))


def many(count: int = 200) -> tuple[pco.Example, ...]:
    """Validation examples enough for a margin of 0.02."""
    draw, letters = random.Random(4), list(PHRASES)
    return tuple(
        pco.Example(f"v{i}", f"hello {draw.choice(PHRASES[letter])} {i}", letter)
        for i, letter in enumerate(draw.choice(letters) for _ in range(count))
    )


def distilled(run: pco.Run, assembled: Assembled, **needs: Any) -> Distillation:
    with closing(RunStore.open(run.path)) as store:
        logged = logged_routes(store, run.policy.file, assembled.dataset.train)
    return run_sync(Distiller(subject((run, assembled)), logged, Needs(**needs)).distil())


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[pco.Run, Assembled]:
    return trained(tmp_path_factory.mktemp("words"), _by_words)


@pytest.mark.slow
def test_a_policy_that_loses_nothing_is_offered_and_one_that_loses_is_not(
    words: tuple[pco.Run, Assembled], tmp_path: Path
) -> None:
    """The other side: routes that no word tells. Not one difference in 16 examples still allows for
    one in ten."""
    made = distilled(*words)
    assert made.difference is not None and made.difference.mean == 0.0
    assert made.non_inferior and made.per_query == (1.0, 2.0)
    assert made.file.about["distilled"]["non_inferior"] is True  # type: ignore[index, call-overload]
    few = distilled(*words, count=16)
    assert few.difference is not None and few.difference.mean == 0.0
    assert not few.non_inferior and distilled(*words, count=16, margin=0.3).non_inferior
    made = distilled(*trained(tmp_path, _by_number))
    assert made.difference is not None and made.difference.high < 0
    assert not made.non_inferior


def subject(words: tuple[pco.Run, Assembled], file: PolicyFile | None = None) -> Subject:
    run, assembled = words
    return Subject(Reference("policy", file or run.policy.file), assembled)


def test_a_distilled_policy_needs_neither_call_nor_numpy(
    words: tuple[pco.Run, Assembled], tmp_path: Path
) -> None:
    made = distilled(*words, count=4)
    made.file.save(tmp_path / "p.json")
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "import promptcodebook as pco\n"
        f"policy = pco.load_policy({str(tmp_path / 'p.json')!r}, lm={NOBODY!r})\n"
        "explained = policy.explain('hey, password reset')\n"
        "print(policy.file.decided['router'], explained.scores, explained.prompt)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "{'kind': 'distilled'} None If it is about a login, say L."


def test_nothing_is_distilled_twice_nor_trained_so(
    words: tuple[pco.Run, Assembled], tmp_path: Path
) -> None:
    with pytest.raises(errors.ConfigError, match="uses no encoder"):
        Distiller(subject(words, distilled(*words, count=4).file), [], Needs(fresh=3))
    with pytest.raises(errors.ConfigError, match="distilled") as refused:
        learn(tmp_path, config={"router": {"kind": "distilled"}})
    assert "pco distill" in refused.value.hint


def by_words(example: pco.Example, output: str) -> float:
    return right(pco.Example(example.id, example.input, _by_words(example.input)), output)


def own_lm() -> ScriptedLM:
    return ScriptedLM().reply_with(encoder_of(_by_words))


def test_one_call_distils_a_run_of_python(words: tuple[pco.Run, Assembled], tmp_path: Path) -> None:
    """As the parts do; its data, reward and model, which were objects, are handed over again."""
    run, assembled = words
    file = tmp_path / "d.json"
    made = pco.distill(run, assembled.dataset, by_words, own_lm(), n=16, margin=0.3, output=file)
    parts = distilled(run, assembled, count=16, margin=0.3)
    assert (made.file.digest, made.as_json()) == (parts.file.digest, parts.as_json())
    assert made.non_inferior and made.fresh == 0
    policy = pco.load_policy(file, lm=NOBODY)
    assert policy.prompt("hey, password reset") == "If it is about a login, say L."
    name = dict(runs_dir=Path(run.path).parent, data=assembled.dataset, reward=by_words)
    again = pco.distill(run.id, lm=own_lm(), n=16, margin=0.3, **name)  # type: ignore[arg-type]
    assert again.file.text() == made.file.text()
    run.policy.save(file)  # which has no routes: fresh ones are asked for
    given = (assembled.dataset, by_words, own_lm())
    made = pco.distill(file, *given, fresh=12, n=4, margin=0.5)
    assert (made.inputs, made.fresh) == (12, 12)
    with pytest.raises(errors.ConfigError, match="no encoder routes") as refused:
        pco.distill(file, *given)
    assert "fresh=200" in refused.value.hint


def test_what_is_not_handed_over_is_named(words: tuple[pco.Run, Assembled], tmp_path: Path) -> None:
    run, assembled = words
    with pytest.raises(
        errors.ConfigError, match="took data, reward, lm as Python objects"
    ) as refused:
        pco.distill(run.path)
    assert "distill() data=... reward=... lm=..." in refused.value.hint
    with pytest.raises(errors.ConfigError, match="took reward, lm as Python objects"):
        pco.distill(run.path, assembled.dataset)
    run.policy.save(tmp_path / "p.json")
    with pytest.raises(errors.ConfigError, match="has no model"):
        pco.distill(tmp_path / "p.json", assembled.dataset, by_words)
    with pytest.raises(errors.ConfigError, match=r"distill\(\): data is of type list"):
        pco.distill(run, [])  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match=r"distill\(\): roles is of type list"):
        pco.distill(run, roles=[])  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="the budget has 9"):
        pco.distill(run, assembled.dataset, by_words, own_lm(), budget="9calls")


def test_two_policies_that_nobody_answers_are_not_called_equal(
    words: tuple[pco.Run, Assembled],
) -> None:
    run, assembled = words

    def lost(least: int) -> ScriptedLM:
        def reply(request: Request) -> Scripted:
            number = int(re.findall(r"\d+", request.messages[-1].content)[-1])
            gone = request.role == "executor" and number % 3 >= least
            return errors.EndpointDown("gone") if gone else encoder_of(_by_words)(request)

        return ScriptedLM().reply_with(reply)

    with pytest.raises(errors.TooManyFailures, match="encoder: 40 of 40 rollouts"):
        pco.distill(run, assembled.dataset, by_words, lost(0), n=40)
    assert pco.distill(run, assembled.dataset, by_words, lost(2), n=40).difference


def test_only_routes_that_the_encoder_gave_itself_are_imitated(
    words: tuple[pco.Run, Assembled], tmp_path: Path
) -> None:
    """Neither explored ones nor those that stood in for a faulty one."""
    run, assembled = words
    train, parameters = assembled.dataset.train, run.policy.file.parameters
    routes = (Route((2,)), Route((3,), explored=True), Route((4,), fallback=True), None)
    traces = tuple(
        Trace(Rollout(example.id, route=route, reward=1.0))
        for example, route in zip(train, routes, strict=False)
    )
    store = RunStore.create(tmp_path, Header("", "2026-01-01T00:00:00+00:00", "0"))
    store.append(Started(parameters, "expert"))
    store.append(Stepped(Step(0, 0, 0.5, traces, (), parameters, (), (), ())))
    found = logged_routes(store, run.policy.file, train)
    store.close()
    assert found == [Imitated(train[0].id, train[0].input, (2,), 1.0)]


def test_margin_and_failures_count_in_the_range_of_the_rewards(
    words: tuple[pco.Run, Assembled],
) -> None:
    """From -1 to 3: a margin of 0.1 is 0.4, and an answer without a reward counts -1."""
    run, assembled = words
    seen: list[str] = []

    def broken_at_first(example: pco.Example, output: str) -> float:
        seen.append(example.id)
        broken = example.id == seen[0] and seen.count(example.id) == 1
        return float("nan") if broken else by_words(example, output)

    settings = {**assembled.config.model_dump(mode="json"), "reward_range": [-1.0, 3.0]}
    sources = Sources(data=assembled.dataset, reward=broken_at_first, lm=own_lm())
    made = distilled(run, assemble(load_config(settings), sources), count=16, margin=0.1)
    assert made.margin == pytest.approx(0.4)
    # One rollout of the encoder's policy failed: 1 - (-1) for one of 16.
    assert made.difference is not None and made.difference.mean == pytest.approx(2 / 16)
    assert made.difference.low < -0.5, "16 differences in a range of 8 exclude little"
