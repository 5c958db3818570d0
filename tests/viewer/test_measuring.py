"""Effects in the viewer: what is offered, who may ask for one, and what becomes of it."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from promptcodebook.calls import Usage
from promptcodebook.config import parse_budget
from promptcodebook.intervals import Interval
from promptcodebook.paths import run_reference
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import POLICY
from promptcodebook.store.effects import Effect, EffectStore, read_effects
from promptcodebook.store.events import Compared
from promptcodebook.viewer.codebook import biography_screen, codebook_screen
from promptcodebook.viewer.effect import offers
from promptcodebook.viewer.frame import frame
from promptcodebook.viewer.measuring import Measuring, Standing
from promptcodebook.viewer.server import Site, viewing
from promptcodebook.viewer.watched import Shelf, Watched
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


def slowed(trained: Path, tmp_path: Path, latency: str) -> Path:
    """A copy of the runs whose model takes its time."""
    runs = Path(shutil.copytree(trained, tmp_path / "runs"))
    model = f'"simulated?latency={latency}"'
    edit_header(only(runs) / "run.sqlite", lambda text: text.replace('"simulated"', model))
    return runs


@dataclass
class Browser:
    """Asks as a page of the server would."""

    session: aiohttp.ClientSession
    base: str
    page: str

    async def raw(self) -> str:
        async with self.session.get(self.base + self.page) as answer:
            assert answer.status == 200
            return await answer.text()

    async def read(self) -> str:
        return flat(await self.raw())

    async def post(
        self, act: str, origin: str | None = "", budget: str = "500calls", **headers: str
    ) -> int:
        sent = headers if origin is None else {"Origin": origin or self.base, **headers}
        form = {"split": "train", "budget": budget}
        async with self.session.post(
            f"{self.base}{self.page}/{act}", data=form, headers=sent, allow_redirects=False
        ) as answer:
            if answer.status == 303:
                assert answer.headers["Location"] == f"{self.page}#measured"
            return answer.status

    async def until(self, words: str) -> str:
        for _ in range(200):
            if words in (text := await self.read()):
                return text
            await asyncio.sleep(0.05)
        raise AssertionError(f"{words!r} never came: {text}")


@asynccontextmanager
async def browsing(runs: Path, k: int = 0, **site: bool) -> AsyncIterator[Browser]:
    run = only(runs)
    async with (
        viewing(Site(runs, **site)) as base,
        aiohttp.ClientSession() as session,
    ):
        yield Browser(session, base, f"/run/{run.name}/codebook/{k}")


async def test_a_form_says_what_it_takes_and_what_comes_of_it_is_kept(
    trained: Path, tmp_path: Path
) -> None:
    runs = Path(shutil.copytree(trained, tmp_path / "runs"))
    async with browsing(runs) as browser:
        before = await browser.read()
        assert "Not measured yet." in before
        assert re.search(
            r"train: about \d+ of 12 inputs routed to it, about \d+ calls, about \$0", before
        )
        assert await browser.post("measure") == 303
        text = await browser.until("Measured on the train split.")
    run = only(runs)
    [kept] = read_effects(run)
    assert kept.instinct == 0 and kept.split == "train" and kept.difference is not None
    assert f"{kept.difference.mean:+.3f} (95 % {kept.difference.low:+.3f} to " in text
    assert f"{len(kept.rewards)} of 12" in text and "as deployed" in text
    assert text.count("simulated") > before.count("simulated")  # the row bears the mark
    async with browsing(runs) as browser:
        browser.page = browser.page.rpartition("/")[0]
        assert f"{kept.difference.mean:+.3f} (95 %" in await browser.read()


async def test_a_page_of_another_origin_measures_nothing(trained: Path) -> None:
    run = only(trained)
    async with browsing(trained) as browser:
        port = browser.base.rpartition(":")[2]
        other = ("https://evil.example", "null", f"http://localhost:{port}", "http://127.0.0.1:1")
        for origin in (None, *other):
            for act in ("measure", "stop"):
                assert await browser.post(act, origin) == 403, origin
        for site in ("cross-site", "same-site", "none"):
            assert await browser.post("measure", **{"Sec-Fetch-Site": site}) == 403
        assert await browser.post("measure", Host="evil.example") == 421
        assert "Not measured yet." in await browser.read()
    assert read_effects(run) == []


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("multipart/form-data; boundary=x", b"--x", 415),
        ("multipart/form-data", b"", 415),
        ("text/plain", b"split=train", 415),
        ("application/json", b"{}", 415),
        ("application/x-www-form-urlencoded; charset=nope", b"split=%ff", 400),
        ("application/x-www-form-urlencoded; charset=utf-8", b"split=\xff", 400),
    ],
)
async def test_what_is_not_sent_by_a_form_of_its_pages_is_refused(
    trained: Path, kind: str, body: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with browsing(trained) as browser:
        url, sent = f"{browser.base}{browser.page}/measure", {"Origin": browser.base}
        sent["Content-Type"] = kind
        async with browser.session.post(url, data=body, headers=sent) as answer:
            assert answer.status == status
    assert caplog.records == []


async def test_where_there_is_nothing_to_measure_nothing_is_found(trained: Path) -> None:
    async with browsing(trained) as browser:
        page = browser.page
        for browser.page in (f"{page}x", page.replace("/run/", "/run/x"), f"{page}/../encoder"):
            assert await browser.post("measure") == 404, browser.page
        browser.page = page.rpartition("/")[0] + "/99"
        assert await browser.post("measure") == 303
        browser.page = page
        assert "Not measured yet." in await browser.read()


async def test_it_can_be_stopped_and_goes_on(trained: Path, tmp_path: Path) -> None:
    runs = slowed(trained, tmp_path, "0.5")
    run = only(runs)
    async with browsing(runs) as browser:
        assert await browser.post("measure") == 303
        text = await browser.until("routing: ")
        assert ">Stop<" not in text and "Stop" in text and "Spend at most" not in text
        assert await browser.post("measure") == 409
        async with browser.session.get(f"{browser.base}/live/measured/{run.name}") as news:
            lines = [await news.content.readline() for _ in range(10)]
        assert lines.count(b"event: changed\n") == 2 and b"event: rest\n" not in lines
        assert await browser.post("stop") == 303
        text = await browser.until("It was stopped.")
        assert "what was paid for so far is kept" in text and "Spend at most" in text
        assert read_effects(run) == []


async def test_stopped_twice_it_waits_for_no_call(trained: Path, tmp_path: Path) -> None:
    runs = slowed(trained, tmp_path, "60")
    async with browsing(runs) as browser:
        assert await browser.post("measure") == 303
        await browser.until("routing: ")
        assert await browser.post("stop") == 303
        assert "waiting for calls in flight" in await browser.read()
        assert await browser.post("stop") == 303
        text = await browser.until("Spend at most")
    assert "It was stopped." in text and "KeyboardInterrupt" not in text


async def test_the_end_of_the_server_ends_it(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptcodebook.viewer.measuring._PATIENCE_S", 1.0)
    runs = slowed(trained, tmp_path, "60")
    async with browsing(runs) as browser:
        assert await browser.post("measure") == 303
        await browser.until("routing: ")
    run = only(runs)
    assert not (run / "effects" / "in-flight").exists()  # closed in order, and not killed


async def test_a_fault_says_what_to_type(trained: Path, tmp_path: Path) -> None:
    runs = slowed(trained, tmp_path, "nonsense")
    async with browsing(runs) as browser:
        assert await browser.post("measure") == 303
        assert "simulated?latency=1" in await browser.until("latency must be a number")


@pytest.mark.parametrize("budget", ["", "  "])
async def test_without_a_budget_nothing_is_asked(trained: Path, budget: str) -> None:
    async with browsing(trained) as browser:
        assert ' required=""' in await browser.raw()
        assert await browser.post("measure", budget=budget) == 303
        assert "e.g. 5usd" in await browser.until("cannot read the budget")
    assert read_effects(only(trained)) == []


class _Late(Measuring):
    """Another process keeps a result while a page is made."""

    def standing(self, run: str, k: int) -> Standing | None:
        keep(self.run, _EFFECT)
        return super().standing(run, k)

    run: Path


def keep(run: Path, effect: Effect) -> None:
    store = EffectStore.open(run, "pco")
    try:
        store.add(effect)
    finally:
        store.close()


def test_a_page_never_says_that_it_is_newer_than_what_it_shows(
    trained: Path, tmp_path: Path
) -> None:
    runs = Path(shutil.copytree(trained, tmp_path / "runs"))
    shelf = Shelf(runs)
    measuring = _Late(shelf)
    measuring.run = only(runs)
    try:
        with shelf.reading(only(runs).name) as watched:
            assert watched is not None
            screen = biography_screen(watched, "0", measuring)
            assert b"Not measured yet." in frame(screen, "/")
            assert screen.mark != measuring.mark(watched, watched.mark())
    finally:
        shelf.close()


def test_a_card_shows_the_effect_of_its_own_instinct_and_whether_it_is_simulated(
    trained: Path, tmp_path: Path
) -> None:
    runs = Path(shutil.copytree(trained, tmp_path / "runs"))
    run, shelf = only(runs), Shelf(runs)
    try:
        with shelf.reading(run.name) as watched:
            assert watched is not None
            look = watched.look()
            texts, data = look.context.codebook.texts, look.context.header.fingerprints["val"]
            policy = read_policy_file(run / POLICY).digest
            own = replace(_EFFECT, text=texts[0], policy=policy, data=data, simulated=True)
            keep(run, own)
            keep(run, replace(own, instinct=1))
            other = replace(own, difference=Interval(0.3, 0.0, 0.9, 2))
            keep(run, replace(other, policy="of another"))
            keep(run, replace(other, data="another"))
            cards = flat(frame(codebook_screen(watched), "/").decode())
            page = flat(frame(biography_screen(watched, "0", Measuring(shelf)), "/").decode())
    finally:
        shelf.close()
    assert cards.count("+0.100 (95 % +0.000 to +0.200)") == 1 and "+0.300 (95" not in cards
    assert re.search(r"\+0.200\), n = 2, val, simulated", cards)
    assert page.count("+0.300 (95 % +0.000 to +0.900)") == 2 and page.count("as deployed") == 3
    assert page.count("as deployed, in another codebook") == page.count("val of other data") == 1


async def test_a_viewer_that_only_reads_says_what_to_type(trained: Path) -> None:
    run = only(trained)
    async with browsing(trained, read_only=True) as browser:
        text = await browser.read()
        assert f"Measure it: pco codebook effect {run_reference(run)} 0" in text
        assert "Spend at most" not in text
        assert await browser.post("measure") == 409
    assert read_effects(run) == []


async def test_a_run_of_somebody_else_is_not_measured_unless_it_is_trusted(
    trained: Path, tmp_path: Path
) -> None:
    runs = Path(shutil.copytree(trained, tmp_path / "runs"))
    file = only(runs) / "run.sqlite"
    edit_header(file, lambda text: text.replace("0.2.0", "0.2.1"), sealed=False)
    async with browsing(runs) as browser:
        assert "0 --trust" in await browser.read()
        assert await browser.post("measure") == 303
        assert "Measured on" not in await browser.until("does not bear your mark")
    async with browsing(runs, trust=True) as browser:
        assert "Spend at most" in await browser.read()


def test_what_is_offered_is_counted_where_the_run_has_routed_a_whole_split(trained: Path) -> None:
    run = only(trained)
    watched = Watched(run, run_reference(run))
    try:
        look = watched.look()
        known = {offer.split: offer for offer in offers(look, 0)}
    finally:
        watched.close()
    assert list(known) == ["val", "test", "train"]
    assert known["val"].counted and known["test"].counted and not known["train"].counted
    tested = [e.evaluation for e in look.events if isinstance(e, Compared)]
    [learned] = [each for each in tested if each.name == "learned"]
    held = sum(0 in r.route.indices for r in learned.rollouts if r.route is not None)
    assert known["test"].held == held > 0
    for offer in known.values():
        assert offer.cost == 0.0 and offer.calls >= 2 * offer.held  # composed, and answered
        assert parse_budget(offer.budget).calls == 2 * offer.calls + 20


def test_the_viewer_loads_what_measures_only_when_it_does() -> None:
    code = (
        "import sys, promptcodebook.viewer.server; "
        "print('promptcodebook.run.effect' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
