from __future__ import annotations

import asyncio
import logging
import os
import resource
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from promptcodebook.calls import Message, Reply, Request, Sampling, Schema, Usage, request_key
from promptcodebook.errors import ServerFault, StoreError, StoreTooNew
from promptcodebook.lm.cache import Cache, ReplyCache, pack_reply, unpack_reply
from promptcodebook.paths import reply_cache_path
from promptcodebook.sqlite import Packer, unpack

PAID = Usage(1, 10, 2, 4, None, 1.0)


class Model:
    def __init__(self) -> None:
        self.asked = 0
        self.finish = "stop"
        self.fault: Exception | None = None

    async def __call__(self, request: Request) -> Reply:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return Reply(
            f"reply {self.asked}",
            finish="length" if self.finish == "length" else "stop",
            usage=PAID,
            dropped=("temperature",),
            estimated=True,
        )


def ask(text: str = "hi", **fields: object) -> Request:
    return Request("executor", (Message("user", text),), **fields)  # type: ignore[arg-type]


Make = Callable[[], Cache]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache.sqlite"


@pytest.fixture
def make(model: Model, counts: Counter[str], path: Path) -> Iterator[Make]:
    made: list[Cache] = []

    def tally(name: str, count: int = 1) -> None:
        counts[name] += count

    def build() -> Cache:
        made.append(Cache(model, path, tally))
        return made[-1]

    yield build
    for cache in made:
        cache.close()


async def test_a_request_is_paid_for_once_and_then_free(
    make: Make, model: Model, counts: Counter[str]
) -> None:
    cache = make()
    assert await cache(ask()) == Reply(
        "reply 1", usage=PAID, dropped=("temperature",), estimated=True
    )
    cache.close()

    again = await make()(ask())
    assert again == Reply(
        "reply 1", usage=PAID, dropped=("temperature",), estimated=True, source="cache"
    )
    assert model.asked == 1
    assert counts == {"cache_misses": 1, "cache_hits": 1}


@pytest.mark.parametrize(
    "other",
    [
        ask("ho"),
        ask(sample=1),
        ask(model="http://elsewhere/v1#m"),
        ask(sampling=Sampling(temperature=0.5)),
        ask(sampling=Sampling(extra={"top_k": 2})),
        ask(schema=Schema("s", {"type": "object"})),
        Request("executor", (Message("system", "hi"),)),
    ],
)
async def test_whatever_decides_a_reply_is_in_the_key(
    make: Make, model: Model, other: Request
) -> None:
    cache = make()
    await cache(ask())
    assert cache.file is not None
    cache.file.flush()
    assert (await cache(other)).source == "live"
    assert model.asked == 2


async def test_failures_and_cut_replies_are_never_kept(make: Make, model: Model) -> None:
    cache = make()
    model.fault = ServerFault("broke")
    with pytest.raises(ServerFault):
        await cache(ask())
    model.fault, model.finish = None, "length"
    assert (await cache(ask())).finish == "length"
    model.finish = "stop"
    assert (await cache(ask())).source == "live"
    assert cache.file is not None
    stats = cache.file.stats()
    assert stats.replies == 1


async def test_stats_and_clear(make: Make, model: Model, path: Path) -> None:
    cache = make()
    for index in range(200):
        await cache(ask(str(index)))
    assert cache.file is not None
    stats = cache.file.stats()
    assert (stats.path, stats.replies) == (path, 200)
    assert cache.file.clear() == 200
    smaller = cache.file.stats()
    assert smaller.replies == 0 and smaller.size < stats.size
    assert (await cache(ask("0"))).source == "live"


async def test_what_was_paid_stays_on_record(make: Make, path: Path) -> None:
    cache = make()
    await cache(ask())
    cache.close()
    db = sqlite3.connect(path)
    [(key,)] = db.execute("SELECT key FROM replies").fetchall()
    db.close()
    file = ReplyCache(path)
    kept = file.get(key)
    file.close()
    assert kept is not None and kept.usage == PAID


async def test_text_comes_back_as_it_was(make: Make, path: Path) -> None:
    file = ReplyCache(path)
    text = "é \ud800 {x} \0 \U0001f600"
    file.put(b"k" * 32, Reply(text))
    file.flush()
    kept = file.get(b"k" * 32)
    file.close()
    assert kept == Reply(text)


async def bypassed(make: Make, model: Model, counts: Counter[str]) -> None:
    """The run goes on, paying, and it was said once why."""
    cache = make()
    for _ in range(2):
        assert (await cache(ask())).source == "live"
    assert model.asked == 2
    assert counts["cache_bypassed"] == 1
    assert cache.file is None


async def test_a_cache_from_a_newer_version_is_bypassed_and_refused_to_the_command(
    make: Make, model: Model, counts: Counter[str], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ReplyCache(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 9")
    db.close()
    with caplog.at_level(logging.WARNING):
        await bypassed(make, model, counts)
    assert "format 9" in caplog.text and "pip install -U promptcodebook" in caplog.text
    with pytest.raises(StoreTooNew):
        ReplyCache(path)


async def test_a_damaged_cache_is_bypassed(
    make: Make, model: Model, counts: Counter[str], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scribble(path)
    with caplog.at_level(logging.WARNING):
        await bypassed(make, model, counts)
    assert f"move {path} out of the way" in caplog.text
    assert is_scribbled(path)


def scribble(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"scribble" * 1000)


def is_scribbled(path: Path) -> bool:
    return path.read_bytes() == b"scribble" * 1000


async def test_a_reply_that_got_damaged_is_asked_for_again_and_replaced(
    make: Make, model: Model, counts: Counter[str], path: Path
) -> None:
    first = make()
    await first(ask())
    first.close()
    db = sqlite3.connect(path)
    db.execute("UPDATE replies SET reply = x'00'")
    db.commit()
    db.close()
    for asked in (2, 2):
        later = make()
        await later(ask())
        later.close()
        assert model.asked == asked
    assert counts["cache_bypassed"] == 0 and counts["cache_hits"] == 1


async def test_a_cache_that_gets_unreadable_on_the_way_is_bypassed(
    make: Make, model: Model, counts: Counter[str], path: Path
) -> None:
    first = make()
    await first(ask())
    first.close()
    db = sqlite3.connect(path)
    db.execute("ALTER TABLE replies RENAME TO theirs")
    db.commit()
    db.close()
    model.asked = 0
    await bypassed(make, model, counts)


async def test_a_folder_that_cannot_be_made_is_bypassed(
    make: Make, model: Model, counts: Counter[str], path: Path
) -> None:
    path.parent.write_text("a file stands where the folder should be")
    await bypassed(make, model, counts)
    with pytest.raises(StoreError, match="cannot be written"):
        ReplyCache(path)


async def test_a_cache_on_a_full_disk_is_bypassed_and_keeps_what_it_had(
    make: Make, model: Model, counts: Counter[str], path: Path
) -> None:
    cache = make()
    await cache(ask())
    assert cache.file is not None
    cache.file.flush()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        for index in range(2_000):
            assert (await cache(ask(str(index)))).source == "live"
            # The writer's thread needs a moment to meet the end of the disk.
            await asyncio.sleep(0.001)
            if counts["cache_bypassed"]:
                break
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert counts["cache_bypassed"] == 1
    assert (await make()(ask())).source == "cache"


async def test_processes_share_a_cache(make: Make, model: Model, path: Path) -> None:
    cache = make()
    process = start_another(path)
    for index in range(100):
        await cache(ask(str(index)))
        await asyncio.sleep(0)
    assert process.wait(60) == 0
    assert cache.file is not None
    stats = cache.file.stats()
    assert stats.replies == 200
    assert cache.file is not None
    assert cache.file.get((7).to_bytes(32)) == Reply("theirs 7")


def start_another(path: Path) -> subprocess.Popen[bytes]:
    other = (
        "import sys, pathlib\n"
        "from promptcodebook.calls import Reply\n"
        "from promptcodebook.lm.cache import ReplyCache\n"
        "c = ReplyCache(pathlib.Path(sys.argv[1]))\n"
        "[c.put(i.to_bytes(32), Reply(f'theirs {i}')) for i in range(100)]\n"
        "c.close()\n"
    )
    return subprocess.Popen([sys.executable, "-c", other, str(path)])


def test_the_cache_is_its_owners_alone_and_an_old_one_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
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


def test_a_folder_of_the_users_own_choice_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    ReplyCache(tmp_path / "mine.sqlite").close()
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "mine.sqlite").stat().st_mode & 0o777 == 0o600


def test_an_embedding_has_a_key_of_its_own_and_is_kept() -> None:
    assert request_key(ask()) != request_key(ask(embeds=True))
    reply = Reply("", usage=PAID, vector=(0.5, -1.0))
    assert unpack_reply(pack_reply(reply, Packer())) == reply
    plain = Reply("a text", usage=PAID)
    assert unpack_reply(pack_reply(plain, Packer())) == plain
    assert len(unpack(pack_reply(plain, Packer()))) == 5, "as files of 0.1.0 have it"
