"""Routing figures against numbers worked out by hand (decision 16, Theorem 3)."""

from __future__ import annotations

import math

import pytest

from promptcodebook.method.state import (
    average_success,
    entropy,
    has_collapsed,
    utilisation,
    utilisation_bound,
)

# Figure 4b of the paper, with and without ε-greedy exploration.
WITH = [165, 212, 222, 176, 127, 101, 110, 82, 130, 84, 94, 104, 105, 118, 100, 89]
WITHOUT = [212, 468, 413, 337, 203, 0, 63, 22, 35, 16, 17, 50, 31, 17, 10, 0]


@pytest.mark.parametrize(
    ("counts", "bits"),
    [
        ([1, 1, 1, 1], 2.0),
        ([2, 1, 1, 0], 1.5),  # 1/2·1 + 2·1/4·2
        ([5, 0, 0, 0], 0.0),
        ([3, 1], 0.811278),  # 3/4·log2(4/3) + 1/4·2
        ([0, 0], 0.0),
        ([], 0.0),
    ],
)
def test_entropy_is_in_bits(counts: list[int], bits: float):
    """Decision 16."""
    assert entropy(counts) == pytest.approx(bits, abs=1e-6)
    assert math.copysign(1, entropy(counts)) == 1


def test_the_bars_of_the_paper_give_other_entropies_than_its_text():
    """Decision 21: 3.92 and 2.92 bits, against 3.76 and 1.72; no total is a multiple of S."""
    assert round(entropy(WITH), 2) == 3.92 and round(entropy(WITHOUT), 2) == 2.92
    assert (sum(WITH), sum(WITHOUT)) == (2019, 1894)
    assert sum(WITH) % 4 == 3 and sum(WITHOUT) % 4 == 2


def test_utilisation_is_the_share_ever_selected():
    """Decision 16."""
    assert utilisation([3, 0, 1, 0]) == 0.5 and utilisation([0, 0]) == 0.0 == utilisation([])
    assert utilisation(WITHOUT) == 14 / 16


def test_collapse_is_fewer_than_half_active():
    """Definition 2: half is not fewer than half."""
    assert has_collapsed([9, 0, 0, 0]) and not has_collapsed([9, 1, 0, 0])
    assert has_collapsed([1, 1, 0, 0, 0]) and not has_collapsed([1, 1, 1, 0, 0])


def test_average_success_is_weighted_by_selection():
    """Decision 16: (3·0.5 + 1·0.9) / 4."""
    assert average_success([3, 1, 0], [0.5, 0.9, 0.1]) == pytest.approx(0.6)
    assert average_success([0, 0], [0.5, 0.9]) == 0.0


def test_the_bound_of_theorem_3_in_both_ranges():
    """K = 4, S = 2, τ = 0.5, n = 10: exponents 5 e^-2 = 0.676676 and 5 e^-4 = 0.091578.

    4 (1 - e^-0.676676) = 4 · 0.491695 and 4 (1 - e^-0.091578) = 4 · 0.087510 (decision 5).
    """
    assert utilisation_bound(4, 2, 10, 0.5) == pytest.approx(1.966780, abs=1e-5)
    assert utilisation_bound(4, 2, 10, 0.5, wide=True) == pytest.approx(0.350040, abs=1e-5)
    assert utilisation_bound(16, 4, 0, 0.5) == 0.0
