"""Who may ask a server of ours, and how often.

Without a key it answers to this very machine alone. Keys are compared by digests that have one
length, all of them each time, so that an answer's time tells nothing of them.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from promptcodebook.errors import ConfigError
from promptcodebook.serve.completions import Refusal

__all__ = ["Callers", "RateLimit", "is_loopback", "read_keys", "require_keys"]

_LEAST_KEY = 8
"""Characters of a key in a file, at the least: a line that is shorter is no key."""


def is_loopback(host: str) -> bool:
    if host.rstrip(".").casefold() == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


def require_keys(keys: Iterable[str], host: str, command: str) -> None:
    """Raises ConfigError where anybody on the network could ask without a key."""
    if not any(keys) and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, and no key is set",
            hint=f"PCO_SERVE_KEY=$(openssl rand -hex 24) {command} --host {host}",
        )


def read_keys(given: str, path: Path | None) -> tuple[str, ...]:
    """The keys of the environment, parted by commas, and those of a file, one a line; what stands
    behind a # is a note. Raises ConfigError, which quotes none."""
    keys = [key.strip() for key in given.split(",")]
    if path is not None:
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigError(f"cannot read the keys in {path}: {reason}") from None
        own = [line.partition("#")[0].strip() for line in lines]
        for number, key in enumerate(own, start=1):
            if key and (len(key) < _LEAST_KEY or not key.isascii() or " " in key):
                raise ConfigError(
                    f"{path}:{number} is no key: it must have {_LEAST_KEY} characters or more, "
                    "without a space",
                    hint="openssl rand -hex 24",
                )
        if not any(own):
            raise ConfigError(f"no key stands in {path}", hint="openssl rand -hex 24")
        keys += own
    return tuple(dict.fromkeys(filter(None, keys)))


class Callers:
    """Who may ask: those with one of the keys, or without any key this machine."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys if key]

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
        return given.hex()[:12]


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
