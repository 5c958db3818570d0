"""The version of now: what fails passes, and what was there to be served is served in the end."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from promptcodebook.errors import ConfigError
from promptcodebook.serve.composing import Composing
from promptcodebook.serve.live import FileSource, FixedSource, Live, Version
from tests.serve.proxied import deployed, one_call


def version(word: str) -> Version:
    return Version.of(one_call(base_prompt=word).text().encode(), "the test")


def at_work(made: Version) -> Composing:
    return Composing(deployed(made.file), made.name)


class Failing:
    """A source that fails as often as is said before it has another version."""

    def __init__(self, first: Version, then: Version, *errors: Exception) -> None:
        self._first = first
        self._then = then
        self._errors = list(errors)

    def read(self, known: str) -> Version | None:
        if not known:
            return self._first
        if self._errors:
            raise self._errors.pop(0)
        return None if known == self._then.name else self._then


async def test_no_error_ends_the_following_of_a_ref(caplog: pytest.LogCaptureFixture) -> None:
    a, b = version("a"), version("b")
    errors = (KeyError("private-text"), OSError("private-text"), ConfigError("no such thing"))
    live = Live(Failing(a, b, *errors), at_work)
    watching = asyncio.ensure_future(live.watch(0.001))
    for _ in range(2000):
        if live.moves or watching.done():
            break
        await asyncio.sleep(0.005)
    assert not watching.done()
    watching.cancel()
    await live.close()
    assert (live.version, live.failures, live.moves) == (b.name, 3, 1)
    assert "KeyError (test_live.py:" in caplog.text and "no such thing" in caplog.text
    assert "private-text" not in caplog.text


async def test_a_failure_that_lasts_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    live = Live(Failing(version("a"), version("b"), *[KeyError("x")] * 3), at_work)
    for _ in range(3):
        assert not await live.look()
    assert await live.look()
    await live.close()
    assert live.failures == 3 and caplog.text.count("KeyError") == 1


async def test_a_file_that_could_not_be_put_to_work_is_tried_again(tmp_path: Path) -> None:
    path, broken = tmp_path / "tickets.pco.json", False

    def make(made: Version) -> Composing:
        if broken:
            raise ConfigError("a variable is missing")
        return at_work(made)

    one_call(base_prompt="a").save(path)
    live = Live(FileSource(path), make)
    broken = True
    one_call(base_prompt="b").save(path)
    assert not await live.look() and not await live.look()
    assert live.version == version("a").name
    broken = False
    assert await live.look() and not await live.look()
    await live.close()
    assert (live.version, live.failures) == (version("b").name, 2)


async def test_a_file_that_is_not_touched_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tickets.pco.json"
    one_call(base_prompt="a").save(path)
    source = FileSource(path)
    first = source.read("")
    assert first is not None
    monkeypatch.setattr(Path, "read_bytes", None)
    assert source.read(first.name) is None


async def test_a_fixed_policy_never_moves() -> None:
    live = Live(FixedSource(version("a")), at_work)
    assert not await live.look()
    await live.close()


class Kept:
    """An archive of what it was given."""

    def __init__(self, *versions: Version) -> None:
        self._versions = {each.name: each for each in versions}

    def find(self, start: str) -> str:
        return next((name for name in self._versions if name.startswith(start)), "")

    def version(self, name: str) -> Version:
        return self._versions[name]


async def test_earlier_versions_are_put_to_work_once_and_few_of_them_at_a_time() -> None:
    closed: list[str] = []

    class Told(Composing):
        async def close(self) -> None:
            closed.append(self.version)
            await super().close()

    made: list[str] = []

    def make(version: Version) -> Composing:
        made.append(version.name)
        return Told(deployed(version.file), version.name)

    old = [version(word) for word in "abcde"]
    live = Live(FixedSource(version("now")), make, Kept(*old))
    found = await asyncio.gather(*(live.earlier(old[0].name) for _ in range(3)))
    assert found[0] is not None and all(each is found[0] for each in found)
    assert closed == made[2:], "what other requests made meanwhile is closed again"
    made.clear()
    with live.using(found[0]) as composing:
        for each in old[1:]:
            assert await live.earlier(each.name) is not None
        await asyncio.sleep(0)
        assert composing.version == old[0].name and old[0].name not in closed[2:], "it is in use"
    await live.close()
    assert await live.earlier("sha256:none") is None
    assert set(closed) == {each.name for each in (*old, version("now"))}
    assert made == [each.name for each in old[1:]]
