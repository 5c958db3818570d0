"""`pco cache`: the replies kept between runs."""

from __future__ import annotations

import shutil

from promptcodebook.cli.console import confirm, emit
from promptcodebook.cli.settings import Json, Yes, command_group
from promptcodebook.units import bytes_text, plural

app = command_group()
cache = command_group(
    "Replies kept between runs ($PCO_CACHE). Runs resume from their own journal, not from it."
)
app.add_typer(cache, name="cache")


@cache.command()
def stats(as_json: Json = False) -> None:
    """Where the cache is, how many replies it holds, and its size."""
    from promptcodebook.lm.cache import ReplyCache
    from promptcodebook.paths import reply_cache_path

    path = reply_cache_path()
    replies, size = 0, 0
    if path.exists():
        store = ReplyCache(path)
        try:
            figures = store.stats()
        finally:
            store.close()
        replies, size = figures.replies, figures.size
    if as_json:
        emit({"path": str(path), "replies": replies, "bytes": size})
    else:
        print(f"{path}: {plural(replies, 'reply', 'replies')}, {bytes_text(size)}")


@cache.command()
def clear(yes: Yes = False, as_json: Json = False) -> None:
    """Forget every reply, those of evaluations that were stopped as well. No run needs them."""
    from promptcodebook.lm.cache import ReplyCache
    from promptcodebook.paths import reply_cache_path, unfinished_folder

    path, unfinished = reply_cache_path(), unfinished_folder()
    count = 0
    if path.exists() or unfinished.exists():
        confirm(f"Remove every reply from {path}?", "no reply was removed", yes=yes)
        shutil.rmtree(unfinished, ignore_errors=True)
    if path.exists():
        store = ReplyCache(path)
        try:
            count = store.clear()
        finally:
            store.close()
    if as_json:
        emit({"path": str(path), "removed": count})
    else:
        print(f"removed {plural(count, 'reply', 'replies')} from {path}")
