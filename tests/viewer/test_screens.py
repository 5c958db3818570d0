"""What the screens show, read as a browser without eyes would."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from promptcodebook.viewer.runs import Runs
from tests.report.strict import read_page
from tests.viewer.conftest import Get


def flat(markup: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", markup)).split())


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
    screen = Runs(tmp_path).screen()
    assert "pco train" in str(screen.body)


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
    assert "Every number here comes from a simulated model" not in text


def test_a_simulated_run_says_so_on_every_figure(get: Get, keys: dict[str, str]) -> None:
    page = read_page(get(f"/run/{keys['simulated']}").text)
    assert "Every number here comes from a simulated model" in page.text
    assert page.captions and all(caption.startswith("simulated") for caption in page.captions)
