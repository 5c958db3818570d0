"""The site as it is read from a folder, without a server."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.build.blocks import DOCS
from tests.build.viewer import CHROMIUM, browser, opened

__all__ = ["browser"]

MKDOCS = DOCS.parent / ".venv-docs" / "bin" / "mkdocs"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM} here"),
    pytest.mark.skipif(not MKDOCS.exists(), reason="`make docs` makes the environment"),
]

SMALL = """
INHERIT: {ours}
docs_dir: {pages}
site_dir: {site}
nav: [index.md, more/other.md]
hooks: []
watch: []
"""


def test_search_finds_a_page_that_is_opened_as_a_file(browser: Any, tmp_path: Path) -> None:
    """Two pages with our settings: all of them would take twenty times as long."""
    pages, site = tmp_path / "docs", tmp_path / "site"
    (pages / "more").mkdir(parents=True)
    for name in ("iframe-worker.js", "site.css"):
        (pages / name).write_text((DOCS / name).read_text("utf-8"), "utf-8")
    (pages / "index.md").write_text("# First\n\nNothing here.\n")
    (pages / "more" / "other.md").write_text("# Second\n\nA kestrel hovers.\n")
    settings = tmp_path / "mkdocs.yml"
    settings.write_text(SMALL.format(ours=DOCS.parent / "mkdocs.yml", pages=pages, site=site))
    made = subprocess.run([MKDOCS, "build", "-f", settings], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    with opened(browser, 1600, "light") as (page, heard):
        page.goto(f"file://{site}/more/other.html")
        page.locator("[data-md-component=search-query]").press_sequentially("kestrel")
        found = page.locator(".md-search-result__item a").first.get_attribute("href")
    assert found == f"file://{site}/more/other.html"
    assert (heard.complaints, heard.foreign(f"file://{tmp_path}")) == ([], [])
