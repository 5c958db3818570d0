"""`pco serve`, and `pco explain REQUEST_ID`."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from promptcodebook.assemble import Sources
from promptcodebook.base.text import shell
from promptcodebook.calls import Role
from promptcodebook.cli import command
from promptcodebook.config import Budget, Config
from promptcodebook.deploy.http import admission
from promptcodebook.deploy.online import log as logs
from promptcodebook.deploy.online.canary import CanaryJudge
from promptcodebook.deploy.online.decisions import KEY_SHARE
from promptcodebook.deploy.online.exploring import Explorer, barred
from promptcodebook.deploy.online.status import status_of, told, tree_of
from promptcodebook.deploy.registry.registry import open_registry
from promptcodebook.deploy.serve import spending, versions
from promptcodebook.deploy.serve.feedback import Online
from promptcodebook.deploy.serve.placement import Placement
from promptcodebook.deploy.serve.proxy import Proxy
from promptcodebook.deploy.serve.upstream import connect_upstream
from promptcodebook.errors import ConfigError, PcoError, import_part, require_modules
from promptcodebook.lm.budget import Ledger, PriceTable
from promptcodebook.lm.stack import LISTENERS, StackResources
from promptcodebook.policy.policy import deploy
from promptcodebook.policy.references import Reference
from promptcodebook.tasks.program import SINGLE_CALL

Keys = Annotated[
    Path | None,
    typer.Option(
        "--keys", help="A file of keys that callers may send, one a line; PCO_SERVE_KEY adds more."
    ),
]


def serve(
    ref: command.Ref,
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(8080, min=0, max=65535, help="0 = any free one."),
    keys: Keys = None,
    name: str | None = typer.Option(
        None, help="Callers ask for the model pco/NAME; else the REF's name."
    ),
    serve_as: list[str] | None = typer.Option(
        None, help="Another name of the model, for a client that insists on one. Repeatable."
    ),
    lm: command.ModelOption = None,
    reads: Literal["last", "conversation"] = typer.Option(
        "last", "--input", help="What is routed: the last user turn, or the conversation."
    ),
    sticky: str = typer.Option(
        "off",
        metavar="off|conversation|user|header:NAME",
        help="A conversation keeps its prompt: known by its first turn, the body's user, or a "
        "header.",
    ),
    one_system: bool = typer.Option(
        False, help="Join the prompt with the caller's system message."
    ),
    prompt_first: bool = typer.Option(
        False, help="Put the prompt before the caller's system message, not after it."
    ),
    verbatim: bool = typer.Option(
        False, help="Put instincts in as they are: no generator, a call less."
    ),
    route_timeout: float = typer.Option(
        10.0, min=0.001, help="Seconds for the encoder; then a fallback is used."
    ),
    compose_timeout: float = typer.Option(
        10.0, min=0.001, help="Seconds for the generator; then a fallback is used."
    ),
    kept: int = typer.Option(
        10_000, "--cache", min=0, help="Composed prompts that are kept in memory."
    ),
    concurrency: int = typer.Option(256, min=1, help="Requests at a time; more get a 429."),
    daily_budget: str = typer.Option(
        "",
        help="What each key may spend a day (UTC), e.g. 1000calls+2Mtok+5usd; a line of --keys "
        "may name another behind its key.",
    ),
    rate: float = typer.Option(
        0.0, min=0.0, help="Requests a second for each key; 0 = any number."
    ),
    max_body: float = typer.Option(16.0, min=0.001, help="MiB of a request's body."),
    records: int = typer.Option(10_000, min=0, help="Requests kept for `pco explain REQUEST_ID`."),
    log_inputs: bool = typer.Option(
        False, help="Keep texts, too: what requests say and the answers."
    ),
    feedback: bool = typer.Option(
        False, help="Take feedback at /v1/feedback, and keep what it needs."
    ),
    keep: str = typer.Option(
        "30d", metavar="DURATION", help="How long that is kept, such as 12h or 30d."
    ),
    explore: float = typer.Option(
        0.0, min=0.0, max=1.0, help="Chance that a request gets a route to learn from; 0 = none."
    ),
    never: list[int] = typer.Option(
        [], help="An instinct by its number that is never explored. Repeatable."
    ),
    steady: list[str] = typer.Option(
        [],
        help="A caller (the start of its key's SHA-256) or model name that is never explored. "
        "Repeatable.",
    ),
    most_feedback: int = typer.Option(
        20, min=1, help="Pieces of feedback that are kept of one request."
    ),
    most_feedback_kb: int = typer.Option(
        64, min=1, help="KiB of words and keys in them that are kept of one request."
    ),
    key_share: float = typer.Option(
        KEY_SHARE,
        min=0.01,
        max=1.0,
        help="The most that one key's feedback may count for where no other key gives as much; "
        "1 = no limit, and one key may end a canary.",
    ),
    window: str = typer.Option(
        "1d", metavar="DURATION", help="Of `pco serve status`: how long it looks back."
    ),
    config: command.ConfigOption = None,
    sets: command.Sets = None,
    trust: command.Trust = False,
    as_json: command.Json = False,
) -> None:
    """Serve a policy until Ctrl-C: every request gets its composed prompt and goes to the model.

    The first line on stdout is the address to use as base_url. Answers /v1/chat/completions,
    /v1/responses, /v1/models, /v1/prompt, /v1/feedback, /healthz, /readyz, /metrics and
    /openapi.json. A ref that moves and a policy file that is replaced are taken up without a
    restart. On another address than loopback callers need a key.

    `pco serve status` says what each served ref did: rewards, routes, its canary, and drift."""
    if ref == "status":
        window_s = logs.seconds_of(window)
        with closing(logs.open_log()) as log, open_registry() as registry:
            found = [status_of(log, registry, each, window_s, key_share) for each in log.refs()]
        command.show(lambda: list(map(tree_of, found)), lambda: told(found), as_json=as_json)
        return
    if not re.fullmatch(r"off|conversation|user|header:[\w-]+", sticky, re.ASCII):
        said = f"--sticky {sticky!r} is none of off, conversation, user and header:NAME"
        raise ConfigError(said, hint="--sticky conversation, or --sticky header:X-Session-Id")
    if feedback := feedback or explore > 0:
        require_modules(("numpy",), "judging canaries and drift", "serve")
    kept_s = logs.seconds_of(keep)
    known = admission.read_keys(os.environ.get("PCO_SERVE_KEY", ""), keys)
    admission.require_keys(known, host, f"pco serve {shell(ref)}")
    allowed = admission.budgets_of(known, daily_budget)
    reference = command.resolved(ref, trust=trust, use=True)
    typed = command.Typed(config, None, None, lm, None, sets, trust)
    patience = versions.Patience(route_timeout, compose_timeout, kept)
    limits = admission.RequestLimits(in_flight=concurrency, body_mb=max_body, rate=rate)
    called = name or logs.served_name(reference)

    async def run() -> None:
        settings, _ = command.settings_for(reference, typed)
        budgets = _budgets(allowed, settings)

        def make(version: versions.ServedVersion) -> versions.Composing:
            file = version.file
            if file.stages:
                said = f"this policy has a prompt for each of {', '.join(file.stages)}, and a "
                said += "request does not say which stage it is"
                hint = "run the program itself with load_policy(path, executor=YOUR_AGENT)"
                raise ConfigError(said, hint=hint)
            if verbatim:
                file = file.model_copy(update={"compose": "verbatim"})
            settings, base = command.settings_for(replace(reference, file=file), typed)
            # A reply may quote its request, and what requests say is not written down.
            settings = settings.model_copy(update={"cache": False})
            policy = deploy(
                file, settings, Sources(base), StackResources(ledger=Ledger(log=budgets))
            )
            explorer = None
            if explore:
                bars = {*never, *(barred(version.name) if "@" in ref else ())}
                explorer = Explorer(file, explore, file.seed, bars)
            return versions.Composing(policy, version.name, patience, explorer, os.environ)

        source, registry = _source(ref, reference), None
        if isinstance(source, versions.RegistrySource):
            registry = source.registry
        live = versions.Live(source, make)
        upstream = await connect_upstream(settings, os.environ)
        tracing = None
        if "otel" in settings.telemetry:
            tracing = import_part(LISTENERS, "otel", "tracing", "otel")(settings, False)
        if (program := reference.file.program) not in ("", SINGLE_CALL):
            command.note(
                f"the policy was judged with the program {program!r}; here a request is one call, "
                "and its answers may be of another quality"
            )
        proxy = Proxy(
            called,
            live,
            upstream,
            admission.Admission(admission.Callers(known), limits),
            spending.Records(logs.records_path(), records) if records else None,
            budgets,
            names=tuple(serve_as or ()),
            placement=Placement(
                conversation=reads == "conversation",
                sticky="" if sticky == "off" else sticky,
                joined=one_system,
                first=prompt_first,
            ),
            texts=log_inputs,
            tracing=tracing,
            online=Online(
                logs.logged_name(ref, reference),
                log := logs.open_log(),
                kept_s,
                texts=log_inputs,
                explores=explore > 0,
                steady=frozenset(steady),
                reward_range=settings.reward_range,
                judge=None if registry is None else CanaryJudge(registry, ref, log, key_share),
                room=logs.Room(most_feedback, 1024 * most_feedback_kb),
                key_share=key_share,
            )
            if feedback
            else None,
        )
        async with proxy.serving(host, port) as address:
            # At once: a script may wait for it.
            said = {"base_url": address.base_url, "model": f"pco/{called}", "version": live.version}
            command.emit(said) if as_json else print(address.base_url)
            sys.stdout.flush()
            command.note(f"serving pco/{called} ({live.version[:19]}); Ctrl-C ends it")
            await asyncio.Event().wait()

    listen(run, host, port, f"pco serve {shell(ref)} --port 0")


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
            said = f"role {role} has no length cap, so no budget of tokens or money can hold"
            raise ConfigError(said, hint=f"set roles.{role}.max_tokens in pco.toml")
    models, prices = [settings.model_of(role) for role in roles], PriceTable(settings.prices)
    path, length = logs.records_path(), caps["executor"] or 0
    return spending.Spending(path, allowed, prices, models, length)


def listen(serve: Callable[[], Coroutine[Any, Any, None]], host: str, port: int, hint: str) -> None:
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
        said = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise ConfigError(said, hint=hint) from None
    finally:
        logging.getLogger().removeHandler(log)


def explain_request(request_id: str, *, as_json: bool) -> None:
    """What a request was prompted with."""
    if not logs.is_request_id(request_id):
        said = f"no input was given to explain {request_id} with"
        hint = f'pco explain {shell(request_id)} "an input"'
        if request_id.startswith("req-"):
            said = f"{request_id} is not the whole id of a request"
            hint = "the answer's header x-request-id has all of it"
        raise ConfigError(said, hint=hint)
    record = spending.find_record(logs.records_path(), request_id)
    if as_json:
        command.emit(asdict(record))
        return
    known = f", known by its {record.cached}" if record.cached else ""
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
    print("\n".join(lines))
