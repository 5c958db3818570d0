"""A linear router that imitates the encoder: what it can learn, what it cannot, what it costs."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.assemble import Assembled, Sources, assemble
from promptcodebook.calls import Request
from promptcodebook.config import load_config
from promptcodebook.errors import ConfigError, EndpointDown, RunNotTrusted, TooManyFailures
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.routing.ranking import Imitated, Ranker, cross_agreement, distil
from promptcodebook.run.distilling import Distillation, Distiller, Needs, logged_routes
from promptcodebook.store.events import Started, Stepped
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.sync import run_sync
from promptcodebook.types import Rollout, Route, Step, Trace
from tests.store.edit import edit_header

from .topics import PHRASES, data, learn, obey, right

TEXTS = ("one", "two", "three", "four")
WORDS = (("red", "crimson"), ("green", "olive"), ("blue", "azure"), ("black", "ebony"))
NOBODY = "http://localhost:9/v1#nobody"


def shown(count: int = 80, seed: int = 1) -> list[Imitated]:
    """Routes of two instincts that follow from two words of the input."""
    draw = random.Random(seed)
    made: list[Imitated] = []
    for i in range(count):
        pair = sorted(draw.sample(range(4), 2))
        words = [draw.choice(WORDS[k]) for k in pair] + [f"n{draw.randrange(9)}", "please"]
        draw.shuffle(words)
        made.append(Imitated(f"x{i}", " ".join(words), tuple(pair)))
    return made


def hidden(count: int = 80) -> list[Imitated]:
    """The same inputs, their routes dealt out at random."""
    made, draw = shown(count), random.Random(2)
    routes = [route.indices for route in made]
    draw.shuffle(routes)
    return [
        Imitated(own.example_id, own.input, indices)
        for own, indices in zip(made, routes, strict=True)
    ]


def test_what_the_words_show_is_imitated_on_inputs_held_out() -> None:
    found = cross_agreement(shown(), TEXTS, 2)
    assert found is not None
    assert found.exact.mean >= 0.9 and found.overlap.mean >= 0.95 and found.exact.n == 80


def test_what_they_do_not_show_is_not() -> None:
    """The other side: six pairs of four, so that chance is a sixth."""
    found = cross_agreement(hidden(), TEXTS, 2)
    assert found is not None and found.exact.mean <= 0.4


def test_too_few_examples_have_no_agreement() -> None:
    assert cross_agreement(shown(9), TEXTS, 2) is None


def test_a_route_has_as_many_instincts_as_the_encoders() -> None:
    ranker = Ranker(distil(shown(), 4, 2), TEXTS)
    assert {len(ranker.choose(text, 2)) for text in ("", "words of another world", "red")} == {2}


def test_an_example_that_was_routed_often_counts_once() -> None:
    once, often = shown(), shown()
    assert distil([*often, *[often[0]] * 50], 4, 2) == distil(once, 4, 2)


def test_routes_under_other_texts_weigh_less() -> None:
    old = [Imitated(r.example_id, r.input, (0, 1), 0.25) for r in shown()]
    ranker = Ranker(distil([*old, *shown()], 4, 2), TEXTS)
    agreed = [ranker.choose(r.input, 2) == r.indices for r in shown(40, seed=3)]
    assert sum(agreed) >= 36


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
    own = data()
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
    store = RunStore.open(run.path)
    logged = logged_routes(store, run.policy.file, assembled.dataset.train)
    store.close()
    return run_sync(Distiller(run.policy.file, assembled, logged, Needs(**needs)).distil())


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[pco.Run, Assembled]:
    return trained(tmp_path_factory.mktemp("words"), _by_words)


def test_a_policy_that_loses_nothing_is_offered(words: tuple[pco.Run, Assembled]) -> None:
    run, assembled = words
    made = distilled(run, assembled)
    assert made.validation is not None and made.validation.exact.mean == 1.0
    assert made.as_json()["validation"]["exact"]["mean"] == 1.0
    assert replace(made, validation=None).as_json()["validation"] is None
    assert made.difference is not None and made.difference.mean == 0.0
    assert made.non_inferior and made.per_query == (1.0, 2.0)
    assert made.file.about["distilled"]["non_inferior"] is True  # type: ignore[index, call-overload]


def test_one_that_loses_is_not(tmp_path: Path) -> None:
    """The other side: routes that no word tells."""
    made = distilled(*trained(tmp_path, _by_number))
    assert made.difference is not None and made.difference.high < 0
    assert not made.non_inferior
    assert made.validation is not None and made.validation.exact.mean < 0.7


def test_the_margin_and_the_number_of_examples_decide(words: tuple[pco.Run, Assembled]) -> None:
    """Not one difference in 16 examples still allows for one in ten."""
    few = distilled(*words, count=16)
    assert few.difference is not None and few.difference.mean == 0.0
    assert not few.non_inferior and distilled(*words, count=16, margin=0.3).non_inferior


def test_fresh_routes_are_asked_of_inputs_without_one(words: tuple[pco.Run, Assembled]) -> None:
    run, assembled = words
    distiller = Distiller(run.policy.file, assembled, [], Needs(fresh=12, count=4))
    assert len(distiller.fresh) == 12 and len(distiller.validation) == 4
    assert distiller.calls == 12 + 4 * 3
    made = run_sync(distiller.distil())
    assert (made.inputs, made.fresh) == (12, 12)
    with pytest.raises(ConfigError, match="no route of the encoder"):
        Distiller(run.policy.file, assembled, [], Needs())


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
        "print(policy.file.decided['router'], explained.expected, explained.prompt)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "{'kind': 'distilled'} None If it is about a login, say L."


def test_what_is_distilled_is_the_same_bytes_again(words: tuple[pco.Run, Assembled]) -> None:
    assert distilled(*words, count=4).file.text() == distilled(*words, count=4).file.text()


def test_nothing_is_distilled_twice_nor_trained_so(
    words: tuple[pco.Run, Assembled], tmp_path: Path
) -> None:
    _, assembled = words
    with pytest.raises(ConfigError, match="asks no encoder"):
        Distiller(distilled(*words, count=4).file, assembled, [], Needs(fresh=3))
    with pytest.raises(ConfigError, match="distilled") as refused:
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


def test_a_policy_file_is_distilled_by_fresh_routes(
    words: tuple[pco.Run, Assembled], tmp_path: Path
) -> None:
    run, assembled = words
    run.policy.save(tmp_path / "p.json")
    made = pco.distill(
        tmp_path / "p.json", assembled.dataset, by_words, own_lm(), fresh=12, n=4, margin=0.5
    )
    assert (made.inputs, made.fresh) == (12, 12)
    with pytest.raises(ConfigError, match="no route of the encoder") as refused:
        pco.distill(tmp_path / "p.json", assembled.dataset, by_words, own_lm())
    assert "fresh=200" in refused.value.hint


def test_what_is_not_handed_over_is_named(
    words: tuple[pco.Run, Assembled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, assembled = words
    monkeypatch.delenv("PCO_LM", raising=False)
    with pytest.raises(ConfigError, match="took data, reward, lm as objects") as refused:
        pco.distill(run.path)
    assert "distill() data=... reward=... lm=..." in refused.value.hint
    with pytest.raises(ConfigError, match="took reward, lm as objects"):
        pco.distill(run.path, assembled.dataset)
    run.policy.save(tmp_path / "p.json")
    with pytest.raises(ConfigError, match="has no model"):
        pco.distill(tmp_path / "p.json", assembled.dataset, by_words)
    with pytest.raises(ConfigError, match=r"distill\(\): data is of type list"):
        pco.distill(run, [])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"distill\(\): roles is of type list"):
        pco.distill(run, roles=[])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the budget has 9"):
        pco.distill(run, assembled.dataset, by_words, own_lm(), budget="9calls")


def test_a_run_of_somebody_else_calls_nobody_unless_it_is_trusted(
    words: tuple[pco.Run, Assembled], tmp_path: Path
) -> None:
    """What it names would be sent this user's key; what is typed is the user's own."""
    run, assembled = words
    foreign = tmp_path / run.id
    shutil.copytree(run.path, foreign)
    edit_header(
        foreign / "run.sqlite",
        lambda text: text.replace('"lm": "own"', f'"lm": "{NOBODY}"'),
        sealed=False,
    )
    given = (assembled.dataset, by_words)
    with pytest.raises(RunNotTrusted, match=f"call {NOBODY}") as refused:
        pco.distill(foreign, *given)
    assert "trust=True" in refused.value.hint
    assert pco.distill(foreign, *given, own_lm(), n=4).inputs > 0
    with pytest.raises(TooManyFailures, match="encoder: 4 of 4 rollouts failed"):
        pco.distill(foreign, *given, n=4, trust=True)  # it is asked, and is not there


def test_two_policies_that_nobody_answers_are_not_called_equal(
    words: tuple[pco.Run, Assembled],
) -> None:
    run, assembled = words

    def lost(least: int) -> ScriptedLM:
        def reply(request: Request) -> Scripted:
            number = int(re.findall(r"\d+", request.messages[-1].content)[-1])
            gone = request.role == "executor" and number % 3 >= least
            return EndpointDown("gone") if gone else encoder_of(_by_words)(request)

        return ScriptedLM().reply_with(reply)

    with pytest.raises(TooManyFailures, match="encoder: 40 of 40 rollouts"):
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
        broken = example.id == seen[0] and seen.count(example.id) <= 2  # it is tried once more
        return float("nan") if broken else by_words(example, output)

    settings = {**assembled.config.model_dump(mode="json"), "reward_range": [-1.0, 3.0]}
    sources = Sources(data=assembled.dataset, reward=broken_at_first, lm=own_lm())
    made = distilled(run, assemble(load_config(settings), sources), count=16, margin=0.1)
    assert made.margin == pytest.approx(0.4)
    # One rollout of the encoder's policy failed: 1 - (-1) for one of 16.
    assert made.difference is not None and made.difference.mean == pytest.approx(2 / 16)
    assert made.difference.low < -0.5, "16 differences in a range of 8 exclude little"
