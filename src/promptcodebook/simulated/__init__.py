"""The simulated model: a test instrument for plumbing, faults and load (docs/simulated.md).

It supports no claim that one method beats another. Nothing heavy is imported here.
"""
