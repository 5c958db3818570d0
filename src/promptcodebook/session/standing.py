"""Which policy a run stands for at this moment: the best validated, or the last."""

from __future__ import annotations

from dataclasses import dataclass

from promptcodebook.errors import StoreError
from promptcodebook.method.state import State
from promptcodebook.session.selection import state_at
from promptcodebook.store.run import RunStore

__all__ = ["Best", "kept_state"]


@dataclass(frozen=True, slots=True)
class Best:
    """The kept policy: validation score (None = never validated), step (-1 = untrained), scope."""

    score: float | None
    step: int
    scope: str = ""


def kept_state(store: RunStore) -> tuple[State, Best]:
    """The state to deploy as far as the run has come. Raises StoreError before its first event."""
    outline = store.outline()
    if outline.parameters is None:
        raise StoreError(
            f"the run {store.header.id} stopped before its first codebook was written",
            hint=f"pco train --resume {store.header.id}",
        )
    mark = outline.best if store.header.config.get("keep") != "last" else None
    if mark is None:
        return state_at(store, outline.step), Best(None, outline.step)
    return state_at(store, mark.step), Best(mark.score, mark.step, mark.scope)
