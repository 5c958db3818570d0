"""The version of a policy that is served now, and earlier ones that callers ask for by hash.

A request keeps the version that it began with. A version that is no longer served is closed when
its last request ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from promptcodebook.errors import PcoError, PolicyError
from promptcodebook.policy.file import PolicyFile, parse_policy_file
from promptcodebook.registry.log import version_of
from promptcodebook.registry.registry import Registry
from promptcodebook.serve.composing import Composing
from promptcodebook.serve.metrics import kind_and_place

_log = logging.getLogger(__name__)
_EARLIER = 4
"""Earlier versions at work at once; then the one that was asked for longest ago goes."""


@dataclass(frozen=True, slots=True)
class Version:
    """A policy and its name: 'sha256:' and the digits of its file's hash."""

    name: str
    file: PolicyFile

    @classmethod
    def of(cls, data: bytes, where: object) -> Version:
        """The policy in a file's bytes. Raises PolicyError."""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise PolicyError(f"cannot read the policy file {where}: {error}") from None
        return cls(version_of(data), parse_policy_file(text, where))


class PolicySource(Protocol):
    """Where a served policy comes from."""

    def read(self, known: str) -> Version | None:
        """The version to serve now; None where it is still `known` ('' = none is). Asked from a
        thread several times a second. Raises PcoError where it cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSource:
    """A policy that never moves: a run's."""

    version: Version

    def read(self, known: str) -> Version | None:
        return None if known == self.version.name else self.version


class FileSource:
    """A policy file; another file in its place is another version."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: tuple[tuple[int, int, int], str] | None = None

    def read(self, known: str) -> Version | None:
        try:
            state = self._path.stat()
            seen = state.st_mtime_ns, state.st_size, state.st_ino
            # Not where what was read last is not served: it may have failed to come to work.
            if self._last == (seen, known):
                return None
            data = self._path.read_bytes()
        except OSError as error:
            raise PolicyError(
                f"cannot read the policy file {self._path}: {error.strerror}",
                hint="put a policy file there",
            ) from None
        name = version_of(data)
        # Not before it is read whole: one that is half-written is looked at again.
        version = None if name == known else Version.of(data, self._path)
        self._last = seen, name
        return version


class RegistrySource:
    """A ref in the registry: where it moves to is served. Callers may also ask for a version that
    the ref can be rolled back to."""

    def __init__(self, registry: Registry, ref: str) -> None:
        self._registry = registry
        self._watch = registry.watch(ref)
        self._ref = ref

    def read(self, known: str) -> Version | None:
        now = self._watch.version
        if known:
            # Against what is served, not what was last seen: that may have failed to come to work.
            self._watch.version = known
            moved = self._watch.poll()
            if moved is None:
                return None
            now = moved
        return Version(now, self._registry.policy(now))

    def find(self, start: str) -> str:
        """The name of the one version that begins so; '' for none or several. Raises PcoError."""
        found = {name for name in self._registry.held(self._ref) if name.startswith(start)}
        return found.pop() if len(found) == 1 else ""

    def version(self, name: str) -> Version:
        return Version(name, self._registry.policy(name))


class Served:
    """A version at work, and how many requests use it."""

    def __init__(self, composing: Composing) -> None:
        self.composing = composing
        self.users = 0
        self.over = False


class Live:
    """What is served now, and for a ref what was before. `make` puts a version to work; `moves` and
    `failures` are counts."""

    def __init__(self, source: PolicySource, make: Callable[[Version], Composing]) -> None:
        self._source = source
        self._make = make
        first = source.read("")
        assert first is not None, "a source has a version when none is known"
        self.now = Served(make(first))
        self._earlier: dict[str, Served] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._refused = ""
        self.moves = 0
        self.failures = 0

    @property
    def version(self) -> str:
        return self.now.composing.version

    async def earlier(self, start: str) -> Served | None:
        """The version from before the present one whose name begins so, None where there is none.
        A rollback withdraws what it leaves, so this is checked each time. Raises PcoError."""
        archive = self._source
        if not isinstance(archive, RegistrySource):
            return None
        name = await asyncio.to_thread(archive.find, start)
        if not name:
            return None
        served = self._earlier.pop(name, None)
        if served is None:
            served = Served(await asyncio.to_thread(lambda: self._make(archive.version(name))))
            if (known := self._earlier.pop(name, None)) is not None:
                self._end(served)  # another request was faster
                served = known
        self._earlier[name] = served
        while len(self._earlier) > _EARLIER:
            self._end(self._earlier.pop(next(iter(self._earlier))))
        return served

    @contextmanager
    def using(self, served: Served | None = None) -> Generator[Composing]:
        """A version for one request: the present one unless another is named. Await nothing between
        finding a version and this: it may be closed by then."""
        served = served or self.now
        served.users += 1
        try:
            yield served.composing
        finally:
            served.users -= 1
            self._close_unused(served)

    async def look(self) -> bool:
        """Whether another version is served from now on. A version that cannot be read is logged
        once, and the present one stays; the next look tries again."""
        try:
            made = await asyncio.to_thread(self._other)
        except Exception as error:
            # Another's message may quote anything.
            said = str(error) if isinstance(error, PcoError) else kind_and_place(error)
            self.failures += 1
            if said != self._refused:
                self._refused = said
                _log.error("the version served stays %s: %s", self.version, said)
            return False
        if made is None:
            return False
        self._refused = ""
        before, self.now = self.now, Served(made)
        self.moves += 1
        self._end(before)
        _log.warning("now serving %s", made.version)
        return True

    async def watch(self, every_s: float) -> None:
        """Looks until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.look()

    async def close(self) -> None:
        while self._earlier:
            self._end(self._earlier.popitem()[1])
        if self._closing:
            await asyncio.wait(self._closing)
        await self.now.composing.close()

    def _other(self) -> Composing | None:
        version = self._source.read(self.version)
        return None if version is None else self._make(version)

    def _end(self, served: Served) -> None:
        served.over = True
        self._close_unused(served)

    def _close_unused(self, served: Served) -> None:
        if served.over and not served.users:
            task = asyncio.ensure_future(served.composing.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
