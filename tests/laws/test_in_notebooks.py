"""Where people work: a progress line, results as HTML and as pandas tables, and a real notebook."""

from __future__ import annotations

import io
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import fedspecial
from fedspecial import InputError
from fedspecial.report.html import _HIGH, _LOW, _cell, _luminance
from fedspecial.report.progress_line import ProgressLine, can_show
from fedspecial.report.scale import ACCURACY
from fedspecial.runs.compare import Comparison
from objective_problems import lines
from toy_problems import QUICK, learn, rotated_blobs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_run_on_a_terminal_shows_one_line_that_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    learn(tmp_path / "run")
    text = screen.getvalue()
    assert text.count("\n") == 1
    assert text.count("\r") == 9
    last = text.rstrip("\n").rpartition("\r")[2]
    assert last.startswith("█" * 20 + " task 3/3 d3, round 3/3, accuracy ")
    assert "0 s left" in last


@pytest.mark.parametrize("how", ["progress=False", "no terminal"])
def test_nothing_is_shown_without_a_terminal_or_if_turned_off(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO() if how == "no terminal" else Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    learn(tmp_path / "run", progress=how == "no terminal")
    assert screen.getvalue() == ""


def test_a_resumed_run_counts_the_rounds_before(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if getattr(event, "round", None) == 2 and getattr(event, "task", 0) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "run", listeners=[stop])
    screen = Terminal()
    fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs(), listeners=[ProgressLine(screen)])
    assert "task 3/3" in screen.getvalue()
    assert not can_show(io.StringIO())


def test_a_metric_without_limits_is_not_shown_in_per_cent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    result = learn(tmp_path / "run", "fedavg", lines(), objective="regression", model="logistic", width=None)
    assert result.scale.text(result.matrix[-1][-1], 1) in screen.getvalue().rpartition("\r")[2]
    assert "%" not in screen.getvalue()


@pytest.mark.parametrize("given", [pytest.param("names", marks=pytest.mark.slow), "objects"])
def test_a_comparison_shows_the_rounds_of_all_runs(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    shown = {"jobs": 1, "rounds": 1, "cap": 100, "domains": "paper,neon", "model": "logistic", "width": None}
    settings = shown if given == "names" else {**QUICK, "model": "mlp", "rounds": 1}
    benchmark = "digits-shift" if given == "names" else rotated_blobs(tasks=2)
    for number, progress in enumerate((True, False)):
        out = tmp_path / str(number)
        fedspecial.compare(benchmark, ["special", "fedavg"], [1], out=out, progress=progress, **settings)  # type: ignore[arg-type]
        text = screen.getvalue()
        assert text.endswith("█" * 20 + " 2 runs, 4 of 4 rounds\n") if progress else text == ""
        screen.truncate(0)
        screen.seek(0)


def test_a_result_is_one_line_in_a_console(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", rounds=1)
    assert repr(result).startswith(f"<Result: fedavg on blobs, seed 25: ACC {100 * result.acc:.2f}, BWT ")
    assert "(per cent)" in repr(result)
    comparison = Comparison(tmp_path, {"fedavg": [result], "special": [result]})
    assert repr(comparison) == f"<Comparison of fedavg, special; seeds: 25; in {tmp_path}>"


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def test_the_html_of_a_result_shows_the_matrix_and_escapes_names(tmp_path: Path) -> None:
    from dataclasses import replace

    result = learn(tmp_path / "run", rounds=1)
    result = replace(result, tasks=["<script>", "b & c", "d3"], warnings=["a < b"])
    html = result._repr_html_()
    reader = Reader()
    reader.feed(html)
    assert "script" not in reader.tags
    assert "after <script>" in reader.cells
    assert "a < b" in reader.cells
    for row in result.matrix:
        for value in row:
            assert f"{100 * value:.1f}" in reader.cells


def test_every_cell_is_readable() -> None:
    """WCAG AA asks for a contrast of 4.5 between text and background."""
    for percent in range(101):
        style = _cell(percent / 100, False, ACCURACY)
        shade = tuple(round(low + (high - low) * percent / 100) for low, high in zip(_LOW, _HIGH, strict=True))
        text = 0.0 if "color:#000" in style else 1.0
        bright, dark = sorted((_luminance(shade), text), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, percent


def test_results_become_pandas_tables(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    result = learn(tmp_path / "run", rounds=1)
    frame = result.to_frame()
    assert list(frame.columns) == result.tasks
    assert frame.loc["after d2", "d1"] == result.matrix[1][0]
    comparison = Comparison(tmp_path, {"fedavg": [result, result]})
    table = comparison.to_frame()
    assert list(table["acc"]) == [result.acc, result.acc]
    assert "<th style='text-align:left'>fedavg</th>" in comparison._repr_html_()


def test_without_pandas_one_line_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = learn(tmp_path / "run", rounds=1)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="to_frame: the package pandas is not installed"):
        result.to_frame()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_real_notebook_shows_the_progress_and_the_heat_map(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    code = "import fedspecial\nfedspecial.run('digits-shift', rounds=1, cap=100, out='run')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = notebook.cells[0].outputs
    assert any("round 1/1" in out.get("text", "") for out in outputs if out.output_type == "stream")
    shown = [out.data for out in outputs if out.output_type == "execute_result"]
    assert "<table>" in shown[0]["text/html"]
