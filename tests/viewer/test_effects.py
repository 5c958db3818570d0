"""Effects of instincts in the viewer: what was measured, and the command to type."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from promptcodebook.calls import Usage
from promptcodebook.intervals import Interval
from promptcodebook.paths import run_reference
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import POLICY
from promptcodebook.store.effects import Effect, EffectStore, read_effects
from promptcodebook.viewer.codebook import biography_screen, codebook_screen
from promptcodebook.viewer.effect import measured_mark
from promptcodebook.viewer.following import OpenRuns
from promptcodebook.viewer.page import page_of
from promptcodebook.viewer.server import Site, viewing
from tests.cli.invoked import pco
from tests.store.edit import edit_header
from tests.viewer.test_screens import flat

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
_QUICK = ("--preset", "quick", "--set", "update.epochs=2", "--set", "validation.every=1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs of a folder as `pco init` and a short training leave it."""
    folder = tmp_path_factory.mktemp("measured")
    assert pco("init", cwd=folder).code == 0
    result = pco("train", *_QUICK, cwd=folder)
    assert result.code == 0, result.err
    return folder / "runs"


def only(runs: Path) -> Path:
    """The folder of the one run."""
    [run] = runs.iterdir()
    return run


def keep(run: Path, effect: Effect) -> None:
    store = EffectStore.open(run, "pco")
    try:
        store.add(effect)
    finally:
        store.close()


def test_a_page_never_says_that_it_is_newer_than_what_it_shows(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process keeps a result while the page is made."""
    runs = Path(shutil.copytree(trained, tmp_path / "runs"))
    run, open_runs = only(runs), OpenRuns(runs)

    def late(path: Path) -> list[Effect]:
        found = read_effects(path)
        keep(run, _EFFECT)
        return found

    monkeypatch.setattr("promptcodebook.viewer.effect.read_effects", late)
    try:
        with open_runs.reading(run.name) as followed:
            assert followed is not None
            screen = biography_screen(followed, "0")
            assert b"Not measured yet." in page_of(screen, "/")
            assert screen.mark != measured_mark(followed, followed.mark())
    finally:
        open_runs.close()


def test_a_card_shows_the_effect_of_its_own_instinct_and_whether_it_is_simulated(
    trained: Path, tmp_path: Path
) -> None:
    runs = Path(shutil.copytree(trained, tmp_path / "runs"))
    run, open_runs = only(runs), OpenRuns(runs)
    try:
        with open_runs.reading(run.name) as followed:
            assert followed is not None
            look = followed.look()
            texts, data = look.context.codebook.texts, look.context.header.fingerprints["val"]
            policy = read_policy_file(run / POLICY).digest
            own = replace(_EFFECT, text=texts[0], policy=policy, data=data, simulated=True)
            keep(run, own)
            keep(run, replace(own, instinct=1))
            other = replace(own, difference=Interval(0.3, 0.0, 0.9, 2))
            keep(run, replace(other, policy="of another"))
            keep(run, replace(other, data="another"))
            cards = flat(page_of(codebook_screen(followed), "/").decode())
            page = flat(page_of(biography_screen(followed, "0"), "/").decode())
    finally:
        open_runs.close()
    assert cards.count("+0.100 (95 % +0.000 to +0.200)") == 1 and "+0.300 (95" not in cards
    assert re.search(r"\+0.200\), n = 2, val, simulated", cards)
    assert page.count("+0.300 (95 % +0.000 to +0.900)") == 2 and page.count("as deployed") == 3
    assert page.count("as deployed, in another codebook") == page.count("val of other data") == 1


async def test_a_page_says_what_to_type_and_asks_no_model(trained: Path, tmp_path: Path) -> None:
    runs = Path(shutil.copytree(trained, tmp_path / "runs"))
    run = only(runs)
    command = f"pco codebook effect {run_reference(run)} 0"
    page = f"/run/{run.name}/codebook/0"
    async with viewing(Site(runs)) as base, aiohttp.ClientSession() as session:
        async with session.get(base + page) as answer:
            text = flat(await answer.text())
            assert f"To measure it, type {command}" in text and "--trust" not in text
        for act in ("", "/measure", "/stop"):
            async with session.post(base + page + act, headers={"Origin": base}) as answer:
                assert answer.status == 405
        edit_header(run / "run.sqlite", lambda text: text.replace("0.2.0", "0.2.1"), sealed=False)
    async with (
        viewing(Site(runs)) as base,
        aiohttp.ClientSession() as session,
        session.get(base + page) as answer,
    ):
        assert f"{command} --trust" in flat(await answer.text())
    assert read_effects(run) == []
