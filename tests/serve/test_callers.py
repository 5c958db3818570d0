"""Who may ask: keys of the environment and of a file, and so many requests a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcodebook.errors import ConfigError
from promptcodebook.serve.callers import RateLimit, read_keys, require_keys
from promptcodebook.serve.completions import Refusal


def test_keys_come_from_both_places(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# the desk\ndesk-4711-key  # Anna\n\nshop-4711-key\n")
    assert read_keys(" one-key, shop-4711-key,", path) == (
        "one-key",
        "shop-4711-key",
        "desk-4711-key",
    )
    assert read_keys("", None) == ()


@pytest.mark.parametrize("text", ["", "# none\n", "short\n", "a key of words\n", "schlüssel-12\n"])
def test_a_file_without_keys_is_refused_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_keys("", path)
    assert str(path) in str(caught.value)
    assert not text.strip("# \n") or text.strip() not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read"):
        read_keys("", tmp_path / "other")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", ""])
def test_another_address_than_loopback_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="no key") as caught:
        require_keys((), host, "pco serve last")
    assert "pco serve last" in caught.value.hint
    require_keys(("some-key",), host, "pco serve last")
    require_keys((), "127.0.0.1", "pco serve last")


def test_a_caller_has_so_many_requests_a_second() -> None:
    now = 0.0
    limit = RateLimit(2.0, lambda: now)

    def takes(caller: str) -> bool:
        try:
            limit.take(caller)
        except Refusal as refusal:
            assert refusal.status == 429 and refusal.retry_after == 1
            return False
        return True

    assert [takes("a") for _ in range(4)] == [True, True, False, False]
    assert takes("b")
    now = 0.5
    assert [takes("a"), takes("a")] == [True, False]
    now = 60.0
    assert [takes("a") for _ in range(3)] == [True, True, False], "a burst is a second's worth"
    assert all(RateLimit(0.0).take("a") is None for _ in range(100))
