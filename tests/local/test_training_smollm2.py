"""Every role on SmolLM2 behind `pco lm serve`: valid routes, equal counts, and a kill."""

from __future__ import annotations

import pytest

from tests.local.served import served_by_us
from tests.local.trained import Killed, Size, killed_and_resumed

pytestmark = pytest.mark.local

SIZE = Size(train=2, test=1, steps=2, batch=2, concurrency=8)
KILL_AT = 10


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("training")
    with served_by_us("smollm2", folder) as server:
        return killed_and_resumed(server, folder, SIZE, KILL_AT)


def test_every_role_is_asked_and_every_route_is_valid(killed: Killed) -> None:
    # Whether this model blames a part is up to its draws; where it does, a rewrite is asked for.
    updater = {"updater"} if killed.blamed else set[str]()
    asked = {"encoder", "generator", "executor", "critic", "attribution"} | updater
    assert set(killed.roles) == asked
    assert killed.routes.asked >= 5
    assert killed.routes.valid >= 0.95 * killed.routes.asked


def test_the_report_counts_what_the_server_counts(killed: Killed) -> None:
    # But for what was answered in the moment of the kill, which is booked as lost.
    assert killed.reported == killed.served - killed.unbooked
    assert 0 <= killed.unbooked.calls <= SIZE.concurrency


def test_what_was_answered_before_a_kill_is_not_asked_again(killed: Killed) -> None:
    assert KILL_AT <= killed.before < killed.after
    assert killed.served.calls == killed.after + killed.unbooked.calls


def test_the_same_replies_end_at_the_same_policy_without_a_call(killed: Killed) -> None:
    assert killed.again == 0
    assert killed.equal
