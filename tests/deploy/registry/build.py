"""Policies and registries to test with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from promptcodebook.deploy.registry.log import SqliteStorage
from promptcodebook.deploy.registry.registry import Registry, Version
from promptcodebook.method.state import State
from promptcodebook.method.templates import load_templates
from promptcodebook.policy.file import PolicyFile
from tests.method.build import config
from tests.store.conftest import parameters

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
    return Registry(SqliteStorage(folder / "registry.sqlite"), who, clock)


def open_gate(version: Version, policy: PolicyFile, ref: str) -> Mapping[str, JsonValue]:
    """Lets every version through, for tests about other things than audits."""
    return {}
