"""What a library in a thread of its own gets of the run, and what it cannot do to it."""

import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.assemble import Sources
from promptcodebook.base.sync import run_sync
from promptcodebook.calls import Message, Request
from promptcodebook.config import load_config
from promptcodebook.config.loading import describe, describe_group, training_keys
from promptcodebook.errors import (
    ConfigError,
    EndpointDown,
    Interrupted,
    ParseError,
    RequestRefused,
    TooManyFailures,
)
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.optimizers.base import Problem, Result, make_optimizer
from promptcodebook.paper.rivals.outside import WHOLE, Outside, RivalLibrary, optimize_outside
from promptcodebook.progress import Note, Phase, ProgressEvent
from promptcodebook.run.opening import IN_PYTHON, Session, Where, open_run
from promptcodebook.run.optimize import finish
from promptcodebook.store.run import RunStore
from tests.build.optimize import data, reward, train
from tests.build.teachable import QUICK, install_package, learn, model, total

HERE = Path(__file__).parent
Work = Callable[[Outside], Mapping[str, str]]
LEVEL = {n: {WHOLE: f"Give the stated use, at level {n}."} for n in range(9)}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], None]:
    """Makes `optimizer = "theirs"` a library that does this work."""
    works: list[Work] = []

    class Theirs:
        async def optimize(self, problem: Problem) -> Result:
            settings = {"library": "theirs 1.0", "patience": 3}
            library = RivalLibrary("theirs", "the prompt of theirs", settings, works[-1], 144)
            return await optimize_outside(problem, library)

    module = type(sys)("theirs_outside")
    module.Theirs = Theirs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "theirs_outside", module)
    (tmp_path / "site").mkdir()
    entries, task = (HERE.joinpath(f"{n}.txt").read_text() for n in ("entry_points", "secret_task"))
    (tmp_path / "site" / "secret_task.py").write_text(task)
    install_package(tmp_path / "site", "theirs", entries)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return works.append


def notes_to(heard: list[str]) -> Callable[[ProgressEvent], None]:
    return lambda event: heard.extend([event.text] if isinstance(event, Note) else [])


def climb(outside: Outside) -> Mapping[str, str]:
    """Measures every level on the validation split, best last, and asks before each."""
    for level in range(1, 7):
        outside.ask([Message("user", "What next?")])
        outside.roll_out(LEVEL[level], outside.train)
        outside.roll_out(LEVEL[level], outside.val)
    return outside.best


def stubborn(outside: Outside) -> Mapping[str, str]:
    """Takes every error for a reason to try again."""
    for _ in range(2000):
        try:
            climb(outside)
        except Exception:
            continue
    return LEVEL[0]


def test_its_calls_are_metered_and_its_settings_are_stored(tmp_path: Path, install: Any) -> None:
    install(climb)
    lm = model()
    run = learn(tmp_path, "theirs", lm)
    assert run.ended == "finished" and [*run.rows] == ["present", "theirs"]
    assert run.rows["theirs"].prompt == LEVEL[6][WHOLE]
    assert total(run) == len(lm.history)
    # 6 levels on 16 and on 8 examples, and the verdict's two rows on 8.
    assert (run.usage["updater"].calls, run.usage["executor"].calls) == (6, 6 * 24 + 2 * 8)
    assert "theirs 1.0 tried 6 prompts in 144 rollouts; its choice earned" in run.verdict
    with closing(RunStore.open(run.path)) as store:
        concluded, trained = store.outline().conclusion, store.trained()
    assert trained is not None and trained.calls == 6 + 6 * 24, "what the optimizing alone took"
    settings = {"library": "theirs 1.0", "patience": 3, "replies": 6, "replies_cut": 0}
    assert concluded is not None and concluded.settings == run.settings == settings


def test_what_is_asked_again_is_sampled_again_and_validation_is_greedy(
    tmp_path: Path, install: Any
) -> None:
    def twice(outside: Outside) -> Mapping[str, str]:
        for text in (LEVEL[1], LEVEL[1], LEVEL[2]):
            outside.roll_out(text, outside.train[:2])
            outside.roll_out(text, outside.val[:1])
            outside.ask([Message("user", "What next?")])
        return LEVEL[1]

    install(twice)
    lm = model()
    learn(tmp_path, "theirs", lm)
    asked = [r for r in lm.history if r.sampling.temperature]
    executor = [r for r in asked if r.role == "executor"]
    samples = [r.sample for r in executor]
    assert len(executor) == 6, "three rollouts of two examples; those on validation are greedy"
    assert samples[:2] == samples[4:] != samples[2:4], "by how often the same was asked for"
    assert len({r.sample for r in asked if r.role == "updater"}) == 3


@pytest.mark.parametrize("limit", [{"calls": 50}, {"calls": 103}, {"tokens": 3000}])
def test_a_budget_ends_what_swallows_every_error_and_leaves_its_best(
    tmp_path: Path, install: Any, limit: dict[str, int]
) -> None:
    install(stubborn)
    lm = model()
    config = {"budget": {**limit, "reserve_for_verdict": 0.4}}
    short = {"executor": {"max_tokens": 20}, "updater": {"max_tokens": 20}}
    run = learn(tmp_path, "theirs", lm, config=config, roles=short)
    assert run.ended == "budget" and run.stop is not None
    assert run.spent.calls <= limit.get("calls", 9999)
    assert run.spent.tokens <= limit.get("tokens", 9999)
    assert total(run) == len(lm.history)
    assert [*run.rows] == ["present", "theirs"], "the verdict is made from what was kept back"
    prompt = run.rows["theirs"].prompt
    assert prompt is not None and "at level" in prompt


def test_its_best_is_the_first_of_best_mean_among_the_most_measured(
    tmp_path: Path, install: Any
) -> None:
    """What a library that was stopped leaves: neither the first nor the last that it measured, nor
    one that did well on few examples."""
    found: list[Mapping[str, str]] = []

    def measure(outside: Outside) -> Mapping[str, str]:
        found.append(outside.best)
        outside.roll_out(LEVEL[6], outside.val[:1])
        for level in (2, 5, 3):
            outside.roll_out(LEVEL[level], outside.val)
            found.append(outside.best)
        outside.roll_out({WHOLE: f"{LEVEL[5][WHOLE]} "}, outside.val)
        found.append(outside.best)
        return outside.best

    install(measure)
    learn(tmp_path, "theirs", model())
    assert found[1:] == [LEVEL[2], LEVEL[5], LEVEL[5], LEVEL[5]]
    assert found[0] not in LEVEL.values(), "what the user has today"


def test_a_run_stopped_anywhere_goes_the_same_way(tmp_path: Path, install: Any) -> None:
    install(climb)
    whole = learn(tmp_path, "theirs", name="whole")
    lm = model()
    kept = {"name": "part", "config": {"budget": {"reserve_for_verdict": 0.3}}}
    part = learn(tmp_path, "theirs", lm, budget="60calls", **kept)
    prompts = [part.rows["theirs"].prompt]
    for calls in (110, 190):
        assert part.ended == "budget" and [*part.rows] == ["present", "theirs"]
        again = {"resume": part.id, "budget": f"{calls}calls"}
        part = learn(tmp_path, "theirs", lm, **kept, **again)
        prompts.append(part.rows["theirs"].prompt)
    assert len(set(prompts)) == 3, "each verdict is of the best so far"
    rest = learn(tmp_path, "theirs", lm, **kept, resume=part.id, budget="999calls")
    assert rest.ended == "finished" and rest.rows["theirs"].gain == whole.rows["theirs"].gain
    assert "This is look 4 at the same test split" in rest.verdict
    with closing(RunStore.open(rest.path)) as store:
        judged = [evaluation.name for evaluation in store.test_evaluations()]
    assert judged == ["present", "theirs"], "of what was judged on the way nothing is left"
    keys = [(r.messages, r.sample, r.sampling) for r in lm.history]
    assert len(keys) == len({str(key) for key in keys}), "nothing is paid for twice"


def test_an_interrupt_ends_it_at_once_and_it_goes_on(tmp_path: Path, install: Any) -> None:
    install(stubborn)
    before = model()
    opened: list[Session] = []

    def interrupt(event: ProgressEvent) -> None:
        if len(before.history) >= 20 and isinstance(event, Phase):
            opened[0].interrupt()

    config = load_config({**QUICK, "optimizer": "theirs"})
    sources, where = Sources(data=data(), reward=reward, lm=before), Where(tmp_path / "runs")
    opened.append(open_run(config, sources, replace(where, command=IN_PYTHON), interrupt))
    with pytest.raises(Interrupted):
        run_sync(finish(opened[0]))
    assert len(before.history) < 60
    install(climb)
    after = model()
    run = learn(tmp_path, "theirs", after, resume="last")
    whole = learn(tmp_path, "theirs", name="whole")
    assert run.verdict == whole.verdict
    assert len(before.history) + len(after.history) == total(run) == total(whole)


def test_a_library_that_fails_is_a_row_that_says_how(tmp_path: Path, install: Any) -> None:
    def fails(outside: Outside) -> Mapping[str, str]:
        climb(outside)
        raise ValueError("no field `answer` in\n the reply")

    install(fails)
    run = learn(tmp_path, "theirs", config={"init": {"prompt": "Be brief."}})
    assert run.ended == "finished"
    assert run.rows["theirs"].prompt == run.rows["present"].prompt == "Be brief."
    message = "theirs 1.0 failed with ValueError: no field `answer` in the reply"
    assert f"{message} The prompt that it started from is used instead." in run.verdict


async def test_of_private_data_no_error_is_quoted(tmp_path: Path, install: Any) -> None:
    def fails(outside: Outside) -> Mapping[str, str]:
        raise ValueError(f"cannot parse: {outside.train[0].input}")

    install(fails)
    heard = list[str]()
    config = load_config({**QUICK, "optimizer": "theirs", "task": "secret", "lm": "own"})
    opened = open_run(config, Sources(lm=model()), Where(tmp_path / "runs"), notes_to(heard))
    run = await finish(opened)
    told = "theirs 1.0 failed with ValueError: its message is withheld, since the data is private"
    assert told in run.verdict and any(told in text for text in heard)
    assert not any("what are" in text for text in (run.verdict, *heard))


def test_replies_that_were_cut_are_counted_and_handed_on(tmp_path: Path, install: Any) -> None:
    got: list[str] = []

    def asks(outside: Outside) -> Mapping[str, str]:
        for text in ("One?", "Two?", "Three?"):
            got.append(outside.ask([Message("user", text)]))
        return LEVEL[1]

    def replies(request: Request) -> str | pco.Reply:
        if request.messages[-1].content == "Two?":
            return pco.Reply("Give the", finish="length")
        return "no idea"

    install(asks)
    run = learn(tmp_path, "theirs", ScriptedLM().reply_with(replies))
    assert got == ["no idea", "Give the", "no idea"]
    cut = "1 of the 3 replies it asked for were cut at their length cap: raise roles.updater"
    assert cut in run.verdict and run.tallies["truncated"] == 1


async def clumsy(prompt: str, example: pco.Example, lm: pco.Chat) -> str:
    if "level 3" in prompt and " rivers " in example.input:
        raise RuntimeError("dropped it")
    return (await lm(example.input, system=prompt)).text


def test_a_failed_rollout_earns_the_least_and_is_counted(tmp_path: Path, install: Any) -> None:
    seen: list[tuple[float, str]] = []

    def one(outside: Outside) -> Mapping[str, str]:
        for rollout in outside.roll_out(LEVEL[3], outside.train):
            if rollout.failure is not None:
                seen.append((outside.reward(rollout), rollout.failure.message))
        return LEVEL[3]

    install(one)
    notes, signed = list[str](), {"reward_range": (-1.0, 1.0)}
    run = learn(tmp_path, "theirs", executor=clumsy, config=signed, listener=notes_to(notes))
    assert seen and set(seen) == {(-1.0, "dropped it")}
    assert f"in 16 rollouts, {len(seen)} of which failed" in run.verdict
    assert any("a rollout failed at execute: RuntimeError: dropped it" in n for n in notes)


async def broken(prompt: str, example: pco.Example, lm: pco.Chat) -> str:
    raise RuntimeError("dropped it")


def test_more_than_half_failing_ends_the_run(tmp_path: Path, install: Any) -> None:
    install(stubborn)
    with pytest.raises(TooManyFailures, match="dropped it") as caught:
        learn(tmp_path, "theirs", executor=broken)
    assert caught.value.traces


def test_a_model_that_goes_away_ends_the_run_and_a_refused_request_is_the_library_s(
    tmp_path: Path, install: Any
) -> None:
    refused: list[str] = []

    def asks(outside: Outside) -> Mapping[str, str]:
        for text in ("much too long", "nonsense"):
            try:
                outside.ask([Message("user", text)])
            except (RequestRefused, ParseError) as error:
                refused.append(str(error))
        outside.ask([Message("user", "short")])
        return LEVEL[2]

    def replies(request: Request) -> str | Exception:
        if request.role != "updater":
            return "no idea"
        own = {"much too long": RequestRefused("over"), "nonsense": ParseError("no sense")}
        return own.get(request.messages[-1].content, EndpointDown("nothing answers"))

    install(asks)
    with pytest.raises(EndpointDown, match="nothing answers"):
        learn(tmp_path, "theirs", ScriptedLM().reply_with(replies))
    assert refused == ["over", "no sense"]
    run = learn(tmp_path, "theirs", resume="last")
    assert run.ended == "finished" and run.rows["theirs"].prompt == LEVEL[2][WHOLE]


def test_its_other_threads_ask_nobody_once_it_has_ended(tmp_path: Path, install: Any) -> None:
    ended, late = threading.Event(), threading.Event()
    pool = ThreadPoolExecutor(2)

    def leaves_work_behind(outside: Outside) -> Mapping[str, str]:
        def ask_late() -> None:
            ended.wait(60)
            try:
                outside.roll_out(LEVEL[5], outside.train)
            finally:
                late.set()

        pool.submit(ask_late)
        outside.roll_out(LEVEL[1], outside.val)
        return LEVEL[1]

    install(leaves_work_behind)
    lm = model()
    run = learn(tmp_path, "theirs", lm)
    before = len(lm.history)
    ended.set()
    assert late.wait(60) and len(lm.history) == before == total(run)
    pool.shutdown()


# An optimizer of somebody else: named in the configuration, judged and metered like ours.

MODULE = HERE.joinpath("asks_optimizer.txt").read_text()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    install_package(folder, "theirs", "[promptcodebook.optimizers]\nasks = theirs_optimizer:Asks\n")
    (folder / "theirs_optimizer.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize(("name", "source", "message"), [
    ("unmet", f"{MODULE}\nimport not_there\n", "ModuleNotFoundError: .*'not_there'"),
    (
        "untitled",
        MODULE.replace('    table = "asking"\n', ""),
        'AskSettings needs a line table = "',
    ),
])  # fmt: skip
def test_one_that_cannot_be_loaded_says_which_package_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str, message: str
) -> None:
    """Also where its own table is set, which is unknown without it."""
    entry = f"[promptcodebook.optimizers]\n{name} = {name}_optimizer:Asks\n"
    install_package(tmp_path, name, entry)
    (tmp_path / f"{name}_optimizer.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    message = f"optimizer {name!r}: {name}_optimizer:Asks cannot be loaded: .*{message}"
    with pytest.raises(ConfigError, match=message):
        make_optimizer(name)
    with pytest.raises(ConfigError, match=message) as error:
        load_config({"optimizer": name, "asking": {"tries": 2}})
    assert error.value.hint == f"fix or reinstall the package {name}"


@pytest.mark.usefixtures("installed")
def test_it_runs_through_the_same_models_store_and_verdict(tmp_path: Path) -> None:
    run = train(tmp_path, config={"optimizer": "asks"})
    assert run.ended == "finished"
    assert run.conclusion is not None
    assert [row.name for row in run.conclusion.rows] == ["present", "asked"]
    assert run.usage["updater"].calls == 1 and run.usage["executor"].calls > 0
    with pytest.raises(pco.PcoError, match="this run has no policy"):
        _ = run.policy
    with closing(RunStore.open(run.path)) as store:
        assert store.outline().ended == "finished"
        assert {e.name for e in store.test_evaluations()} == {"present", "asked"}
    with pytest.raises(ConfigError, match=r"unknown optimizer 'pcoo'.*did you mean 'pco'") as error:
        make_optimizer("pcoo")
    assert error.value.hint.startswith("optimizer = one of asks, best_single, concat")


@pytest.mark.usefixtures("installed")
def test_it_brings_settings_that_are_keys_like_ours(tmp_path: Path) -> None:
    asked = {"request": "Write ten words."}
    run = train(tmp_path, config={"optimizer": "asks", "asking": asked})
    with closing(RunStore.open(run.path)) as store:
        assert store.header.settings["asking"] == {**asked, "tries": 1}
    assert "asking" in training_keys()
    (key,) = (key for key in describe() if key.key == "asking.request")
    assert (key.text, describe_group("asking")) == (
        "The request to the updater.", "What is asked for.",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"unknown key 'asking.reqest'.*did you mean 'request'"):
        load_config({"asking": {"reqest": "x"}})
    with pytest.raises(ConfigError, match=r"asking.tries must be .* not 'often'"):
        load_config({"asking": {"tries": "often"}})
    over = load_config({"asking": asked}, load_config({}).model_dump())
    assert over.model_dump()["asking"]["request"] == "Write ten words."
    with pytest.raises(pco.PcoError, match="there is nothing to resume") as refused:
        train(tmp_path, resume=run.id, config={"optimizer": "asks", "asking": asked})
    assert "'asking': {'tries': MORE}" in refused.value.hint
