"""The tables of a run's file, and the statements more than one writer of it needs."""

from __future__ import annotations

import sqlite3

from promptcodebook.sqlite import Layout
from promptcodebook.types import Role, Usage

__all__ = ["FILE", "LAYOUT", "add_count", "add_usage"]

FILE = "run.sqlite"

LAYOUT = Layout(
    what="run store",
    version=1,
    script=(
        "CREATE TABLE header (id INTEGER PRIMARY KEY CHECK (id = 1), json TEXT NOT NULL)",
        "CREATE TABLE events (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, step INTEGER,"
        " light BLOB NOT NULL)",
        "CREATE INDEX events_by_kind ON events (kind, step)",
        "CREATE UNIQUE INDEX one_event_a_step ON events (step) WHERE kind = 'stepped'",
        # Apart from `events`, so that the fold reads no page of it.
        "CREATE TABLE bulk (seq INTEGER PRIMARY KEY, blob BLOB NOT NULL)",
        "CREATE TABLE journal (id INTEGER PRIMARY KEY, key BLOB NOT NULL, role TEXT NOT NULL,"
        " reply BLOB NOT NULL)",
        "CREATE UNIQUE INDEX journal_by_key ON journal (key)",
        # cost NULL = a price was unknown; NULL + x stays NULL, as Usage.__add__ has it.
        "CREATE TABLE usage (role TEXT PRIMARY KEY, calls INTEGER NOT NULL,"
        " prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,"
        " cached_prompt_tokens INTEGER NOT NULL, cost REAL, latency_s REAL NOT NULL)",
        "CREATE TABLE tally (name TEXT PRIMARY KEY, count INTEGER NOT NULL)",
        "CREATE TABLE sessions (id INTEGER PRIMARY KEY, started TEXT NOT NULL,"
        " seconds REAL NOT NULL)",
    ),
)

_ADD_USAGE = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (role) DO UPDATE SET
  calls = calls + excluded.calls,
  prompt_tokens = prompt_tokens + excluded.prompt_tokens,
  completion_tokens = completion_tokens + excluded.completion_tokens,
  cached_prompt_tokens = cached_prompt_tokens + excluded.cached_prompt_tokens,
  cost = cost + excluded.cost,
  latency_s = latency_s + excluded.latency_s
"""
_ADD_COUNT = """
INSERT INTO tally VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET count = count + excluded.count
"""


def add_usage(db: sqlite3.Connection, role: Role, usage: Usage) -> None:
    """Adds what was paid to the role's sum."""
    u = usage
    db.execute(
        _ADD_USAGE,
        (
            role,
            u.calls,
            u.prompt_tokens,
            u.completion_tokens,
            u.cached_prompt_tokens,
            u.cost,
            u.latency_s,
        ),
    )


def add_count(db: sqlite3.Connection, name: str, count: int) -> None:
    """Adds to the count of an incident."""
    db.execute(_ADD_COUNT, (name, count))
