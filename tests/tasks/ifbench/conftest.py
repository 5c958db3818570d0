"""The shared data, where they are."""

import os
from pathlib import Path

import pytest

from promptcodebook.tasks.ifbench.language import Language

SHARED = Path(os.environ.get("PCO_SHARED") or Path(__file__).parents[4] / "shared")
NLTK_DATA = SHARED / "data" / "ifbench" / "nltk_data"


@pytest.fixture(scope="module")
def language() -> Language:
    if not NLTK_DATA.is_dir():
        pytest.skip(f"no NLTK data at {NLTK_DATA}; set PCO_SHARED to the folder that holds data/")
    return Language(NLTK_DATA)
