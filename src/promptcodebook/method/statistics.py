"""Routing figures: entropy, utilisation, collapse, average success (decision 16, Theorem 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["average_success", "collapsed", "entropy", "utilisation", "utilisation_bound"]


def entropy(counts: Sequence[int]) -> float:
    """Shannon entropy in bits of selection counts over K entries."""
    total = sum(counts)
    shares = [n / total for n in counts if n] if total else []
    return -sum(p * math.log2(p) for p in shares) + 0.0


def utilisation(counts: Sequence[int]) -> float:
    """Share of entries selected at least once."""
    return sum(n > 0 for n in counts) / len(counts) if counts else 0.0


def collapsed(counts: Sequence[int]) -> bool:
    """Definition 2: fewer than K/2 entries ever active."""
    return sum(n > 0 for n in counts) < len(counts) / 2


def average_success(counts: Sequence[int], success: Sequence[float]) -> float:
    """Success weighted by selection."""
    total = sum(counts)
    return sum(n * s for n, s in zip(counts, success, strict=True)) / total if total else 0.0


def utilisation_bound(
    size: int, select: int, explored: int, tau: float, *, wide: bool = False
) -> float:
    """Theorem 3: at least K(1 - exp(-S e^{-1/τ} n / K)) entries active after n explored examples.

    The theorem assumes r̄ in [0, 1]. As the algorithm runs, r - ρ lies in [-1, 1]; `wide` gives the
    bound for that range, with e^{-2/τ} in place of e^{-1/τ} (method decision 5).
    """
    spread = 2.0 if wide else 1.0
    return size * (1.0 - math.exp(-select * math.exp(-spread / tau) * explored / size))
