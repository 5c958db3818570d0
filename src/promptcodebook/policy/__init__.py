"""Policies: the file, the policy at work, what a REF stands for, and the safety of its texts."""
