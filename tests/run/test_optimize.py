"""The Python contract, end to end on the simulated model: data + reward -> a policy; and a run as
data frames."""

import asyncio
import copy
import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.calls import Usage
from promptcodebook.errors import ConfigError, MissingExtra
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import state_at
from promptcodebook.run.frames import ROLLOUTS
from promptcodebook.store.run import RunStore
from tests.build.cases import table
from tests.build.optimize import QUICK, Flaky, data, reward, train
from tests.build.store import edit_header, steps_of


def test_a_run_gives_a_policy_a_verdict_and_a_bill(tmp_path: Path) -> None:
    run = train(tmp_path, size=16, select=4, seed=1)
    assert run.ended == "finished"
    assert run.verdict.startswith("On the simulated model:")
    assert run.best.score is not None and 0.0 <= run.best.score <= 1.0
    assert len(run.codebook) == 16
    assert run.cost == 0.0  # the simulated model is free, and says so
    assert run.usage["executor"].calls > 0
    explained = run.explain("In 4 words: what are rivers good for?")
    assert len(explained.route.indices) == 4 and explained.prompt


def test_a_run_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = pco.optimize(data(), reward, "simulated", config=QUICK, budget="40calls")
    monkeypatch.chdir("/")
    assert run.path == tmp_path / "runs" / run.id
    RunStore.open(run.path).close()


def test_a_run_that_is_begun_no_longer_needs_the_file_it_began_from(
    whole: pco.Run, tmp_path: Path
) -> None:
    file = tmp_path / "earlier.json"
    whole.policy.save(file)
    config = {"init": {"kind": "file", "path": str(file)}}
    part = train(tmp_path, config=config, budget="60calls")
    file.unlink()
    rest = train(tmp_path, config=config, resume=part.id, budget="9999calls")
    assert (part.ended, rest.ended) == ("budget", "finished")


def test_a_run_goes_on_from_a_whole_policy_of_another(whole: pco.Run, tmp_path: Path) -> None:
    """θ, φ, texts and what is known of each: `init.kind = file` starts where the other ended."""
    file = whole.policy.file
    file.save(tmp_path / "policy.json")
    given = {"kind": "file", "path": str(tmp_path / "policy.json")}
    one = {"update": {"epochs": 1, "batch_size": 6}, "init": given}
    run = train(tmp_path, "two", config=one)
    with closing(RunStore.open(run.path)) as store:
        begun, first = store.started(), state_at(store, -1)
        step = store.step_at(0)
    assert (begun.parameters.encoder, begun.parameters.generator) == (file.encoder, file.generator)
    assert begun.parameters.codebook == file.parameters.codebook
    assert first.statistics == begun.statistics == file.statistics
    assert sum(step.selected) == sum(file.statistics.selected) + 6 * 4


def rewrites(run: pco.Run) -> list[tuple[int, str, bool]]:
    return [(s.index, r.origin, r.kept) for s in steps_of(run.path) for r in s.rewrites]


def test_a_saved_policy_loads_and_answers_like_the_run(whole: pco.Run, tmp_path: Path) -> None:
    run = whole
    file = tmp_path / "small.pco.json"
    run.policy.save(file)
    x = "In 5 words: what are maps good for?"
    # The world of a loaded policy's simulated model knows no data: only prompts can be compared.
    loaded = pco.load_policy(file, lm="simulated")
    assert loaded.prompt(x) == run.policy.prompt(x)
    assert loaded.prompt({"question": x}) == loaded.prompt(x)
    saved, own = read_policy_file(file), read_policy_file(run.path / "policy.json")
    assert saved.digest == own.digest
    assert saved.about == {
        **own.about,
        "run": run.id,
        "version": pco.__version__,
        "score": run.best.score,
        "verdict": "Undecided",
    }


async def test_it_works_inside_a_running_loop_and_as_a_coroutine(tmp_path: Path) -> None:
    run = await pco.aoptimize(data(), reward, "simulated", config=QUICK, runs_dir=tmp_path / "a")
    prompt = await run.policy.aprompt("In 5 words: what are maps good for?")
    await run.policy.aclose()
    inside = train(tmp_path, "b")  # the sync face, called where a loop is running (a notebook)
    assert await inside is inside  # by habit
    assert inside.policy.prompt("In 5 words: what are maps good for?") == prompt
    assert len(asyncio.all_tasks()) == 1


def test_a_reached_budget_is_resumable_and_ends_at_the_same_bytes(
    whole: pco.Run, tmp_path: Path
) -> None:
    spent = sum(u.calls for u in whole.usage.values())
    part = train(tmp_path, "part", budget=f"{spent // 2}calls")
    assert part.ended == "budget" and part.stop is not None
    judging = sum(u.calls for u in part.usage.values())
    assert judging <= spent // 2
    assert part.stop.hint == f"optimize(..., resume='{part.id}', budget=MORE)"
    rest = train(tmp_path, "part", resume=part.id, budget=f"{9 * spent}calls")
    assert rest.ended == "finished"
    assert (rest.path / "policy.json").read_bytes() == (whole.path / "policy.json").read_bytes()
    assert rest.verdict == whole.verdict
    # Nothing was paid for twice; judging what there was at the stop comes on top.
    assert spent <= sum(u.calls for u in rest.usage.values()) <= spent + judging


def test_a_run_is_found_and_resumed_by_its_name_which_it_keeps(tmp_path: Path) -> None:
    part = train(tmp_path, name_it="tickets", budget="40calls")
    assert part.name == "tickets"
    with pytest.raises(pco.PcoError, match="not started under the name 'other'"):
        train(tmp_path, resume="tickets", name_it="other")
    rest = train(tmp_path, resume="tickets")
    assert (rest.id, rest.name, rest.ended) == (part.id, "tickets", "finished")


def test_a_reward_that_fails_now_and_then_is_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    def brittle(example: pco.Example, output: str) -> float:
        if "bread" in example.input:
            raise KeyError("no such topic")
        return float((example.target or "") in output)

    run = pco.optimize(data(), brittle, "simulated", config=QUICK, runs_dir=tmp_path / "runs")
    assert run.ended == "finished"
    assert run.conclusion is not None
    assert any(row.failed for row in run.conclusion.rows)


@pytest.mark.parametrize(("name", "value"), table(__file__, "wrong_types"))
def test_an_argument_of_the_wrong_type_is_named_before_anything_is_paid(
    tmp_path: Path, name: str, value: Any
) -> None:
    given = {"data": data(), "reward": reward, "lm": "simulated", "runs_dir": tmp_path / "runs"}
    with pytest.raises(pco.PcoError, match=name) as caught:
        pco.optimize(**{**given, name: value})
    assert caught.value.hint  # type: ignore[attr-defined]
    assert not (tmp_path / "runs").exists()


def test_what_training_took_is_told_from_what_judging_took(tmp_path: Path) -> None:
    """Rows that prompt alike ask alike, and an equal request is paid once: a sum of rows says more
    than judging took."""
    still = {"update": {"epochs": 1, "batch_size": 4, "text_updates": False}}
    run = train(tmp_path, "still", config=still)
    store = RunStore.open(run.path)
    trained, rows = store.trained(), list(store.test_evaluations())
    whole = sum(run.usage.values(), Usage())
    store.close()
    judged = sum((row.usage for row in rows), Usage())
    assert trained is not None and 0 < trained.calls < whole.calls
    assert whole.calls - judged.calls < trained.calls, "a sum of rows counts some calls twice"


LETTERS = "ABCD"


def tutored(request: pco.Request) -> str:
    """Says what it is told, and is taught it: each input wants a letter, and its instinct (the one
    whose index the encoder names beside the last one's) is blamed by the letter alone."""
    text = "\n".join(m.content for m in request.messages)
    asked = re.findall(r"wants ([A-D])", text)
    wanted = asked[-1] if asked else ""
    match request.role:
        case "encoder":
            route = [LETTERS.index(wanted), 4]
            return json.dumps({"constraints": [], "selected_indices": route, "analysis": ""})
        case "executor":
            found = re.findall(r"say ([A-D])", text)
            return found[0] if found else "?"
        case "critic":
            return json.dumps({"score": 0.25, "feedback": f"it should say {wanted}"})
        case "attribution":
            [lacking] = re.findall(r"it should say ([A-D])", text)
            return json.dumps({"instinct_errors": {str(LETTERS.index(lacking)): f"say {lacking}"}})
        case _:
            told = set(re.findall(r"say ([A-D])", text))
            return f"Always say {'&'.join(sorted(told))} here."


def test_each_instinct_learns_what_its_own_examples_lacked(tmp_path: Path) -> None:
    """From the first call to the policy file: who is blamed for something else, or by another
    example's feedback, would end with another text; r̄ follows from r and the critic's score."""
    splits = [
        tuple(
            pco.Example(f"{name}{i}", f"{name} {i} wants {LETTERS[i % 4]}", LETTERS[i % 4])
            for i in range(8)
        )
        for name in ("train", "val", "test")
    ]
    first = [f"Be {how}." for how in ("kind", "brief", "calm", "clear", "fair")]
    config = {
        "preset": "full",
        "size": 5,
        "select": 2,
        "compose": "verbatim",
        "init": {"instincts": first},
        "explore": {"policy": "none", "alpha": 0.5},
        "critic": {"trainable": False, "safety": False},
        "update": {"epochs": 1, "batch_size": 8},
        "validation": {"every": 1},
    }
    lm = pco.ScriptedLM().reply_with(tutored)
    right = pco.rewards.exact()
    run = pco.optimize(pco.Dataset(*splits), right, lm, config=config, runs_dir=tmp_path)
    texts = [instinct.text for instinct in run.codebook]
    assert texts == [*(f"Always say {letter} here." for letter in LETTERS), first[-1]]
    assert run.rows["learned"].score.mean == 1.0 and run.rows["untrained"].score.mean == 0.0
    assert run.cost is None, "an LM of the user's own has no known price"
    low, often = -0.75 * (1 - 0.5**2), -0.75 * (1 - 0.5**8)
    assert run.policy.file.statistics.ema == pytest.approx((low, low, low, low, often))


# --- a run as a data frame ---
@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    return train(tmp_path_factory.mktemp("framed"), size=8, select=3)


def test_the_rollouts_are_those_of_training_validation_and_the_verdict(run: pco.Run) -> None:
    shown = f"best={run.best.score:.3f}, worth={run.worth})"
    assert repr(run) == f"Run({run.id!r}, ended='finished', {shown}"
    assert repr(run.policy) == "Policy(K=8, S=3, lm='simulated')"
    assert repr(data()) == "Dataset('data': 16 train, 8 val, 8 test)"
    pytest.importorskip("pandas")
    rollouts = run.rollouts
    assert tuple(rollouts.columns) == ROLLOUTS
    test = rollouts[rollouts["split"] == "test"]
    assert set(test["row"]) == set(run.rows)
    for name, row in run.rows.items():
        assert test[test["row"] == name]["reward"].mean() == pytest.approx(row.score.mean)
    training = rollouts[rollouts["split"] == "train"]
    assert len(training) == len(training["route"].dropna()) and set(training["row"]) == {""}
    assert training["critic"].notna().any() and (training["prompt"].str.len() > 0).all()
    assert set(rollouts["split"]) == {"train", "val", "test"}


def test_texts_of_private_data_are_left_out(run: pco.Run, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    copy = tmp_path / run.id
    shutil.copytree(run.path, copy)
    edit_header(
        copy / "run.sqlite", lambda text: text.replace('"private": false', '"private": true')
    )
    rollouts = pco.load_run(copy).rollouts
    assert len(rollouts) == len(run.rollouts) and rollouts["reward"].notna().any()
    for name in ("prompt", "output", "feedback", "critique", "failure"):
        assert rollouts[name].isna().all(), name


def test_without_pandas_the_error_says_what_to_install(
    run: pco.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"run\.rollouts") as caught:
        _ = run.rollouts
    assert "pip install 'promptcodebook[pandas]'" in caught.value.hint


@pytest.mark.parametrize("make", [lambda run: run, lambda run: run.policy])
def test_what_cannot_be_pickled_says_why_and_what_to_use(
    run: pco.Run, make: Callable[[pco.Run], Any]
) -> None:
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot be pickled, as it holds .*pco\.load_"):
            copied(make(run))


@pytest.mark.parametrize("place", ["executor", "reward", "lm"])
async def test_a_client_of_another_loop_is_told_apart_with_what_to_type(
    tmp_path: Path, place: str
) -> None:
    """As in a notebook, whose loop made the client; there `aoptimize` works."""
    loop, model = asyncio.get_running_loop(), Flaky(10**6)

    async def used(*asked: Any) -> Any:
        answer = loop.create_future()
        loop.call_soon(answer.set_result, 1.0)
        await answer
        return await model(*asked) if place == "lm" else 0.5 if place == "reward" else "an answer"

    async def executor(prompt: str, example: Any, lm: Any) -> str:
        return await used()

    async def judged(example: Any, output: str) -> float:
        return await used()

    places = {"executor": executor, "reward": judged, "lm": used}
    given = {"reward": reward, "lm": Flaky(10**6), place: places[place]}
    given |= {"config": {"preset": "quick"}, "runs_dir": tmp_path, "progress": False}
    with pytest.raises(pco.PcoError) as caught:
        pco.optimize(data(), **given)
    assert "await pco.aoptimize(...)" in caught.value.hint
    assert (await pco.aoptimize(data(), **given)).ended == "finished"


def test_a_reward_or_an_agent_that_a_task_would_replace_is_refused(tmp_path: Path) -> None:
    async def agent(prompt: str, example: pco.Example, lm: pco.Chat) -> str:
        return ""

    config = {**QUICK, "task": "constraints"}
    for given in ({"reward": reward}, {"executor": agent}):
        (name,) = given
        message = f"constraints is a ready-made task with its own {name}"
        own = {"reward": "", **given}
        with pytest.raises(ConfigError, match=message):
            pco.optimize(None, lm="simulated", config=config, runs_dir=tmp_path, **own)  # type: ignore[arg-type]
        assert not any(tmp_path.iterdir())
        with pytest.raises(ConfigError, match=message):
            pco.estimate(None, lm="simulated", config=config, **own)  # type: ignore[arg-type]
    run = pco.optimize(None, "", "simulated", config=config, runs_dir=tmp_path, budget="60calls")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="with its own reward"):
        pco.evaluate(run, reward=reward, runs_dir=tmp_path)
    assert pco.evaluate(run, n=2).score.n == 2
