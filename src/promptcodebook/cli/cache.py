"""`pco cache`: how much the reply cache holds, and emptying it."""

from __future__ import annotations

import typer

from promptcodebook.cli.console import emit, size
from promptcodebook.cli.options import Json

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Replies kept between runs ($PCO_CACHE). Runs resume from their own journal, not from it.",
)


@app.command()
def stats(as_json: Json = False) -> None:
    """Where the cache is, how many replies it holds, and its size."""
    from promptcodebook.lm.cache import ReplyCache, default_cache_path

    path = default_cache_path()
    replies, taken = 0, 0
    if path.exists():
        cache = ReplyCache(path)
        try:
            found = cache.stats()
        finally:
            cache.close()
        replies, taken = found.replies, found.size
    if as_json:
        emit({"path": str(path), "replies": replies, "bytes": taken})
    else:
        print(f"{path}: {replies} replies, {size(taken)}")


@app.command()
def clear(as_json: Json = False) -> None:
    """Forget every reply. No run needs them; the next one pays for its calls again."""
    from promptcodebook.lm.cache import ReplyCache, default_cache_path

    path = default_cache_path()
    count = 0
    if path.exists():
        cache = ReplyCache(path)
        try:
            count = cache.clear()
        finally:
            cache.close()
    if as_json:
        emit({"path": str(path), "removed": count})
    else:
        print(f"removed {count} replies from {path}")
