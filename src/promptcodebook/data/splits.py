"""Examples -> train, val and test, as given or by a seeded draw.

The draw is keyed by (seed, id), so neither the order of the rows nor anything drawn before matters,
and examples with the same input always fall into the same split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from promptcodebook.data.dataset import SPLITS, Split
from promptcodebook.data.leakage import normalised
from promptcodebook.errors import DataError
from promptcodebook.keyed import keyed_int
from promptcodebook.types import Example

__all__ = ["Fractions", "checked_fractions", "completed", "drawn"]

Fractions = tuple[float, float, float]


def checked_fractions(fractions: Sequence[float]) -> Fractions:
    """Shares of train, val, test: three positive numbers that sum to 1, else DataError."""
    shares = tuple(float(share) for share in fractions)
    if len(shares) != 3 or not all(s > 0 for s in shares) or abs(sum(shares) - 1) > 1e-6:
        raise DataError(
            f"fractions must be three positive shares that sum to 1, not {tuple(fractions)}",
            hint="e.g. fractions=(0.5, 0.25, 0.25)",
        )
    return shares[0], shares[1], shares[2]


def drawn(
    examples: Iterable[Example], shares: Mapping[Split, float], seed: int, name: str
) -> dict[Split, tuple[Example, ...]]:
    """A seeded draw of the splits named in `shares`, which need not sum to 1.

    Each gets at least one example; shares count distinct inputs. DataError if there are too few.
    """
    groups = dict[str, list[Example]]()
    for example in examples:
        groups.setdefault(normalised(example.input), []).append(example)
    if len(groups) < len(shares):
        raise DataError(
            f"{name} has {len(groups)} distinct inputs, too few for the {len(shares)} splits "
            f"{', '.join(shares)}",
            hint="add examples, or give each split its own file",
        )
    order = sorted(groups.values(), key=lambda g: keyed_int(seed, "split", min(e.id for e in g)))
    counts = _counts(len(order), shares)
    out, at = dict[Split, tuple[Example, ...]](), 0
    for split, count in counts.items():
        members = [e for group in order[at : at + count] for e in sorted(group, key=lambda e: e.id)]
        out[split] = tuple(members)
        at += count
    return out


def completed(
    given: Mapping[Split, tuple[Example, ...]], fractions: Fractions, seed: int, name: str
) -> dict[Split, tuple[Example, ...]]:
    """The given splits; those not given are drawn from train by their fractions."""
    for split, examples in given.items():
        if not examples:
            raise DataError(f"the split {split!r} of {name} is empty", hint="add examples to it")
    missing = [split for split in SPLITS if split not in given]
    if not missing:
        return dict(given)
    if "train" in missing:
        raise DataError(f"{name} has no train split", hint="give at least 'train'")
    share = dict(zip(SPLITS, fractions, strict=True))
    parts: dict[Split, float] = {s: share[s] for s in SPLITS if s == "train" or s in missing}
    return {**given, **drawn(given["train"], parts, seed, f"the train split of {name}")}


def _counts(total: int, shares: Mapping[Split, float]) -> dict[Split, int]:
    """Whole numbers >= 1 near the shares that sum to `total`; the first split takes the rest."""
    whole = sum(shares.values())
    first, *others = shares
    counts: dict[Split, int] = {s: max(1, round(total * shares[s] / whole)) for s in others}
    while total - sum(counts.values()) < 1:
        largest = max(counts, key=lambda split: counts[split])
        counts[largest] -= 1
    rest: dict[Split, int] = {first: total - sum(counts.values())}
    return rest | counts
