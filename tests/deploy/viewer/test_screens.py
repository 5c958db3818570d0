"""What the screens show, read as a browser without eyes would."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from promptcodebook.base.units import number
from promptcodebook.deploy.registry.registry import Facts, open_registry
from promptcodebook.deploy.viewer.codebook import codebook_screen
from promptcodebook.deploy.viewer.examples import compare_screen, example_screen, examples_screen
from promptcodebook.deploy.viewer.following import FollowedRun, run_screen, with_tests
from promptcodebook.deploy.viewer.lists import RunsList
from promptcodebook.deploy.viewer.page import page_of
from promptcodebook.report.context import render_sections
from promptcodebook.report.verdict import JudgedSection
from promptcodebook.run.evaluation import Comparison, Side
from promptcodebook.store.events import Compared, Event, Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation, Failure, Rollout
from tests.build.registry import policy
from tests.build.scripted_run import ScriptedRun, events_of
from tests.build.strict import flat, read_page, require_approved
from tests.build.viewer import ATTACK, Get, make_log, shown

OF_A_RUN = (
    "",
    "/codebook",
    "/codebook/2",
    "/codebook/encoder",
    "/codebook/critic",
    "/examples",
    "/example/train-3-1",
    "/example/train-3-1/4",
    "/example/test-5/test",
)


def test_every_screen_says_word_for_word_what_was_approved(get: Get, keys: dict[str, str]) -> None:
    """Marks on what is simulated, figures with their n, versions with what they earned, an example
    in the order of its story. A person approves a change of words: nothing here computes them."""
    approved = Path(__file__).with_name("approved")
    require_approved(approved / "runs.txt", get("/").text)
    compared = get(f"/compare?run={keys['simulated']}&run={keys['real']}").text
    require_approved(approved / "compare.txt", compared)
    for path in OF_A_RUN:
        base = approved / f"simulated{path.replace('/', '-')}.txt"
        require_approved(base, get(f"/run/{keys['simulated']}{path}").text)
        real = approved / f"real{path.replace('/', '-')}.txt"
        require_approved(real, get(f"/run/{keys['real']}{path}").text, beyond=base)


def test_a_folder_without_runs_says_what_to_type(tmp_path: Path) -> None:
    assert "pco train" in RunsList(tmp_path).screen().body


@pytest.mark.parametrize("name", ["", "tidy"])
def test_a_run_is_called_by_its_name_where_it_has_one(
    follow: Callable[..., FollowedRun], name: str
) -> None:
    followed = follow(ScriptedRun(steps=1, verdict=False, hostile=""), name=name)
    screen = codebook_screen(followed)
    assert run_screen(followed).title == screen.above[1][0] == (name or followed.key)
    assert screen.above[1][1] == f"/run/{followed.key}"


def test_a_served_ref_is_followed(
    get: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_FEEDBACK", str(make_log(tmp_path / "requests.sqlite")))
    monkeypatch.setenv("PCO_REGISTRY", str(tmp_path / "registry.sqlite"))
    assert "/served/tickets%40production" in read_page(get("/served").text).links
    page = read_page(get("/served/tickets%40production").text)
    assert "239, 3 failed" in page.text and "119 requests with feedback" in page.text
    assert "drift none found" in page.text and "canary none" in page.text
    assert {"Requests", "Reward", "Shares"} <= set(page.texts)
    assert get("/served/tickets%40other").status == 404


def text_of(get: Get, path: str) -> str:
    answer = get(path)
    assert answer.status == 200, path
    return flat(answer.text)


@pytest.mark.parametrize("path", OF_A_RUN)
def test_every_screen_of_a_run_is_marked_escaped_and_withholds_what_is_private(
    get: Get, keys: dict[str, str], path: str
) -> None:
    said = "Every number here comes from a simulated model"
    plain = read_page(get(f"/run/{keys['simulated']}{path}").text)
    assert said in plain.text and all(each.startswith("simulated") for each in plain.captions)
    assert said not in text_of(get, f"/run/{keys['real']}{path}")
    source = get(f"/run/{keys['hostile']}{path}").text
    page = read_page(source)
    assert page.faults == plain.faults  # the page's own script, style sheet and icon
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", source) is None
    inside = [to for to in page.links if not to.startswith("data:")]
    assert all(re.fullmatch(r"[/#][^/\\:]*(/[^:\\]*)?", to) for to in inside)
    assert not {"iframe", "object", "embed", "base"} & set(page.tags)
    assert page.tags.count("textarea") == plain.tags.count("textarea")  # those of our own forms
    private = get(f"/run/{keys['private']}{path}").text
    if "/codebook" not in path:  # rewrites of the codebook are checked, and shown
        assert "Some answer" not in private and "missed a constraint" not in private
    assert ("private:" in private) or "/example/train" not in path


def test_what_a_run_says_is_shown_word_for_word(get: Get, keys: dict[str, str]) -> None:
    page = read_page(get(f"/run/{keys['hostile']}/example/train-3-1").text)
    shown = ATTACK.replace("\x00\x07 \ud800", "  ?")
    assert any(f"Some answer {shown}" == text for text in page.texts)
    assert "<style>*{display:none}</style>" in shown


@pytest.mark.parametrize(("path", "status"), [
    *((f"/run/REAL/codebook/{quote(name)}", 404) for name in ("99", "-1", "x", "²", "1" * 20)),
    ("/run/REAL/example/nope", 404),
    ("/run/REAL/example/train-3-1/9", 404),
    ("/run/REAL/example/train-3-1/x9", 200),
    ("/compare?run=REAL&run=nope", 404),
    ("/run/nope", 404),
    ("/run/..%2F..%2Fetc", 404),
    ("/run/%2Fetc%2Fpasswd", 404),
    ("/static/..%2Fserver.py", 404),
    ("/a/b/c", 404),
])  # fmt: skip
def test_what_is_not_there_is_not_found(
    get: Get, keys: dict[str, str], path: str, status: int
) -> None:
    answer = get(path.replace("REAL", keys["real"]))
    assert answer.status == status
    assert "root:" not in answer.text and "import" not in answer.text


def test_the_registry_shows_refs_versions_its_log_and_what_is_simulated(
    get: Get, runs_dir: Path, keys: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_REGISTRY", str(tmp_path / "registry.sqlite"))
    assert "no version in the registry" in text_of(get, "/registry")
    with open_registry(who="<Ada>") as registry:
        for word, task in (("words", "real"), ("lines", "simulated")):
            store = RunStore.open(runs_dir / keys[task])
            facts = Facts(run=store.path.name, score=0.5, configuration=store.header.settings)
            store.close()
            version = registry.freeze(policy(word), "tickets", facts, why="the <reason>").version
            rows = re.findall(r"<tr>.*?</tr>", get("/registry").text)
            for row in (r for r in rows if "0.500" in r):
                assert ("simulated</span>" in row) is (keys["real"] not in row)
            marked = "Some of the numbers here come" in text_of(get, "/registry")
            assert marked is (task == "simulated")
        registry.promote(version, "tickets@production", override="I <know> it")
    text = text_of(get, "/registry")
    assert "tickets@production" in text and "<Ada> (promote)" in text
    assert "override: I <know> it" in text and "the <reason>" in text
    assert text.count(" was never audited") == 1  # what the gate said
    assert text.count(" never audited") == 3


_RUN = ScriptedRun(steps=3, size=6, select=2, batch=2, hostile="")


Follow = Callable[..., FollowedRun]


def judged(name: str, rewards: Sequence[float]) -> Compared:
    rollouts = tuple(
        Rollout(f"t-{i}", prompt="p", output="o", reward=reward) for i, reward in enumerate(rewards)
    )
    return Compared(Evaluation(name, "test", rollouts))


def with_result(rewards: Sequence[float]) -> list[Event]:
    """The scripted run whose learned policy earned these on the test split."""
    events: list[Event] = []
    for event in events_of(_RUN):
        mine = isinstance(event, Compared) and event.evaluation.name == "learned"
        events.append(judged("learned", rewards) if mine else event)
    return events


@pytest.mark.parametrize("second", [
    [0.5 + 0.01 * (7 * i % 30) for i in range(40)],  # the exact test, whose subsets go by order
    [0.5] * 38 + [0.9] * 2,  # few values differ: the range decides the width
])  # fmt: skip
def test_the_screen_says_what_pco_compare_says(follow: Follow, second: Sequence[float]) -> None:
    rewards = [0.5] * 40, second
    sides = [
        Side("", {f"t-{i}": x for i, x in enumerate(r)}, "test", False, (0.0, 1.0)) for r in rewards
    ]
    gain = Comparison.of(sides[1], sides[0]).gain
    mean, low, high = (number(x, signed=True) for x in (gain.mean, gain.low, gain.high))
    text = shown(compare_screen(*(follow(_RUN, with_result(r)) for r in rewards)))
    assert f"difference (second − first): {mean} (95 % {low} to {high}, n = 40)" in text


def test_what_was_judged_last_is_no_result_until_there_is_a_verdict(follow: Follow) -> None:
    whole = list(events_of(_RUN))
    third = [i for i, event in enumerate(whole) if isinstance(event, Compared)][2]
    ended, judging = follow(_RUN, whole), follow(_RUN, whole[: third + 1])
    text = shown(compare_screen(ended, judging))
    assert "The second is not judged to its end yet" in text and "second − first" not in text
    for followed, said in ((judging, "not judged to its end yet"), (ended, "Against present:")):
        look = followed.look()
        section = render_sections([JudgedSection(look.context)], with_tests(followed, look))
        assert said in flat(section)


def test_an_example_that_failed_last_is_said_to_have_failed(follow: Follow) -> None:
    events: list[Event] = []
    for event in events_of(_RUN):
        if isinstance(event, Stepped):
            same = [
                replace(t, rollout=replace(t.rollout, example_id="ex", reward=0.25, failure=None))
                for t in event.step.traces
            ]
            if event.step.index == _RUN.steps - 1:
                failed = Failure("execute", "CallTimeout", "no reply")
                broken = replace(same[-1].rollout, reward=None, failure=failed)
                same[-1] = replace(same[-1], rollout=broken)
            event = Stepped(replace(event.step, traces=tuple(same)))
        events.append(event)
    followed = follow(_RUN, events)
    markup = page_of(examples_screen(followed), "/").decode()
    row = next(r for r in markup.split("<tr>") if ">ex</a>" in r)
    assert flat(row).split()[:5] == ["ex", "6", "0.25", "failed", "3"]
    markup = page_of(run_screen(followed), "/").decode()
    test = next(r for r in markup.split("<tr ") if ">test-59</a>" in r)  # always fails
    assert "wrong test-59 execute: CallTimeout: no reply in 120 s fine 0.00 0.00" in flat(test)
    page = example_screen(followed, "ex", "9")
    assert page.status == 404 and "it was in step 1 and 2 more" in shown(page)
    assert "pco runs show" in shown(page)


_OWN, _NUMERIC = {"reward": "reward.py:reward"}, {"kind": "numeric", "tolerance": 0.5}


@pytest.mark.parametrize(("one", "other", "files", "said"), [
    ({"reward": "exact"}, {"reward": "exact"}, ("", ""), ""),
    ({"reward": "exact"}, {"reward": {"kind": "exact"}}, ("", ""), ""),
    ({"reward": "exact"}, {"reward": _NUMERIC}, ("", ""), "rewards (exact and numeric"),
    ({"task": "hover"}, {"task": "aime"}, ("", ""), "different rewards (hover and aime)"),
    (_OWN, _OWN, ("ab", "ab"), ""),
    (_OWN, _OWN, ("ab", "cd"), "scored by reward(), whose code was not the same"),
    (_OWN, {}, ("ab", ""), "(reward() and a function that Python handed over)"),
    ({}, {}, ("", ""), "whether it was the same one is not known here"),
])  # fmt: skip
def test_two_runs_scored_by_different_rewards_say_so(
    follow: Follow, one: Any, other: Any, files: tuple[str, str], said: str
) -> None:
    marks = ({"reward.py": mark} if mark else {} for mark in files)
    both = zip((one, other), marks, strict=True)
    events = with_result([0.5] * 20)
    looked = [follow(replace(_RUN, config=own), events, files=mark) for own, mark in both]
    text = shown(compare_screen(*looked))
    assert (said in text) if said else ("scored by" not in text)
