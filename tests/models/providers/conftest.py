import pytest

from tests.build.providers import Provider, Site
from tests.build.providers import site as site


@pytest.fixture
def claude(site: Site) -> Provider:
    return Provider(site, "anthropic/claude-x")
