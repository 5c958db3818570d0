"""Data in many forms -> Examples in three splits, checked before anything is paid for."""

from __future__ import annotations

from promptcodebook.data.check import (
    ColumnSummary,
    Conflict,
    DataCheck,
    InputLengths,
    Leak,
    examine,
    leaks,
    near_leaks,
)
from promptcodebook.data.dataset import SPLITS, Dataset, Split, sample
from promptcodebook.data.load import load, load_settings
from promptcodebook.data.table import Columns

__all__ = [
    "SPLITS",
    "ColumnSummary",
    "Columns",
    "Conflict",
    "DataCheck",
    "Dataset",
    "InputLengths",
    "Leak",
    "Split",
    "examine",
    "leaks",
    "load",
    "load_settings",
    "near_leaks",
    "sample",
]
