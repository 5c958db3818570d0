"""The log of requests in Postgres, against a real one: skipped where Debian's package is absent."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from promptcodebook.deploy.online.log import (
    Feedback,
    Room,
    Served,
    ServedLog,
    new_request_id,
    open_log,
)
from promptcodebook.errors import ConfigError, DiskFull, StoreError, StoreTooNew
from tests.build.cli import pco
from tests.build.clock import until
from tests.build.cluster import MISSING, SECRET, Cluster, cluster, served

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def postgres(running: Cluster) -> Iterator[Cluster]:
    yield running
    running.sql("DROP SCHEMA IF EXISTS promptcodebook CASCADE")


def written(log: ServedLog, *items: Served) -> None:
    for each in items:
        log.put(each)
    for _ in range(100):
        if len([*log.newest(items[0].ref)]) >= len(items):
            return
        time.sleep(0.05)
    raise TimeoutError("not written")


async def test_it_keeps_what_a_file_keeps(postgres: Cluster, tmp_path: Path) -> None:
    """The same calls, the same answers as SQLite's."""
    answers = list[object]()
    for place in (postgres.url, str(tmp_path / "served.sqlite")):
        with closing(open_log(place)) as log:
            first, second = served(1), served(2)
            log.put(second)
            log.put(first)
            became = [
                await log.give(Feedback(first.id, 1.0, "Fine \ud800 \0.", "click"), "a"),
                await log.give(Feedback(first.id, 0.25, "No.", time=1.0), "a"),
                await log.give(Feedback(first.id, 1.0, "Fine again.", "click"), "a"),
                await log.give(Feedback(first.id, 0.0), "another"),
                await log.give(Feedback(new_request_id(), 0.0), None),
            ]
            full = [Feedback(second.id, n / 8, key=f"{n}") for n in range(4)]
            became += [await log.give(each, "a", Room(pieces=3)) for each in full]
            became += await asyncio.gather(*(log.give(full[0], "a") for _ in range(3)))
            new = Feedback(first.id, 0.5, key="three times in one transaction")
            became += await asyncio.gather(*(log.give(new, "a") for _ in range(3)))
            all_of = [*log.newest("tickets@live")]
            assert [each.served for each in all_of] == [second, first]
            measures = ("reward", "failed", "seconds", "tokens")
            answers.append(
                (
                    became,
                    [(each.reward, each.text) for each in all_of],
                    [each.served.time for each in log.newest("tickets@live", 101.5)],
                    [each.served.time for each in log.newest("tickets@live", 0, 101.5)],
                    [each.reward for each in log.newest("tickets@live", rewarded=True)],
                    [*log.newest("tickets@live", share=0.0)],
                    log.traffic("tickets@live", 0.0),
                    [log.spread(each, "tickets@live", 0.0, full=0.7) for each in measures],
                    log.refs(),
                    log.erase([first.id, new_request_id()]),
                    await log.give(Feedback(first.id, 1.0), "a"),
                    [each.served.time for each in log.newest("tickets@live")],
                )
            )
            log.expire(before=1e9)
            assert log.refs() == []
    assert answers[0] == answers[1]
    kept = ["kept", "kept", "conflict", "unknown", "unknown", *["kept"] * 3, "full", *["again"] * 3]
    kept += ["kept", "again", "again"]
    assert answers[0][0] == kept  # type: ignore[index]


async def test_feedback_outlives_a_crash_of_the_database(postgres: Cluster) -> None:
    with closing(open_log(postgres.url)) as log, closing(open_log(postgres.url)) as other:
        asked = [served(n) for n in range(20)]
        await asyncio.to_thread(written, log, *asked)
        kept = set[str]()

        async def say(each: Served, by: ServedLog) -> None:
            while each.id not in kept:
                with suppress(StoreError):
                    if await by.give(Feedback(each.id, 1.0, key="once"), "a") == "kept":
                        kept.add(each.id)
                await asyncio.sleep(0.05)

        await say(asked[0], log)
        await asyncio.to_thread(postgres.stop)
        saying = [asyncio.ensure_future(say(a, b)) for a in asked for b in (log, other)]
        log.put(later := served(30))
        await until(lambda: log.fails)
        assert len(kept) == 1
        await asyncio.to_thread(postgres.start)
        await asyncio.gather(*saying)
        # What came while the database was away has waited for it.
        await until(lambda: later.id in {each.served.id for each in log.newest("tickets@live")})
        assert not log.fails
    assert postgres.sql("SELECT count(*) FROM promptcodebook.feedback") == "20"


async def test_one_row_that_cannot_be_kept_costs_no_other(postgres: Cluster) -> None:
    with closing(open_log(postgres.url)) as log:
        bad = served(1, caller="\0")
        log.put(bad)
        await asyncio.to_thread(written, log, served(2))
        assert [each.served.time for each in log.newest("tickets@live")] == [102.0]


REFUSE = """CREATE FUNCTION promptcodebook.refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{}'; END $$"""
ON = "CREATE TRIGGER refuse BEFORE INSERT ON promptcodebook.{0} EXECUTE FUNCTION {1}"
OFF = "DROP TRIGGER refuse ON promptcodebook.{0}"


def refusing(postgres: Cluster, statement: str) -> None:
    for table in ("served", "feedback"):
        postgres.sql(statement.format(table, "promptcodebook.refuse()"))


# A full disk, a standby after a failover, a right that was taken, a damaged page, a lock.
@pytest.mark.parametrize("state", ["53100", "25006", "42501", "XX001", "55P03"])
async def test_what_a_database_refuses_for_a_while_is_written_later(
    postgres: Cluster, state: str
) -> None:
    with closing(open_log(postgres.url)) as log:
        await asyncio.to_thread(written, log, first := served(1))
        postgres.sql(REFUSE.format(state))
        refusing(postgres, ON)
        log.put(later := served(2))
        await until(lambda: log.fails)
        with pytest.raises(DiskFull if state == "53100" else StoreError, match=": no"):
            await log.give(Feedback(first.id, 1.0), "a")
        refusing(postgres, OFF)
        await until(lambda: not log.fails)
        assert [each.served for each in log.newest("tickets@live")] == [later, first]
        assert await log.give(Feedback(first.id, 1.0), "a") == "kept"
        assert log.lost == 0


@pytest.mark.parametrize("state", ["22001", "54000"])
async def test_a_request_that_can_never_be_written_is_counted_and_holds_up_no_other(
    postgres: Cluster, state: str
) -> None:
    with closing(open_log(postgres.url)) as log:
        await asyncio.to_thread(written, log, served(1))
        postgres.sql(REFUSE.format(state))
        refusing(postgres, ON.replace("EXECUTE", "FOR EACH ROW WHEN (new.time = 102) EXECUTE"))
        log.put(served(2))
        await asyncio.to_thread(written, log, served(3), served(4))
        assert [each.served.time for each in log.newest("tickets@live")] == [104.0, 103.0, 101.0]
        assert log.lost == 1 and not log.fails


async def test_behind_a_lock_the_oldest_requests_are_dropped_and_counted(
    postgres: Cluster,
) -> None:
    import psycopg

    with closing(open_log(postgres.url)) as log, psycopg.connect(postgres.url) as other:
        other.execute("LOCK TABLE promptcodebook.served IN ACCESS EXCLUSIVE MODE")
        for n in range(50_010):
            log.put(served(n))
        await until(lambda: log.fails)
        with pytest.raises(StoreError, match="lock timeout"):
            await log.give(Feedback(new_request_id(), 1.0), "a")
        assert log.fails
        other.rollback()
        await until(lambda: not log.fails)
        await until(lambda: sum(e.requests for e in log.traffic("tickets@live", 0)) == 50_000)
        assert log.lost == 10 and not log.fails
    assert postgres.sql("SELECT min(time), max(time) FROM promptcodebook.served") == "110|50109"


async def test_a_database_that_says_nothing_holds_up_no_one(postgres: Cluster) -> None:
    clients = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
    with closing(open_log(postgres.url)) as log:
        await asyncio.to_thread(written, log, first := served(1))
        process = int(postgres.sql(f"{clients} AND pid <> pg_backend_pid()"))
        os.kill(process, signal.SIGSTOP)
        try:
            log.put(later := served(2))
            await until(lambda: log.fails)
            with pytest.raises(StoreError, match="does not answer"):
                await log.give(Feedback(first.id, 1.0), "a")
        finally:
            os.kill(process, signal.SIGCONT)
        await until(lambda: not log.fails)
        assert [each.served for each in log.newest("tickets@live")] == [later, first]


async def test_a_log_that_closes_while_the_database_is_away_says_what_it_loses(
    postgres: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_log(postgres.url)) as log:
        await asyncio.to_thread(postgres.stop)
        log.put(served(0))
        log.put(served(1))
        await until(lambda: log.fails)
    await asyncio.to_thread(postgres.start)
    assert "2 requests are not recorded" in caplog.text


async def test_two_servers_bring_the_tables_up_to_date_while_a_third_writes(
    postgres: Cluster,
) -> None:
    from promptcodebook.deploy.online.postgres import MIGRATIONS, PostgresLog

    wider = "ALTER TABLE served ADD COLUMN more TEXT", "CREATE INDEX by_more ON served (more)"
    failing, fine = [*MIGRATIONS, (*wider, "SELECT 1 / 0")], [*MIGRATIONS, wider]
    with closing(open_log(postgres.url)) as log:
        over = False
        await asyncio.to_thread(written, log, served(0))

        async def write() -> int:
            """As much as there is time for, with one piece of feedback each."""
            n = 0
            while not over or n < 20:
                n += 1
                log.put(each := served(n))
                assert await log.give(Feedback(each.id, 1.0), "a") == "kept"
            return n

        writing = asyncio.ensure_future(write())
        for _ in range(5):
            with pytest.raises(StoreError):
                await asyncio.to_thread(PostgresLog, postgres.url, failing)
            assert postgres.sql("SELECT version FROM promptcodebook.layout") == "1"
            assert "more" not in postgres.sql("SELECT * FROM information_schema.columns")
        made = [asyncio.to_thread(PostgresLog, postgres.url, fine) for _ in range(2)]
        for each in await asyncio.gather(*made):
            each.close()
        over = True
        count = await writing
        rewarded = [each.reward for each in log.newest("tickets@live")]
    assert postgres.sql("SELECT version FROM promptcodebook.layout") == "2"
    assert count and rewarded[:-1] == [1.0] * count
    with pytest.raises(StoreTooNew, match="format 2"):
        open_log(postgres.url)  # of a server that knows the first version alone


async def test_who_waits_for_a_migration_holds_nothing_that_it_needs(postgres: Cluster) -> None:
    import psycopg

    from promptcodebook.deploy.online.postgres import _LOCK

    with closing(open_log(postgres.url)) as log, psycopg.connect(postgres.url) as migrating:
        migrating.execute(_LOCK)
        log.put(asked := served())
        saying = asyncio.ensure_future(log.give(Feedback(asked.id, 1.0), "a"))
        await asyncio.sleep(0.5)
        migrating.execute("LOCK TABLE promptcodebook.served IN ACCESS EXCLUSIVE MODE NOWAIT")
        migrating.commit()
        assert await saying == "kept"


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("postgresql://pco:{}@127.0.0.1:1/x", StoreError, "database x at 127.0.0.1 cannot be used"),
        ("postgresql://pco:wrong{}@127.0.0.1:{port}/postgres", StoreError, "authentication failed"),
        ("postgresql://pco:{}/b@127.0.0.1/x", ConfigError, "no address"),
        ("postgresql://pco:@{}@127.0.0.1/x", ConfigError, "no address"),
        ("postgresql://pco:x@127.0.0.1/x?{}=1", ConfigError, "no address"),
        ("postgresql://pco:x@127.0.0.1:{}/x", ConfigError, "no address"),
    ],
)
def test_a_key_in_the_address_is_never_said(
    postgres: Cluster,
    url: str,
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    place = url.format(SECRET, port=postgres.port)
    with pytest.raises(error, match=message) as caught:
        open_log(place)
    whole = repr(caught.value) + str(getattr(caught.value, "hint", ""))
    assert SECRET not in whole and caught.value.__cause__ is None
    monkeypatch.setenv("PCO_FEEDBACK", place)
    done = pco("feedback", "erase", new_request_id(), cwd=tmp_path)
    assert done.code in (1, 2) and SECRET not in done.err + done.out
