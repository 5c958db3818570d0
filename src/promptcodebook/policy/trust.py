"""Whose run it is: the code and the addresses that a run names are used only if this user made it.

A run's folder is handed on like any file, and what it names would run here and be sent this user's
keys. A run bears the mark of who made it (`store/header.py`); one that does not is opened as far as
its texts and figures go, and refused where what it names would be run or called. What was typed for
this use is the user's own and asks for no trust. A policy file names neither code nor address, and
its body fields are looked at where it is used (`PolicyFile.settings`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from promptcodebook.assemble import OWN_LM
from promptcodebook.calls import ROLES
from promptcodebook.config import (
    Config,
    beyond_sampling,
    load_typed,
    secret_variables,
    without_secrets,
)
from promptcodebook.errors import RunNotTrusted
from promptcodebook.lm.spec import SMOLLM2
from promptcodebook.lm.stack import simulated_here
from promptcodebook.store.header import Header

_CODE = ("reward", "executor")
"""Settings that may name a function in a file."""


def require_trust(
    header: Header, typed: Mapping[str, Any], *, trusted: bool, ref: str = ""
) -> None:
    """Raises RunNotTrusted where the run is not trusted and its own settings, `typed` laid over
    them, would run code, call an address or send a body field that was not typed. `ref` is what is
    typed for it."""
    if trusted:
        return
    stored = header.settings
    config = load_typed(stored, typed=typed, where=f"the run {header.id}")
    code = list(_code(stored, typed)) if not config.task else []
    addresses = list(_addresses(config, typed))
    fields = list(_fields(config, typed))
    if not code and not addresses and not fields:
        return
    would = [f"run {', '.join(code)}"] if code else []
    would += [f"call {', '.join(addresses)}"] if addresses else []
    would += [f"send {', '.join(fields)}"] if fields else []
    own = "" if code or fields else ", or name a model of yours: --lm SPEC"
    raise RunNotTrusted(
        f"the run {header.id} does not bear your mark (it was made by somebody else, on another "
        f"machine, or by version 0.1), and it would {' and '.join(would)}",
        hint=f"pco runs show {ref or header.id} --json shows its settings; if you trust them, type "
        f"the command again with --trust{own}",
    )


def _code(stored: Mapping[str, Any], typed: Mapping[str, Any]) -> Iterator[str]:
    for key in _CODE:
        if not typed.get(key):
            yield from (text for text in _texts(stored.get(key)) if ".py" in text)


def _texts(value: object) -> Iterator[str]:
    """Every text in a setting: a reward may be a sum of others."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in cast("Mapping[str, object]", value).values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in cast("list[object]", value):
            yield from _texts(each)


def _addresses(config: Config, typed: Mapping[str, Any]) -> Iterator[str]:
    """The models that would be called and were not typed, and the variables sent along."""
    roles: Mapping[str, Mapping[str, Any]] = typed.get("roles") or {}
    own = {typed.get("lm"), *(role.get("model") for role in roles.values())}
    specs: dict[str, dict[str, None]] = {}
    for role in ROLES:
        spec = config.model_of(role)
        if spec in ("", OWN_LM, SMOLLM2) or simulated_here([spec]):
            continue
        given: Mapping[str, str] = (roles.get(role) or {}).get("headers") or {}
        settings = config.roles.get(role)
        headers = settings.headers.items() if settings is not None else ()
        sent = [v for h, v in headers if v.startswith("$") and h not in given]
        body = secret_variables(settings.extra) if settings is not None else ()
        own_body = secret_variables((roles.get(role) or {}).get("extra") or {})
        sent += [v for v in body if v not in own_body]
        if spec not in own or sent:
            specs.setdefault(spec, {}).update(dict.fromkeys(sent))
    for spec, variables in specs.items():
        yield spec + (f" (with {', '.join(variables)})" if variables else "")


def _fields(config: Config, typed: Mapping[str, Any]) -> Iterator[str]:
    """The body fields that decide more than how a reply is drawn and were not typed. Secrets in
    them are named with the address that they are sent to."""
    roles: Mapping[str, Mapping[str, Any]] = typed.get("roles") or {}
    for role, settings in config.roles.items():
        given: Mapping[str, Any] = (roles.get(role) or {}).get("extra") or {}
        stored = {k: v for k, v in without_secrets(settings.extra).items() if given.get(k) != v}
        yield from (f"roles.{role}.extra.{name}" for name in beyond_sampling(stored))
