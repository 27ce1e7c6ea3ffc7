"""What a search for λ says about its choice, with numbers by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fedspecial.report.comparison import MeanStd
from fedspecial.runs.tune import Tuned

FIVE = [0.01, 0.02, 0.03, 0.04, 0.05]
"""Mean 0.03 ± 2.776 · 0.01581/√5 = 0.03 ± 0.01963; p = 0.0132."""


def tuned(lam: float, **gains: Sequence[float]) -> Tuned:
    by_lam = {float(name.removeprefix("at_")): values for name, values in gains.items()}
    return Tuned(lam, {lam: MeanStd(0.5, 0.0)}, Path("preset.yaml"), {}, by_lam)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (tuned(0.0, at_1=FIVE), "no λ is better than 0"),
        (tuned(1.0, at_1=[0.03]), "ACC is +3.00 points from that of λ = 0 (mean over 1 seed); it takes at least 5"),
        (tuned(1.0, at_1=FIVE[:4]), "ACC is +2.50 points from that of λ = 0 (mean over 4 seeds); it takes at least 5"),
        (tuned(1.0, at_1=FIVE), "λ = 1 is better than 0: ACC +3.00 points [+1.04 … +4.96] over 5 seeds"),
        # Four values of λ: Holm asks the smallest p-value to be at most 0.05/4 = 0.0125.
        (
            tuned(1.0, at_1=FIVE, at_2=[0.0] * 5, at_3=[0.0] * 5, at_4=[0.0] * 5),
            "no λ is clearly better than 0: the best has ACC +3.00 points [+1.04 … +4.96] over 5 seeds",
        ),
    ],
)
def test_a_choice_is_clear_with_five_seeds_and_beyond_chance_for_all_values_tried(result: Tuned, text: str) -> None:
    assert result.verdict.startswith(text)
