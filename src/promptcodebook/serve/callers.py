"""Who may ask a server of ours, and how often.

Without a key it answers to this very machine alone. Keys are compared by digests that have one
length, all of them each time, so that an answer's time tells nothing of them.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from promptcodebook.config import Budget, parse_budget
from promptcodebook.errors import ConfigError
from promptcodebook.serve.completions import Refusal

_LEAST_KEY = 8
"""Characters of a key, at the least."""
_NAME = 12
"""Digits of a key's digest that its caller is called by."""


def is_loopback(host: str) -> bool:
    if host.rstrip(".").casefold() == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


def require_keys(keys: Iterable[str], host: str, command: str) -> None:
    """Raises ConfigError where anybody on the network could ask without a key, or guess one."""
    keys = [_checked(key, "what stands in PCO_SERVE_KEY or --key") for key in keys if key]
    if not keys and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, and no key is set",
            hint=f"PCO_SERVE_KEY=$(openssl rand -hex 24) {command} --host {host}",
        )


def read_keys(given: str, path: Path | None) -> dict[str, Budget | None]:
    """The keys of the environment, parted by commas, and those of a file, one a line, each with
    what it may spend a day where that stands behind it; what stands behind a # is a note. Raises
    ConfigError, which quotes none."""
    keys: dict[str, Budget | None] = {}
    keys.update(dict.fromkeys(filter(None, map(str.strip, given.split(",")))))
    if path is None:
        return keys
    try:
        lines = path.read_text("utf-8").splitlines()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"cannot read the keys in {path}: {reason}") from None
    if mode & stat.S_IWOTH and os.name != "nt":
        raise ConfigError(
            f"other users may write to {path}, and so let in whom they like",
            hint=f"chmod 600 {path}",
        )
    own = {
        number: parts
        for number, line in enumerate(lines, start=1)
        if (parts := line.partition("#")[0].split(None, 1))
    }
    if not own:
        raise ConfigError(f"no key stands in {path}", hint="openssl rand -hex 24")
    for number, (key, *budget) in own.items():
        key = _checked(key, f"{path}:{number}")
        keys[key] = daily_budget(budget[0], f"{path}:{number}") if budget else keys.get(key)
    return keys


def _checked(key: str, where: str) -> str:
    """The key. Raises ConfigError for one that anybody could guess, or that no header can have."""
    if len(key) < _LEAST_KEY or not key.isascii() or " " in key:
        raise ConfigError(
            f"{where} is no key: it must have {_LEAST_KEY} characters or more, without a space",
            hint="openssl rand -hex 24",
        )
    return key


def daily_budget(text: str, where: str) -> Budget:
    """What a key may spend a day. Raises ConfigError, which quotes no key."""
    try:
        budget = parse_budget(text)
    except ConfigError:
        budget = Budget(seconds=0)
    if budget.seconds is not None:
        raise ConfigError(
            f"{where}: what a key may spend a day cannot be read",
            hint="write e.g. 1000calls, 2Mtok, 5usd, or several joined by '+'",
        )
    return budget


def budgets_of(keys: Mapping[str, Budget | None], for_each: str) -> dict[str, Budget]:
    """What callers may spend a day, by their names: a key its own budget, else that `for_each`;
    without keys all together have that one. Raises ConfigError."""
    rest = daily_budget(for_each, "--daily-budget") if for_each else None
    found = {caller_of(key): own or rest for key, own in keys.items()} or {"": rest}
    return {caller: budget for caller, budget in found.items() if budget is not None}


class Callers:
    """Who may ask: those with one of the keys, or without any key this machine."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys if key]

    @property
    def several(self) -> bool:
        """Whether there is more than one key, so that a caller may keep others out."""
        return len(self._digests) > 1

    def admit(self, headers: Mapping[str, str]) -> str:
        """The caller's name: the start of its key's digest, '' where there are no keys.

        Raises Refusal for a wrong key; without keys, for a page of another site: one that had a
        name of its own lead here (DNS rebinding), or sends what a browser lets any page send.
        """
        if not self._digests:
            _refuse_other_sites(headers)
            return ""
        given = _digest(headers.get("authorization", "").removeprefix("Bearer ").strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if not any(matches):
            text = "the key is missing or wrong: Authorization: Bearer KEY"
            raise Refusal(text, status=401, kind="invalid_api_key")
        return given.hex()[:_NAME]


def caller_of(key: str) -> str:
    """The name of who sends this key."""
    return _digest(key).hex()[:_NAME]


def _refuse_other_sites(headers: Mapping[str, str]) -> None:
    """Raises Refusal for what no program on this machine asks of its own accord."""
    if not _names_this_machine(f"//{headers.get('host', '')}"):
        text = "without a key this server answers to localhost alone"
        raise Refusal(text, status=403, kind="forbidden")
    # A browser sets both itself, whatever a page says; other programs leave them out.
    site, origin = headers.get("sec-fetch-site", ""), headers.get("origin")
    elsewhere = origin is not None and not _names_this_machine(origin)
    if elsewhere or site.casefold() == "cross-site":
        text = "a page of another site needs a key: start the server with PCO_SERVE_KEY set"
        raise Refusal(text, status=403, kind="forbidden")


@lru_cache(maxsize=64)  # callers name the same host again and again
def _names_this_machine(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class RateLimit:
    """So many requests a second for each caller (0 = any number), with a burst of one second's."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._most = max(1.0, per_second)
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, caller: str) -> None:
        """Raises Refusal when the caller is too quick; it says how long to wait."""
        if self._rate <= 0:
            return
        now = self._clock()
        left, then = self._left.get(caller, (self._most, now))
        left = min(self._most, left + (now - then) * self._rate)
        if left < 1.0:
            wait = math.ceil((1.0 - left) / self._rate)
            text = f"more than {self._rate:g} requests a second with this key"
            raise Refusal(text, status=429, kind="rate_limit_exceeded", retry_after=wait)
        self._left[caller] = left - 1.0, now
