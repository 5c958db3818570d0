"""An API key: read from the environment, sent to one endpoint, shown nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from promptcodebook.errors import ConfigError

__all__ = ["Key", "read_key"]

_HIDDEN = "***"


class Key:
    """A key and the variable it came from; only `bearer` ever gives the value away."""

    __slots__ = ("_value", "name")

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self._value = value

    def __repr__(self) -> str:
        return f"Key({self.name})"

    def __reduce__(self) -> str:
        raise TypeError("a key is never written anywhere")

    def bearer(self) -> str:
        """The Authorization header's value."""
        return f"Bearer {self._value}"

    def scrub(self, text: str) -> str:
        """The text without the key, for what a server says back to us."""
        return text.replace(self._value, _HIDDEN)


def read_key(names: Sequence[str], environment: Mapping[str, str] | None = None) -> Key | None:
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
        return Key(name, value)
    return None
