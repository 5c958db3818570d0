"""The page around every screen: where the reader is, where to go, and what is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.text import printable

LIVE = "/live"
"""Below it, a page is told that it is out of date: /live/run/KEY for the page /run/KEY."""
ALL_SIMULATED = (
    "Every number here comes from a simulated model: it shows that the machinery works and says "
    "nothing about any real model."
)
SOME_SIMULATED = "Some of the numbers here come from a simulated model; they are marked."
_KEYS = (
    ("j", "next"),
    ("k", "previous"),
    ("Enter", "open"),
    ("h l", "tabs"),
    ("u", "up"),
    ("/", "search"),
)


@dataclass(frozen=True, slots=True)
class Screen:
    """A page: its title and body, the places above it as (words, address), and its tabs.

    `live` is where to hear that it is out of date ('' = it does not change), `mark` what it was
    made of; `simulated` says that figures on it are ('' = none is).
    """

    title: str
    body: Content
    above: Sequence[tuple[str, str]] = ()
    tabs: Sequence[tuple[str, str]] = ()
    live: str = ""
    mark: str = ""
    simulated: str = ""
    status: int = 200


def address(*parts: str | int, **query: str) -> str:
    """A path of this server: every part is one level, whatever is in it."""
    path = "/" + "/".join(quote(printable(str(part)), safe="") for part in parts)
    return f"{path}?{urlencode(query)}" if query else path


def link(words: Content, *parts: str | int, look: str = "") -> Html:
    """A link to another screen."""
    return el(f"a{look}", words, attrs={"href": address(*parts)})


def filter_box(what: str) -> Html:
    """Where rows of this page are looked for; '/' leads there."""
    attrs = {
        "id": "filter",
        "type": "search",
        "aria-label": f"Search {what}",
        "autocomplete": "off",
    }
    return el("p.filter", el("input", attrs={**attrs, "placeholder": f"/ search {what}"}))


def missing(what: str, hint: str = "") -> Screen:
    """There is nothing here."""
    said = el("p.note", "Next: ", el("code", hint)) if hint else None
    return Screen("Nothing here", [el("p.empty", what), said], status=404)


def render(screen: Screen, here: str) -> bytes:
    """The whole page; `here` is its own path, without a query."""
    main = el(
        "main",
        el("p.banner", el("span.badge", "simulated"), screen.simulated)
        if screen.simulated
        else None,
        screen.body,
        attrs={"id": "main", "tabindex": -1, "data-live": screen.live, "data-mark": screen.mark},
    )
    skip = el("a.skip", "To the content", attrs={"href": "#main"})
    page = el(
        "html",
        el("head", _head(screen.title)),
        el("body", skip, _top(screen, here), main, _foot()),
        attrs={"lang": "en"},
    )
    return f"<!doctype html>\n{page.markup}\n".encode("utf-8", "replace")


def _head(title: str) -> Html:
    return together(
        el("meta", attrs={"charset": "utf-8"}),
        el("meta", attrs={"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        el("meta", attrs={"name": "color-scheme", "content": "light dark"}),
        el("link", attrs={"rel": "icon", "href": address("static", "icon.svg")}),
        el("link", attrs={"rel": "stylesheet", "href": address("static", "style.css")}),
        el("script", attrs={"src": address("static", "chart.js"), "defer": ""}),
        el("script", attrs={"src": address("static", "view.js"), "defer": ""}),
        el("title", f"{title} · promptcodebook"),
    )


def _top(screen: Screen, here: str) -> Html:
    places = (("Runs", "/"), ("Registry", "/registry"), ("Paper", "/paper"))
    above = [(words, to) for words, to in screen.above if to != "/"]
    crumbs = [[el("a", words, attrs={"href": to}), el("span.sep", "/")] for words, to in above]
    return el(
        "header.top",
        el("nav.places", [_place(each, here) for each in places], attrs={"aria-label": "Places"}),
        el("p.crumbs", crumbs) if crumbs else None,
        el(
            "div.title",
            el("h1", screen.title),
            el("p.status", attrs={"id": "status", "role": "status"}) if screen.live else None,
        ),
        el("nav.tabs", [_place(each, here) for each in screen.tabs], attrs={"aria-label": "Run"})
        if screen.tabs
        else None,
    )


def _place(place: tuple[str, str], here: str) -> Html:
    words, to = place
    current = {"aria-current": "page"} if to == here else {}
    return el("a", words, attrs={"href": to, **current})


def _foot() -> Html:
    keys = [el("span", el("kbd", key), f" {words}") for key, words in _KEYS]
    return el("footer", el("p.keys", keys))
