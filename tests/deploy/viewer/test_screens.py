"""The viewer's screens and the page of a codebook."""

import re
import shutil
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from promptcodebook.base.intervals import Interval
from promptcodebook.calls import Usage
from promptcodebook.deploy.viewer import screens
from promptcodebook.deploy.viewer.following import FollowedRun
from promptcodebook.deploy.viewer.grid import GridFilter, grid_screen
from promptcodebook.deploy.viewer.lists import RunsList
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import POLICY
from promptcodebook.report.context import render_sections
from promptcodebook.report.verdict import JudgedSection
from promptcodebook.run.decision import JudgingTerms, RowSource, conclude
from promptcodebook.store.effects import Effect, EffectStore
from promptcodebook.store.events import Compared, Concluded, Event, Stepped
from promptcodebook.types import Evaluation, Failure, Rollout, Route
from tests.build.cli import pco
from tests.build.project import PROJECT
from tests.build.scripted_run import ScriptedRun, events_of
from tests.build.strict import flat, read_page, require_approved
from tests.build.viewer import ATTACK, Get, shown

OF_A_RUN = (
    "",
    "/grid",
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
    screen = screens.examples_screen(followed)
    assert screens.run_screen(followed).title == screen.above[1][0] == (name or followed.key)
    assert screen.above[1][1] == f"/run/{followed.key}"


def text_of(get: Get, path: str) -> str:
    answer = get(path)
    assert answer.status == 200, path
    return flat(answer.text)


@pytest.mark.parametrize("path", OF_A_RUN)
def test_every_screen_of_a_run_is_marked_escaped_and_withholds_what_is_private(
    get: Get, keys: dict[str, str], path: str
) -> None:
    message = "Every number here comes from a simulated model"
    plain = read_page(get(f"/run/{keys['simulated']}{path}").text)
    assert message in plain.text and all(each.startswith("simulated") for each in plain.captions)
    assert message not in text_of(get, f"/run/{keys['real']}{path}")
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
    ("/run/REAL/example/nope", 404),
    ("/run/REAL/example/train-3-1/9", 404),
    ("/run/REAL/example/train-3-1/x9", 200),
    *((path, 404) for path in ("/compare", "/registry", "/served", "/run/REAL/codebook/2")),
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


_RUN = ScriptedRun(steps=3, size=6, select=2, batch=2, hostile="")


Follow = Callable[..., FollowedRun]


def test_what_was_judged_last_is_no_result_until_there_is_a_verdict(follow: Follow) -> None:
    whole = list(events_of(_RUN))
    third = [i for i, event in enumerate(whole) if isinstance(event, Compared)][2]
    ended, judging = follow(_RUN, whole), follow(_RUN, whole[: third + 1])
    for followed, titles in ((judging, []), (ended, ["Where it helped, and where it hurt"])):
        look = followed.look()
        shown = render_sections([JudgedSection(look.context)], screens.with_tests(followed, look))
        assert [section.title for section, _ in shown] == titles


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
    markup = screens.page_of(screens.examples_screen(followed), "/").decode()
    row = next(r for r in markup.split("<tr>") if ">ex</a>" in r)
    assert flat(row).split()[:5] == ["ex", "6", "0.25", "failed", "3"]
    markup = grid_screen(followed, GridFilter()).body
    test = next(r for r in markup.split("<tr>") if ">test-59</a>" in r)  # always fails
    assert "test-59 failed execute: CallTimeout: no reply in 120 s fine failed" in flat(test)
    page = screens.example_screen(followed, "ex", "9")
    assert page.status == 404 and "it was in step 1 and in 2 more" in shown(page)
    assert "pco runs show" in shown(page)


# The grid: prompts across, test inputs down.


def judged_row(name: str, rewards: Sequence[float | None], *routes: int) -> Evaluation:
    """Its answers, by example; the input e<n> gets the n-th of the routes, each one instinct."""
    rollouts = [
        Rollout(f"e{n}", Route((routes[n],)) if routes else None, output=f"{name} {n}", reward=r)
        for n, r in enumerate(rewards)
    ]
    return Evaluation(name, "test", tuple(rollouts))


@pytest.fixture
def graded(follow: Follow) -> FollowedRun:
    rows = [
        judged_row("present", [0.0, 1.0, 0.5, 0.0]),
        judged_row("none", [0.0, 0.0, 0.0, 0.0]),
        judged_row("best_single", [0.2, 0.4, 0.6, 0.8]),
        judged_row("learned", [1.0, 0.0, 0.5, None], 1, 2, 1, 3),
    ]
    trained = [e for e in events_of(replace(_RUN, verdict=False)) if not isinstance(e, Compared)]
    made = conclude([RowSource(r.name, r) for r in rows], JudgingTerms())
    ends = Concluded(made.sentence, made.worth, made.table.as_json(), made.deploy)
    return follow(_RUN, [*trained, *map(Compared, rows), ends])


def grid_of(followed: FollowedRun, **query: str) -> list[str]:
    """Its rows as words, the head first."""
    body = grid_screen(followed, GridFilter.of(query)).body
    return [flat(row) for row in re.findall(r"<tr>.*?</tr>", body, re.S)]


def test_the_grid_has_a_column_for_each_prompt_the_ones_people_compare_first(
    graded: FollowedRun,
) -> None:
    head, *rows = grid_of(graded)
    assert head == "input present 0.38 best_single 0.50 learned 0.38 none 0.00"
    assert [row.split()[0] for row in rows] == ["e1", "e3", "e2", "e0"], "failures first"
    learned = "1.00 learned 0 instinct 1"
    assert rows[3] == f"e0 0.00 present 0 0.20 best_single 0 {learned} 0.00 none 0"
    body = grid_screen(graded, GridFilter()).body
    e2 = next(row for row in body.split("<tr>") if ">e2</a>" in row)
    assert re.findall(r'class="grade g(\d)"', e2) == ["2", "3", "2", "0"]
    assert "failed" in rows[1] and "best_single answer" in csv_of(body)


def csv_of(markup: str) -> str:
    return b64decode(re.findall('csv;base64,([^"]*)"', markup)[0]).decode()


@pytest.mark.parametrize(("query", "names"), [
    ({"only": "wrong"}, ["e1", "e3"]),
    ({"only": "better"}, ["e0"]),
    ({"only": "worse"}, ["e1"]),
    ({"instinct": "1"}, ["e2", "e0"]),
    ({"instinct": "1", "only": "better"}, ["e0"]),
    ({"words": "LEARNED e2"}, ["e2"]),
    ({"words": "best_single 3"}, ["e3"]),
    ({"page": "7"}, ["e1", "e3", "e2", "e0"]),
    ({"instinct": "9"}, []),
    ({"only": "<x>", "slice": "'\"", "page": "x"}, []),
])  # fmt: skip
def test_the_grid_is_filtered_by_result_instinct_and_words(
    graded: FollowedRun, query: dict[str, str], names: list[str]
) -> None:
    shown = grid_of(graded, **query)
    assert [row.split()[0] for row in shown[1:]] == names
    body = grid_screen(graded, GridFilter.of(query)).body
    assert ("No test input matches." in body) is (not names) and "<x>" not in body


# What an instinct is said to have earned, by its versions and as it was measured.

_EFFECT = Effect(
    instinct=0,
    text="a text",
    split="val",
    examples=3,
    unrouted=0,
    rewards={"a": (1.0, 0.8), "b": (0.5, 0.5)},
    difference=Interval(0.1, 0.0, 0.2, 2),
    means=(0.75, 0.65),
    models={"executor": "m"},
    simulated=False,
    scored_by="exact",
    usage=Usage(),
    policy="digest",
    at=datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
)
_QUICK = (
    *("--preset", "quick", "--set", "update.epochs=2", "--set", "validation.every=1"),
    *("--set", 'data.slices=["target"]'),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the small project."""
    folder = Path(shutil.copytree(PROJECT, tmp_path_factory.mktemp("measured") / "mytask"))
    result = pco("train", *_QUICK, cwd=folder)
    assert result.code == 0, result.err
    [run] = (folder / "runs").iterdir()
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / trained.name))


@pytest.fixture
def followed(run: Path) -> Iterator[FollowedRun]:
    followed = FollowedRun(run, run.name)
    yield followed
    followed.close()


def keep(run: Path, effect: Effect) -> None:
    store = EffectStore(run, "pco")
    try:
        store.add(effect)
    finally:
        store.close()


def test_a_card_shows_what_was_measured_of_its_own_instinct_or_what_measures_it(
    run: Path, followed: FollowedRun
) -> None:
    context = followed.look().context
    texts, data = context.codebook.texts, context.header.fingerprints["val"]
    policy = read_policy_file(run / POLICY).digest
    own = replace(_EFFECT, text=texts[0], policy=policy, data=data, simulated=True)
    other = replace(own, difference=Interval(0.3, 0.0, 0.9, 2))
    for each in (
        own,
        replace(own, instinct=1),
        replace(other, policy="of another"),
        replace(other, data="another"),
    ):
        keep(run, each)
    cards = shown(screens.run_screen(followed))
    assert cards.count("+0.100 (95 % +0.000 to +0.200)") == 1 and "+0.300 (95" not in cards
    assert re.search(r"\+0.200\), n = 2, val, simulated", cards)
    assert "0.750 with it, 0.650 without: +0.100 (95" in cards
    unused, judged = cards.count("no test input is routed to it"), cards.count(" with it, n = ")
    assert f"pco registry effect {run.name}" in cards and judged + unused == len(texts) - 1
    # One that was measured on the test inputs counts before a later one on others.
    tested = {"split": "test", "data": context.header.fingerprints["test"]}
    keep(run, replace(own, **tested, difference=Interval(0.4, 0.2, 0.6, 2)))
    keep(run, replace(other, difference=Interval(0.7, 0.2, 0.9, 2)))
    cards = shown(screens.run_screen(followed))
    assert "+0.400 (95 % +0.200 to +0.600), n = 2, test" in cards and "+0.700" not in cards


def test_the_grid_is_filtered_by_slice(followed: FollowedRun) -> None:
    everything = grid_of(followed)[1:]
    options = re.findall(
        r"<option[^>]*>(target = [^<]*)</option>", grid_screen(followed, GridFilter()).body
    )
    assert len(options) > 1 and len(everything) > 1
    for option in options:
        kept = grid_of(followed, slice=option)[1:]
        reference = option.replace("target =", "reference:")
        assert kept and kept == [row for row in everything if reference in row]
