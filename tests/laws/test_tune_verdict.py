"""What a search for λ says about its choice, with numbers by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedspecial import InputError
from fedspecial.report.comparison import MeanStd
from fedspecial.report.scale import Scale
from fedspecial.runs.jobs import Job
from fedspecial.runs.tune import Search, Tuned, tune, write_preset

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


def test_a_metric_that_is_no_share_is_not_written_in_per_cent(tmp_path: Path) -> None:
    scale = Scale("r2", None, 1.0)
    found = replace(tuned(1.0, at_1=FIVE), scale=scale)
    assert found.verdict == "λ = 1 is better than 0: ACC +0.030 [+0.010 … +0.050] over 5 seeds"
    search = Search({"benchmark": "digits-shift", "method": "special"}, (25,), 0.2, tmp_path)
    text = write_preset(search, {0.0: MeanStd(-2.5, None), 1.0: MeanStd(0.25, None)}, scale).read_text()
    assert "Mean ACC (R²):\n#   λ = 0     -2.500\n#   λ = 1     0.250\n" in text


@pytest.mark.parametrize("seeds", [(), (25, 25)])
def test_a_search_needs_each_seed_once(seeds: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"seeds=.*: give at least one, and each only once"):
        tune("digits-shift", seeds=seeds, out=tmp_path / "t")


def test_the_runs_of_a_search_on_data_of_a_file_are_not_beside_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    own = tmp_path / "elsewhere" / "mine.py"
    own.write_text("def data():\n    raise AssertionError\n")
    monkeypatch.chdir(tmp_path)
    folders: list[Path] = []

    def planned(stage: str, jobs: Sequence[Job]) -> None:
        folders.extend(job.folder for job in jobs)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(f"{own}:data", run_jobs=planned)
    assert {folder.parent for folder in folders} == {Path("tune/mine.py:data/runs")}
