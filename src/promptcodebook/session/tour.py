"""One simulated world, end to end: a run and the five ways of prompting it is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcodebook.config import Config
from promptcodebook.session.events import Listener, silent
from promptcodebook.session.opening import Opened, Where, open_run
from promptcodebook.session.oracle import oracle_row
from promptcodebook.session.sources import Sources
from promptcodebook.session.sync import run_sync
from promptcodebook.types import Evaluation, Example

__all__ = ["Tour", "tour"]


@dataclass(frozen=True)
class Tour:
    """Rows `present`, `concat`, `untrained`, `learned` and `oracle`, all on the test split."""

    run_id: str
    path: Path
    sentence: str
    rows: tuple[Evaluation, ...]
    examples: Mapping[str, Example]

    def rewards(self) -> dict[str, tuple[float, ...]]:
        """By row, in the order of the test split."""
        return {row.name: row.rewards for row in self.rows}

    def as_json(self) -> dict[str, Any]:
        """What figures over several worlds are made of."""
        return {
            row.name: {
                "rewards": row.rewards,
                "calls": row.usage.calls / len(row.rollouts),
                "tokens": row.usage.tokens / len(row.rollouts),
                "prompt_words": sum(len(r.prompt.split()) for r in row.rollouts)
                / len(row.rollouts),
            }
            for row in self.rows
        }


def tour(config: Config, sources: Sources, where: Where, listener: Listener = silent) -> Tour:
    """Trains and judges; raises the Stop that ended the run early, if one did."""
    opened = open_run(config, sources, where, listener)
    try:
        return run_sync(_whole(opened, listener), opened.session.interrupt)
    finally:
        opened.store.close()


async def _whole(opened: Opened, listener: Listener) -> Tour:
    try:
        outcome = await opened.session.run()
        if outcome.stop is not None:
            raise outcome.stop
        assert outcome.conclusion is not None, "a run that was not stopped has concluded"
        oracle = await oracle_row(opened, listener)
    finally:
        await opened.models.close()
    return Tour(
        run_id=opened.store.header.id,
        path=opened.store.path,
        sentence=outcome.conclusion.sentence,
        rows=(*opened.store.judged(), oracle),
        examples={e.id: e for _, split in opened.task.dataset.items() for e in split},
    )
