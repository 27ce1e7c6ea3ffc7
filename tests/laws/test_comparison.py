"""Comparison of several methods: the table and the figure are computed from the results."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedspecial.report.comparison import MeanStd, Summary, draw_matrices, markdown, mean_matrix
from toy_problems import learn


def test_mean_std_is_the_mean_and_the_sample_standard_deviation() -> None:
    assert MeanStd.of([1.0, 2.0, 3.0]) == MeanStd(2.0, 1.0)
    assert MeanStd.of([2.0]) == MeanStd(2.0, None)
    assert MeanStd.of([None, None]) is None


@pytest.mark.usefixtures("drawn_figures")
def test_table_and_figure_are_computed_from_the_results(tmp_path: Path) -> None:
    results = {
        name: [learn(tmp_path / f"{name}-{seed}", name, seed=seed) for seed in (1, 2)] for name in ("special", "fedavg")
    }
    summary = Summary.of(results["fedavg"])
    assert summary.acc is not None
    assert summary.acc.mean == pytest.approx(sum(r.acc for r in results["fedavg"]) / 2)
    assert mean_matrix(results["fedavg"])[0][0] == pytest.approx(sum(r.matrix[0][0] for r in results["fedavg"]) / 2)
    table = markdown(results).splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == ["| special", "| fedavg"]
    assert f"{100 * summary.acc.mean:.2f} ± {100 * (summary.acc.std or 0):.2f}" in table[3]
    draw_matrices(results, tmp_path / "comparison.png")
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
