"""The incidents that calls and replies may meet: one list, with what each means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol


class Incident(StrEnum):
    """A counted incident; its value is its name on disk, `meaning` what a person reads. `once`: it
    belongs to one call; all others are decisions, which a resumed step takes again."""

    meaning: str
    once: bool

    def __new__(cls, name: str, meaning: str, once: bool = True) -> Incident:
        made = str.__new__(cls, name)
        made._value_ = name
        made.meaning = meaning
        made.once = once
        return made

    RATE_LIMITED = "rate_limited", "calls that the server rate-limited (429)"
    UNAVAILABLE = "unavailable", "calls that an overloaded server refused (503)"
    SERVER_ERROR = "server_error", "calls answered with a server error (5xx)"
    DROPPED = "dropped", "connections that dropped during a call"
    BROKEN_OFF = "broken_off", "replies that the server cut off early"
    MALFORMED_BODY = "malformed_body", "response bodies that were not chat completions"
    REFUSED_CONNECTION = "refused_connection", "connections that got no answer"
    TIMEOUT = "timeout", "calls that took longer than the timeout"
    MALFORMED = "malformed", "replies that were not the requested JSON"
    REPAIRED = "repaired", "replies repaired without asking again"
    FAULTY = "faulty", "well-formed replies with wrong content, such as too few picks"
    REASKED = "reasked", "replies requested again, with the fault quoted"
    TRUNCATED = "truncated", "replies truncated at their length limit"
    PARSE_FAILED = "parse_failed", "replies that never took the required form"
    ROUTE_REPAIRS = "route_repairs", "routes with wrong picks that were repaired", False
    ROUTE_FALLBACKS = "route_fallbacks", "routes filled with the best-rated instincts", False
    UNKNOWN_INSTINCTS = "unknown_instincts", "complaints that named no active instinct", False
    PROMPT_FALLBACKS = "prompt_fallbacks", "prompts joined verbatim, without the generator", False
    REWRITES_REASKED = "rewrites_reasked", "rewrites requested again, with the reason given", False
    ENCODER_REFUSED = "encoder_refused", "rewrites of θ undone because of route fallbacks", False
    HARMFUL = "harmful", "verdicts that call an instinct or a prompt harmful", False
    REWRITES_UNSAFE = "rewrites_unsafe", "rewrites refused by the safety scan", False
    REWRITES_LONG = "rewrites_long", "replies that were not text, or too long for a rewrite", False
    REWRITES_COPYING = "rewrites_copying", "replies that repeated another instinct", False
    REWRITES_LEAKING = "rewrites_leaking", "replies that quoted a training example", False
    REWRITES_CUT = "rewrites_cut", "rewrites cut at a sentence end to fit the length limit", False
    REWRITES_REFUSED = "rewrites_refused", "rewrites refused by a check", False
    USAGE_REPLACED = "usage_replaced", "replies without credible token counts (we estimated them)"
    CACHE_HITS = "cache_hits", "replies taken from the cache at no cost"
    CACHE_MISSES = "cache_misses", "calls for which the cache had no reply"
    CACHE_BYPASSED = "cache_bypassed", "cache failures (the run continued uncached)"
    SHARED_CALLS = "shared_calls", "calls that shared an identical call's reply (paid for once)"
    JOURNAL_HITS = "journal_hits", "replies read back from this run, not paid for again"
    JOURNAL_DAMAGED = "journal_damaged", "unusable stored replies, requested again"


class Tally(Protocol):
    """Counts an incident."""

    def __call__(self, incident: Incident, /, count: int = 1) -> None: ...


def no_tally(incident: Incident, count: int = 1) -> None:
    """A Tally that counts nothing."""


class Counts:
    """A Tally that can be read; `start` are the counts so far, `sink` receives each count too."""

    def __init__(self, start: Mapping[str, int] | None = None, sink: Tally = no_tally) -> None:
        self.values: Counter[str] = Counter(start or {})
        self._sink = sink

    def __call__(self, incident: Incident, /, count: int = 1) -> None:
        self.values[incident] += count
        self._sink(incident, count)
