"""The shared data, where they are."""

import pytest

from promptcodebook.tasks.ifbench.language import Language
from tests.tasks.shared import shared


@pytest.fixture(scope="module")
def language() -> Language:
    return Language(shared("data", "ifbench", "nltk_data"))
