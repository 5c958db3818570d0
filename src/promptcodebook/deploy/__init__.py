"""A policy in use: served, learned from, versioned, audited, exported."""
