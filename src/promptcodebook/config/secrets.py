"""What settings may hold in the open: a run keeps them, so they name a secret only by its variable,
"$PCO_MY_KEY". Also: which body fields a file from somebody else may decide."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from promptcodebook.base.text import shipped_table
from promptcodebook.config.providers import key_names, providers
from promptcodebook.errors import ConfigError

_OWN_NAME = re.compile(r"PCO_[A-Za-z0-9_]+")
# Names of body fields whose text may be a secret, in lower case and with _ between words.
_SECRET = re.compile(
    r"(?:^|[_\-. ])(?:api|access|auth|private|secret|secure|signing)?_?(?:key|token)s?$"
    r"|secret|passw|passphrase|credential|bearer|authorization|jwt"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_TEXTS = ("stop", "stop_token_ids")
_WORD = re.compile(r"[a-z]{1,16}")
_LONGEST_FORM = 2**16  # characters of a response_format; 500 labels take a quarter of that


def _lists() -> Mapping[str, Any]:
    return shipped_table(__file__, "secrets.toml")


def header_fault(name: str, value: str) -> str:
    """Why a header may not be in the settings; '' = it may. Never repeats what it holds."""
    if value.startswith("$"):
        if value[1:] in key_names() or _OWN_NAME.fullmatch(value[1:]):
            return ""
        return (
            f"{name!r} must name a variable that starts with PCO_, or a provider's own "
            f'such as OPENAI_API_KEY: "{name}" = "$PCO_MY_KEY"'
        )
    if name.lower() in _lists()["harmless_headers"]:
        return ""
    return (
        f"{name!r} may hold a secret, and settings are stored with the run. Name a variable that "
        f'starts with PCO_ instead: "{name}" = "$PCO_API_KEY"'
    )


def body_fault(fields: Mapping[str, object]) -> str:
    """The same of a body: a text whose name sounds like a secret must name a variable."""
    for name, value in _secrets(fields):
        if not value.startswith("$") or header_fault(name, value):
            return header_fault(name, value if value.startswith("$") else "")
    return ""


def beyond_sampling(fields: Mapping[str, object]) -> list[str]:
    """Names of the body fields that may decide more than how a reply is drawn, such as an address,
    a tool or a credential: all that is not known to be harmless."""
    found, drawing = list[str](), _lists()["drawing_fields"]
    for name, value in fields.items():
        known = _lists()["drawing_inside"].get(name)
        if name == "response_format" and _is_plain_form(value):
            continue
        if known is not None and isinstance(value, Mapping):
            inner = cast("Mapping[str, object]", value)
            found += [
                f"{name}.{key}" for key, v in inner.items() if key not in known or not _is_plain(v)
            ]
        elif name not in drawing or not (_is_plain(value) or _is_list_of(name, value)):
            found.append(name)
    return found


def _is_plain_form(value: object) -> bool:
    """Whether a response_format is a JSON schema that is at hand and cheap to compile."""
    text = json.dumps(value)
    fits = text.startswith('{"type": "json_schema", "json_schema": {') and len(text) < _LONGEST_FORM
    # A quotation mark within a value is escaped, so that only a key reads like this.
    costly = any(f'"{word}":' in text for word in _lists()["costly_words"])
    return fits and not costly and not re.search(r'"\$ref": "(?!#)', text)


def _is_plain(value: object) -> bool:
    short = isinstance(value, str) and _WORD.fullmatch(value) is not None
    return short or value is None or isinstance(value, int | float)


def _is_list_of(name: str, value: object) -> bool:
    """What of the fields that only draw is longer: ends of a reply, and tokens with a number."""
    if name == "logit_bias" and isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        return all(key.isdecimal() and isinstance(v, int | float) for key, v in pairs)
    several = cast("list[object]", value) if isinstance(value, list | tuple) else [value]
    return name in _TEXTS and all(isinstance(each, str | int) for each in several)


def secret_variables(fields: Mapping[str, object]) -> tuple[str, ...]:
    """The variables that the fields name, each as '$VARIABLE'."""
    named = (value for _, value in _secrets(fields) if value.startswith("$"))
    return tuple(dict.fromkeys(named))


def without_secrets(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields without those texts that are secrets or name one."""
    return {
        name: without_secrets(cast("Mapping[str, object]", value))
        if isinstance(value, Mapping)
        else value
        for name, value in fields.items()
        if isinstance(value, Mapping) or not _secrets({name: value})
    }


def fill_secrets(fields: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, object]:
    """The fields as they are sent: with what the variables hold. Raises ConfigError when one is not
    set."""

    def fill(name: str, text: str) -> str:
        if not text.startswith("$"):
            return text
        if not (held := environment.get(text[1:], "").strip()):
            what = f"the body field {name!r} takes its value from {text[1:]}, which is not set"
            raise ConfigError(what, hint=f"export {text[1:]}=...")
        return held

    return {name: _changed(name, value, fill) for name, value in fields.items()}


def _secrets(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in fields.items():
        _changed(name, value, lambda name, text: found.append((name, text)))
    return found


def _changed(
    name: str, value: object, change: Callable[[str, str], object], secret: bool = False
) -> object:
    """The value with a change of each text that may be a secret: all below such a name are."""
    plain = _CAMEL.sub("_", name).lower().replace("-", "_")
    sounds = _SECRET.search(plain) is not None and plain not in _lists()["public_fields"]
    secret = secret or sounds
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, object]", value)
        schema = name == "properties"  # whose names are not those of fields of the body
        return {k: _changed("" if schema else k, v, change, secret) for k, v in inner.items()}
    if isinstance(value, list | tuple):
        return [_changed(name, each, change, secret) for each in cast("list[object]", value)]
    return change(name, value) if secret and isinstance(value, str) else value


def refuse_password(spec: str) -> str:
    """The spec. Raises ValueError, which does not repeat it, if its address holds a password."""
    head, _, name = spec.partition("#")
    provider, slash, _ = head.partition("/")
    ours = head.startswith("simulated") or (slash and provider in providers()["providers"])
    if ("@" in head and not ours) or ("@" in name and ("#" in name or "://" in name)):
        raise ValueError(
            "the model's address contains a user name or password; take it out, and put the key "
            "in the variable PCO_API_KEY"
        )
    return spec
