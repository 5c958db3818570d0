"""`instinct.kind = "demo"`: training examples that were answered well become instincts."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.calls import Request
from promptcodebook.errors import ConfigError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.store.run import RunStore
from promptcodebook.tools.prompts.pool import DEMO
from tests.build.topics import IDLE, PHRASES, data, right

HEAD = DEMO.split("{}")[0]


def topic(text: str) -> str:
    return next(letter for letter, phrases in PHRASES.items() if any(p in text for p in phrases))


def follow(request: Request) -> str:
    """The first phrase of each topic is easy; the rest are known from a like example alone."""
    asked = request.messages[-1].content
    own = topic(asked)
    shown = [m.content for m in request.messages if m.role == "system" and HEAD in m.content]
    like = any(topic(each) == own and each.endswith(own) for each in shown)
    return own if like or PHRASES[own][0] in asked else "?"


def blind(request: Request) -> str:
    asked = request.messages[-1].content
    return topic(asked) if PHRASES[topic(asked)][0] in asked else "?"


def settings(epochs: int = 24, **more: Any) -> dict[str, Any]:
    return {
        "preset": "small",
        "size": 4,
        "select": 1,
        "init": {"kind": "expert", "instincts": tuple(IDLE[:4])},
        "update": {"epochs": epochs, **more.pop("update", {})},
        "instinct": {"kind": "demo"},
        **more.pop("config", {}),
    }


def learn(place: Path, model: Any = follow, epochs: int = 24, **more: Any) -> pco.Run:
    parts = {name: more.pop(name) for name in ("update", "config") if name in more}
    config = settings(epochs, **parts)
    return pco.optimize(
        more.pop("data", None) or data(),
        right,
        ScriptedLM().reply_with(model),
        config=config,
        runs_dir=place / "runs",
        progress=False,
        **more,
    )


@pytest.mark.slow
def test_demonstrations_are_training_examples_and_go_to_inputs_like_them(tmp_path: Path) -> None:
    run = learn(tmp_path)
    demos = [text for text in run.codebook.texts if text.startswith(HEAD)]
    assert len(demos) >= 3 and run.worth
    assert set(demos) <= {DEMO.format(x.input, x.target) for x in data().train}
    with closing(RunStore.open(run.path)) as store:
        assert {r.origin for step in store.steps() for r in step.rewrites} == {"pool"}
    without = run.rows["without_demos"]
    assert without.reference and without.score.mean < run.rows["learned"].score.mean - 0.2
    made = pco.estimate(data(), right, "simulated", config=settings())
    [share] = [share for share in made.roles if share.role == "executor"]
    assert share.calls.low <= run.usage["executor"].calls <= share.calls.high
    assert share.calls.expected == run.usage["executor"].calls


@pytest.mark.slow
def test_a_model_that_learns_nothing_from_examples_gains_nothing(tmp_path: Path) -> None:
    run = learn(tmp_path, blind, epochs=12)
    assert not run.worth and any(text.startswith(HEAD) for text in run.codebook.texts)
    assert abs(run.rows["learned"].score.mean - run.rows["present"].score.mean) < 0.05


@pytest.mark.slow
def test_what_shares_words_with_a_held_out_input_is_no_demonstration(tmp_path: Path) -> None:
    whole = data()
    copied = "please read these eight words in this row"
    same = tuple(replace(x, input=f"{x.input} {copied}") for x in whole.train)
    seen = replace(whole.test[0], input=f"{whole.test[0].input} {copied}")
    held = replace(whole, train=same, test=(seen, *whole.test[1:]))
    run = learn(tmp_path, epochs=12, data=held)
    assert not any(HEAD in text for text in run.codebook.texts)


@pytest.mark.parametrize(("change", "match"), [
    ({"config": {"router": {"kind": "encoder"}}}, "learns from outcomes"),
    ({"update": {"pool": "pool.txt"}}, "update.pool names another source"),
])  # fmt: skip
def test_what_cannot_have_demonstrations_is_refused(
    tmp_path: Path, change: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        learn(tmp_path, **change)
