"""The page around every screen: where the reader is, where to go, and what is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from promptcodebook.report.pages import render

ALL_SIMULATED = (
    "Every number here comes from a simulated model: it shows that the machinery works and says "
    "nothing about any real model."
)
SOME_SIMULATED = "Some of the numbers here come from a simulated model; they are marked."


@dataclass(frozen=True, slots=True)
class Screen:
    """`above` and `tabs` are (words, address); `live` is where to hear that a page is out of date,
    `mark` what it was made of; `simulated` says that figures on it are simulated."""

    title: str
    body: Markup
    above: Sequence[tuple[str, str]] = ()
    tabs: Sequence[tuple[str, str]] = ()
    live: str = ""
    mark: str = ""
    simulated: str = ""
    status: int = 200


def missing(what: str, hint: str = "") -> Screen:
    """There is nothing here; `hint` is what to type next."""
    body = render("deploy/viewer/templates/missing.html.jinja", what=what, hint=hint)
    return Screen("Nothing here", body, status=404)


def page_of(screen: Screen, here: str) -> bytes:
    """The whole page; `here` is its own path, without a query."""
    page = render("deploy/viewer/templates/page.html.jinja", screen=screen, here=here)
    return page.encode("utf-8", "replace")
