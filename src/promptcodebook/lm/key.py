"""An API key: read from the environment, sent to one endpoint, shown nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from promptcodebook.errors import ConfigError

__all__ = ["Credentials", "Key", "credentials", "read_key"]

_HIDDEN = "***"


class Key:
    """A key, the variable it came from and the header it goes into; only `sent` gives it away."""

    __slots__ = ("_value", "header", "name")

    def __init__(self, name: str, value: str, header: str = "Authorization") -> None:
        self.name = name
        self.header = header
        self._value = value

    def __repr__(self) -> str:
        return f"Key({self.name})"

    def __reduce__(self) -> str:
        raise TypeError("a key is never written anywhere")

    def sent(self) -> str:
        """The header's value: a bearer token, or in a header of its own the key as it is."""
        bearer = self.header.lower() == "authorization"
        return f"Bearer {self._value}" if bearer else self._value

    def scrub(self, text: str) -> str:
        """The text without the key, for what a server says back to us."""
        return text.replace(self._value, _HIDDEN)


def read_key(
    names: Sequence[str],
    environment: Mapping[str, str] | None = None,
    header: str = "Authorization",
) -> Key | None:
    """The first of the variables that is set; None when none is. Raises ConfigError, unechoed."""
    env = os.environ if environment is None else environment
    for name in names:
        value = env.get(name, "").strip()
        if not value:
            continue
        if not value.isascii() or not value.isprintable() or " " in value:
            raise ConfigError(
                f"the key in {name} holds characters that no key has",
                hint=f"set {name} again, without spaces or line breaks",
            )
        return Key(name, value, header)
    return None


@dataclass(frozen=True, slots=True)
class Credentials:
    """What an endpoint is approached with: its key, the variables it may come from, and headers
    that hold no key."""

    key: Key | None
    names: tuple[str, ...]
    headers: Mapping[str, str]


def credentials(
    names: Sequence[str],
    headers: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Credentials:
    """The endpoint's key from `names`, or from the one header that says '$VARIABLE'.

    Raises ConfigError when that variable is not set, and when two headers name one.
    """
    given = headers or {}
    named = [(header, value[1:]) for header, value in given.items() if value.startswith("$")]
    if not named:
        return Credentials(read_key(names, environment), tuple(names), given)
    (header, variable), *more = named
    if more:
        raise ConfigError(
            f"two headers take a key from the environment: {header!r} and {more[0][0]!r}",
            hint="an endpoint has one key; leave one of them out",
        )
    key = read_key([variable], environment, header)
    if key is None:
        raise ConfigError(
            f"the header {header!r} takes its key from {variable}, which is not set",
            hint=f"export {variable}=...",
        )
    return Credentials(key, (variable,), {h: v for h, v in given.items() if h != header})
