"""What the screens show, read as a browser without eyes would."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from promptcodebook.registry.registry import Facts, open_registry
from promptcodebook.store.run import RunStore
from promptcodebook.viewer.codebook import codebook_screen
from promptcodebook.viewer.following import FollowedRun, run_screen
from promptcodebook.viewer.lists import Runs
from tests.policy.registry.build import policy
from tests.report.scripted_run import ScriptedRun
from tests.report.strict import flat, read_page
from tests.viewer.conftest import ATTACK, Get

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


def test_all_runs_are_listed_the_latest_first_with_a_mark_on_simulated_ones(
    get: Get, keys: dict[str, str]
) -> None:
    source = get("/").text
    rows = re.findall(r"<tr>(.*?)</tr>", source, re.S)[1:]
    assert len(rows) == len(keys)
    for row in rows:
        text = flat(row)
        assert ("simulated" in row.partition("</a>")[2].partition("</td>")[0]) is (
            keys["real"] not in text
        )
        assert "n = 40" in text and "<path" in row


def test_a_folder_without_runs_says_what_to_type(tmp_path: Path) -> None:
    assert "pco train" in Runs(tmp_path).screen().body


@pytest.mark.parametrize("name", ["", "tidy"])
def test_a_run_is_called_by_its_name_where_it_has_one(
    follow: Callable[..., FollowedRun], name: str
) -> None:
    followed = follow(ScriptedRun(steps=1, verdict=False, hostile=""), name=name)
    screen = codebook_screen(followed)
    assert run_screen(followed).title == screen.above[1][0] == (name or followed.key)
    assert screen.above[1][1] == f"/run/{followed.key}"


def test_the_run_has_verdict_curves_spending_and_failures(get: Get, keys: dict[str, str]) -> None:
    text = flat(get(f"/run/{keys['real']}").text)
    for said in (
        "Worth deploying",
        "Training reward",
        "Validation reward",
        "Exploration ε and penalty ρ",
        "collapse",
        "Paid calls of the whole run by role",
        "CallTimeout",
        "How to use this result",
    ):
        assert said in text, said


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
    assert not {"iframe", "object", "embed", "base", "textarea"} & set(page.tags)
    private = get(f"/run/{keys['private']}{path}").text
    if "/codebook" not in path:  # rewrites of the codebook are checked, and shown
        assert "Some answer" not in private and "missed a constraint" not in private
    assert ("private:" in private) or "/example/train" not in path


def test_what_a_run_says_is_shown_word_for_word(get: Get, keys: dict[str, str]) -> None:
    page = read_page(get(f"/run/{keys['hostile']}/example/train-3-1").text)
    shown = ATTACK.replace("\x00\x07 \ud800", "  ?")
    assert any(f"Some answer {shown}" == text for text in page.texts)
    assert "<style>*{display:none}</style>" in shown


def test_a_card_shows_text_success_usage_and_difference_with_their_n(
    get: Get, keys: dict[str, str]
) -> None:
    source = get(f"/run/{keys['real']}/codebook").text
    cards = re.findall(r'<article class="card">(.*?)</article>', source, re.S)
    assert len(cards) == 8
    for k, card in enumerate(cards):
        text = flat(card)
        assert text.startswith(f"Instinct {k}")
        assert ("frozen" in text) is (k == 1)
        assert re.search(r"success (\d\.\d\d|untried)", text)
        assert re.search(r"selected \d+ times", text)
        assert re.search(
            r"with − without\) .*n = \d+ and \d+ examples, \d+ and \d+ rollouts\)", text
        )
    assert "Routing heatmap" in source and "Usage against success" in source


def test_a_biography_has_every_version_its_gradient_and_what_it_earned(
    get: Get, keys: dict[str, str], runs_dir: Path
) -> None:
    store = RunStore.open(runs_dir / keys["real"])
    try:
        rewrites = [r for s in store.steps() for r in s.rewrites if r.variable == 2]
        routed = [
            (s.index, t.rollout)
            for s in store.steps(traces=True)
            for t in s.traces
            if t.rollout.route is not None and 2 in t.rollout.route.indices
        ]
    finally:
        store.close()
    source = get(f"/run/{keys['real']}/codebook/2").text
    kept = [r for r in rewrites if r.kept]
    assert kept and len(rewrites) > len(kept)
    assert source.count('<blockquote class="diff">') == len(kept)
    assert source.count("refused: near-copy") == len(rewrites) - len(kept)
    assert source.count("deployed up to here") == 1
    earned = [int(n) for n in re.findall(r"reward with it \S+ \(n = (\d+)\)", flat(source))]
    assert len(earned) == len(kept) + 1
    assert sum(earned) == sum(r.reward is not None for _, r in routed)
    for step, rollout in routed[-5:]:
        assert f"/example/{rollout.example_id}/{step + 1}" in source


def test_the_critic_is_deployed_nowhere(get: Get, keys: dict[str, str]) -> None:
    text = text_of(get, f"/run/{keys['real']}/codebook/critic")
    assert "deployed up to here" not in text and "As it is deployed" not in text
    assert "No policy carries it" in text
    assert "As it is deployed" in text_of(get, f"/run/{keys['real']}/codebook/encoder")


@pytest.mark.parametrize(
    ("path", "status"),
    [
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
        ("/paper/nope", 404),
        ("/paper/main/x.svg", 404),
    ],
)
def test_what_is_not_there_is_not_found(
    get: Get, keys: dict[str, str], path: str, status: int
) -> None:
    answer = get(path.replace("REAL", keys["real"]))
    assert answer.status == status
    assert "root:" not in answer.text and "import" not in answer.text


def test_an_example_tells_its_story_in_order(get: Get, keys: dict[str, str]) -> None:
    source = get(f"/run/{keys['simulated']}/example/train-3-1").text
    names = re.findall(r"<dt>(.*?)</dt>", source)
    order = ["route", "instincts", "prompt", "stage search", "output", "feedback", "verdict", "g θ"]
    assert [name for name in names if name in order] == order
    assert "What changed because of it" in source


def test_an_example_shows_the_instincts_of_its_step_and_whether_it_was_cut(
    get: Get, keys: dict[str, str], runs_dir: Path
) -> None:
    store = RunStore.open(runs_dir / keys["simulated"])
    first = store.parameters_at(-1).codebook.texts
    traces = next(store.steps(traces=True)).traces
    store.close()
    for place in (0, 1):  # the first of every batch was cut
        route = traces[place].rollout.route
        assert route is not None
        text = text_of(get, f"/run/{keys['simulated']}/example/train-0-{place}/1")
        shown = " ".join(f"{k} {first[k]}" for k in route.indices)
        assert f"instincts {shown} prompt" in text
        assert ("the output was cut at its length cap" in text) is (place == 0)


def test_the_changes_of_an_example_are_those_its_gradients_asked_for(
    get: Get, keys: dict[str, str], runs_dir: Path
) -> None:
    store = RunStore.open(runs_dir / keys["real"])
    try:
        found = 0
        for step in store.steps(traces=True):
            asked = {r.variable for r in step.rewrites if isinstance(r.variable, int)}
            for trace in step.traces:
                blamed = set(trace.gradients.codebook) & asked
                name = trace.rollout.example_id
                text = text_of(get, f"/run/{keys['real']}/example/{name}/{step.index + 1}")
                if trace.rollout.failure is None:
                    changed = text.partition("What changed because of it")[2]
                    assert {int(k) for k in re.findall(r"\bc(\d+) step", changed)} == blamed
                    found += bool(blamed)
    finally:
        store.close()
    assert found


def test_test_examples_are_shown_under_every_row(get: Get, keys: dict[str, str]) -> None:
    text = text_of(get, f"/run/{keys['real']}/example/test-5/test")
    for row in ("present", "concat", "untrained", "learned"):
        assert f"{row}: reward" in text


def test_two_runs_are_compared_on_the_same_examples(get: Get, keys: dict[str, str]) -> None:
    a, b = keys["simulated"], keys["real"]
    text = text_of(get, f"/compare?run={a}&run={b}")
    assert "Simulated: difference (second − first): +0.000" in text and "n = 60" in text
    assert "Some of the numbers here come from a simulated model" in text
    assert "lm" in text.partition("Settings that differ")[2]
    assert "hush" not in text


@pytest.mark.parametrize("query", ["", "?run=x", "?run=a&run=b&run=c"])
def test_only_two_runs_can_be_compared(get: Get, query: str) -> None:
    text = flat(get(f"/compare{query}").text)
    assert "Two runs are compared" in text and "Next: /compare?run=ID" in text


def test_the_registry_shows_refs_versions_and_its_log(
    get: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_REGISTRY", str(tmp_path / "registry.sqlite"))
    assert "no version in the registry" in text_of(get, "/registry")
    with open_registry(who="<Ada>") as registry:
        first = registry.freeze(policy("words"), "tickets", why="the <first>")
        registry.freeze(policy("lines"), "tickets")
        registry.promote(first.version, "tickets@production", override="I <know> it")
    text = text_of(get, "/registry")
    assert "tickets@production" in text and "<Ada> (promote)" in text
    assert "override: I <know> it" in text and "the <first>" in text
    assert text.count(" was never audited") == 1  # what the gate said
    assert text.count(" never audited") == 3


def test_a_validation_score_of_a_simulated_run_is_marked_in_the_registry(
    get: Get, runs_dir: Path, keys: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_REGISTRY", str(tmp_path / "registry.sqlite"))
    said = "Some of the numbers here come from a simulated model"
    with open_registry(who="Ada") as registry:
        for word, task in (("words", "real"), ("lines", "simulated")):
            store = RunStore.open(runs_dir / keys[task])
            facts = Facts(run=store.path.name, score=0.5, configuration=store.header.settings)
            store.close()
            registry.freeze(policy(word), "tickets", facts)
            rows = re.findall(r"<tr>.*?</tr>", get("/registry").text)
            for row in (r for r in rows if "0.500" in r):
                assert ("simulated</span>" in row) is (keys["real"] not in row)
            assert (said in text_of(get, "/registry")) is (task == "simulated")


def test_the_paper_stands_beside_what_was_measured_here(get: Get) -> None:
    text = text_of(get, "/paper")
    assert "main Table 1" in text and "Table 13: routing diversity" in text
    table = text_of(get, "/paper/Table%201")
    assert "42.33" in table and "exact_match" in table
