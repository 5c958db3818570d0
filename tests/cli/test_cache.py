from __future__ import annotations

from pathlib import Path

import pytest

from promptcodebook.lm.base import Reply
from promptcodebook.lm.cache import ReplyCache, default_cache_path
from tests.cli.invoked import pco


def test_a_cache_that_was_never_used(tmp_path: Path) -> None:
    stats = pco("cache", "stats", "--json", cwd=tmp_path).json
    assert stats == {"path": str(default_cache_path()), "replies": 0, "bytes": 0}
    assert not default_cache_path().exists()
    assert pco("cache", "clear", cwd=tmp_path).code == 0


def test_stats_and_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.sqlite"
    monkeypatch.setenv("PCO_CACHE", str(path))
    cache = ReplyCache(path)
    cache.put(b"k" * 32, Reply("hello"))
    cache.close()
    stats = pco("cache", "stats", "--json", cwd=tmp_path).json
    assert stats["replies"] == 1 and stats["bytes"] > 0
    assert "1 replies" in pco("cache", "stats", cwd=tmp_path).out
    assert pco("cache", "clear", "--json", cwd=tmp_path).json["removed"] == 1
    assert pco("cache", "stats", "--json", cwd=tmp_path).json["replies"] == 0
