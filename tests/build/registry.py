"""Policies and registries to test with."""

import io
import tomllib
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from promptcodebook.deploy.registry.registry import Registry, export_lines, import_lines
from promptcodebook.method.state import State
from promptcodebook.method.templates import load_templates
from promptcodebook.policy.file import PolicyFile  # pyright: ignore[reportPrivateUsage]
from tests.build.method import config
from tests.build.store import parameters

PRODUCTION = "tickets@production"


def policy(word: str = "") -> str:
    """The text of a small policy file that a run found good; another word, another policy."""
    state = State.first(parameters(word))
    settings = config(size=2, select=1, lm="simulated")
    file = PolicyFile.of(state, settings, load_templates("default"), "", ())
    return file.with_about(verdict="Deploy").text()


def clock() -> datetime:
    """The same minute for ever."""
    return datetime(2026, 1, 31, 15, 45, tzinfo=UTC)


def sqlite(folder: Path, who: str = "ada") -> Registry:
    return Registry(folder / "registry.sqlite", who, clock)


def a_policy(*instincts: str, **more: Any) -> PolicyFile:
    templates = load_templates("default")
    tree = {
        "templates": {"encoder": templates.sources["encoder"],
                      "generator": templates.sources["generator"],
                      "lines": templates.lines},
        "select": 1, "compose": "generator", "base_prompt": "", "output_format": "",
        "encoder": templates.text("theta"), "generator": templates.text("phi"),
        "codebook": [{"text": text} for text in instincts],
    }  # fmt: skip
    return PolicyFile.model_validate({**tree, **more})


HARM = {"hazard": "hte", "severity": "high", "quote": "", "reason": "it harms"}


HARMFUL = tomllib.loads(
    resources.files("promptcodebook.deploy.audit").joinpath("hazards.toml").read_text()
)["plain"]["harmful"]


def exported(registry: Registry) -> bytes:
    return "".join(export_lines(registry)).encode()


def taken(registry: Registry, data: bytes) -> tuple[int, int]:
    found = import_lines(registry, io.BytesIO(data))
    return found.versions, found.entries
