"""`pco lm serve`: the simulated model over HTTP, for tests and for other people's optimizers."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import emit, note
from promptcodebook.cli.options import ConfigOption, DataDir, Json, TaskName, task_flags
from promptcodebook.cli.settings import gathered
from promptcodebook.errors import ConfigError

if TYPE_CHECKING:
    from promptcodebook.simulated.parameters import SimulatedSettings
    from promptcodebook.simulated.server import Address
    from promptcodebook.simulated.world import World

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Serve the simulated model over HTTP.",
)


@app.callback()
def _group() -> None:
    """Keeps `serve` a command of its own."""


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="simulated, or simulated?key=value&...")],
    task: TaskName = None,
    data: DataDir = None,
    config: ConfigOption = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
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
    world = _world(config, task_flags(task, data, None), settings)
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
    note(f"the simulated model listens; Ctrl-C ends it; counts: {stats}")


def _world(config: Path | None, flags: dict[str, Any], settings: SimulatedSettings) -> World | None:
    """The world of a task's or a configuration's data; None = a general one without data."""
    from promptcodebook.session.sources import Sources, data_of, ready_made
    from promptcodebook.simulated.world import build_world

    found, base = gathered(config, flags)
    made = ready_made(found, base)
    if made is None and not (found.data.path or found.data.train):
        return None
    data = made.dataset if made is not None else data_of(found, Sources(base))
    return build_world(found.task, [*data.train, *data.val, *data.test], settings)


def _run(
    world: World | None,
    settings: SimulatedSettings,
    where: tuple[str, int],
    ready: Callable[[Address], None],
) -> None:
    from promptcodebook.simulated.server import serve as listening

    async def until_told() -> None:
        loop, served = asyncio.get_running_loop(), asyncio.current_task()
        assert served is not None
        for told in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(told, served.cancel)
        await listening(world, settings, where[0], where[1], ready)

    try:
        asyncio.run(until_told())
    except asyncio.CancelledError:
        note("stopped")
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {where[0]}:{where[1]}: {error.strerror or error}",
            hint="pco lm serve simulated --port 0",
        ) from None
