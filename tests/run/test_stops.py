"""What ends a run early, and the trial of the reward before it begins."""

import asyncio
import json
import logging
import math
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.assemble import RewardTrial, Sources, plan_run, try_reward
from promptcodebook.base.sqlite import Packer, unpack
from promptcodebook.base.units import plural
from promptcodebook.calls import Reply, Request, Usage
from promptcodebook.config import load_config
from promptcodebook.errors import (
    BudgetReached,
    CallTimeout,
    ConfigError,
    DataError,
    TooManyFailures,
)
from promptcodebook.policy.file import read_policy_file
from promptcodebook.progress import Listener, Note, ProgressEvent, StepDone
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import finish
from promptcodebook.store.events import Compared, Stepped, Validated
from promptcodebook.store.run import RunStore
from tests.build.cli import pco as pco_command
from tests.build.method import talkative
from tests.build.optimize import QUICK, Flaky, data, reward, train
from tests.build.store import judged_in, steps_of


async def careless(prompt: str, example: pco.Example, lm: pco.Chat) -> str:
    """An agent that, as agents do, answers something whatever happens."""
    try:
        return (await lm(example.input, system=prompt)).text
    except Exception:
        return "sorry, something went wrong"


def total(run: pco.Run) -> int:
    return sum(u.calls for u in run.usage.values())


@pytest.mark.slow
def test_an_agent_that_swallows_errors_does_not_turn_a_stop_into_rewards(tmp_path: Path) -> None:
    whole = train(tmp_path, "whole", executor=careless)
    part = train(tmp_path, "part", executor=careless, budget="8calls")
    for calls in range(8 + 45, total(whole), 90):
        assert part.ended == "budget"
        part = train(tmp_path, "part", executor=careless, resume=part.id, budget=f"{calls}calls")
    rest = train(tmp_path, "part", executor=careless, resume=part.id, budget="9999calls")
    assert rest.ended == "finished"
    assert (rest.path / "policy.json").read_bytes() == (whole.path / "policy.json").read_bytes()
    assert figures(rest) == figures(whole)


def figures(run: pco.Run) -> list[Any]:
    """What a verdict rests on, and what it recommends."""
    rows = [(row.name, row.score, row.gain, row.over) for row in run.rows.values()]
    return [run.worth, run.deploy, *rows]


def damage(blob: bytes) -> bytes:
    return blob[:15] + bytes([blob[15] ^ 8]) + blob[16:]


def break_off(blob: bytes) -> bytes:
    """The reply as earlier versions kept one that its server broke off."""
    text, _, *rest = unpack(blob)
    return Packer().pack((text[:5], "other", *rest))


@pytest.mark.parametrize("spoil", [damage, break_off])
def test_a_reply_that_cannot_be_used_costs_one_call_and_not_the_run(
    whole: pco.Run, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    # Without a reserve the last reply is one of the interrupted step's, which reads it again.
    none_kept = {"budget": {"calls": 40, "reserve_for_verdict": 0.0}}
    part = train(tmp_path, "part", config=none_kept)
    with closing(sqlite3.connect(part.path / "run.sqlite")) as db:
        key, blob = db.execute("SELECT id, reply FROM journal ORDER BY id DESC").fetchone()
        db.execute("UPDATE journal SET reply = ? WHERE id = ?", (spoil(blob), key))
        db.commit()
    rest = train(tmp_path, "part", resume=part.id, budget="9999calls")
    assert rest.ended == "finished"
    assert (rest.path / "policy.json").read_bytes() == (whole.path / "policy.json").read_bytes()
    store = RunStore.open(rest.path)
    assert store.tallies()["journal_damaged"] == 1
    store.close()
    assert total(rest) == total(whole) + 1


def noting() -> tuple[list[str], Listener]:
    """A listener and the notes that it has heard."""
    notes: list[str] = []

    def hear(event: ProgressEvent) -> None:
        notes.extend([event.text] if isinstance(event, Note) else [])

    return notes, hear


def run_with(lm: Flaky, tmp_path: Path, resume: str = "") -> pco.Run:
    return pco.optimize(data(), reward, lm, config=QUICK, runs_dir=tmp_path, resume=resume)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    return run_with(Flaky(10**6), tmp_path_factory.mktemp("answered"))


@pytest.mark.parametrize("kind", [pco.errors.ModelNotFound, pco.errors.ConfigError])
def test_a_wrong_model_is_no_reason_to_resume(tmp_path: Path, kind: type[pco.PcoError]) -> None:
    async def lm(request: object) -> pco.Reply:
        raise kind("which model?", hint="add #MODEL")

    with pytest.raises(TooManyFailures) as caught:
        pco.optimize(data(), reward, lm, config=QUICK, runs_dir=tmp_path)
    assert caught.value.hint == "add #MODEL; then start a new run"


@pytest.mark.parametrize("calls", [0, 60, 130])
def test_a_model_that_goes_away_leaves_a_run_with_its_policy_that_can_be_resumed(
    answered: pco.Run, tmp_path: Path, calls: int
) -> None:
    """The error has the run; no broken evaluation is on record."""
    with pytest.raises(TooManyFailures, match="nothing answers") as caught:
        run_with(Flaky(calls), tmp_path)
    run = caught.value.run
    resume = f"start it again; then continue with: optimize(..., resume='{run.path.name}')"
    assert f"{resume} (at another address: {resume[36:-1]}, lm=NEW); " in caught.value.hint
    done = judged_in(run.path)
    rows = f" (judged so far: {', '.join(done)})" if done else ""
    assert run.ended == "failed" and run.worth is None and not run.rows
    after = f"after {plural(len(steps_of(run.path)), 'update')} (TooManyFailures){rows}."
    assert run.verdict == f"No verdict: the run failed {after}"
    assert run.spent.calls >= calls and run.spent.cost == run.cost
    with closing(RunStore.open(run.path)) as store:
        stored = store.outline()
    assert (stored.missing, stored.hint) == (run.verdict, caught.value.hint)
    shown = pco_command("runs", "show", str(run.path), cwd=tmp_path)
    assert run.verdict in " ".join(shown.out.split())
    assert f"resume={run.id!r}" in shown.out
    (report := tmp_path / "r.html").write_text("")
    pco_command("report", str(run.path), "-o", str(report), cwd=tmp_path)
    assert f"(TooManyFailures){rows}." in report.read_text("utf-8")
    assert read_policy_file(run.path / "policy.json").parameters.codebook == run.codebook

    rest = run_with(Flaky(10**6), tmp_path, resume=run.id)
    assert rest.ended == "finished" and len(rest.rows) == 5
    with closing(RunStore.open(rest.path)) as store:
        assert (store.outline().missing, store.outline().hint) == ("", "")
        recorded = [e.evaluation for e in store.events() if isinstance(e, Validated | Compared)]
    assert {e.name for e in recorded} >= {"step 0", "present", "learned"}
    assert all(e.failed * 2 <= len(e.rollouts) for e in recorded)
    assert (rest.path / "policy.json").read_bytes() == (answered.path / "policy.json").read_bytes()


def test_a_budget_that_ends_before_the_first_codebook_says_so_and_is_resumable(
    tmp_path: Path,
) -> None:
    written = {"init": {"kind": "random"}}
    with pytest.raises(BudgetReached, match="0 calls") as caught:
        train(tmp_path, budget="0calls", config=written)
    run = caught.value.run
    assert (run.ended, run.cost) == ("budget", 0.0) and "resume" in caught.value.hint
    assert run.verdict.startswith("No verdict: the budget is reached: 0 calls")
    part = train(tmp_path, "too small", budget="70calls")
    assert part.ended == "budget" and part.worth is None and part.cost == 0.0
    assert part.verdict.startswith("No verdict: the budget is reached")
    assert read_policy_file(part.path / "policy.json").parameters.codebook == part.codebook
    assert train(tmp_path, resume="last", config=written).ended == "finished"


def test_a_resumed_run_tells_once_what_was_in_flight_at_a_kill(tmp_path: Path) -> None:
    part = train(tmp_path, budget="60calls")
    store = RunStore.open(part.path, write=True)
    store.journal.attempts.begin("critic", Usage(1, 8000, 4000, 0, 0.0))
    store.journal.attempts.begin("executor", Usage(1, 300, 100, 0, 0.0))
    store.close()

    def notes(budget: str) -> list[str]:
        heard, hear = noting()
        train(tmp_path, resume=part.id, budget=budget, listener=hear)
        return [text for text in heard if "killed" in text]

    told = "the last session was killed with calls in flight; "
    assert notes("80calls") == [told + "lost to failures: 2 calls, up to 12.4k tokens"]
    assert notes("9999calls") == []


LONG: dict[str, Any] = {
    "budget": "700calls",
    "config": {
        "update": {"epochs": 40, "batch_size": 6},
        "validation": {"every": 4, "subset": 3, "patience": 99, "finalists": 1},
    },
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    return train(tmp_path_factory.mktemp("limited"), **LONG)


def test_a_reached_budget_leaves_room_for_its_verdict(limited: pco.Run) -> None:
    """Training stops when only what choosing and judging take is left."""
    run = limited
    assert run.ended == "budget" and run.stop is not None
    assert total(run) <= 700
    assert run.rows.keys() == set(judged_in(run.path))
    assert len(run.rows) == 5 and run.verdict and run.cost == 0.0
    assert read_policy_file(run.path / "policy.json").parameters.codebook == run.codebook
    assert "reserved for the verdict" in str(run.stop)
    with closing(RunStore.open(run.path)) as store:
        assert store.outline().missing == "", "there is a verdict"

    again = train(run.path.parents[1], resume=run.id, **LONG)
    assert (again.ended, again.verdict, total(again)) == ("budget", run.verdict, total(run))


@pytest.mark.parametrize(("calls", "every", "samples", "kept"), [
    *((300, 0, 1, 60), (1000, 0, 1, 171), (37, 0, 1, 7)),
    pytest.param(1150, 4, 1, 224, marks=pytest.mark.slow),
    pytest.param(3500, 4, 3, 673, marks=pytest.mark.slow),
], ids=["a fifth", "measured", "but a batch", "finalists too", "their means"])  # fmt: skip
def test_what_is_kept_back_is_what_was_measured_and_a_fifth_at_the_most(
    tmp_path: Path, calls: int, every: int, samples: int, kept: int
) -> None:
    """171 = 5 rows of 8 and 4 prompts on 3 inputs, at the 3 calls that a routed answer takes, and a
    tenth more; 224 = the same and two finalists (one of them where training ends between two looks)
    on 8. Of three samples it is three times as much."""
    looks = {"every": every, "subset": 3, "patience": 99, "finalists": 1}
    long = {"update": {"epochs": 400, "batch_size": 6}, "validation": looks}
    notes, hear = noting()
    train(tmp_path, budget=f"{calls}calls", config=long, listener=hear, samples=samples)
    assert any(f" {kept} reserved for the verdict" in note for note in notes), notes


def test_a_run_that_is_resumed_after_its_verdict_is_judged_again(
    whole: pco.Run, tmp_path: Path
) -> None:
    config = {"budget": {"calls": 140, "reserve_for_verdict": 0.7}}
    part = train(tmp_path, "other", config=config)
    assert part.ended == "budget" and len(part.rows) == 5
    rest = train(tmp_path, "other", resume=part.id, budget="9999calls")
    assert rest.ended == "finished" and figures(rest) == figures(whole)
    assert "This is look 2 at the same test split" in rest.verdict and "look" not in part.verdict
    assert (rest.path / "policy.json").read_bytes() == (whole.path / "policy.json").read_bytes()


def test_a_run_that_is_interrupted_leaves_a_policy_and_says_that_nothing_was_judged(
    tmp_path: Path,
) -> None:
    opened = open_run(
        load_config({**QUICK, "lm": "simulated"}),
        Sources(data=data(), reward=reward),
        Where(tmp_path),
        lambda event: opened.interrupt() if isinstance(event, StepDone) else None,
    )
    run = asyncio.run(finish(opened))
    assert run.ended == "interrupted"
    assert run.verdict == "No verdict: interrupted by the user."
    assert (run.path / "policy.json").is_file()


def threads() -> set[threading.Thread]:
    for thread in threading.enumerate():
        if thread.name == "promptcodebook user code":
            thread.join(2)  # without a call it ends by itself
    return {t for t in threading.enumerate() if "promptcodebook" in t.name or "writer" in t.name}


def test_a_run_leaves_no_thread_behind_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = threads()  # of tests before this one, ending by themselves
    monkeypatch.setenv("PCO_CACHE", str(tmp_path / "cache.sqlite"))
    down: dict[str, Any] = {"lm": "http://127.0.0.1:9/v1#m", "config": {"retries": 0}}
    with pytest.raises(TooManyFailures):
        train(tmp_path, **down)
    assert threads() <= earlier
    with pytest.raises(pco.PcoError, match=r"init\.path"):
        train(tmp_path, **{**down, "config": {"init": {"kind": "file", "path": "none.json"}}})
    assert threads() <= earlier
    run = train(tmp_path, lm="http://127.0.0.1:9/v1#m", budget="0calls", config={"retries": 0})
    assert run.ended == "budget"
    assert threads() <= earlier


class Losing(Flaky):
    """Every fortieth answer never comes."""

    async def __call__(self, request: pco.Request) -> pco.Reply:
        if self.left % 40 == 0:
            self.left -= 1
            raise CallTimeout("no answer in time")
        return await super().__call__(request)


def test_what_was_lost_to_failures_is_shown_apart_and_is_in_the_cost(tmp_path: Path) -> None:
    priced = {**QUICK, "prices": {"own": {"prompt": 1e6, "completion": 0.0}}}
    run = pco.optimize(data(), reward, Losing(10**6), config=priced, runs_dir=tmp_path)
    assert run.lost.calls > 0 and run.lost.cost is not None
    answered = sum(run.usage.values(), Usage())
    assert run.cost == pytest.approx((answered.cost or 0.0) + run.lost.cost)
    assert run.spent.calls == answered.calls + run.lost.calls


class Unroutable(Flaky):
    """Answers the encoder's calls with what is no route."""

    async def __call__(self, request: pco.Request) -> pco.Reply:
        if request.role == "encoder":
            return pco.Reply("left, then right", usage=Usage(1, 5, 5))
        return await super().__call__(request)


def fallbacks(path: Path) -> tuple[int, int]:
    """Routes by fallback: those counted, and those in what is stored."""
    rollouts: list[pco.Rollout] = []
    with closing(RunStore.open(path)) as store:
        for event in store.events(full=True):
            if isinstance(event, Stepped):
                rollouts += [trace.rollout for trace in event.step.traces]
            elif isinstance(event, Validated | Compared):
                rollouts += event.evaluation.rollouts
        counted = store.tallies()["route_fallbacks"]
    return counted, sum(r.route is not None and r.route.fallback for r in rollouts)


def test_what_a_stop_interrupts_is_counted_once(tmp_path: Path) -> None:
    """The interrupted step is decided again when the run resumes, whatever was judged meanwhile."""
    resume = ""
    for calls, ended in ((400, "budget"), (10**6, "finished")):
        config = {**QUICK, "budget": {"calls": calls, "reserve_for_verdict": 0.7}}
        lm = Unroutable(10**6)
        run = pco.optimize(data(), reward, lm, config=config, runs_dir=tmp_path, resume=resume)
        resume = run.id
        counted, stored = fallbacks(run.path)
        assert run.ended == ended and run.rows and counted == stored > 0


@pytest.mark.slow
def test_a_resumed_run_keeps_back_for_its_verdict_what_was_measured(
    limited: pco.Run, tmp_path: Path
) -> None:
    """Not a fifth again: it trains as far as the run that was not stopped."""
    assert limited.ended == "budget"
    at = len(steps_of(limited.path)) - 2

    class Killed(Exception):
        pass

    def kill(event: ProgressEvent) -> None:
        if isinstance(event, StepDone) and event.step.index + 1 == at:
            raise Killed

    with pytest.raises(Killed):
        train(tmp_path, listener=kill, **LONG)
    (part,) = tmp_path.glob("runs/*/run.sqlite")
    rest = train(tmp_path, resume=part.parent.name, **LONG)
    assert len(steps_of(rest.path)) == len(steps_of(limited.path))
    assert (rest.path / "policy.json").read_bytes() == (limited.path / "policy.json").read_bytes()
    assert (rest.verdict, total(rest)) == (limited.verdict, total(limited))


# The reward is tried on one example before anything is paid for, and no model is asked for it.

ROWS = [{"input": f"question {n}", "target": f"answer {n}"} for n in range(8)]
NO_REFERENCE = [{"input": f"question {n}"} for n in range(8)]


async def trial(reward: Any, rows: list[dict[str, str]] = ROWS, **more: Any) -> RewardTrial:
    data = pco.load(rows, target="target" if "target" in rows[0] else None)
    ready = {} if callable(reward) else {"reward": reward}
    config = load_config({"lm": "simulated", **ready})
    function = reward if callable(reward) else None
    return await try_reward(plan_run(config, Sources(data=data, reward=function, **more)))


@pytest.mark.parametrize(("reward", "message"), [
    (lambda e, o: None, "returned None for example"),
    (lambda e, o: 1.0 if e.target in o else None, "(<lambda> in "),
    (lambda e, o: "good", "'str'"),
    (lambda e, o: math.nan, "returned nan"),
    (lambda e, o: 5, "outside its range 0..1"),
    (lambda e, o: e.fields["titel"], "KeyError: 'titel'"),
    (lambda e, o: undefined_name, "NameError"),  # type: ignore[name-defined]  # noqa: F821
])  # fmt: skip
async def test_one_that_cannot_be_used_is_refused_with_what_to_do(
    reward: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ConfigError, match="before any paid call") as caught:
        await trial(reward)
    assert message in str(caught.value)
    assert "return 0.0 for an answer that it cannot read" in caught.value.hint


async def test_a_sound_reward_passes_in_silence_and_a_doubtful_one_is_warned_of() -> None:
    tried = await trial(lambda e, o: float(e.target in o))
    assert [score.value for _, score in tried.scores if score] == [1.0, 0.0]
    assert tried.warnings == ()
    [warning] = (await trial(lambda e, o: float(int(o.split()[1]) >= 0))).warnings
    assert "ValueError" in warning and "return 0.0" in warning, "only nonsense makes it raise"
    [warning] = (await trial(lambda e, o: 0.5)).warnings
    assert "gives 0.5 to both the reference and 'Seventeen" in warning
    assert (await trial(lambda e, o: 0.5, NO_REFERENCE)).warnings == ()


LABELS = [{"input": f"question {n}", "target": ("French", "German")[n % 2]} for n in range(16)]


@pytest.mark.parametrize(
    ("rows", "value", "warned"), [(LABELS, 0.0, False), (LABELS, 1.0, True), (ROWS, 0.0, True)]
)
async def test_a_label_need_not_score_since_outputs_are_texts_of_another_kind(
    rows: list[dict[str, str]], value: float, warned: bool
) -> None:
    """A reward may ask in which language an answer is; the label itself is no such answer."""
    assert bool((await trial(lambda e, o: value, rows)).warnings) is warned


async def test_an_agent_s_answers_may_have_a_form_that_the_trial_cannot_guess() -> None:
    async def agent(prompt: str, example: pco.Example, lm: pco.Chat) -> str:
        return json.dumps({"label": "x"})

    [warning] = (
        await trial(lambda e, o: float(json.loads(o)["label"] == e.target), executor=agent)
    ).warnings
    assert "JSONDecodeError" in warning

    def whole(example: pco.Example, output: pco.Output) -> float:
        return float(bool(output.fields["titles"]))

    assert await trial(whole, executor=agent) == RewardTrial()
    with pytest.raises(ConfigError, match="NameError"):
        await trial(lambda e, o: undefined_name, executor=agent)  # type: ignore[name-defined]  # noqa: F821


async def test_ready_made_rewards_are_tried_without_a_model() -> None:
    with pytest.raises(DataError, match="has a reference"):
        await trial("exact", NO_REFERENCE)
    assert (await trial("exact")).warnings == ()
    assert (await trial("json")).warnings == ()  # neither is JSON, and that says nothing
    assert await trial({"kind": "judge", "rubric": "Is it right?"}) == RewardTrial()
    summed = {"kind": "sum", "parts": ["exact", {"kind": "judge", "rubric": "Right?"}]}
    assert await trial(summed) == RewardTrial()


def optimize(tmp_path: Path, reward: Any, **more: Any) -> pco.Run:
    config = {
        "preset": "quick", "update": {"epochs": 1, "batch_size": 2},
        "validation": {"every": 0}, **more.pop("config", {}),
    }  # fmt: skip
    return pco.optimize(
        pco.load(ROWS), reward, more.pop("lm", "simulated"),
        config=config, runs_dir=tmp_path / "runs", **more,
    )  # fmt: skip


def test_a_run_with_a_broken_reward_asks_nobody_and_leaves_nothing_behind(tmp_path: Path) -> None:
    lm = pco.ScriptedLM().reply_with(lambda request: "never")
    with pytest.raises(ConfigError, match="returned None"):
        optimize(tmp_path, lambda e, o: 1.0 if o == "never" else None, lm=lm)
    assert lm.history == []
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("scores", [False, True])
def test_a_reward_that_never_scores_is_told_of_at_once_and_in_the_verdict(
    scores: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"input": f"question {n}", "target": ("a", "b")[n % 2]} for n in range(16)]

    def reward(example: pco.Example, output: str) -> float:
        return float(scores and example.id < "8")

    config = {"preset": "quick", "update": {"epochs": 4}, "validation": {"every": 1}}
    with caplog.at_level(logging.WARNING, "promptcodebook"):
        run = pco.optimize(pco.load(rows), reward, "simulated", config=config, runs_dir=tmp_path)
    assert caplog.text.count("answers all earned 0, so nothing can be learned") == (not scores)
    assert ("No answer in this run scored above the lowest reward" in run.verdict) is not scores


@pytest.mark.parametrize(("answer", "what", "keys"), [
    (Reply("<think>so many", finish="length"), "hit their cap of 77 tokens, ",
     ("raise roles.executor.max_tokens",)),
    (Reply("The answer is", finish="length"), "hit their cap of 77 tokens: ",
     ("raise roles.executor.max_tokens",)),
    (Reply("<think>all of it</think>"), "had no text (only thoughts, or nothing), and 0 hit",
     ("roles.executor.extra", "roles.executor.max_tokens")),
    (Reply(" \n"), "had no text", ("roles.executor.extra",)),
])  # fmt: skip
def test_answers_that_are_cut_or_hold_no_text_are_told_of_with_the_key_to_change(
    answer: Reply,
    what: str,
    keys: tuple[str, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def replies(request: Request) -> Any:
        return answer if request.role == "executor" else talkative(request)

    roles = {"executor": {"max_tokens": 77}}
    config = {"preset": "quick", "update": {"epochs": 4}, "roles": roles}
    rows, lm = pco.load(ROWS * 2), pco.ScriptedLM().reply_with(replies)
    with caplog.at_level(logging.WARNING, "promptcodebook"):
        run = pco.optimize(rows, lambda e, o: 0.0, lm, config=config, runs_dir=tmp_path)
    told = [r.getMessage() for r in caplog.records if "roles.executor" in r.getMessage()]
    assert len(told) == 1 and what in told[0]
    conclusion = run.conclusion
    assert conclusion is not None
    advice = conclusion.headline().lines["next"]
    for text in (told[0], run.verdict, advice):
        assert all(key in text for key in keys), text
    assert "reward" not in run.verdict.partition("Beware:")[2] and "mend" not in advice
    assert "nothing can be learned" not in caplog.text and " answers " in run.verdict


def test_the_trial_can_be_left_out(tmp_path: Path) -> None:
    seen = list[str]()

    def reward(example: pco.Example, output: str) -> float:
        seen.append(output)
        return 1.0

    optimize(tmp_path, reward, config={"user_code": {"trial": False}})
    assert not any("umbrellas" in output for output in seen)


@pytest.mark.parametrize("reward", ["exact", {"kind": "contains", "ignore_case": False}])
def test_a_ready_made_reward_is_stored_so_that_others_can_evaluate(
    tmp_path: Path, reward: Any
) -> None:
    run = optimize(tmp_path, reward, config={"reward": {"kind": "regex", "pattern": "x"}})
    assert run.ended == "finished"
    from promptcodebook.policy.references import resolve

    header = resolve(tmp_path / "runs", run.id).header
    assert header is not None and header.config["reward"] == reward
