"""The whole page of runs written by hand: sound, safe, complete, and of bounded size."""

from __future__ import annotations

import base64
import hashlib
import re
import tracemalloc
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.base.text import printable
from promptcodebook.errors import StoreError
from promptcodebook.report.page import render_report, write_report
from promptcodebook.store.events import Concluded, Ended, Started
from promptcodebook.store.run import RunStore
from promptcodebook.types import Codebook, Example, Instinct, Parameters
from tests.build.scripted_run import HOSTILE, ScriptedRun, events_of
from tests.build.strict import read_page

Write = Callable[..., RunStore]


def test_a_page_full_of_hostile_texts_is_well_formed_and_inert(write: Write) -> None:
    names = [f"train-{i}-{j}" for i in range(30) for j in range(6)]
    source = render_report(write(ScriptedRun()), {n: Example(n, f"do {HOSTILE}") for n in names})
    page = read_page(source)
    assert page.faults == []
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", source) is None
    inside = [link for link in page.links if link.startswith("#")]
    assert {link[1:] for link in inside} <= set(page.ids)
    assert all(link.startswith("data:") for link in page.links if link not in inside)
    assert len(page.ids) == len(set(page.ids))
    shown = HOSTILE.replace("\x00\x07 \ud800", "  ?")
    for prefix in ("Some answer", "Be brief.", "missed a constraint", "The answer ignores", "do"):
        assert any(f"{prefix} {shown}" in text or shown in text for text in page.texts), prefix


def test_the_policy_allows_the_one_style_sheet_the_one_script_and_no_connection(
    write: Write,
) -> None:
    source = render_report(write(ScriptedRun(steps=2)))
    policy = next(m["content"] for m in read_page(source).metas if "http-equiv" in m)
    style = re.search(r"<style>(.*?)</style>", source, re.S)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"style-src 'sha256-{digest}'" in policy
    (script,) = read_page(source).scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'; " in policy and "unsafe" not in policy
    assert "url(" not in style[1] and "@import" not in style[1]


SERVED = "http://localhost:9000/v1#"
_HUSH = {"Authorization": "Bearer hush"}
ROLES_WITH_HEADERS = {
    "critic": {"model": f"{SERVED}m", "headers": _HUSH},
    "updater": {"headers": None},  # no command would accept it
}


@pytest.mark.parametrize(("config", "simulated", "model"), [
    ({"lm": "simulated"}, True, "simulated"),
    ({"lm": f"{SERVED}simulated?load=0.2"}, True, "simulated"),
    ({"lm": f"{SERVED}m", "roles": {"judge": {"model": "simulated"}}}, True, f"{SERVED}m"),
    ({"lm": f"{SERVED}not-simulated"}, False, f"{SERVED}not-simulated"),
    ({"lm": "http://user:hush@a/v1#m", "roles": ROLES_WITH_HEADERS}, False, "http://a/v1#m"),
    ({"lm": "own", "roles": {}}, False, "your own model"),
])  # fmt: skip
def test_figures_are_marked_where_any_model_is_simulated_and_no_secret_is_shown(
    write: Write, config: dict[str, Any], simulated: bool, model: str
) -> None:
    source = render_report(write(ScriptedRun(steps=2, simulated=False, config=config)))
    page = read_page(source)
    assert page.faults == [] and "hush" not in source and model in page.text
    assert len(page.captions) > 12
    assert {caption.startswith("simulated") for caption in page.captions} == {simulated}
    assert ("comes from a simulated model" in page.text) is simulated


def test_the_rows_of_a_verdict_may_have_any_names(write: Write) -> None:
    rows = (
        ("nothing", "no prompt at all", 0.3),
        (f"rival {HOSTILE}", "the rival", 0.5),
        ("an-optimizer-of-somebody-else", f"its result {HOSTILE}", 0.7),
    )
    source = render_report(write(ScriptedRun(steps=2, rows=rows, hostile="")))
    page = read_page(source)
    assert page.faults == []
    strong = [unescape(name) for name in re.findall(r"<strong>(.*?)</strong>", source)]
    assert strong == [printable(name) for name, _, _ in rows]
    assert {printable(title) for _, title, _ in rows} <= set(page.texts)
    dots = re.findall(r'<circle class="(\w+)" cx="([\d.]+)" cy="[\d.]+" r="5.5"/>', source)
    assert dots == [("soft", "268.2"), ("soft", "311.0"), ("main", "353.8")]  # right of the names
    places = re.findall(r'<text class="value" x="(\d+)" y="([\d.]+)">([\d.]+)</text>', source)
    of_480_pixels = [("438", "30.0", "0.300"), ("438", "60.0", "0.500"), ("438", "90.0", "0.700")]
    assert places == of_480_pixels


def test_a_verdict_of_version_0_1_has_rows_without_titles(write: Write) -> None:
    (rows,) = (e.rows for e in events_of(ScriptedRun(steps=1)) if isinstance(e, Concluded))
    old = [{key: value for key, value in row.items() if key != "title"} for row in rows]
    assert old != list(rows)
    store = write()
    store.append(Concluded("Worth deploying.", True, tuple(old)))
    page = read_page(render_report(store))
    assert page.faults == [] and "learned" in page.texts


def test_a_run_that_is_not_at_its_end_has_a_page(write: Write) -> None:
    page = read_page(render_report(write(ScriptedRun(steps=4, verdict=False))))
    assert page.faults == [] and "This run has no verdict yet" in page.text
    never_began = write()
    page = read_page(render_report(never_began))
    assert page.faults == [] and "This run has no codebook." in page.text
    parameters = Parameters("e", "g", Codebook((Instinct("Only one."),)), "c")
    never_began.append(Started(parameters, "expert"))
    never_began.append(Ended("failed", "EndpointDown: nothing <answers>"))
    page = read_page(render_report(never_began))
    assert page.faults == [] and "Only one." in page.text and "nothing <answers>" in page.text


def test_write_report_replaces_the_file_as_a_whole(write: Write, tmp_path: Path) -> None:
    store, target = write(ScriptedRun(steps=2)), tmp_path / "report.html"
    target.write_text("old")
    write_report(store, target)
    assert target.read_text("utf-8").startswith("<!doctype html>")
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []
    with pytest.raises(StoreError, match="nowhere"):
        write_report(store, tmp_path / "nowhere" / "report.html")


@pytest.mark.slow
def test_a_long_run_stays_small_on_disk_and_in_memory(write: Write) -> None:
    store = write(ScriptedRun(steps=1000, size=32, batch=15))
    tracemalloc.start()
    try:
        source = render_report(store)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(source.encode()) < 3_200_000  # 67 kB of it are the script of its curves
    assert peak < 60_000_000
    assert read_page(source).faults == []
