"""Runs on disk: append-only events, the journal of replies, what was paid, and who writes."""
