"""The constraints, a table of pure functions per group."""
