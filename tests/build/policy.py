"""Policy files and headers of runs."""

from dataclasses import replace
from typing import Any

from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.templates import load_templates
from promptcodebook.policy.file import PolicyFile
from promptcodebook.routing.ranking import BUCKETS
from promptcodebook.types import Ranking
from tests.build.method import config, parameters

KNOWN = RoutingStatistics((0.1, 0.4, 0.0, 0.0), (0.2, 0.5, 0.0, 0.0), (2, 1, 0, 0))


RANKING = Ranking(
    (1.0,) * BUCKETS, 1.0, ((0,) * BUCKETS,) * 5, (0.25, 0.0, 0.5, -0.125, 0.25), more=-0.0625
)


def file_of(
    program: str = "", ranking: Ranking | None = None, column: str = "question", **settings: Any
) -> PolicyFile:
    state = State(3, parameters(), replace(KNOWN, ranking=ranking))
    chosen = config(data={"input": column}, **settings)
    return PolicyFile.of(state, chosen, load_templates("default"), program, ())
