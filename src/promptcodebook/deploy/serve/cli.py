"""`pco serve`, and `pco explain REQUEST_ID`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from promptcodebook.assemble import Sources
from promptcodebook.base.text import shell
from promptcodebook.calls import Role
from promptcodebook.cli import command
from promptcodebook.config import Budget, Config
from promptcodebook.deploy.http import admission
from promptcodebook.deploy.online import served_log
from promptcodebook.deploy.online.canary import CanaryJudge
from promptcodebook.deploy.online.exploring import Explorer, barred
from promptcodebook.deploy.online.status import in_words, status_of, tree_of
from promptcodebook.deploy.registry.registry import open_registry
from promptcodebook.deploy.serve import spending, versions
from promptcodebook.deploy.serve.feedback_endpoint import Online
from promptcodebook.deploy.serve.placement import Placement
from promptcodebook.deploy.serve.proxy import Proxy
from promptcodebook.deploy.serve.settings import ServeSettings
from promptcodebook.deploy.serve.upstream import connect_upstream
from promptcodebook.errors import ConfigError, PcoError, import_part, require_modules
from promptcodebook.lm.budget import Ledger, PriceTable
from promptcodebook.lm.spec import parse_spec
from promptcodebook.lm.stack import LISTENERS, StackResources
from promptcodebook.policy.policy import deploy
from promptcodebook.policy.references import Reference
from promptcodebook.tasks.program import SINGLE_CALL


def serve(
    ref: command.Ref,
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(8080, min=0, max=65535, help="Port; 0 = any free port."),
    keys: Path | None = typer.Option(
        None, help="A file of keys that callers may send, one per line; PCO_SERVE_KEY adds more."
    ),
    name: str | None = typer.Option(
        None, help="Callers request the model pco/NAME; default: the REF's name."
    ),
    lm: command.ModelOption = None,
    log_inputs: bool = typer.Option(False, help="Also keep the text of requests and answers."),
    feedback: bool = typer.Option(
        False, help="Accept feedback at /v1/feedback, and keep the data it needs."
    ),
    explore: float = typer.Option(
        0.0, min=0.0, max=1.0, help="Chance that a request gets a route to learn from; 0 = none."
    ),
    config: command.ConfigOption = None,
    sets: command.Sets = None,
    trust: command.Trust = False,
    as_json: command.Json = False,
) -> None:
    """Serve a policy until Ctrl-C: each request goes to the model with a prompt composed for it.

    The first line on stdout is the address to use as base_url; docs/serving.md lists the endpoints.
    Promoted refs and replaced policy files take effect without a restart. On any address other than
    loopback, callers need a key. Other settings come from the [serve] table of pco.toml or --set
    serve.KEY=VALUE; `pco config serve` lists them.

    `pco serve status` shows each served ref's rewards, routes, canary and drift."""
    table = ServeSettings.of(command.gather_settings(config, {}, sets)[0])
    if ref == "status":
        window_s, share = served_log.seconds_of(table.window), table.key_share
        with closing(served_log.ServedLog()) as log, open_registry() as registry:
            found = [status_of(log, registry, each, window_s, share) for each in log.refs()]
        command.show(lambda: list(map(tree_of, found)), lambda: in_words(found), as_json=as_json)
        return
    if feedback := feedback or explore > 0:
        require_modules(("numpy",), "judging canaries and drift", "serve")
    kept_s = served_log.seconds_of(table.keep)
    known = admission.read_keys(os.environ.get("PCO_SERVE_KEY", ""), keys)
    allowed = admission.budgets_of(known, table.daily_budget)
    reference = command.resolved(ref, trust=trust, use=True)
    typed = command.Typed(config, None, None, lm, None, sets, trust)
    settings, _ = command.settings_for(reference, typed)  # no secret is left in what was typed
    admission.require_keys(known, host, command.typed_again())
    patience = versions.Patience(table.route_timeout, table.compose_timeout, table.cache)
    limits = admission.RequestLimits(
        in_flight=table.concurrency, body_mb=table.max_body, rate=table.rate
    )
    called = name or served_log.served_name(reference)

    async def run() -> None:
        budgets = _budgets(allowed, settings)

        def make(version: versions.ServedVersion) -> versions.Composing:
            file = version.file
            if file.stages:
                message = f"a request names none of this policy's stages: {', '.join(file.stages)}"
                hint = "run the program itself with load_policy(path, executor=YOUR_AGENT)"
                raise ConfigError(message, hint=hint)
            if table.verbatim:
                file = file.model_copy(update={"compose": "verbatim"})
            settings, base = command.settings_for(replace(reference, file=file), typed)
            # A reply may quote its request, and what requests say is not written down.
            settings = settings.model_copy(update={"cache": False})
            policy = deploy(
                file, settings, Sources(base), StackResources(ledger=Ledger(log=budgets))
            )
            explorer = None
            if explore:
                bars = {*table.never, *(barred(version.name) if "@" in ref else ())}
                explorer = Explorer(file, explore, file.seed, bars)
            return versions.Composing(policy, version.name, patience, explorer, os.environ)

        source = _source(ref, reference)
        registry = source.registry if isinstance(source, versions.RegistrySource) else None
        live = versions.Live(source, make)
        upstream = await connect_upstream(settings, os.environ)
        tracing = None
        if "otel" in settings.telemetry:
            tracing = import_part(LISTENERS, "otel", "tracing", "otel")(settings, False)
        if (program := reference.file.program) not in ("", SINGLE_CALL):
            command.note(
                f"the policy was judged with the program {program!r}; here a request is one call, "
                "so answers may be better or worse"
            )
        proxy = Proxy(
            called,
            live,
            upstream,
            admission.Admission(admission.Callers(known), limits),
            spending.Records(served_log.records_path(), table.records) if table.records else None,
            budgets,
            names=table.serve_as,
            placement=Placement(
                conversation=table.input == "conversation",
                sticky=table.sticky.removeprefix("off"),
                first=table.prompt_first,
            ),
            texts=log_inputs,
            tracing=tracing,
            online=Online(
                served_log.logged_name(ref, reference),
                log := served_log.ServedLog(),
                kept_s,
                texts=log_inputs,
                explores=explore > 0,
                judge=None
                if registry is None
                else CanaryJudge(registry, ref, log, table.key_share),
                key_share=table.key_share,
                slices=table.slices,
            )
            if feedback
            else None,
        )
        if live.now.mode != "one-call" and parse_spec(settings.model_of("encoder")).in_process:
            command.note("loading the model that routes requests")  # else the first falls back
            await live.now.policy.aroute("a first text")
        async with proxy.serving(host, port) as address:
            # At once: a script may wait for it.
            tree = {"base_url": address.base_url, "model": f"pco/{called}", "version": live.version}
            tree["caution"] = reference.caution
            command.emit(tree) if as_json else print(address.base_url)
            sys.stdout.flush()
            command.note(f"serving pco/{called} ({live.version[:19]}); Ctrl-C ends it")
            await asyncio.Event().wait()

    listen(run, host, port)


def _source(ref: str, reference: Reference) -> versions.PolicySource:
    if reference.version and "@" in ref:
        return versions.RegistrySource(open_registry(who="pco serve"), ref)
    if reference.header is None and not reference.version:
        return versions.FileSource(Path(ref))
    data = reference.file.text().encode("utf-8", "surrogatepass")
    return versions.FixedSource(versions.ServedVersion.of(data, ref))


def _budgets(allowed: Mapping[str, Budget], settings: Config) -> spending.Spending | None:
    if not allowed:
        return None
    roles: tuple[Role, ...] = ("executor", "encoder", "generator")
    caps = {role: settings.roles[role].max_tokens for role in roles}
    calls_alone = all(b.tokens is None and b.usd is None for b in allowed.values())
    for role, cap in caps.items():
        if cap is None and not calls_alone:
            message = f"role {role} has no length cap, so no token or money budget can be enforced"
            raise ConfigError(message, hint=f"set roles.{role}.max_tokens in pco.toml")
    models, prices = [settings.model_of(role) for role in roles], PriceTable(settings.prices)
    path, length = served_log.records_path(), caps["executor"] or 0
    return spending.Spending(path, allowed, prices, models, length)


def listen(serve: Callable[[], Coroutine[Any, Any, None]], host: str, port: int) -> None:
    """Serves until a signal; a second one ends what the first one waits for. Of each kind of
    warning a line a second goes to stderr."""
    log = logging.StreamHandler()
    log.setLevel(logging.WARNING)
    log.addFilter(admission.LogThrottle())
    logging.getLogger().addHandler(log)

    async def until_stopped() -> None:
        loop, serving = asyncio.get_running_loop(), asyncio.current_task()
        assert serving is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, serving.cancel)
        await serve()

    try:
        asyncio.run(until_stopped())
    except asyncio.CancelledError:
        command.note("stopped")
    except OSError as error:
        if isinstance(error, PcoError):
            raise  # a model that is down or a disk that is full, which say it themselves
        reason = (error.strerror or str(error)).rpartition(": ")[2]
        hint = f"{command.typed_again('--port', '--key')} --port 0"  # a key is shown nowhere
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}", hint=hint) from None
    finally:
        logging.getLogger().removeHandler(log)


def explain_request(request_id: str, *, as_json: bool) -> None:
    """What a request was prompted with."""
    if not served_log.is_request_id(request_id):
        message = f"{request_id!r} is not a request id, so give a REF and an input"
        is_text = " " in request_id and not os.path.exists(request_id)
        words = ("last", request_id) if is_text else (request_id, "an input")
        hint = f"pco explain {' '.join(map(shell, words))}"
        if request_id.startswith("req-"):
            message = f"{request_id} is not a full request id"
            hint = "the response's x-request-id header has the full id"
        raise ConfigError(message, hint=hint)
    record = spending.find_record(served_log.records_path(), request_id)
    known = f", cached by {record.cached}" if record.cached else ""
    lines = [
        f"{record.id}  {record.time}  status {record.status}",
        f"{record.model}  {record.version}",
        f"mode: {record.mode}{known}",
        *([f"fallbacks: {', '.join(record.fallbacks)}"] if record.fallbacks else []),
        *([f"input: {record.input}"] if record.input else []),
        f"route: {', '.join(map(str, record.route)) or 'none'}",
        *(
            command.wrap_text(text, f"  {k:>2}  ")
            for k, text in zip(record.route, record.instincts, strict=True)
        ),
        *([f"why: {record.analysis}"] if record.analysis else []),
        "prompt:",
        command.wrap_text(record.prompt),
    ]
    command.show(lambda: asdict(record), lambda: "\n".join(lines), as_json=as_json)
