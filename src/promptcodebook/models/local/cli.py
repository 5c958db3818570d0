"""`pco lm serve`: a model of this machine, or the simulated one, over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import typer

from promptcodebook.base.text import shell
from promptcodebook.cli import command
from promptcodebook.cli.app import COMMAND_GROUP
from promptcodebook.deploy.serve.cli import listen
from promptcodebook.errors import ConfigError, import_part, require_modules

if TYPE_CHECKING:
    from promptcodebook.deploy.http.admission import Address
    from promptcodebook.models.local.engine import Engine
    from promptcodebook.models.local.server import ServerOptions

_SERVED_BY = ("fastapi", "uvicorn", "prometheus_client")

lm = command.command_group("Serve a local model, or the simulated one, over HTTP.")


@lm.command()
def serve(
    model: str = typer.Argument(
        ..., help="smollm2, PATH.gguf, hf:DIR-or-NAME, simulated, or simulated?key=value&..."
    ),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(8000, min=0, max=65535, help="Port; 0 = any free port."),
    key: str = typer.Option(
        "",
        envvar="PCO_SERVE_KEY",
        show_default=False,
        help="The key that callers must send; required if other machines can connect.",
    ),
    queue: int | None = typer.Option(
        None,
        min=1,
        help="Maximum completions, running or waiting; any beyond that get a 429 [256].",
    ),
    four_bit: bool = typer.Option(False, "--4bit", help="Load an hf: model in 4 bits (NF4)."),
    task: command.TaskName = None,
    data: command.DataDir = None,
    config: command.ConfigOption = None,
    as_json: command.Json = False,
) -> None:
    """Serve until Ctrl-C. The first line on stdout is the spec to use as --lm.

    A local model answers /v1/chat/completions, /v1/models, /v1/embeddings (if it can), /healthz
    and /metrics. The simulated model is built from the data of the task or pco.toml; GET /stats
    returns its request counts."""
    from promptcodebook.deploy.http.admission import require_keys
    from promptcodebook.lm.spec import parse_spec

    if not model.startswith("simulated"):
        _check_fits({"task": task, "data": data, "config": config}, "the simulated model")
        require_modules(_SERVED_BY, "serving a local model", "local-server")
        from promptcodebook.models.local.server import ServerOptions

        terms = ServerOptions(host, port, key, aliases=(model,))
        terms = terms if queue is None else replace(terms, queue=queue)
        _serve_local(model, terms, four_bit, as_json)
        return
    _check_fits({"queue": queue, "4bit": four_bit}, "local models")
    require_keys((key,), host, command.typed_again())
    open_site = import_part(COMMAND_GROUP, "lm.simulated", "the simulated model", "simulated")
    settings = command.gather_settings(config, command.flag_layer(task, data))
    site = open_site(parse_spec(model, {}), *settings, key)

    def ready(address: Address) -> None:
        _tell(f"{address.base_url}#simulated", address, as_json)
        stats = f"{address.base_url.removesuffix('/v1')}/stats"
        command.note(f"the simulated model is listening; Ctrl-C ends it; counts: {stats}")

    listen(partial(site.serve, host, port, ready), host, port)


def _check_fits(options: Mapping[str, object], whose: str) -> None:
    for name, value in options.items():
        if value:
            message = f"--{name.replace('_', '-')} is for {whose}"
            raise ConfigError(message, hint="pco lm serve --help")


def _serve_local(model: str, terms: ServerOptions, four_bit: bool, as_json: bool) -> None:
    from promptcodebook.deploy.http.admission import require_keys
    from promptcodebook.models.local.engine import HF, find_weights
    from promptcodebook.models.local.lm import load_engine
    from promptcodebook.models.local.server import LocalServer

    if four_bit and not model.startswith(HF):
        message = f"--4bit works only for hf: models, and {model} is a GGUF file"
        raise ConfigError(message, hint=f"pco lm serve {shell(model)}")
    require_keys((terms.key,), terms.host, command.typed_again())
    weights = find_weights(model)

    async def load() -> Engine:
        return await asyncio.to_thread(load_engine, weights, four_bit=four_bit)

    async def serve() -> None:
        async with LocalServer(terms).serving(load) as (address, loading):
            command.note(
                f"loading {weights.name}; {address.base_url} answers 503 until it is ready"
            )
            engine = await loading
            _tell(f"{address.base_url}#{engine.model}", address, as_json)
            counts = f"{address.base_url.removesuffix('/v1')}/metrics"
            command.note(f"{engine.model} is listening; Ctrl-C ends it; counts: {counts}")
            await asyncio.Event().wait()

    listen(serve, terms.host, terms.port)


def _tell(spec: str, address: Address, as_json: bool) -> None:
    """The spec on stdout, at once: a script may wait for it."""
    if as_json:
        command.emit({"spec": spec, "host": address.host, "port": address.port})
        sys.stdout.flush()
    else:
        print(spec, flush=True)
