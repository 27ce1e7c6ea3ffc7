"""The report: all numbers come from event logs, next to the published ones, and missing runs are reported."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from fedspecial.metrics.matrix import average_accuracy, backward_transfer
from fedspecial.paper.grid import StudyRequest
from fedspecial.paper.report import read_results, write_report
from fedspecial.paper.settings_table import NOTHING_RECORDED
from fedspecial.paper.tables import LEVELS, Column, ReportTable, TableRow, csv_text, latex, levels, markdown, tables_of
from fedspecial.report.comparison import MeanStd
from paper.study_factories import NO_RECORDS, write_studies

DEFAULTS = ("rounds: 10", "lam: 0.1", "alpha: 0.5", "server_lr: 1/i", "cap: 1500")


def test_the_main_table_can_be_recomputed_from_events(studies: Path) -> None:
    table = next(table for table in tables_of(read_results(studies, NO_RECORDS)[0]) if table.stem == "main-cpu-digit10")
    found: dict[str, list[list[list[float]]]] = {}
    for folder in sorted((studies / "runs").glob("digit10-*")):
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        settings = (folder / "config.yaml").read_text()
        if "method: special\n" in settings:
            default = all(f"{line}\n" in settings for line in DEFAULTS)
            if default and ("local_epochs: 2\n" in settings or "local_epochs: 2.0\n" in settings):
                found.setdefault("SPECIAL", []).append([e["accuracy"] for e in events if e["event"] == "task_finished"])
    special = next(row for row in table.rows if row.label == "SPECIAL")
    assert len(found["SPECIAL"]) == 2
    for cell, measure in zip(special.cells, (average_accuracy, backward_transfer), strict=False):
        values = [100 * measure(matrix) for matrix in found["SPECIAL"]]
        assert cell.mean == pytest.approx(fmean(values), rel=1e-12)
        assert cell.std == pytest.approx(stdev(values), rel=1e-12)


def test_tables_need_only_settings_and_events(studies: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(studies, bare, ignore=shutil.ignore_patterns("result.json", "README.md"))
    for before, after in zip(read_results(studies, NO_RECORDS), read_results(bare, NO_RECORDS), strict=True):
        assert tables_of(before) == tables_of(after)


def test_every_table_is_written_in_three_formats_with_the_same_numbers(written: Path) -> None:
    stems = {path.stem for path in (written / "tables").iterdir()}
    assert "main-cpu-digit10" in stems
    assert "main-cpu-pacs" in stems
    for stem in stems:
        text, tex = ((written / "tables" / f"{stem}.{end}").read_text() for end in ("md", "tex"))
        rows = list(csv.reader((written / "tables" / f"{stem}.csv").read_text().splitlines()))
        assert len(rows) > 1
        means = [f"{float(cell):.2f}" for row in rows[1:] for cell in row[2:3] if cell]
        digits = 1 if stem.startswith("costs") else 2
        for mean in means:
            shown = f"{float(mean):.{digits}f}"
            assert shown.replace("-", "−") in text
            assert shown in tex
        assert tex.count(r"\\") == len(rows)


def test_the_page_shows_matrices_as_heat_maps_of_the_shared_style(written: Path) -> None:
    from fedspecial.report.heatmap import heat_map, style_sheet

    page = (written / "index.html").read_text(encoding="utf-8")
    assert style_sheet() in page
    assert page.count('<table class="heat">') >= 2
    cells = re.findall(r"<t[dh].*?</t[dh]>", heat_map(["<b>", "c"], [[0.975, 0.12], [0.374, None]]))
    assert cells[1] == '<th scope="col">&lt;b&gt;</th>'
    assert cells[4:6] == ['<td class="level-20 learned">97.5</td>', '<td class="level-2">12.0</td>']
    assert cells[7:] == ['<td class="level-7">37.4</td>', '<td class="missing">·</td>']


def test_every_figure_is_written_as_png_and_svg(written: Path) -> None:
    figures = list((written / "figures").iterdir())
    assert {path.suffix for path in figures} == {".png", ".svg"}
    assert len({path.stem for path in figures}) == len(figures) / 2 >= 9
    for path in figures:
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") or b"<svg" in path.read_bytes()[:1000]


def test_the_page_is_self_contained_and_its_links_work(written: Path) -> None:
    page = (written / "index.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#|runs/|tables/|figures/)[^"]*"', page)
    assert "<script" not in page
    for link in re.findall(r'href="((?:runs|tables|figures)/[^"]+)"', page):
        assert (written / link).is_file(), link
    for anchor in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{anchor}"' in page


def test_tables_show_our_numbers_next_to_the_published_ones(written: Path) -> None:
    page = (written / "index.html").read_text()
    assert "62.12" in page, "SPECIAL's published ACC on Digit-10"
    text = (written / "tables" / "main-cpu-digit10.md").read_text()
    assert text.splitlines()[0] == "| method | ACC, ours | BWT, ours | ACC, published | BWT, published |"
    assert "FedAvg, γ_G = 1" in text


def test_missing_data_is_reported(written: Path) -> None:
    page = (written / "index.html").read_text()
    assert "VLCS: data files not found (Caltech101, LabelMe, SUN09, VOC2007)" in page
    assert "DN4IL: data files not found" in page


def test_an_unfinished_study_is_reported(studies: Path, tmp_path: Path) -> None:
    folder = tmp_path / "part"
    shutil.copytree(studies, folder)
    for run in (folder / "runs").glob("pacs-*-225-*"):
        shutil.rmtree(run)
    first = next(iter((folder / "runs").glob("digit10-special-25-*")))
    lines = (first / "events.jsonl").read_text().splitlines()[:-1]
    (first / "events.jsonl").write_text("\n".join(lines) + "\n")
    sections = write_report(folder, folder / "REPRODUCIBILITY.md", NO_RECORDS)
    main = sections[0].results
    assert 0 < main.finished < main.wanted
    assert "SPECIAL (seed 225)" in (folder / "index.html").read_text()


def test_settings_without_a_recorded_search_are_noted_beside_the_numbers(written: Path) -> None:
    page = (written / "index.html").read_text()
    assert page.count(NOTHING_RECORDED.replace("'", "&#x27;")) == page.count('<table class="settings">') > 0
    assert f"\n{NOTHING_RECORDED}\n" in (written / "REPRODUCIBILITY.md").read_text()


def test_a_directory_without_studies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a directory of studies"):
        read_results(tmp_path, NO_RECORDS)


def test_the_list_of_claims_has_every_claim_with_its_verdict(written: Path) -> None:
    text = (written / "REPRODUCIBILITY.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.count(" | ") == 3]
    verdicts = [row.rsplit(" | ", 1)[1].removesuffix(" |") for row in rows if not row.startswith("| claim ")]
    assert len(verdicts) > 40
    kinds = {"✓ holds", "not yet tested", "? too few seeds"}
    assert {verdict for verdict in verdicts if verdict in kinds} == kinds
    assert "fedspecial study main --scale cpu --seeds 25,225" in text


def test_the_verdict_follows_the_runs(finished_run: Path, tmp_path: Path) -> None:
    def matrix(best: str):
        return lambda job: [[0.9 - 0.001 * draw_of(job) if job.method == best else 0.5] * 4] * 4

    def draw_of(job) -> float:
        return job.seed % 7

    verdicts, explained = {}, {}
    for best in ("special", "fedavg"):
        folder = tmp_path / best
        write_studies(folder, finished_run, [StudyRequest("main", "tiny")], matrix(best))
        section = write_report(folder, folder / "claims.md", NO_RECORDS)[0]
        verdicts[best] = next(j.verdict for _, c, j in section.judged if "also above" in c.text)
        explained[best] = "We examined: the orientation of EMNIST's digits" in (folder / "claims.md").read_text(
            encoding="utf-8"
        )
    assert verdicts == {"special": "holds", "fedavg": "does not hold"}
    assert explained == {"special": False, "fedavg": True}


TABLE = ReportTable(
    "t",
    "a table",
    "method",
    (Column("ACC"), Column("rounds", better=-1, digits=0), Column("ACC", published=True)),
    (
        TableRow("A", (MeanStd(50.0, 1.0), MeanStd(3.0, None), MeanStd(40.0, None))),
        TableRow("B_γ_G", (MeanStd(-60.123, None), None, None)),
        TableRow("C", (MeanStd(70.0, 2.0), MeanStd(9.0, None), MeanStd(30.0, None))),
    ),
)


def test_the_best_value_of_a_column_is_darkest() -> None:
    assert levels(TABLE) == [[5, LEVELS, LEVELS], [1, 0, 0], [LEVELS, 1, 1]]
    bound = TableRow("upper bound", (MeanStd(90.0, 1.0), MeanStd(1.0, None), None), ranked=False)
    assert levels(replace(TABLE, rows=(*TABLE.rows, bound))) == [*levels(TABLE), [0, 0, 0]], "it is not compared"


def test_the_formats_of_a_table() -> None:
    assert markdown(TABLE).splitlines()[2] == "| A | 50.00 ±\u202f1.00 | **3** | **40.00** |"
    assert markdown(TABLE).splitlines()[3] == "| B_γ_G | −60.12 | – | – |"
    assert r"B\_$\gamma_G$ & \heat{1}$-60.12$ & -- & -- \\" in latex(TABLE)
    assert r"\heat{9}\boldmath$70.00\pm 2.00$" in latex(TABLE)
    assert csv_text(TABLE).splitlines()[2] == "B_γ_G,,-60.123,,,,,"
