"""Data in many forms -> Examples in three splits, checked before anything is paid for."""

from promptcodebook.data.dataset import SPLITS, Dataset, Split, examine, independent, sample
from promptcodebook.data.load import load, load_settings

__all__ = [
    "SPLITS",
    "Dataset",
    "Split",
    "examine",
    "independent",
    "load",
    "load_settings",
    "sample",
]
