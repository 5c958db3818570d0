"""Data in many forms -> Examples in three splits, checked before anything is paid for."""

from __future__ import annotations

from promptcodebook.data.columns import Columns
from promptcodebook.data.dataset import SPLITS, Dataset, Split
from promptcodebook.data.findings import ColumnFinding, Findings, Lengths, examine
from promptcodebook.data.leakage import Leak, leaks, near_leaks, normalised
from promptcodebook.data.load import load, load_settings

__all__ = [
    "SPLITS",
    "ColumnFinding",
    "Columns",
    "Dataset",
    "Findings",
    "Leak",
    "Lengths",
    "Split",
    "examine",
    "leaks",
    "load",
    "load_settings",
    "near_leaks",
    "normalised",
]
