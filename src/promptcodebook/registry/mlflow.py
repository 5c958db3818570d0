"""A registry on an MLflow server, in its prompt registry: what several machines share.

Each codebook is a prompt of its name. A version is a version of that prompt, its text the policy
file (further pieces of a long one are tags); a ref is an alias. The log is a prompt of its own,
each of its versions an entry. That is how a move is atomic on a server that locks nothing: it
numbers what comes in, one after the other, and an entry counts only if it follows the last one
that counts. Of two that follow the same one the second is void, for everybody who reads, and who
wrote it writes another. The log is what says where a ref stands; an alias is set after it, for
readers that know MLflow only, and set again by whoever moves on where its writer was killed.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from promptcodebook.errors import (
    ConfigError,
    RegistryDamaged,
    StoreError,
    import_extra,
)
from promptcodebook.registry.log import LATEST, LOG_NAME, Broken, Entry, Log, canonical
from promptcodebook.registry.storage import Proposal, Propose, Row

_VERSION, _NUMBER, _PIECES, _PIECE = "pco.version", "pco.number", "pco.pieces", "pco.piece."
_ASCII_PIECE, _PIECE_LENGTH = 60_000, 15_000
"""Characters of a text in one place: MySQL takes 65,535 bytes, and MLflow 100,000 characters."""
_MOST_TRIES = 400
_PAGE = 100
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")
_PRESENT = ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS")


class MlflowStorage:
    """The server at a URL. Credentials come from MLflow's own variables. Safe for threads.

    Raises ConfigError for a URL with a password in it, MissingExtra without the client.
    """

    def __init__(self, url: str) -> None:
        if urlsplit(url).username or urlsplit(url).password:
            raise ConfigError(
                "the URL of the MLflow server has a user or a password in it",
                hint="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead",
            )
        # A server that is down is noticed soon.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        library = import_extra("mlflow", "a registry on an MLflow server", "mlflow")
        self._fails = cast("type[Exception]", library.exceptions.MlflowException)
        self._client: Any = library.MlflowClient(tracking_uri=url, registry_uri=url)
        self._url = url
        self._lock = threading.RLock()
        self._log = Log()
        self._read_to = 0
        self._numbers: dict[tuple[str, str], int] = {}
        self._last_piece: tuple[str, bytes] = ("", b"")

    @property
    def place(self) -> str:
        return self._url

    def read(self) -> Log:
        with self._lock:
            self._refresh()
            return self._log

    def poll(self, ref: str) -> str | None:
        return self.read().at(ref)

    def close(self) -> None:
        """Each request has a connection of MLflow's own."""

    def append(self, propose: Propose) -> tuple[Entry, ...]:
        landed: list[Entry] = []
        with self._lock:
            for again in range(_MOST_TRIES):
                if again:  # another process was quicker
                    time.sleep(random.uniform(0, 0.02 * min(again, 10)))
                self._refresh()
                proposal = propose(self._log)
                if self._add(proposal, landed):
                    self._set_aliases({entry.ref for entry in landed} or set(self._log.refs))
                    return tuple(landed)
        raise StoreError(
            f"{_MOST_TRIES} entries came in at {self._url} before this one",
            hint="run the command again",
        )

    def _add(self, proposal: Proposal, landed: list[Entry]) -> bool:
        """Whether every entry counts; those that do are in `landed`."""
        for entry in proposal.entries:
            try:
                self._log.check(entry)
            except Broken as fault:
                if landed:  # another process came between
                    return False
                raise StoreError(f"the registry {self._url} does not take this: {fault}") from None
            number = self._stored_number(entry, proposal.policies) if entry.name else 0
            self._post(LOG_NAME, _line(entry), {_NUMBER: str(number)}, entry.why)
            self._refresh()
            if not self._log.holds(entry.hash):
                return False
            landed.append(entry)
        return True

    def _stored_number(self, entry: Entry, policies: Mapping[str, str]) -> int:
        """The number under which the entry's codebook has its version, stored first if need be."""
        known = self._numbers.get((entry.name, entry.after))
        newest = self._log.at(f"{entry.name}@{LATEST}") == entry.after
        if known is not None and (newest or not entry.ref.endswith(f"@{LATEST}")):
            return known
        text = policies.get(entry.after)
        text = self.policy(entry.after).decode() if text is None else text
        return self._post(entry.name, text, {_VERSION: entry.after}, entry.why)

    def _post(self, name: str, text: str, tags: Mapping[str, str], why: str) -> int:
        """Stores a text as the next version of a prompt; its number."""
        length = _ASCII_PIECE if text.isascii() else _PIECE_LENGTH
        pieces = [text[start : start + length] for start in range(0, len(text), length)]
        more = {f"{_PIECE}{place}": piece for place, piece in enumerate(pieces[1:], 1)}
        tags = {**tags, **more, _PIECES: str(len(pieces))}

        def store() -> Any:
            return self._client.create_prompt_version(
                name, pieces[0], description=why[:500] or None, tags=tags
            )

        try:
            made = store()
        except self._fails as error:
            if _code(error) not in _ABSENT:
                raise self._fault(error) from error
            self._create(name)
            made = self._ask(store)
        return int(made.version)

    def _create(self, name: str) -> None:
        try:
            self._client.create_prompt(name)
        except self._fails as error:
            if _code(error) not in _PRESENT:  # another process was quicker
                raise self._fault(error) from error

    def policy(self, version: str) -> bytes:
        with self._lock:
            for (name, known), number in self._numbers.items():
                if known == version:
                    return self._policy_at(name, number)
        raise RegistryDamaged(f"the registry {self._url} has no policy file of {version}")

    def _policy_at(self, name: str, number: int) -> bytes:
        found = self._ask(partial(self._client.get_prompt_version, name, number))
        try:
            if found is None:
                raise Broken("it is missing")
            return _text(found).encode("utf-8", "surrogatepass")
        except Broken as fault:
            raise RegistryDamaged(
                f"version {number} of the prompt {name} at {self._url} is damaged: {fault}",
                hint="pco codebook verify names every row that is wrong",
            ) from None

    def _refresh(self) -> None:
        for number, found in self._entries_after(self._read_to):
            try:
                self._take(number, found)
            except Broken as fault:
                raise RegistryDamaged(
                    f"the registry {self._url} is damaged: {_place(number)}: {fault}",
                    hint="pco codebook verify names every row that is wrong",
                ) from None
            self._read_to = number

    def _take(self, number: int, found: Any) -> None:
        """Raises Broken; an entry that is void is passed over."""
        if found is None:
            raise Broken("it is missing")
        entry = _entry(found)
        if not _is_void(entry, self._log):
            self._log.add(entry)
            if entry.name:
                self._numbers[entry.name, entry.after] = _number(found)

    def _entries_after(self, seen: int) -> list[tuple[int, Any]]:
        """The later versions of the log's prompt, in order; None for one that is missing."""
        found: dict[int, Any] = {}
        size, token = (1 if seen else _PAGE), None
        while True:
            page = self._page(LOG_NAME, size, token)
            found |= {int(each.version): each for each in page}
            lowest = min(found, default=0)
            token = getattr(page, "token", None)
            if not token or lowest <= seen + 1:
                break
            size = _PAGE
        last = max(found, default=0)
        return [(number, found.get(number)) for number in range(seen + 1, last + 1)]

    def _page(self, name: str, size: int, token: str | None) -> Any:
        """Newest first. A page's token is for pages of any size."""
        try:
            return self._client.search_prompt_versions(name, max_results=size, page_token=token)
        except self._fails as error:
            if _code(error) in _ABSENT:
                return []
            raise self._fault(error) from error

    def _set_aliases(self, refs: set[str]) -> None:
        """Sets aliases to where the log says that the refs stand, until it says nothing new: so
        that of two who do this at once the last one sets the last move."""
        wanted: dict[str, str] = {}
        while (now := {ref: at for ref in refs if (at := self._log.at(ref))}) != wanted:
            for ref, version in now.items():
                name, _, word = ref.partition("@")
                if word != LATEST and wanted.get(ref) != version:
                    number = self._numbers[name, version]
                    self._ask(partial(self._client.set_prompt_alias, name, word, number))
            wanted = now
            self._refresh()

    def rows(self) -> Iterator[Row]:
        with self._lock:
            self._log, self._read_to, self._numbers = Log(), 0, {}
            for entry in self.read():
                yield Row(f"entry {entry.seq} of the prompt {LOG_NAME}", entry)
            for (name, version), number in self._numbers.items():
                place = f"version {number} of the prompt {name}"
                yield Row(place, policy=(version, self._policy_at(name, number)))

    def _ask(self, call: Any) -> Any:
        try:
            return call()
        except self._fails as error:
            if _code(error) in _ABSENT:
                return None
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> StoreError:
        return StoreError(
            f"the MLflow server at {self._url} did not do it: {_first_line(error)}",
            hint=f"curl {self._url}/health",
        )


def _code(error: Exception) -> str:
    return str(getattr(error, "error_code", ""))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def _place(number: int) -> str:
    return f"version {number} of the prompt {LOG_NAME}"


def _line(entry: Entry) -> str:
    return canonical(asdict(entry))


def _entry(found: Any) -> Entry:
    """Raises Broken where the text is not an entry as it is written."""
    text = _text(found)
    try:
        tree: object = json.loads(text)
    except (ValueError, RecursionError):
        raise Broken("it is not JSON") from None
    if not isinstance(tree, dict) or canonical(cast("dict[str, object]", tree)) != text:
        raise Broken("it is not JSON as it was written")
    return Entry.of(cast("dict[str, object]", tree))


def _is_void(entry: Entry, log: Log) -> bool:
    """Whether another entry came in before it: it follows one that counts, but not the last."""
    late = entry.previous != log.head and log.holds(entry.previous)
    return late and entry.digest == entry.hash


def _tags(found: Any) -> Mapping[str, str]:
    return cast("Mapping[str, str]", found.tags or {})


def _number(found: Any) -> int:
    text = _tags(found).get(_NUMBER, "")
    if not text.isdecimal():
        raise Broken("it does not say which version of its prompt it is about")
    return int(text)


def _text(found: Any) -> str:
    """The text in its pieces. Raises Broken where one is missing."""
    tags = _tags(found)
    count = tags.get(_PIECES, "")
    names = [f"{_PIECE}{place}" for place in range(1, int(count) if count.isdecimal() else 1)]
    if not count.isdecimal() or any(name not in tags for name in names):
        raise Broken("a piece of its text is missing")
    return "".join((str(found.template), *(tags[name] for name in names)))
