"""Replies that are kept: the cache between runs, the journal of one run, equal calls at once."""

import asyncio
import logging
import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from promptcodebook.base.incidents import no_tally
from promptcodebook.base.paths import reply_cache_path
from promptcodebook.base.sqlite import Packer, unpack
from promptcodebook.calls import Message, Reply, Request, Role, Sampling, Schema, Usage, request_key
from promptcodebook.errors import ServerFault, StoreError, StoreTooNew
from promptcodebook.lm.cache import Cache, Journaled, ReplyCache, pack_reply, unpack_reply
from tests.build.method import Counts

PAID = Usage(1, 10, 2, 4, 0.5, 1.0)
FIRST = Reply("reply 1", usage=PAID, dropped=("temperature",), estimated=True)


class Model:
    """Answers once `go` is set; `faults` are raised first, one a call."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.faults: list[Exception] = []
        self.cut = False
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, request: Request) -> Reply:
        self.asked.append(request)
        text = f"reply {len(self.asked)}"
        await self.go.wait()
        if self.faults:
            raise self.faults.pop(0)
        return replace(FIRST, text=text, finish="length" if self.cut else "stop")


def ask(text: str = "hi", **fields: object) -> Request:
    return Request("executor", (Message("user", text),), **fields)  # type: ignore[arg-type]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def model() -> Model:
    return Model()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache.sqlite"


Make = Callable[[], Cache]


@pytest.fixture
def make(model: Model, tally: Counts, path: Path) -> Iterator[Make]:
    made: list[Cache] = []

    def build() -> Cache:
        made.append(Cache(model, path, tally))
        return made[-1]

    yield build
    for cache in made:
        cache.close()


def file_of(cache: Cache) -> ReplyCache:
    assert cache.file is not None
    return cache.file


async def spoiled(make: Make, path: Path, change: str) -> None:
    """A cache that held a reply, changed from outside."""
    cache = make()
    await cache(ask())
    cache.close()
    spoil(path, change)


def seen(url: str) -> Request:
    part = {"type": "image_url", "image_url": {"url": url}}
    return replace(
        ask(), messages=(Message("user", "[image]", {"role": "user", "content": [part]}),)
    )


def spoil(path: Path, change: str) -> None:
    if change == "scribble":
        path.write_bytes(change.encode() * 1000)
        return
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(change)


async def test_on_a_full_disk_requests_go_on_and_what_was_kept_stays(
    make: Make, tally: Counts, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The system refuses to let a file grow past a limit, as a full disk does."""
    cache, before = make(), resource.getrlimit(resource.RLIMIT_FSIZE)
    await cache(ask())
    file_of(cache).flush()
    most = max(each.stat().st_size for each in path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        for index in range(200):
            assert (await cache(ask(str(index)))).source == "live"
            await asyncio.sleep(0.001)  # the writer's thread meets the end of the disk
            if tally["cache_bypassed"] and index > 20:
                break
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert tally["cache_bypassed"] == 1 and caplog.text.count("without the reply cache") == 1
    assert (await make()(ask())).source == "cache"


def contents(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


# The cache


async def test_a_request_is_paid_for_once_and_then_free(
    make: Make, model: Model, tally: Counts, path: Path
) -> None:
    cache = make()
    assert await cache(ask()) == FIRST
    cache.close()
    assert await make()(ask()) == replace(FIRST, source="cache")
    assert len(model.asked) == 1
    assert tally == {"cache_misses": 1, "cache_hits": 1}
    file = ReplyCache(path)
    assert file.get(request_key(ask())) == FIRST, "with the usage that was paid"
    file.close()


@pytest.mark.parametrize("other", [
    ask("ho"),
    ask(sample=1),
    ask(model="http://elsewhere/v1#m"),
    ask(sampling=Sampling(temperature=0.5)),
    ask(sampling=Sampling(extra={"top_k": 2})),
    ask(schema=Schema("s", {"type": "object"})),
    ask(embeds=True),
    Request("executor", (Message("system", "hi"),)),
    Request("executor", (Message("user", "hi", {"role": "user", "name": "Eve"}),)),
    seen("data:image/png;base64,BBBB"),
])  # fmt: skip
async def test_whatever_decides_a_reply_is_in_the_key(make: Make, other: Request) -> None:
    cache = make()
    await cache(ask())
    await cache(seen("data:image/png;base64,AAAA"))
    file_of(cache).flush()
    assert (await cache(other)).source == "live"


def test_the_key_of_a_request_of_texts_never_changes() -> None:
    """Caches and journals on users' disks know replies by it."""
    turns = (Message("system", "é"), Message("user", "hi \ud83d"))
    drawn, schema = Sampling(0.5, None, 9, {"top_k": 2}), Schema("s", {"type": "object"})
    request = Request("executor", turns, schema, 7, model="http://a/v1#m", sampling=drawn)
    assert request_key(request).hex() == (
        "4d04603c74df4823803414e297d87c0d584bdbb7fc7044a392dadccc689fa5ae"
    )


async def test_failures_and_cut_replies_are_never_kept(make: Make, model: Model) -> None:
    cache = make()
    model.faults.append(ServerFault("broke"))
    with pytest.raises(ServerFault):
        await cache(ask())
    model.cut = True
    assert (await cache(ask())).finish == "length"
    model.cut = False
    assert (await cache(ask())).source == "live"
    assert file_of(cache).stats()[0] == 1


@pytest.mark.parametrize(("reply", "fields"), [
    (Reply("é \ud800 {x} \0 \U0001f600", usage=PAID), 5),  # as files of 0.1.0 have it
    (Reply("", usage=PAID, vector=(0.5, -1.0)), 6),
    (Reply("", usage=PAID, tool_calls=({"id": "c", "function": {"name": "f"}},)), 7),
])  # fmt: skip
def test_a_reply_comes_back_as_it_was(path: Path, reply: Reply, fields: int) -> None:
    packed = pack_reply(reply, Packer())
    assert unpack_reply(packed) == reply and len(unpack(packed)) == fields
    file = ReplyCache(path)
    file.put(b"k" * 32, reply)
    file.flush()
    assert file.get(b"k" * 32) == reply
    file.close()


@pytest.mark.parametrize(("change", "message", "opens"), [
    ("no folder", "cannot be written", False),
    ("PRAGMA user_version = 9", "format 9", False),
    ("scribble", "out of the way", False),
    ("ALTER TABLE replies RENAME TO theirs", "no such table", True),
])  # fmt: skip
async def test_a_cache_that_cannot_be_used_is_bypassed_left_alone_and_said_once(
    make: Make,
    tally: Counts,
    path: Path,
    caplog: pytest.LogCaptureFixture,
    change: str,
    message: str,
    opens: bool,
) -> None:
    if change == "no folder":
        path.parent.write_text("a file is where the folder should be")
    else:
        await spoiled(make, path, change)
    before = contents(path)
    cache = make()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert (await cache(ask())).source == "live"
    assert tally["cache_bypassed"] == 1 and cache.file is None
    assert message in caplog.text
    if not opens:  # the command says so, and a newer file asks for a newer version
        with pytest.raises(StoreTooNew if "format" in message else StoreError, match=message):
            ReplyCache(path)
    assert contents(path) == before


async def test_a_cache_that_can_be_used_again_is_used_again(
    make: Make, tally: Counts, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptcodebook.lm.cache._BYPASS_S", 0.0)
    path.parent.write_text("a file is where the folder should be")
    cache = make()
    assert (await cache(ask())).source == "live"
    path.parent.unlink()
    assert (await cache(ask())).source == "live"
    file_of(cache).flush()
    assert (await cache(ask())).source == "cache"
    assert tally["cache_bypassed"] >= 1


def broken_off() -> str:
    """A reply that a server broke off, as caches of earlier versions hold them."""
    usage = (1, 10, 2, 0, None, 0.5)
    return Packer().pack(("half an ans", "other", usage, (), False)).hex()


@pytest.mark.parametrize("kept", ["00", broken_off()])
async def test_a_reply_that_is_damaged_or_broken_off_is_asked_for_again_and_replaced(
    make: Make, model: Model, tally: Counts, path: Path, kept: str
) -> None:
    await spoiled(make, path, f"UPDATE replies SET reply = x'{kept}'")
    for _ in range(2):
        later = make()
        await later(ask())
        later.close()
        assert len(model.asked) == 2
    assert tally["cache_bypassed"] == 0 and tally["cache_hits"] == 1


def test_the_cache_is_its_owners_alone_and_an_old_one_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tmp_path.chmod(0o755)
    ReplyCache(tmp_path / "mine.sqlite").close()
    assert tmp_path.stat().st_mode & 0o777 == 0o755, "a folder of the user's own choice"
    path = reply_cache_path()
    path.parent.mkdir()
    path.parent.chmod(0o755)
    path.touch()
    path.chmod(0o644)
    before = os.umask(0)
    try:
        cache = ReplyCache(path)
        cache.put(b"k", Reply("r"))
        cache.flush()
        modes = {p.name: p.stat().st_mode & 0o777 for p in (path.parent, *path.parent.iterdir())}
        cache.close()
    finally:
        os.umask(before)
    assert modes.pop(path.parent.name) == 0o700
    assert {path.name, f"{path.name}-wal"} <= modes.keys() and set(modes.values()) == {0o600}


# The journal, and equal calls at once


class Log:
    """A ReplyLog in memory whose writes can be held back."""

    def __init__(self) -> None:
        self.rows: dict[bytes, Reply] = {}
        self.puts: list[Usage] = []
        self.go = asyncio.Event()
        self.go.set()

    def get(self, key: bytes) -> Reply | None:
        return self.rows.get(key)

    async def put(self, key: bytes, request: Request, reply: Reply) -> None:
        self.puts.append(reply.usage)
        await self.go.wait()
        self.rows.setdefault(key, reply)


@pytest.fixture
async def log() -> Log:
    return Log()


@pytest.fixture
async def lm(model: Model, log: Log, tally: Counts) -> Journaled:
    return Journaled(model, log, tally)


async def begun(lm: Journaled, calls: int) -> list[asyncio.Future[Reply]]:
    """Equal calls in flight."""
    tasks = [asyncio.ensure_future(lm(ask())) for _ in range(calls)]
    await settle()
    return tasks


async def test_a_request_is_asked_and_logged_once_and_says_so(
    lm: Journaled, model: Model, log: Log, tally: Counts
) -> None:
    reply = await lm(ask())
    assert reply == FIRST and log.rows == {request_key(ask()): FIRST}
    assert await lm(ask()) == replace(FIRST, source="journal")
    assert len(model.asked) == 1 and tally == {"journal_hits": 1}
    assert len({(await lm(ask(sample=n))).text for n in range(3)}) == 3


async def test_equal_requests_in_flight_share_one_call_and_who_leaves_takes_none_along(
    lm: Journaled, model: Model, tally: Counts
) -> None:
    model.go.clear()
    leader, gone, *others = await begun(lm, 5)
    gone.cancel()
    await settle()
    model.go.set()
    replies = await asyncio.gather(leader, *others)
    assert len(model.asked) == 1 and gone.cancelled()
    assert {r.text for r in replies} == {"reply 1"}
    assert [r.source for r in replies].count("live") == 1, "one of them has paid"
    assert tally == {"shared_calls": 3}


async def test_a_follower_takes_over_when_the_leader_is_cancelled(
    lm: Journaled, model: Model
) -> None:
    model.go.clear()
    leader, *followers = await begun(lm, 3)
    leader.cancel()
    await settle()
    model.go.set()
    replies = await asyncio.gather(*followers)
    assert leader.cancelled() and len(model.asked) == 2
    assert {r.text for r in replies} == {"reply 2"}
    assert [r.source for r in replies].count("live") == 1, "one of them has paid"


async def test_a_reply_that_was_paid_is_kept_when_its_leader_is_cancelled_while_storing(
    lm: Journaled, model: Model, log: Log
) -> None:
    log.go.clear()
    leader, follower = await begun(lm, 2)
    assert log.puts == [PAID] and not leader.done(), "it waits for the disk"
    leader.cancel()
    await settle()
    assert not follower.done(), "it waits for the disk as well"
    log.go.set()
    assert (await follower).text == "reply 1" and len(model.asked) == 1
    # handed over twice; the store adds usage only for a row it did not hold
    assert log.puts == [PAID, PAID]


async def test_a_failure_reaches_all_who_share_the_call_and_is_not_kept(
    lm: Journaled, model: Model, log: Log
) -> None:
    for calls in (3, 1):  # with and without a follower that hears of it
        model.go.clear()
        model.faults.append(ServerFault("broke"))
        waiting = await begun(lm, calls)
        model.go.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(r) for r in results] == [ServerFault] * calls
        assert log.rows == {}
    assert (await lm(ask())).text == "reply 3"


async def test_a_model_served_elsewhere_now_has_the_replies_of_then(model: Model, log: Log) -> None:
    """And those it gives now are found when it is back."""
    old, new = "http://a:1/v1#m", "http://b:2/v1#m"

    def journaled(then: dict[tuple[Role, str], str] | None = None) -> Journaled:
        return Journaled(model, log, no_tally, None, then)

    moved = journaled({("executor", new): old})
    first = await journaled()(ask("one", model=old))
    assert (await moved(ask("one", model=new))).text == first.text
    second = await moved(ask("two", model=new))
    assert [each.model for each in model.asked] == [old, new]
    assert (await journaled()(ask("two", model=old))).text == second.text
    await moved(replace(ask("one", model=new), role="judge"))
    assert model.asked[-1].model == new and len(model.asked) == 3


async def test_a_kill_between_journal_and_cache_leaves_no_reply_to_be_paid_for_again(
    make: Make, model: Model, log: Log, tally: Counts
) -> None:
    """The journal goes when its work is done: what it alone holds is handed to the cache first."""
    log.rows[request_key(ask())] = FIRST
    log.rows[request_key(ask("cut"))] = replace(FIRST, finish="length")
    cache = make()
    resumed = Journaled(cache, log, tally, cache=cache)
    for text in ("hi", "cut", "hi"):
        assert (await resumed(ask(text))).source == "journal"
    cache.close()
    later = make()
    assert await later(ask()) == replace(FIRST, source="cache") and not model.asked
    await later(ask("cut"))
    assert len(model.asked) == 1, "a reply that was cut at its cap is kept by no cache"


async def test_what_a_journal_holds_is_kept_for_the_weights_and_the_address_of_now(
    model: Model, log: Log, tally: Counts, path: Path
) -> None:
    def cached(weights: str) -> Cache:
        async def identity(_: str) -> str:
            return weights

        return Cache(model, path, tally, identity)

    old, new = ask(model="http://a:1/v1#m"), ask(model="http://b:2/v1#m")
    log.rows[request_key(old)] = FIRST
    first = cached("w1")
    moved = {("executor", new.model): old.model}
    await Journaled(first, log, tally, models_then=moved, cache=first)(new)  # type: ignore[arg-type]
    first.close()
    with closing(cached("w1")) as same, closing(cached("w2")) as other:
        assert (await same(new)).source == "cache" and not model.asked
        await other(new)
    assert len(model.asked) == 1, "other weights are another model"
