"""The sizes of scale cpu were checked on held-out data; the durations of the plans are those of these runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedspecial.paper.run_records import same_run
from fedspecial.paper.scales import SCALES
from fedspecial.paper.sizes import HELD_OUT, read_sizes, size_settings, sizes_outcome, sizes_table, with_sizes
from fedspecial.paper.tuning import grids

ROOT = Path(__file__).parents[2]
FOUND = read_sizes(ROOT / "results" / "sizes.json")
PAGE = (ROOT / "docs" / "science" / "studies.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("benchmark", FOUND)
def test_a_size_was_checked_with_its_settings_and_gives_the_duration(benchmark: str) -> None:
    """If the settings differ: python tools/docs/sizes.py, and take over the durations."""
    entry = FOUND[benchmark]
    assert same_run(entry["settings"], size_settings(benchmark), "fedavg")
    assert SCALES["cpu"][benchmark].seconds == max(1, round(entry["processor_seconds"] / (1 - HELD_OUT["holdout"])))


def test_no_study_reports_the_seed_of_the_checks() -> None:
    from fedspecial.paper.grid import SEEDS
    from fedspecial.paper.registry import STUDIES

    reported = {*SEEDS, *(seed for study in STUDIES for seed in study.seeds or ())}
    assert HELD_OUT["seed"] not in reported
    assert HELD_OUT["seed"] in grids().seeds


def test_the_table_on_the_page_is_that_of_the_record() -> None:
    """If this fails: make reference."""
    assert with_sizes(PAGE, FOUND) == PAGE
    assert sizes_table(FOUND) in PAGE


def test_domains_that_were_not_learned_and_benchmarks_without_forgetting_are_named() -> None:
    entry = {"domains": ["a", "b"], "matrix": [[0.9, 0.1], [0.8, 0.5]], "majority": [0.5, 0.5], "bwt": 0.01}
    assert sizes_outcome({"digit10": entry}) == (
        "Not learned, that is, no better than the most frequent class: b (Digit-10). "
        "No forgetting is visible (BWT ≥ 0) on Digit-10."
    )
    assert sizes_outcome({"digit10": {**entry, "majority": [0.5, 0.4], "bwt": -0.1}}) == "Every domain was learned."
