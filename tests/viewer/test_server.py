"""The viewer over HTTP: who is answered, what every answer bears, and the news of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import Markup

from promptcodebook.errors import StoreError
from promptcodebook.experiments.reproduce import experiment_names
from promptcodebook.paths import BENCH
from promptcodebook.store.events import Ended
from promptcodebook.store.run import RunStore
from promptcodebook.viewer.following import FollowedRun, OpenRuns, find_key, key_of, root_of
from promptcodebook.viewer.lists import Runs
from promptcodebook.viewer.page import Screen, page_of
from promptcodebook.viewer.server import HOST, Site, viewing
from tests.report.scripted_run import ScriptedRun, events_of, write_run
from tests.viewer.conftest import Get, ask


@pytest.mark.parametrize(
    ("name", "status"),
    [
        *((name, 200) for name in ("localhost", "127.0.0.1:8642", "[::1]:1", "LOCALHOST:9")),
        *((name, 421) for name in ("evil.example", "localhost.evil.example", "[::1", "10.0.0.1")),
        ("127.0.0.1@evil.example", 421),
    ],
)
def test_only_this_machine_is_answered_under_its_own_names(
    get: Get, name: str, status: int
) -> None:
    answer = get("/", Host=name)
    assert answer.status == status and ("Runs" in answer.text) is (status == 200)


@pytest.mark.parametrize(
    "path", ["/", "/static/view.js", "/static/style.css", "/nope", "/static/x"]
)
def test_every_answer_forbids_what_no_page_needs(get: Get, path: str) -> None:
    headers = get(path).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


def test_nothing_is_written_here(get: Get) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert get("/", method).status == 405


def test_nothing_of_the_environment_is_shown(
    get: Get, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-hush-hush")
    for path in ("/", f"/run/{keys['real']}"):
        text = get(path).text
        assert "hush" not in text  # nor the header and the password of the scripted run


def test_a_page_marks_where_one_is() -> None:
    screen = Screen("T", Markup("body"), tabs=(("A", "/a"), ("B", "/b")))
    assert b'<a href="/b" aria-current="page">B</a>' in page_of(screen, "/b")


_ONE = ScriptedRun(steps=1, verdict=False, hostile="")


def steps_of(open_runs: OpenRuns, key: str) -> int | None:
    """How many steps the run of this address has; None where there is none."""
    with open_runs.reading(key) as followed:
        return None if followed is None else len(followed.look().steps)


def test_a_run_that_was_removed_and_written_again_is_read_again(tmp_path: Path) -> None:
    store = write_run(tmp_path / "runs", replace(_ONE, steps=3))
    store.close()
    key, open_runs = store.header.id, OpenRuns(tmp_path / "runs")
    with open_runs.reading(key) as followed:
        assert followed is not None and followed.look().mark == followed.mark()
        before = followed.mark()
        assert len(followed.look().steps) == 3
    store.path.rename(tmp_path / "removed")
    assert steps_of(open_runs, key) is None
    write_run(tmp_path / "runs", _ONE).close()
    assert steps_of(open_runs, key) == 1
    with open_runs.reading(key) as followed:
        assert followed is not None
        assert followed.mark().partition("-")[0] != before.partition("-")[0]
    open_runs.close()


def test_a_run_of_a_suite_and_a_link_to_a_run_have_addresses_of_their_own(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs, _ONE).close()
    suite = runs / BENCH / "small" / "cell"
    suite.parent.mkdir(parents=True)
    write_run(tmp_path / "elsewhere", ScriptedRun(steps=2, verdict=False)).path.rename(suite)
    linked = write_run(tmp_path / "elsewhere", replace(_ONE, steps=4))
    linked.close()
    (runs / "linked").symlink_to(linked.path)
    assert key_of(runs, suite) == f"{BENCH}~small~cell"
    assert root_of(runs, suite) == root_of(runs, runs / "linked") == runs
    assert root_of(tmp_path / "other", suite) == suite.parent
    assert find_key(runs.resolve(), runs / "linked") == "linked"
    assert find_key(root_of(tmp_path / "no", linked.path), linked.path) == linked.path.name
    open_runs = OpenRuns(runs.resolve())
    keys = (key_of(runs, suite), "linked", "cell")
    assert [steps_of(open_runs, key) for key in keys] == [2, 4, None]
    open_runs.close()


def test_only_a_few_runs_stay_open_but_those_that_are_read(tmp_path: Path) -> None:
    keys = [write_run(tmp_path, replace(_ONE, task=f"t{n}")).header.id for n in range(10)]
    open_runs = OpenRuns(tmp_path)

    def read(key: str) -> FollowedRun:
        with open_runs.reading(key) as followed:
            assert followed is not None
        return followed

    first = read(keys[0])
    with open_runs.reading(keys[1]) as second:
        assert second is not None
        for key in keys[2:]:
            read(key)
        assert len(second.look().steps) == 1 and second.tests() == ()
    assert read(keys[-1]) is read(keys[-1]) and read(keys[0]) is not first
    for closed in (first, second):
        with pytest.raises(StoreError, match="closed"):
            closed.look()
    open_runs.close()


def test_the_list_of_runs_changes_its_mark_when_one_of_them_goes_on(tmp_path: Path) -> None:
    runs = Runs(tmp_path, kept_s=0.0)
    none = runs.mark()
    store = write_run(tmp_path, ScriptedRun(steps=1, verdict=False, hostile=""))
    begun = runs.mark()
    assert begun != none and runs.mark() == begun
    store.append(Ended("budget"))
    ended = runs.mark()
    store.close()
    assert len({none, begun, ended, runs.mark()}) == 4


async def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    async with viewing(Site(tmp_path)) as base:
        with pytest.raises(OSError, match="in use"):
            async with viewing(Site(tmp_path), int(base.rpartition(":")[2])):
                pass
    assert base.startswith(f"http://{HOST}:")


def test_a_run_is_read_once_and_then_only_what_came_since(tmp_path: Path) -> None:
    run = ScriptedRun(steps=3, verdict=False, hostile="x")
    store = write_run(tmp_path, run)
    try:
        followed = FollowedRun(store.path, store.header.id)
        before = followed.look()
        longer = list(events_of(ScriptedRun(steps=4, verdict=False, hostile="x")))
        store.append(longer[-1])
        after = followed.look()
        assert after.events[: len(before.events)] == before.events
        assert all(a is b for a, b in zip(before.events, after.events, strict=False))
        assert [step.index for step in after.steps] == [0, 1, 2, 3]
    finally:
        store.close()


def test_a_look_has_the_figures_of_every_rollout_and_none_of_its_texts(tmp_path: Path) -> None:
    store: RunStore = write_run(tmp_path, ScriptedRun(steps=3, hostile="secret words"))
    try:
        followed = FollowedRun(store.path, store.header.id)
        slim = [t for step in followed.look().steps for t in step.traces]
        whole = [t for step in store.steps(traces=True) for t in step.traces]
    finally:
        store.close()
    assert [t.rollout.reward for t in slim] == [t.rollout.reward for t in whole]
    assert [t.penalty for t in slim] == [t.penalty for t in whole]
    assert [t.gradients.severity for t in slim] == [t.gradients.severity for t in whole]
    routes = [t.rollout.route and t.rollout.route.indices for t in whole]
    assert [t.rollout.route and t.rollout.route.indices for t in slim] == routes
    kept = [t for t in slim if t.rollout.failure is None]
    assert kept and "secret" not in repr(kept)


@pytest.mark.parametrize(
    "tree",
    [
        "{",
        "[1]",
        '{"seeds": "x"}',
        '{"tables": [1]}',
        '{"tables": {"t": {"rows": [[1]]}}}',
        '{"tables": {"t": {"head": ["a", "b"], "rows": [[1]]}}}',
    ],
)
async def test_one_damaged_result_takes_no_other_down(tmp_path: Path, tree: str) -> None:
    name, other = experiment_names()[:2]
    for folder, text in ((name, tree), (other, '{"preset": "quick", "model": "m", "seeds": 2}')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "results.json").write_text(text, "utf-8")
    async with viewing(Site(tmp_path / "runs", results=tmp_path)) as base:
        status, text, policy = await ask(base, "/paper")
        assert status == 200 and "cannot be read" in text and ">quick<" in text
        status, text, policy = await ask(base, f"/paper/{name}")
    assert status == 500 and f"pco reproduce {name}" in text
    assert policy.startswith("default-src 'none'; style-src 'self'")


async def test_a_drawing_opened_by_itself_keeps_its_style_and_gets_nothing_else(
    tmp_path: Path,
) -> None:
    folder = tmp_path / experiment_names()[0]
    folder.mkdir()
    (folder / "results.json").write_text("{}", "utf-8")
    (folder / "f.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>", "utf-8")
    async with viewing(Site(tmp_path / "runs", results=tmp_path)) as base:
        status, _, policy = await ask(base, f"/paper/{folder.name}/f.svg")
    assert status == 200
    allowed = [rule.strip() for rule in policy.split(";")]
    assert {"default-src 'none'", "style-src 'unsafe-inline'", "sandbox"} <= set(allowed)
    assert not [rule for rule in allowed if "script" in rule or "self" in rule]


async def test_an_error_nobody_foresaw_is_answered_with_a_hint_under_the_same_policy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"update": {"mode": "minibatch", "epochs": "many", "steps_per_epoch": 1}}
    run = ScriptedRun(steps=1, verdict=False, hostile="", config=settings)
    store = write_run(tmp_path / "runs", run)
    store.close()
    folder = tmp_path / experiment_names()[0]
    folder.mkdir()
    (folder / "results.json").write_text("{}", "utf-8")
    (folder / "f.svg").write_bytes(b"\xff")
    async with viewing(Site(tmp_path / "runs", results=tmp_path)) as base:
        for path in (f"/run/{store.header.id}", f"/paper/{folder.name}/f.svg"):
            status, text, policy = await ask(base, path)
            assert status == 500 and "Next: " in text, path
            assert policy.startswith("default-src 'none'"), path
    assert len(caplog.records) == 2


def test_the_news_of_a_run_that_does_not_exist_end(get: Get) -> None:
    for path in ("/live/run/nope", "/live/measured/nope"):
        answer = get(path)
        assert answer.status == 200 and answer.text.endswith("event: rest\ndata: \n\n")
