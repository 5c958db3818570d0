"""The header of a run: what it was started with, compared when it is resumed."""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter

from promptcodebook.calls import ROLES, Role
from promptcodebook.config import Config, load_config, merge
from promptcodebook.config.secrets import body_fault, header_fault, without_secrets
from promptcodebook.errors import ConfigError, RunChanged, StoreError
from promptcodebook.lm.spec import any_simulated
from promptcodebook.method.templates import TemplateSet

# Keys that a resumed run may change: what to spend, how fast, where the data lies (its fingerprints
# are compared instead), and the name of the preset (all that it sets is compared). Headers are left
# out so that they are never quoted.
FREE_KEYS = (
    "budget", "cache", "concurrency", "data_dir", "data.path", "data.test", "data.train", "preset",
    "prices", "data.val", "max_reply_mb", "retries", "reward_name", "roles.*.headers",
    "telemetry", "timeout", "user_code",
)  # fmt: skip
_SEAL = "seal"
_SHOWN = 5
_WIDTH = 40
_NAME = re.compile(r"\w[\w.-]{0,59}")


@dataclass(frozen=True, slots=True)
class Header:
    """`id` '' = to be chosen; `created` is ISO 8601; `base` the folder that paths start from;
    `config` the whole configuration as a JSON-able tree, `config_digest` its SHA-256.
    `fingerprints` and `sizes` are the data's, by split; `private` = no report shows its texts.
    `program` is what answers, `stages` those of it with a prompt of their own, `present` the prompt
    that the user had when it began, `templates` the prompts that it runs with (None in version 0.1,
    which used the shipped set). `name` is what the user calls the run; several may share one.
    `files` are SHA-256 of files that the settings came from or name; `specs` the models by whose
    names replies lie in the journal, for roles whose model is served elsewhere now."""

    id: str
    created: str
    version: str
    task: str = ""
    command: str = ""
    base: str = ""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    config_digest: str = ""
    fingerprints: Mapping[str, str] = field(default_factory=dict[str, str])
    private: bool = False
    program: str = ""
    stages: tuple[str, ...] = ()
    templates: TemplateSet | None = None
    name: str = ""
    present: str | None = None
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    specs: Mapping[Role, str] = field(default_factory=dict[Role, str])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def settings(self) -> dict[str, Any]:
        """As it may be used and shown: without the secrets that runs of version 0.1 kept, and the
        place to send figures to that runs of version 0.2 could name."""
        tree = merge(self.config)
        if "wandb" in (told := tree.get("telemetry") or ()):
            tree["telemetry"] = [name for name in told if name != "wandb"]
        roles: dict[str, dict[str, Any]] = tree.get("roles") or {}
        for own in roles.values():
            if headers := own.get("headers"):
                own["headers"] = {h: v for h, v in headers.items() if not header_fault(h, str(v))}
            if body_fault(extra := own.get("extra") or {}):
                own["extra"] = without_secrets(extra)
        return tree

    @property
    def configuration(self) -> Config:
        """The settings, checked. Raises ConfigError when this version cannot read them."""
        return load_config(self.settings, where=f"the run {self.id}")

    @property
    def simulated(self) -> bool:
        """Whether any model of the run was simulated, in process or served."""
        return any_simulated(specs_in(self.config).values())

    @property
    def resumable(self) -> bool:
        """Whether this version can resume the run: those of version 0.1 can only be read."""
        return not self.version.startswith("0.1.")

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=True, default=str)

    @staticmethod
    def from_json(text: str) -> Header:
        """Raises StoreError when the text is not a header."""
        try:
            header = _adapter().validate_python(json.loads(text))
            _ = header.settings, header.simulated  # what is read of them everywhere can be read
            return header
        except (AttributeError, TypeError, ValueError, RecursionError):  # ValidationError is one
            hint = "restore the run's folder from a backup, or start a new run"
            raise StoreError("the run's header is damaged", hint=hint) from None


@cache  # building one takes milliseconds, and a folder may hold a thousand runs
def _adapter() -> TypeAdapter[Header]:
    return TypeAdapter(Header)


def seal(text: str, secret: bytes) -> str:
    """The header's text with a mark that needs the secret: a copy keeps it, an edit breaks it."""
    tree = json.loads(text)
    return json.dumps({**tree, _SEAL: _seal_of(tree, secret)}, ensure_ascii=True)


def is_sealed(text: str, secret: bytes | None) -> bool:
    """Whether the header's text was marked with this secret."""
    tree: dict[str, Any] = json.loads(text)
    given = tree.get(_SEAL)
    if secret is None or not isinstance(given, str):
        return False
    return hmac.compare_digest(given.encode(), _seal_of(tree, secret).encode())


def _seal_of(tree: Mapping[str, Any], secret: bytes) -> str:
    rest = {key: value for key, value in tree.items() if key != _SEAL}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def run_id(task: str, now: datetime) -> str:
    """A name that sorts by time and can be typed by its start: 20260131-154502-constraints."""
    word = re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")
    return f"{now:%Y%m%d-%H%M%S}-{word[:40] or 'run'}"


def check_run_name(name: str) -> str:
    """The name. Raises ConfigError for one that could not be typed where a run is asked for."""
    if name and (not _NAME.fullmatch(name) or name == "last" or name.endswith(".json")):
        hint = "use up to 60 letters, digits, '-', '_' and '.'; not 'last', not ending in .json"
        raise ConfigError(f"a run cannot be called {name!r}", hint=hint)
    return name


def check_resumable(
    run: str,
    config: tuple[Mapping[str, object], Mapping[str, object]],
    fingerprints: tuple[Mapping[str, str], Mapping[str, str]],
    data_files: str = "",
) -> None:
    """Each pair is (then, now). Raises RunChanged naming the keys, or the splits and files."""
    hint = f"restore what changed to resume {run}, or leave out --resume to start a new run"
    changed = differences(*config)
    if changed:
        shown = "; ".join(str(d) for d in changed[:_SHOWN])
        more = f"; and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        message = f"the run {run} was started with different settings: {shown}{more}"
        raise RunChanged(message, hint=hint)
    then, now = fingerprints
    splits = sorted(s for s in then.keys() | now.keys() if then.get(s) != now.get(s))
    if splits:
        files = f" (from {data_files})" if data_files else ""
        message = f"the data of the run {run} changed since it started: {', '.join(splits)}{files}"
        raise RunChanged(message, hint=hint)


@dataclass(frozen=True, slots=True)
class Difference:
    """One dotted key and its two values; a key that is absent has the value None."""

    key: str
    old: object
    new: object

    def __str__(self) -> str:
        texts = [json.dumps(value, ensure_ascii=True) for value in (self.old, self.new)]
        old, new = (t if len(t) <= _WIDTH else t[: _WIDTH - 1] + "…" for t in texts)
        return f"{self.key}: {old} → {new}"


def differences(
    old: Mapping[str, object], new: Mapping[str, object], ignore: Sequence[str] = FREE_KEYS
) -> tuple[Difference, ...]:
    """Dotted keys whose values differ, sorted. `ignore` names keys or subtrees ('*' = any)."""
    before, after = dict(leaves(_plain(old))), dict(leaves(_plain(new)))
    ignored = [pattern for key in ignore for pattern in (key, f"{key}.*")]
    pairs = ((k, before.get(k), after.get(k)) for k in sorted(before.keys() | after.keys()))
    return tuple(
        Difference(key, then, now)
        for key, then, now in pairs
        if then != now and not any(fnmatch.fnmatchcase(key, pattern) for pattern in ignored)
    )


def digest(tree: Mapping[str, object]) -> str:
    """SHA-256 (hex) of a configuration tree, whatever the order of its keys."""
    text = json.dumps(_plain(tree), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(tree: Mapping[str, object]) -> Any:
    """As JSON has it, so that a tuple equals the list it became on disk."""
    return json.loads(json.dumps(tree, default=str))


def leaves(tree: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every value of a tree with its dotted key; an empty table is a value."""
    if isinstance(tree, dict) and tree:
        for key, value in cast("dict[str, object]", tree).items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else key)
    elif prefix:
        yield prefix, tree


def specs_in(config: Mapping[str, Any]) -> dict[Role, str]:
    """The model that a stored configuration names for each role, '' where it names none."""
    roles: Mapping[str, Mapping[str, Any]] = config.get("roles") or {}
    base = str(config.get("lm") or "")
    return {role: str(roles.get(role, {}).get("model") or base) for role in ROLES}


def has_simulated(config: object) -> bool:
    """Whether any model of a stored configuration is simulated; what is none names no model."""
    if not isinstance(config, Mapping):
        return False
    return any_simulated(specs_in(cast("Mapping[str, Any]", config)).values())
