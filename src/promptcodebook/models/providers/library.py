"""A provider's own library, asked in chat completions. Core sends the body that it would send to an
OpenAI-compatible server. A `ProviderLibrary` hands it to the provider's client in that provider's
words, and words the reply as such a server would. All above works as ever."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, cast

from promptcodebook.base.incidents import Incident
from promptcodebook.base.text import parse_json, shipped_table
from promptcodebook.errors import LMError, PcoError, causes_of, import_extra
from promptcodebook.lm.endpoint import OpenReply
from promptcodebook.lm.limit import PerLoop
from promptcodebook.lm.spec import Credentials, Spec
from promptcodebook.lm.wire import ModelAddress, fault_of

JsonDict = dict[str, Any]
# A status, the body of the error as OpenAI words it, and headers.
RefusedCall = tuple[int, JsonDict, Mapping[str, str]]
_KEYS = ("authorization", "x-api-key")


def dialect(provider: str) -> JsonDict:
    """The words of a provider's library, from library_words.toml."""
    return shipped_table(__file__, "library_words.toml")[provider]


class Declined(Exception):
    """A request that this provider has no word for: an answer of our own."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class ProviderLibrary(ABC):
    """A `Transport` over a library, without the library's own retries. Each loop has its client."""

    module = ""  # what is imported
    extra = ""  # the extra that installs it

    def __init__(self, spec: Spec, access: Credentials, timeout: float) -> None:
        """Raises MissingExtra."""
        self.model, self.timeout = spec.model, timeout
        self.address = spec.base_url
        headers = access.all_headers()
        named = [headers.pop(name) for name in list(headers) if name.lower() in _KEYS]
        # A server of one's own may want no key, and no library starts without one.
        self.key = named[0].removeprefix("Bearer ") if named else "none"
        self.headers = headers
        self.library: Any = import_extra(self.module, f"the model {spec.text}", self.extra)
        self._clients: PerLoop[Any] = PerLoop()

    # What a provider brings.

    @abstractmethod
    def open_client(self) -> Any:
        """A client for the loop that runs now."""

    @abstractmethod
    async def close_client(self, client: Any) -> None: ...

    @abstractmethod
    def request(self, body: JsonDict) -> JsonDict:
        """The keywords that the client is called with for this body."""

    @abstractmethod
    async def complete(self, client: Any, asked: JsonDict) -> JsonDict:
        """A chat completion, for these keywords."""

    @abstractmethod
    def stream(self, client: Any, asked: JsonDict) -> AsyncGenerator[JsonDict, None]:
        """The chunks of one; the usage comes last, in a chunk without choices."""

    @abstractmethod
    def refusal(self, error: Exception) -> RefusedCall | None:
        """What the provider answered; None where the error is not about an answer."""

    async def embed(self, client: Any, body: JsonDict) -> JsonDict:
        raise Declined("not offered by this provider", 404)

    async def names(self, client: Any) -> Sequence[str]:
        """The models that it lists."""
        raise Declined("not offered by this provider", 404)

    async def count(self, client: Any, text: str) -> int:
        """The tokens of a text."""
        raise Declined("not offered by this provider", 404)

    # The transport.

    async def send(
        self, method: str, url: str, where: ModelAddress, data: bytes | None = None
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """What a server would answer at the end of this address."""
        client = await self._client()
        body: JsonDict = json.loads(data) if data else {}
        try:
            match url.rpartition("/")[2]:
                case "models":
                    tree: JsonDict = {"data": [{"id": each} for each in await self.names(client)]}
                case "tokenize":
                    tree = {"count": await self.count(client, body["prompt"])}
                case "embeddings" if "messages" in body:
                    raise Declined("this provider does not embed images", 400)
                case "embeddings":
                    tree = await self.embed(client, body)
                case _:
                    tree = await self.complete(client, self._asked(body))
            return 200, _json(tree), {}
        except PcoError:
            raise
        except Exception as error:
            failed = error
        status, tree, headers = self._refusal(failed, where)
        return status, _json(tree), headers

    async def open(self, url: str, where: ModelAddress, data: bytes) -> OpenReply:
        """A completion, or the events of a stream where the body asks for one."""
        body: JsonDict = json.loads(data)
        if not body.get("stream"):
            status, answer, headers = await self.send("POST", url, where, data)
            return OpenReply(status, {"Content-Type": _JSON, **headers}, _pieces([answer]))
        client = await self._client()
        try:
            chunks = self.stream(client, self._asked(body))
            first = await anext(chunks)
        except PcoError:
            raise
        except Exception as error:
            failed = error
        else:
            events = self._events(first, chunks, where, body)
            return OpenReply(200, {"Content-Type": "text/event-stream"}, events)
        status, tree, headers = self._refusal(failed, where)
        return OpenReply(status, {"Content-Type": _JSON, **headers}, _pieces([_json(tree)]))

    def _asked(self, body: JsonDict) -> JsonDict:
        """Raises Declined for a body in which something is missing or of another kind."""
        try:
            return self.request(body)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise Declined(f"the request does not fit {self.extra}'s format ({what})") from None

    async def close(self) -> None:
        if (client := self._clients.forget()) is not None:
            await self.close_client(client)

    async def _client(self) -> Any:
        for stale in self._clients.orphans():
            with suppress(RuntimeError):  # its loop has ended
                await self.close_client(stale)
        return self._clients.here(self.open_client)

    async def _events(
        self,
        first: JsonDict,
        chunks: AsyncGenerator[JsonDict, None],
        where: ModelAddress,
        body: JsonDict,
    ) -> AsyncGenerator[bytes, None]:
        asked: JsonDict = body.get("stream_options") or {}
        failed: Exception | None = None
        ended = False

        def ends(chunk: JsonDict) -> bool:
            return any(choice.get("finish_reason") is not None for choice in chunk["choices"])

        async with aclosing(chunks):
            ended = ends(first)
            yield _event(first)
            try:
                async for chunk in chunks:
                    ended = ended or ends(chunk)
                    if chunk["choices"] or asked.get("include_usage"):
                        yield _event(chunk)
            except PcoError:
                raise
            except Exception as error:
                failed = error
        if failed is not None or not ended:
            why = "the stream ended early" if failed is None else type(failed).__name__
            raise fault_of(Incident.DROPPED, where, why)
        yield b"data: [DONE]\n\n"

    def _refusal(self, error: Exception, where: ModelAddress) -> RefusedCall:
        """Raises the LMError for an error without an answer. Called outside of `except`, since the
        library's error knows our headers and must not be the context of ours."""
        if isinstance(error, Declined):
            return error.status, fault(str(error), kind="invalid_request_error"), {}
        if (answer := self.refusal(error)) is not None:
            return answer
        lacking = error.__cause__ or error.__context__
        if isinstance(lacking, ModuleNotFoundError):  # litellm calls it a broken connection
            what = f"{self.extra} lacks a package for this request: pip install {lacking.name}"
            return 400, fault(what, kind="invalid_request_error"), {}
        raise _fault(error, where, self.timeout)


def _fault(error: Exception, where: ModelAddress, timeout: float) -> LMError:
    names = [type(each).__name__ for each in causes_of(error)]
    if any(name.startswith(("ClientConnect", "Connect", "ConnectionRefused")) for name in names):
        return fault_of(Incident.REFUSED_CONNECTION, where)
    if any("Timeout" in name for name in names):
        return fault_of(Incident.TIMEOUT, where, f"after {timeout:g} s")
    if isinstance(error, LookupError | TypeError | ValueError | AttributeError):
        return fault_of(Incident.MALFORMED_BODY, where, names[0])
    return fault_of(Incident.DROPPED, where, names[0])


_JSON = "application/json"


def _json(tree: JsonDict) -> bytes:
    # ASCII escapes: half of a surrogate pair is legal in a string and not in UTF-8.
    return json.dumps(tree, separators=(",", ":")).encode("ascii")


def _event(tree: JsonDict) -> bytes:
    return b"data: " + _json(tree) + b"\n\n"


async def _pieces(pieces: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece


# The words of OpenAI's wire.


def fault(message: str, *, kind: str = "", code: str = "") -> JsonDict:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def tree_of(value: object) -> JsonDict:
    """{} for what is no object."""
    return cast("JsonDict", value) if isinstance(value, dict) else {}


def parts_of(message: Mapping[str, Any]) -> list[JsonDict]:
    """A message's content as parts; [] where it has none."""
    content: Any = message.get("content")
    if isinstance(content, list):
        return cast("list[JsonDict]", content)
    return [{"type": "text", "text": content}] if content else []


def arguments_of(call: Mapping[str, Any]) -> JsonDict:
    """A tool call's arguments. Raises Declined where they are no object."""
    try:
        tree: object = parse_json(call["function"].get("arguments") or "{}")
    except ValueError:
        tree = None
    if not isinstance(tree, dict):
        raise Declined(f"the arguments of {call['function'].get('name')!r} are not a JSON object")
    return cast("JsonDict", tree)
