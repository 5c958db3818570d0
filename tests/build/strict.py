"""Reads a page strictly: every element closed, nothing that runs but our script, nothing that calls
out."""

import os
import re
from collections.abc import Callable, Mapping
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

from promptcodebook.report.context import Context, ReportSection
from promptcodebook.report.pages import read_script
from promptcodebook.store.events import Event
from promptcodebook.store.run import RunStore
from promptcodebook.types import Example

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
_FORBIDDEN = frozenset({"iframe", "object", "embed", "link", "base", "form"})


class Page(HTMLParser):
    """What a page holds; `faults` is empty for a good one."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.words: list[str] = []
        self.visible: list[str] = []  # words that are read before anything is opened
        self.captions: list[str] = []
        self.metas: list[dict[str, str]] = []
        self.scripts: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._look(tag, attrs)
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "figcaption":
            self.captions.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._look(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)
            return
        self.texts.append(data)
        folded = self._open[self._open.index("details") :] if "details" in self._open else []
        if "style" not in self._open and (not folded or folded[1:2] == ["summary"]):
            self.visible += data.split()
        self.words += (
            [" ".join(data.split())] if data.strip() and self._open[-1:] != ["style"] else []
        )
        if "figcaption" in self._open:
            self.captions[-1] += data

    def handle_comment(self, data: str) -> None:
        self.faults.append(f"a comment: {data}")

    def _look(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in _FORBIDDEN:
            self.faults.append(f"<{tag}>")
        given = {name: value or "" for name, value in attrs}
        self.words += [given["aria-label"]] if "aria-label" in given else []
        if tag == "meta":
            self.metas.append(given)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        for name in given:
            if tag == "img" and name == "src" and given[name].startswith("data:image/png;base64,"):
                continue
            if name.startswith("on") or name in ("style", "src", "srcset", "xlink:href"):
                self.faults.append(f"<{tag} {name}>")

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def read_page(source: str) -> Page:
    """The page, read to its end."""
    page = Page()
    page.feed(source)
    page.close()
    page.faults += [f"<{tag}> is never closed" for tag in page._open]
    page.faults += ["a script that is not ours" for text in page.scripts if text != read_script()]
    return page


def require_approved(file: Path, source: str, beyond: Path | None = None) -> None:
    """The words of a page, and those that its drawings are described by, are as they were approved:
    all of them, or those that the page `beyond` does not have. APPROVE=1 approves what is there."""
    words = read_page(source).words
    base = set(beyond.read_text("utf-8").splitlines()) if beyond else set[str]()
    told = [re.sub(r"^[\d.]+ m?s$", "(a while)", word) for word in words]
    told = [word for word in told if word not in base]
    if os.environ.get("APPROVE") == "1":
        file.write_text("\n".join(told) + "\n", "utf-8")
    assert told == file.read_text("utf-8").splitlines()


def flat(markup: str) -> str:
    """The words of a page, as a browser without eyes would read them."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def section(
    store: RunStore,
    make: Callable[[Context], ReportSection],
    examples: Mapping[str, Example] | None = None,
    change: Callable[[Event], Event] = lambda event: event,
) -> str:
    """The markup of one section of the report, after all events; `change` alters them."""
    made = make(Context.of(store, examples or {}))
    for event in store.events(full=True):
        made.add(change(event))
    shown = made.render()
    assert read_page(shown).faults == []
    return shown
