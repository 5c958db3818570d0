"""Why a run that came through has learned nothing, so that its verdict is not read as the method's.

Critiques that are never understood and rewrites that never pass leave the first codebook as it was:
no rollout failed, the run ends in order, and the money is spent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from promptcodebook.store.run import RunStore
from promptcodebook.types import Step

__all__ = ["why_nothing_was_learned"]


def why_nothing_was_learned(store: RunStore) -> str:
    """One sentence; '' when a text was rewritten, or when nothing went wrong on the way."""
    outline = store.outline()
    if outline.step < 0 or outline.parameters != store.parameters_at(-1):
        return ""
    faults = Counter(fault for step in store.steps(traces=True) for fault in _faults(step))
    if not faults:
        return ""
    most, times = faults.most_common(1)[0]
    return (
        f"Training rewrote no text at all: {most} ({times} of {faults.total()} faults); "
        f"pco runs show {store.header.id} quotes them."
    )


def _faults(step: Step) -> Iterator[str]:
    for trace in step.traces:
        if trace.failure is not None:
            yield f"{trace.failure.stage} failed with {trace.failure.kind}"
    for rewrite in step.rewrites:
        if not rewrite.kept:
            yield f"a rewrite was refused: {rewrite.reason}"
