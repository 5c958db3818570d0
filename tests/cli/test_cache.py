from __future__ import annotations

from pathlib import Path

import pytest

from promptcodebook.calls import Reply
from promptcodebook.lm.cache import ReplyCache
from promptcodebook.paths import reply_cache_path
from tests.cli.invoked import Terminal, pco


def test_a_cache_that_was_never_used(tmp_path: Path) -> None:
    stats = pco("cache", "stats", "--json", cwd=tmp_path).json
    assert stats == {"path": str(reply_cache_path()), "replies": 0, "bytes": 0}
    assert not reply_cache_path().exists()
    assert pco("cache", "clear", cwd=tmp_path).code == 0


def test_stats_and_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.sqlite"
    monkeypatch.setenv("PCO_CACHE", str(path))
    cache = ReplyCache(path)
    cache.put(b"k" * 32, Reply("hello"))
    cache.close()
    stopped = tmp_path / "mine.unfinished" / "an-evaluation"
    stopped.mkdir(parents=True)
    stats = pco("cache", "stats", "--json", cwd=tmp_path).json
    assert stats["replies"] == 1 and stats["bytes"] > 0
    assert ": 1 reply, " in pco("cache", "stats", cwd=tmp_path).out
    pco("cache", "clear", cwd=tmp_path).error(2, "no reply was removed", "add --yes")
    refused = pco("cache", "clear", cwd=tmp_path, stdin=Terminal("n\n"))
    assert refused.code == 2 and f"Remove every reply from {path}? [y/N]" in refused.err
    assert pco("cache", "stats", "--json", cwd=tmp_path).json["replies"] == 1
    assert stopped.exists()
    assert pco("cache", "clear", "--yes", "--json", cwd=tmp_path).json["removed"] == 1
    assert not stopped.exists()
    assert pco("cache", "stats", "--json", cwd=tmp_path).json["replies"] == 0
