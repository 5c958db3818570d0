"""`pco lm` and `pco cache`: models over HTTP, and the replies kept between runs."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import confirm, emit, note
from promptcodebook.cli.serve import listen
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
    from promptcodebook.local.engine import Engine
    from promptcodebook.serve.local import Terms
    from promptcodebook.serve.server import Address
    from promptcodebook.simulated.model import SimulatedLM

app = command_group()
lm = command_group("Serve a model of this machine, or the simulated one, over HTTP.")
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


@lm.command()
def serve(
    model: Annotated[
        str,
        typer.Argument(
            help="smollm2, PATH.gguf, hf:DIR-or-NAME, simulated, or simulated?key=value&..."
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free one.")] = 8000,
    key: Annotated[
        str,
        typer.Option(
            envvar="PCO_SERVE_KEY",
            show_default=False,
            help="What callers must send as their key; needed where other machines can call.",
        ),
    ] = "",
    queue: Annotated[
        int | None,
        typer.Option(min=1, help="Completions at a time, waiting ones too; more get a 429 [256]."),
    ] = None,
    four_bit: Annotated[
        bool, typer.Option("--4bit", help="Load a hf: model in 4 bits (NF4).")
    ] = False,
    task: TaskName = None,
    data: DataDir = None,
    config: ConfigOption = None,
    latency: Annotated[
        str | None,
        typer.Option(help="Simulated: 0.2, uniform:0.05-0.3 or lognormal:0.1,0.5 seconds."),
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(help="Simulated, e.g. 429:0.1,500:0.05,drop:0.05,json:0.05,truncate:0.02."),
    ] = None,
    load: Annotated[
        str | None, typer.Option(help="Simulated: what a hundred words of prompt cost.")
    ] = None,
    world: Annotated[
        str | None, typer.Option(help="Simulated: which world, so what inputs need.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve until Ctrl-C. The first line on stdout is the spec to use as --lm.

    A model of this machine answers /v1/chat/completions, /v1/models, /v1/embeddings (where it can),
    /healthz and /metrics. The simulated one is made of the task's data, or of a pco.toml's; its
    counts are at GET /stats.
    """
    from promptcodebook.serve.door import require_keys

    typed = {"latency": latency, "faults": faults, "load": load, "world": world}
    simulated_only = {"task": task, "data": data, "config": config, **typed}
    if not model.startswith("simulated"):
        _check_fits(simulated_only, "the simulated model")
        from promptcodebook.serve.local import Terms

        terms = Terms(host, port, key, aliases=(model,))
        terms = terms if queue is None else replace(terms, queue=queue)
        _serve_local(model, terms, four_bit, as_json)
        return
    _check_fits({"queue": queue, "4bit": four_bit}, "models of this machine")
    require_keys((key,), host, "pco lm serve simulated")
    given = {key: value for key, value in typed.items() if value is not None}
    simulated = _simulated(model, given, config, flag_layer(task, data))
    _serve_simulated(simulated, key, (host, port), partial(_ready, as_json))


def _check_fits(options: Mapping[str, object], whose: str) -> None:
    """Raises ConfigError for an option that this model has no use for."""
    for name, value in options.items():
        if value:
            raise ConfigError(
                f"--{name.replace('_', '-')} is for {whose}", hint="pco lm serve --help"
            )


def _serve_local(model: str, terms: Terms, four_bit: bool, as_json: bool) -> None:
    from promptcodebook.local.engine import HF, find_weights
    from promptcodebook.local.lm import load_engine
    from promptcodebook.serve.local import check_terms, serving_locally

    if four_bit and not model.startswith(HF):
        raise ConfigError(
            f"--4bit is for hf: models, and {model} is a GGUF file, which has its own weights",
            hint=f"pco lm serve {model}",
        )
    check_terms(terms, model)
    weights = find_weights(model)

    async def load() -> Engine:
        return await asyncio.to_thread(load_engine, weights, four_bit=four_bit)

    async def serve() -> None:
        async with serving_locally(load, terms) as (address, loading):
            note(f"loading {weights.name}; {address.base_url} answers 503 until it is ready")
            engine = await loading
            _tell(f"{address.base_url}#{engine.model}", address, as_json)
            counts = f"{address.base_url.removesuffix('/v1')}/metrics"
            note(f"{engine.model} is listening; Ctrl-C ends it; counts: {counts}")
            await asyncio.Event().wait()

    listen(serve, terms.host, terms.port, f"pco lm serve {model} --port 0")


def _simulated(
    model: str, given: Mapping[str, str], config: Path | None, flags: Mapping[str, Any]
) -> SimulatedLM:
    """The model in the world of a task's or a configuration's data; without data a general one."""
    from promptcodebook.assemble import NO_DATA, plan_data, simulated_model
    from promptcodebook.lm.spec import parse_spec

    spec = parse_spec(model, {})
    configured, base = gather_settings(config, flags)
    named = configured.task or configured.data.path or configured.data.train
    data = plan_data(configured, base) if named else NO_DATA
    return simulated_model(configured.task, data, replace(spec, params={**spec.params, **given}))


def _ready(as_json: bool, address: Address) -> None:
    _tell(f"{address.base_url}#simulated", address, as_json)
    stats = f"{address.base_url.removesuffix('/v1')}/stats"
    note(f"the simulated model is listening; Ctrl-C ends it; counts: {stats}")


def _tell(spec: str, address: Address, as_json: bool) -> None:
    """The spec on stdout, at once: a script may wait for it."""
    if as_json:
        emit({"spec": spec, "host": address.host, "port": address.port})
        sys.stdout.flush()
    else:
        print(spec, flush=True)


def _serve_simulated(
    model: SimulatedLM, key: str, where: tuple[str, int], ready: Callable[[Address], None]
) -> None:
    from promptcodebook.serve.server import serve as serve_site
    from promptcodebook.serve.server import simulated_site

    hint = "pco lm serve simulated --port 0"
    listen(partial(serve_site, simulated_site(model, key), *where, ready), *where, hint)
