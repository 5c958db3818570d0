"""Policies: the file, the policy at work, what a REF names, and the safety of its texts."""
