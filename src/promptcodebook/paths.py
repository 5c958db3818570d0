"""Where our files lie, and how one is written: whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_folder", "reply_cache_path", "whole_file", "write_whole"]


def cache_folder() -> Path:
    """Our folder in the user's cache folder, wherever the system has it.

    On Linux that is `$XDG_CACHE_HOME`, else ~/.cache.
    """
    from platformdirs import user_cache_path  # not needed to import promptcodebook

    return user_cache_path("promptcodebook", appauthor=False)


def reply_cache_path() -> Path:
    """`$PCO_CACHE`, else cache.sqlite in the user's cache folder."""
    chosen = os.environ.get("PCO_CACHE", "")
    return Path(chosen).expanduser() if chosen else cache_folder() / "cache.sqlite"


def write_whole(target: Path, text: str) -> None:
    """Writes UTF-8 text so that no reader ever sees half of it. Raises OSError."""
    with whole_file(target) as part:
        part.write_text(text, "utf-8")


@contextmanager
def whole_file(target: Path) -> Generator[Path]:
    """A path beside `target` to write to; it takes the target's place when the block ends well.

    Raises OSError; whatever was half-written is removed.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
