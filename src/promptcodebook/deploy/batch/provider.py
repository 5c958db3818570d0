"""Batches at a provider, by its /v1/files and /v1/batches.

A batch is noted on disk before it leaves, in a folder of its own:

batch.json   the keys of its rows, and its id at the provider once it has one
lock         who waits for it

After a kill the batch is found again: by its id, or where the kill came before that was noted, by
the folder's name, which is its mark in the provider's list. So nothing is submitted twice. The
folder goes when every reply is kept."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import AliasPath, BaseModel, Field, ValidationError

from promptcodebook.base.paths import make_private_folder, write_whole
from promptcodebook.base.text import json_decoder, parse_json, shell
from promptcodebook.base.units import duration, plural
from promptcodebook.deploy.batch.rows import on_disk
from promptcodebook.errors import LMError, RunBusy, ServerFault, Stop
from promptcodebook.lm import wire
from promptcodebook.lm.endpoint import Endpoint, HttpTransport, Transport
from promptcodebook.lm.limit import StopSignal
from promptcodebook.lm.spec import Credentials, Spec
from promptcodebook.store.lock import RunLock

_M = TypeVar("_M", bound=BaseModel)
_URL = "/v1/chat/completions"
_MOST_ROWS, _MOST_BYTES = 50_000, 150_000_000  # of a batch, as OpenAI has it (200 MB)
_MOST_REPLY = 2_000_000_000
_FILE_S = 600.0  # what a file may take on its way
_FIRST_S, _LONGEST_S = 1.0, 60.0  # between two looks at a batch: at first, and later
_TRIES = 20  # requests in a row that may fail for a while before the wait is given up
_PAGES, _PAGE = 20, 100
_FORGOTTEN_S = 31 * 86_400  # OpenAI keeps the files of a batch for 30 days
_NO_SUCH_PLACE = (404, 405, 501)
_OVER = ("completed", "expired", "cancelled", "failed")
_AGAIN = "the same command keeps what was answered, and asks the rest again"
_OTHER = "leave out --batch-api"
_MARK = "promptcodebook"
_ODD = json_decoder(odd_numbers=True)


class BatchRefused(Stop, exit_code=2):
    """No batch can be submitted here."""


class BatchPending(Stop, exit_code=3):
    """A batch is not over, or not wholly answered; the same command continues."""


@dataclass(frozen=True, slots=True)
class BatchReply:
    """What became of a row: the answer's status, body and seconds; `broken`: the model broke off
    its reply."""

    status: int
    raw: bytes
    seconds: float = 0.0
    broken: bool = False

    @property
    def whole(self) -> bool:
        return self.status == 200 and not self.broken


Landing = Callable[[str, BatchReply], Awaitable[None]]


class _Counts(BaseModel):
    total: int = 0
    completed: int = 0
    failed: int = 0


class _Fault(BaseModel):
    message: str | None = None
    line: int | None = None


class _Batch(BaseModel):
    """A batch as its provider shows it; times are in seconds since 1970."""

    id: str
    status: str = ""
    metadata: dict[str, Any] | None = None
    request_counts: _Counts | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[_Fault] | None = Field(None, validation_alias=AliasPath("errors", "data"))
    created_at: float | None = None
    completed_at: float | None = None
    expired_at: float | None = None
    cancelled_at: float | None = None

    @property
    def seconds(self) -> float | None:
        begun, ended = self.created_at, self.completed_at or self.expired_at or self.cancelled_at
        return None if begun is None or ended is None else max(0.0, ended - begun)


class _Page(BaseModel):
    data: list[_Batch] = []
    has_more: bool | None = None


class _File(BaseModel):
    id: str


def request_line(key: str, body: Mapping[str, Any]) -> bytes:
    """A row as OpenAI reads it."""
    row = {"custom_id": key, "method": "POST", "url": _URL, "body": body}
    # ASCII escapes: half of a surrogate pair is legal in a string and not in UTF-8.
    return json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n"


def read_results(data: bytes, seconds: float = 0.0) -> Iterator[tuple[str, BatchReply]]:
    """Each row of an output or error file by its key; what is no row is left out."""
    for line in data.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            row = parse_json(line, _ODD)
            key, answer, error = str(row["custom_id"]), row.get("response"), row.get("error")
            if answer:
                status, body = int(answer["status_code"]), answer.get("body") or {"error": error}
            else:
                status, body = _status_of(error), {"error": error}
            broken = status == 200 and wire.broken_off(body) is not None
            yield key, BatchReply(status, json.dumps(body).encode(), seconds, broken=broken)


def _status_of(error: object) -> int:
    """0 = the batch was over before the row's turn came."""
    code = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    return 0 if code in ("batch_expired", "batch_cancelled") else 422


class Noted:
    """A batch on disk: its rows' keys, those `left` to be kept elsewhere, and its awaited end. The
    process that submits it has its `data`, too."""

    def __init__(self, folder: Path, data: bytes = b"") -> None:
        self.folder, self.data = folder, data
        self.read()
        self.left = set(self.keys)
        self.over: asyncio.Task[dict[str, BatchReply]] | None = None
        self._lock: RunLock | None = None

    def read(self) -> None:
        self.facts: dict[str, Any] = json.loads((self.folder / "batch.json").read_text("utf-8"))
        self.keys = set(map(str, self.facts["keys"]))

    @classmethod
    def write(cls, home: Path, base_url: str, lines: Mapping[str, bytes]) -> Noted:
        """Notes a batch that is about to leave."""
        folder = home / uuid.uuid4().hex
        facts = {"at": base_url, "id": "", "keys": [*lines], "time": time.time()}
        with on_disk(folder):
            home.parent.mkdir(parents=True, exist_ok=True)
            for each in (home.parent, home, folder):
                make_private_folder(each)
            write_whole(folder / "batch.json", json.dumps(facts))
        return cls(folder, b"".join(lines.values()))

    def lock(self) -> None:
        """Raises RunBusy where another process waits for it."""
        if self._lock is None:
            self._lock = RunLock(self.folder, "a batch with these requests is being waited for")

    def note(self, **facts: Any) -> None:
        self.facts |= facts
        with on_disk(self.folder):
            write_whole(self.folder / "batch.json", json.dumps(self.facts))

    def keep_only(self, keys: set[str]) -> None:
        """Forgets rows that have no answer, so that a later command asks for them again."""
        self.note(keys=sorted(keys))
        self.left &= keys

    def release(self) -> None:
        """Lets go of it; it is forgotten where nothing of it is left."""
        if self.over is not None:
            self.over.cancel()
        if self._lock is not None:
            if not self.left:
                shutil.rmtree(self.folder, ignore_errors=True)
            self._lock.release()


class Provider:
    """Batches at a spec's address, noted in a folder. `stop` ends every wait, and `tell` hears how
    far a batch is."""

    def __init__(
        self,
        spec: Spec,
        access: Credentials,
        home: Path,
        *,
        stop: StopSignal,
        tell: Callable[[str], None],
        timeout: float,
        private: bool,
    ) -> None:
        names = access.names or spec.key_names
        self.where = wire.ModelAddress(spec.base_url, spec.model, access.key, names, private)
        self._spec, self._access, self._home = spec, access, home
        self._stop, self._tell = stop, tell
        self._boundary = uuid.uuid4().hex
        multipart = {"Content-Type": f"multipart/form-data; boundary={self._boundary}"}
        uploading = replace(access, headers={**access.headers, **multipart})
        longest = max(timeout, _FILE_S)
        self._transport = HttpTransport(spec.base_url, access, longest, _MOST_REPLY)
        self._uploads = HttpTransport(spec.base_url, uploading, longest)
        self._noted = dict[str, Noted]()
        self._at = dict[str, Noted]()
        self._is_open, self._opening, self._wait_s = False, asyncio.Lock(), 0.0

    async def open(self) -> None:
        """Reads what earlier processes left. Of a batch whose process was killed before its id was
        noted, it asks the provider's list; one that never left is forgotten."""
        async with self._opening:
            if self._is_open:
                return
            if not self.where.model:
                async with Endpoint(self._spec, self._access) as endpoint:
                    self.where = replace(self.where, model=await endpoint.named_model())
            at = dict[str, Noted]()
            for noted in sorted(self._left_behind(), key=lambda each: each.facts["time"]):
                self._noted[noted.folder.name] = noted
                if not noted.facts["id"]:
                    with suppress(RunBusy):  # whose process may be submitting it now
                        noted.lock()
                        if not await self._has_left(noted):
                            continue
                at |= dict.fromkeys(noted.keys, noted)
            self._at, self._is_open = at, True

    async def _has_left(self, noted: Noted) -> bool:
        """Whether a batch of an ended process, whose lock we hold, has an id, here or at the
        provider. It is forgotten where it never left."""
        noted.read()  # its process may have noted the id before it ended
        if noted.facts["id"]:
            return True
        try:
            found = await self._find(noted)
        except LMError as error:
            error.hint = f"look for it at the provider, then: rm -r {shell(noted.folder)}"
            raise
        if found is None:
            noted.left.clear()
            return False
        noted.note(id=found)
        return True

    def _left_behind(self) -> Iterator[Noted]:
        for folder in self._home.iterdir() if self._home.is_dir() else ():
            try:
                noted = Noted(folder)
            except (OSError, ValueError, LookupError, TypeError):
                continue  # a kill came before the batch could leave
            if time.time() - noted.facts["time"] > _FORGOTTEN_S:
                shutil.rmtree(folder, ignore_errors=True)
            elif noted.facts["at"] == self._spec.base_url:
                yield noted

    def _alone(self) -> AbstractContextManager[object]:
        from filelock import FileLock  # takes long to import

        with on_disk(self._home):
            self._home.parent.mkdir(parents=True, exist_ok=True)
            make_private_folder(self._home.parent)
        return FileLock(self._home.with_suffix(".lock"))

    def knows(self, key: str) -> bool:
        return key in self._at

    async def answer(self, bodies: Mapping[str, Mapping[str, Any]], land: Landing) -> None:
        with self._alone():
            for noted in self._left_behind():  # another process may have come first
                if noted.folder.name not in self._noted:
                    self._noted[noted.folder.name] = noted
                    self._at |= dict.fromkeys(noted.keys, noted)
            lines = {k: request_line(k, body) for k, body in bodies.items() if k not in self._at}
            for part in _parts(lines):
                noted = Noted.write(self._home, self._spec.base_url, part)
                noted.lock()
                self._noted[noted.folder.name] = noted
                self._at |= dict.fromkeys(part, noted)
        wanted = dict[str, set[str]]()
        for key in bodies:
            wanted.setdefault(self._at[key].folder.name, set()).add(key)
        ends = [self._land(self._noted[name], keys, land) for name, keys in wanted.items()]
        results = await asyncio.gather(*ends, return_exceptions=True)
        for error in (each for each in results if each is not None):
            raise error

    async def close(self) -> None:
        for noted in self._noted.values():
            noted.release()
        self._noted, self._at, self._is_open = {}, {}, False
        await self._transport.close()
        await self._uploads.close()

    async def _land(self, noted: Noted, keys: set[str], land: Landing) -> None:
        """Hands over these rows' results once the batch is over. Pending: some never came."""
        if noted.over is None:
            noted.lock()
            noted.over = asyncio.ensure_future(self._over(noted))
        results = await asyncio.shield(noted.over)
        for key in sorted(keys & results.keys()):
            result = results.pop(key)
            if not result.whole:
                del self._at[key]  # asked again it is a new row
            await land(key, result)
            noted.left.discard(key)
            keys.discard(key)
        if keys:
            for key in keys:
                del self._at[key]
            batch, left = f"the batch {noted.facts['id']}", plural(len(keys), "request")
            ended = f"{noted.facts['ended']}, with {left} unanswered"
            raise BatchPending(f"{batch} at {self._spec.base_url} {ended}", hint=_AGAIN)

    async def _over(self, noted: Noted) -> dict[str, BatchReply]:
        if not noted.facts["id"]:
            if noted.data:
                try:
                    noted.note(id=await self._submit(noted))
                    noted.data = b""
                except (BatchRefused, LMError) as error:
                    if not error.retryable:  # it was not taken, for sure
                        noted.left.clear()
                    raise
            elif not await self._has_left(noted):  # of a process that has ended since
                what = f"a batch of {plural(len(noted.keys), 'request')}"
                raise BatchPending(f"{what} never left: its process ended", hint=_AGAIN)
        batch = await self._end_of(noted)
        if batch.status == "failed":
            noted.left.clear()
            fault = (batch.errors or [_Fault()])[0]
            first = self.where.clean(fault.message or "it does not say why")
            line = f" (line {fault.line})" if fault.line else ""
            message = f"{self._spec.base_url} refused the batch {batch.id}: {first}{line}"
            raise BatchRefused(message, hint=_OTHER)
        took = batch.seconds
        seconds = max(0.0, time.time() - noted.facts["time"]) if took is None else took
        results = dict[str, BatchReply]()
        for name in filter(None, (batch.output_file_id, batch.error_file_id)):
            results |= read_results(await self._call("GET", f"files/{name}/content"), seconds)
        noted.facts["ended"] = "was cancelled" if batch.status == "cancelled" else batch.status
        answered = {key for key, result in results.items() if result.whole}
        if answered < noted.keys:
            if batch.status == "completed":  # then each row has a result
                nothing = BatchReply(500, b'{"error": "the batch has no result for it"}')
                results = dict.fromkeys(noted.keys, nothing) | results
            noted.keep_only(answered)
        return {key: result for key, result in results.items() if result.status}

    async def _submit(self, noted: Noted) -> str:
        """The batch's id. A lost answer is asked for again once the provider's list lacks it."""
        base, count = self._spec.base_url, len(noted.keys)
        head = f"--{self._boundary}\r\nContent-Disposition: form-data; name="
        purpose = f'{head}"purpose"\r\n\r\nbatch\r\n'
        file = f'{head}"file"; filename="requests.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n'
        form = (purpose + file).encode() + noted.data + f"\r\n--{self._boundary}--\r\n".encode()
        uploaded = _read(_File, await self._call("POST", "files", form, self._uploads)).id
        order = {"input_file_id": uploaded, "endpoint": _URL, "completion_window": "24h"}
        data = json.dumps({**order, "metadata": {_MARK: noted.folder.name}}).encode()

        async def submitted() -> bytes:
            found = await self._find(noted)
            return b"" if found is None else json.dumps({"id": found}).encode()

        made = _read(_Batch, await self._call("POST", "batches", data, instead=submitted)).id
        self._tell(f"batch {made}: {plural(count, 'request')} submitted at {base}")
        return made

    async def _find(self, noted: Noted) -> str | None:
        after = ""
        for _ in range(_PAGES):
            path = f"batches?limit={_PAGE}" + (f"&after={after}" if after else "")
            page = _read(_Page, await self._call("GET", path))
            for each in page.data:
                if (each.metadata or {}).get(_MARK) == noted.folder.name:
                    return each.id
            if not page.has_more or not page.data:
                break
            after = page.data[-1].id
        return None

    async def _end_of(self, noted: Noted) -> _Batch:
        """The batch once it is over. Says how far it is whenever that has changed."""
        name, pause, shown = noted.facts["id"], _FIRST_S, ""
        first: tuple[float, int] | None = None
        while True:
            batch = _read(_Batch, await self._call("GET", f"batches/{name}"))
            counts, now = batch.request_counts or _Counts(), time.monotonic()
            done, total = counts.completed + counts.failed, counts.total or len(noted.keys)
            text = f"batch {name}: {batch.status.replace('_', ' ')}, {done} of {total}"
            if text != shown:
                began, before = first = first or (now, done)
                left = (now - began) / (done - before) * (total - done) if done > before else 0.0
                self._tell(text + (f", about {duration(left)} left" if left else ""))
                shown = text
            if batch.status in _OVER:
                return batch
            try:
                await self._stop.sleep(max(pause, self._wait_s))
            except Stop:
                at = f"{name} continues at {self._spec.base_url}"
                self._tell(f"batch {at}; the same command fetches its replies")
                raise
            pause = min(1.5 * pause, _LONGEST_S)

    async def _call(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        transport: Transport | None = None,
        instead: Callable[[], Awaitable[bytes]] | None = None,
    ) -> bytes:
        """The body of a good answer. What passes is tried again later, unless `instead` has what
        an earlier try did. Raises BatchRefused where there is no such place, LMError."""
        url, pause, base = f"{self._spec.base_url}/{path}", _FIRST_S, self._spec.base_url
        for left in reversed(range(_TRIES)):
            try:
                sending = (transport or self._transport).send(method, url, self.where, data)
                status, body, headers = await sending
                wait = wire.read_retry_after(headers)
                if status in (200, 201):
                    self._wait_s = wait
                    return body
                if status in _NO_SUCH_PLACE and path in ("files", "batches"):
                    message = f"{base} has no batches: POST /{path} was answered with {status}"
                    raise BatchRefused(message, hint=_OTHER)
                error = wire.refusal_of(status, wire.read_error_body(body), self.where)
                error.retry_after = wait or error.retry_after
            except LMError as fault:
                error = fault
            if not error.retryable or not left:
                raise error
            await self._stop.sleep(max(pause, error.retry_after))
            if instead is not None and (done := await instead()):
                return done
            pause = min(2 * pause, _LONGEST_S)
        raise AssertionError("the last try returns or raises")


def _read(kind: type[_M], data: bytes) -> _M:
    try:
        return kind.model_validate_json(data)
    except ValidationError:
        pass
    raise ServerFault("the provider of batches answered with what is no such object", hint=_OTHER)


def _parts(lines: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    part, size = dict[str, bytes](), 0
    for key, line in lines.items():
        if part and (len(part) >= _MOST_ROWS or size + len(line) > _MOST_BYTES):
            yield part
            part, size = {}, 0
        part[key] = line
        size += len(line)
    if part:
        yield part
