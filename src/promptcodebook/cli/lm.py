"""`pco lm` and `pco cache`: the simulated model over HTTP, and the replies kept between runs."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import confirm, emit, note
from promptcodebook.cli.settings import (
    ConfigOption,
    DataDir,
    Json,
    TaskName,
    Yes,
    command_group,
    flag_layer,
    gather_settings,
)
from promptcodebook.errors import ConfigError
from promptcodebook.units import bytes_text, plural

if TYPE_CHECKING:
    from promptcodebook.serve.server import Address
    from promptcodebook.simulated.parameters import SimulatedSettings
    from promptcodebook.simulated.world import World

__all__ = ["app"]

app = command_group()
lm = command_group("Serve the simulated model over HTTP.")
app.add_typer(lm, name="lm")
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
    """Forget every reply. No run needs them; the next one pays for its calls again."""
    from promptcodebook.lm.cache import ReplyCache
    from promptcodebook.paths import reply_cache_path

    path = reply_cache_path()
    count = 0
    if path.exists():
        confirm(f"Remove every reply from {path}?", "no reply was removed", yes=yes)
        store = ReplyCache(path)
        try:
            count = store.clear()
        finally:
            store.close()
    if as_json:
        emit({"path": str(path), "removed": count})
    else:
        print(f"removed {plural(count, 'reply', 'replies')} from {path}")


@lm.command()
def serve(
    model: Annotated[str, typer.Argument(help="simulated, or simulated?key=value&...")],
    task: TaskName = None,
    data: DataDir = None,
    config: ConfigOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free one.")] = 8000,
    latency: Annotated[
        str | None, typer.Option(help="0.2, uniform:0.05-0.3 or lognormal:0.1,0.5 seconds.")
    ] = None,
    faults: Annotated[
        str | None, typer.Option(help="E.g. 429:0.1,500:0.05,drop:0.05,json:0.05,truncate:0.02.")
    ] = None,
    dilution: Annotated[str | None, typer.Option(help="What a long prompt costs.")] = None,
    world_seed: Annotated[str | None, typer.Option(help="Which simulated model.")] = None,
    as_json: Json = False,
) -> None:
    """Serve until Ctrl-C. The first line on stdout is the spec to use as --lm.

    The world is made of the task's data, or of a pco.toml's. Counts are at GET /stats.
    """
    typed = {
        "latency": latency,
        "faults": faults,
        "dilution": dilution,
        "world_seed": world_seed,
    }
    settings = _settings(model, {key: value for key, value in typed.items() if value is not None})
    world = _world(config, flag_layer(task, data), settings)
    _run(world, settings, (host, port), partial(_ready, as_json))


def _settings(model: str, given: dict[str, str]) -> SimulatedSettings:
    from promptcodebook.lm.spec import parse_spec
    from promptcodebook.simulated.parameters import SimulatedSettings

    spec = parse_spec(model, {})
    if spec.kind != "simulated":
        raise ConfigError(
            f"only the simulated model is served here, not {model!r}", hint="pco lm serve simulated"
        )
    return SimulatedSettings.from_params({**spec.params, **given})


def _ready(as_json: bool, address: Address) -> None:
    """The spec on stdout, at once: a script may wait for it."""
    spec = f"{address.base_url}#simulated"
    if as_json:
        emit({"spec": spec, "host": address.host, "port": address.port})
        sys.stdout.flush()
    else:
        print(spec, flush=True)
    stats = f"{address.base_url.removesuffix('/v1')}/stats"
    note(f"the simulated model is listening; Ctrl-C ends it; counts: {stats}")


def _world(
    config: Path | None, flags: Mapping[str, Any], settings: SimulatedSettings
) -> World | None:
    """The world of a task's or a configuration's data; None = a general one without data."""
    from promptcodebook.assemble import plan_data
    from promptcodebook.simulated.recipes import build_world

    configured, base = gather_settings(config, flags)
    if not (configured.task or configured.data.path or configured.data.train):
        return None
    data = plan_data(configured, base)
    return build_world(configured.task, [*data.train, *data.val, *data.test], settings)


def _run(
    world: World | None,
    settings: SimulatedSettings,
    where: tuple[str, int],
    ready: Callable[[Address], None],
) -> None:
    from promptcodebook.serve.server import serve as listen
    from promptcodebook.serve.simulated import simulated_site

    async def until_stopped() -> None:
        loop, serving = asyncio.get_running_loop(), asyncio.current_task()
        assert serving is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, serving.cancel)
        await listen(simulated_site(world, settings), where[0], where[1], ready)

    try:
        asyncio.run(until_stopped())
    except asyncio.CancelledError:
        note("stopped")
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {where[0]}:{where[1]}: {error.strerror or error}",
            hint="pco lm serve simulated --port 0",
        ) from None
