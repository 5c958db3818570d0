"""The registry: immutable versions of policies, refs that move, and a hash-chained log."""
