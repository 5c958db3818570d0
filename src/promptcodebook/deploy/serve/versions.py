"""The version of a policy that is served now, its canary, and a request's prompt from one of them,
within its time. Where a call of the encoder fails or takes too
long, the S instincts of highest r̄ replace the route; where one of the generator does, the route's
instincts as they are replace the prompt. Such a prompt is counted and never cached. A request keeps
the version that it began with."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Generic, Literal, Protocol, TypeVar

from promptcodebook.base.paths import read_bytes
from promptcodebook.calls import Message, Role, Tree, Usage
from promptcodebook.config.secrets import fill_secrets
from promptcodebook.deploy.http.admission import without_quotes
from promptcodebook.deploy.online.exploring import Explorer
from promptcodebook.deploy.registry.log import version_of
from promptcodebook.deploy.registry.registry import Canary, Registry
from promptcodebook.errors import PcoError, PolicyError
from promptcodebook.policy.file import PolicyFile, parse_policy_file
from promptcodebook.policy.policy import Policy
from promptcodebook.policy.references import Reference
from promptcodebook.types import Example, Expected, Route

_log = logging.getLogger(__name__)
_K = TypeVar("_K")
_V = TypeVar("_V")
_LONG = 2**18  # Characters of an input that is hashed in a thread.
_UNSEEN = "router:unseen"

Mode = Literal["one-call", "two-call", "three-call"]
Cached = Literal["", "route", "input", "conversation"]


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A policy and its name: 'sha256:' and the digits of its file's hash. `verdict` is what the
    registry knows of it."""

    name: str
    file: PolicyFile
    verdict: str = ""

    @property
    def caution(self) -> str:
        """What speaks against its use, in a line; '' where its verdict is to deploy it."""
        verdict = self.verdict or self.file.verdict
        return Reference(self.name, self.file, verdict=verdict).caution

    @classmethod
    def of(cls, data: bytes, where: object) -> ServedVersion:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise PolicyError(f"cannot read the policy file {where}: {error}") from None
        return cls(version_of(data), parse_policy_file(text, where))


class PolicySource(Protocol):
    """Where a served policy comes from. `read` gives the version to serve now, None where it is
    still `known` ('' = none is). Asked from a thread several times a second. Raises PcoError."""

    def read(self, known: str) -> ServedVersion | None: ...


@dataclass(frozen=True, slots=True)
class FixedSource:
    version: ServedVersion

    def read(self, known: str) -> ServedVersion | None:
        return None if known == self.version.name else self.version


class FileSource:
    """A policy file; another file in its place is another version."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: tuple[tuple[int, int, int], str] | None = None

    def read(self, known: str) -> ServedVersion | None:
        try:
            state = self._path.stat()
            seen = state.st_mtime_ns, state.st_size, state.st_ino
            # Not where what was read last is not served: it may have failed to come to work.
            if self._last == (seen, known):
                return None
            data = read_bytes(self._path)
        except OSError as error:
            message = f"cannot read the policy file {self._path}: {error.strerror}"
            raise PolicyError(message, hint="put a policy file there") from None
        name = version_of(data)
        # Not before it is read whole: one that is half-written is read again.
        version = None if name == known else ServedVersion.of(data, self._path)
        self._last = seen, name
        return version


class RegistrySource:
    """A ref in the registry: where it moves to is served. Raises RefNotFound."""

    def __init__(self, registry: Registry, ref: str) -> None:
        registry.resolve(ref)
        self.registry, self._ref = registry, ref

    def read(self, known: str) -> ServedVersion | None:
        now = self.registry.file.read().at(self._ref)
        return None if now is None or now == known else self.version(now)

    def canary(self) -> Canary | None:
        """The one under way."""
        return self.registry.canary(self._ref)

    def version(self, name: str) -> ServedVersion:
        verdict = self.registry.version(name).facts.get("verdict")
        return ServedVersion(name, self.registry.policy(name), str(verdict or ""))


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that the encoder and the generator may take, and how many prompts are kept: by
    input, by route and by conversation, each."""

    route_s: float = 10.0
    compose_s: float = 10.0
    kept: int = 10_000


@dataclass(frozen=True, slots=True)
class Composed:
    """A prompt and how it came about. `fallbacks` name what had to do without a model, and why:
    'encoder:timeout', 'encoder:error', 'encoder:reply', 'generator:...', 'input:empty',
    'router:unseen' (a learned router never saw the input's words: nothing failed).
    `propensity` is the chance of the route, `expected` what the router promises of it. `usage` is
    what routing and composing took for this request (None = unknown), by role."""

    prompt: str
    route: Route
    fallbacks: tuple[str, ...] = ()
    cached: Cached = ""
    expected: Expected | None = None
    propensity: float = 1.0
    usage: Mapping[Role, Usage | None] = field(default_factory=dict[Role, Usage | None])

    @property
    def failed(self) -> bool:
        """Whether a model was missing: the next request of this input may get another prompt."""
        return any(fallback != _UNSEEN for fallback in self.fallbacks)


class Composing:
    """One version at work, which an `explorer` may try routes of. Its answers were measured with
    `fields`. `about` is its name, with what speaks against its use. `users` are the requests that
    use it, and `over` = no more will."""

    def __init__(
        self,
        policy: Policy,
        version: str,
        patience: Patience = Patience(),
        explorer: Explorer | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.policy, self.version, self.about, self.users = policy, version, version, 0
        self.fields = fill_secrets(policy.answer_fields, environment)
        self._explorer, self.over = explorer, False
        self._by_input: _Recent[bytes, Composed] = _Recent(patience.kept)
        self._by_route: _Recent[tuple[int, ...], str] = _Recent(patience.kept)
        self._by_thread: _Recent[bytes, Composed] = _Recent(patience.kept)
        file = policy.file
        self._asks_generator = asks_generator = "generator" in file.asks
        calls: tuple[Mode, ...] = ("one-call", "two-call", "three-call")
        self.mode: Mode = calls[len(file.asks)]
        # Where no model is asked there is nothing to wait for, and a timer costs more than the sum.
        self._route_s = patience.route_s if "encoder" in file.asks else None
        self._compose_s = patience.compose_s if asks_generator else None
        self._reads_images = file.router is not None and file.router.images
        # A template that never names the input makes one prompt of a route for all inputs.
        self._one_a_route = asks_generator and "{task}" not in file.templates.generator

    async def compose(
        self,
        text: str,
        thread: bytes | None = None,
        key: str = "",
        media: Sequence[Tree] = (),
        caller: str = "",
    ) -> Composed:
        """The prompt for a text with its images, or the one that the `thread`, a conversation,
        began with. Where the version explores, `key` decides on the route; '' = the best one. What
        a `caller` asked is known to that one alone: a quick answer would tell others of it."""
        if not self._reads_images:
            media = ()
        if thread is None:
            return await self._tried(text, media, key, caller)
        if (known := self._by_thread.get(thread)) is not None:
            return known
        composed = await self._tried(text, media, key, caller)
        if (known := self._by_thread.get(thread)) is not None:
            return replace(known, usage=composed.usage)  # another request of it was faster
        if not composed.failed:
            self._by_thread.put(thread, _kept(composed, "conversation"))
        return composed

    async def _tried(self, text: str, media: Sequence[Tree], key: str, caller: str) -> Composed:
        composed = await self._prompt(text, media, caller)
        if self._explorer is None or composed.expected is None or not key:
            return composed
        route, chance = self._explorer.choose(composed.route, composed.expected, key)
        if route is composed.route:
            return replace(composed, propensity=chance)
        explored = await self._compose(self.policy.example_of(text), route, composed.usage)
        return replace(explored, propensity=chance, expected=composed.expected)

    async def _prompt(self, text: str, media: Sequence[Tree], caller: str) -> Composed:
        if not text or text.isspace():
            route = self.policy.fallback_route()
            return Composed(self.policy.verbatim(route), route, ("input:empty",))

        def hashed() -> tuple[bytes, Example]:
            whole = f"{caller}\0{text}\0{json.dumps(media)}" if media else f"{caller}\0{text}"
            key = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).digest()
            example = self.policy.example_of(text)
            if not media:
                return key, example
            turn = Message("user", text, {"role": "user", "content": list(media)})
            return key, replace(example, messages=(turn,))

        long = media or len(text) >= _LONG
        key, example = await asyncio.to_thread(hashed) if long else hashed()
        if (known := self._by_input.get(key)) is not None:
            return known
        found = await _within(self._route_s, self.policy.aexpected(example), "encoder")
        if isinstance(found, str):
            route, expected, spent = self.policy.fallback_route(), None, None
            lost = f"encoder:{found}"
        else:
            route, expected, spent = found
            lost = "encoder:reply" if route.fallback else _UNSEEN * bool(route.fault)
        usage: Mapping[Role, Usage | None] = {"encoder": spent}
        composed = replace(await self._compose(example, route, usage), expected=expected)
        if lost:
            composed = replace(composed, fallbacks=(lost, *composed.fallbacks))
        if not composed.failed:
            self._by_input.put(key, _kept(composed, "input"))
        return composed

    async def _compose(
        self, example: Example, route: Route, before: Mapping[Role, Usage | None]
    ) -> Composed:
        """`before` is what was spent on the route."""
        if self._one_a_route and (known := self._by_route.get(route.indices)) is not None:
            return Composed(known, route, cached="route", usage=before)
        work = self.policy.acompose_route(example, route)
        made = await _within(self._compose_s, work, "generator")
        if isinstance(made, str):
            usage: Mapping[Role, Usage | None] = {**before, "generator": None}
            lost = (f"generator:{made}",)
            return Composed(self.policy.verbatim(route), route, lost, usage=usage)
        (prompt, spent), lost = made, ()
        if self._asks_generator and prompt.text == self.policy.verbatim(route):
            # What the generator puts together itself where a reply cannot be used.
            lost = ("generator:reply",)
        elif self._one_a_route:
            self._by_route.put(route.indices, prompt.text)
        earlier = before.get("generator", Usage())
        usage = {**before, "generator": earlier and earlier + spent}
        return Composed(prompt.text, route, lost, usage=usage)

    async def close(self) -> None:
        await self.policy.aclose()


def _kept(composed: Composed, cached: Cached) -> Composed:
    """The prompt for the next who asks, whom it takes nothing. The numbers that can be read once
    more from the text are left out."""
    small = composed.expected and replace(composed.expected, features=())
    return replace(composed, cached=cached, expected=small, usage={})


async def _within(seconds: float | None, work: Awaitable[_V], who: str) -> _V | str:
    """What the work comes to, or why to nothing: an error's text may quote the request."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except PcoError as error:
        reason = "timeout" if isinstance(error, TimeoutError) else "error"
        _log.warning("the %s failed: %s", who, type(error).__name__)
    except TimeoutError:
        reason = "timeout"
        _log.warning("the %s took longer than %g s", who, seconds)
    return reason


class _Recent(Generic[_K, _V]):
    """The `most` values that were asked for last."""

    def __init__(self, most: int) -> None:
        self._most, self._values = most, OrderedDict[_K, _V]()

    def get(self, key: _K) -> _V | None:
        if (value := self._values.get(key)) is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: _K, value: _V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)


class Live:
    """What is served `now`, and for a ref its canary. `make` puts a version to
    work. `tried` is None where there is no canary, while it is being taken up, and where it cannot
    be served: then `untried` says why."""

    def __init__(self, source: PolicySource, make: Callable[[ServedVersion], Composing]) -> None:
        self._source, self._make = source, make
        first = source.read("")
        assert first is not None, "a source has a version when none is known"
        self.now = make(first)
        self._closing: set[asyncio.Task[None]] = set()
        self.canary: Canary | None = None
        self.tried: Composing | None = None
        self._refused, self.moves, self.failures = "", 0, 0
        self.untried = ""

    @property
    def version(self) -> str:
        return self.now.version

    @contextmanager
    def using(self, served: Composing) -> Generator[Composing]:
        """A version for one request. Await nothing between finding it and this: it may close."""
        served.users += 1
        try:
            yield served
        finally:
            served.users -= 1
            self._end(served, over=False)

    async def look(self) -> bool:
        """Whether another version is served from now on. A version that cannot be read is logged
        once, and the present one stays; the next look tries again."""

        def other() -> Composing | None:
            version = self._source.read(self.version)
            return None if version is None else self._at_work(version)

        try:
            found = await asyncio.to_thread(other)
        except Exception as error:
            self.failures += 1
            if (message := without_quotes(error)) != self._refused:
                self._refused = message
                _log.error("still serving %s: %s", self.version, message)
            return False
        if found is None:
            return False
        self._refused = ""
        before, self.now = self.now, found
        self.moves += 1
        self._end(before)
        _log.warning("now serving %s", found.about)
        return True

    async def look_for_canary(self) -> None:
        """Takes up a canary or its end. One that cannot be served is logged once, and tried again
        at the next look; until then the present version answers."""
        archive = self._source
        if not isinstance(archive, RegistrySource):
            return

        def found() -> tuple[Canary | None, Composing | None]:
            canary = archive.canary()
            if canary is None or (canary == self.canary and self.tried is not None):
                return canary, self.tried if canary is not None else None
            self.canary, self.untried = canary, self.untried if canary == self.canary else ""
            return canary, self._at_work(archive.version(canary.version))

        before = self.tried
        try:
            self.canary, self.tried = await asyncio.to_thread(found)
        except Exception as error:
            if before is not None and self.canary and before.version != self.canary.version:
                self.tried = None
                self._end(before)
            self.failures += 1
            if (message := without_quotes(error)) != self.untried:
                self.untried = message
                _log.error("the canary is not served, so %s answers: %s", self.version, message)
            return
        self.untried = ""
        if self.tried is not before:
            if before is not None:
                self._end(before)
            now = "is over" if self.tried is None else f"is {self.tried.about}"
            _log.warning("the canary %s", now)

    def _at_work(self, version: ServedVersion) -> Composing:
        made = self._make(version)
        made.about = "; ".join(filter(None, (version.name, version.caution)))
        return made

    async def watch(self, every_s: float) -> None:
        while True:
            await self.look_for_canary()
            await asyncio.sleep(every_s)
            await self.look()

    async def close(self) -> None:
        if self.tried is not None:
            self._end(self.tried)
        if self._closing:
            await asyncio.wait(self._closing)
        await self.now.close()

    def _end(self, served: Composing, *, over: bool = True) -> None:
        """Closes a version that is over once no request uses it."""
        served.over = served.over or over
        if served.over and not served.users:
            task = asyncio.ensure_future(served.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
