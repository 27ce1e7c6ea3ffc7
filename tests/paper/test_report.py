"""The report: every number from events alone, ours beside the published ones, and what is missing said."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from statistics import fmean, stdev

import pytest

from fedspecial.metrics.matrix import average_accuracy, backward_transfer
from fedspecial.paper.grid import StudyRequest
from fedspecial.paper.report import read_results, write_report
from fedspecial.paper.tables import LEVELS, Column, ReportTable, TableRow, csv_text, latex, levels, markdown, tables_of
from fedspecial.report.comparison import MeanStd
from paper.study_factories import write_studies


@pytest.fixture(scope="module")
def written(studies: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "studies"
    shutil.copytree(studies, folder)
    write_report(folder, folder / "REPRODUCIBILITY.md")
    return folder


USUAL = ("rounds: 10", "lam: 0.05", "alpha: 0.5", "server_lr: 1/i", "cap: 1500")


def test_the_main_table_can_be_derived_again_from_events_alone(studies: Path) -> None:
    table = next(table for table in tables_of(read_results(studies)[0]) if table.stem == "main-cpu-digit10")
    found: dict[str, list[list[list[float]]]] = {}
    for folder in sorted((studies / "runs").glob("digit10-*")):
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        settings = (folder / "config.yaml").read_text()
        if "method: special\n" in settings:
            usual = all(f"{word}\n" in settings for word in USUAL)
            if usual and ("local_epochs: 2\n" in settings or "local_epochs: 2.0\n" in settings):
                found.setdefault("SPECIAL", []).append([e["accuracy"] for e in events if e["event"] == "task_finished"])
    line = next(line for line in table.lines if line.label == "SPECIAL")
    assert len(found["SPECIAL"]) == 2
    for cell, measure in zip(line.cells, (average_accuracy, backward_transfer), strict=False):
        values = [100 * measure(matrix) for matrix in found["SPECIAL"]]
        assert cell.mean == pytest.approx(fmean(values), rel=1e-12)
        assert cell.std == pytest.approx(stdev(values), rel=1e-12)


def test_tables_need_nothing_but_words_and_events(studies: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(studies, bare, ignore=shutil.ignore_patterns("result.json", "README.md"))
    for before, after in zip(read_results(studies), read_results(bare), strict=True):
        assert tables_of(before) == tables_of(after)


def test_every_table_is_there_in_three_forms_with_the_same_numbers(written: Path) -> None:
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


def test_every_figure_is_there_as_png_and_svg(written: Path) -> None:
    pictures = list((written / "figures").iterdir())
    assert {path.suffix for path in pictures} == {".png", ".svg"}
    assert len({path.stem for path in pictures}) == len(pictures) / 2 >= 9
    for path in pictures:
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") or b"<svg" in path.read_bytes()[:1000]


def test_the_page_needs_nothing_but_itself_and_its_links_lead_somewhere(written: Path) -> None:
    page = (written / "index.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#|runs/|tables/|figures/)[^"]*"', page)
    assert "<script" not in page
    for link in re.findall(r'href="((?:runs|tables|figures)/[^"]+)"', page):
        assert (written / link).is_file(), link
    for anchor in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{anchor}"' in page


def test_ours_and_published_stand_beside_each_other(written: Path) -> None:
    page = (written / "index.html").read_text()
    assert "62.12" in page, "SPECIAL's published ACC on Digit-10"
    text = (written / "tables" / "main-cpu-digit10.md").read_text()
    assert text.splitlines()[0] == "| method | ACC, ours | BWT, ours | ACC, paper | BWT, paper |"
    assert "FedAvg, γ_G = 1" in text


def test_what_is_missing_is_said(written: Path) -> None:
    page = (written / "index.html").read_text()
    assert "VLCS: its files are not on disk (Caltech101, LabelMe, SUN09, VOC2007)" in page
    assert "DN4IL: its files are not on disk" in page


def test_a_stopped_study_is_reported_as_far_as_it_is(studies: Path, tmp_path: Path) -> None:
    folder = tmp_path / "part"
    shutil.copytree(studies, folder)
    for run in (folder / "runs").glob("pacs-*-225-*"):
        shutil.rmtree(run)
    first = next(iter((folder / "runs").glob("digit10-special-25-*")))
    lines = (first / "events.jsonl").read_text().splitlines()[:-1]
    (first / "events.jsonl").write_text("\n".join(lines) + "\n")
    sections = write_report(folder, folder / "REPRODUCIBILITY.md")
    main = sections[0].results
    assert 0 < main.finished < main.wanted
    assert "SPECIAL (seed 225)" in (folder / "index.html").read_text()


def test_nothing_asked_for_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no studies here"):
        read_results(tmp_path)


def test_the_list_of_claims_has_every_claim_with_its_verdict(written: Path) -> None:
    text = (written / "REPRODUCIBILITY.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.count(" | ") == 3]
    verdicts = [row.rsplit(" | ", 1)[1].removesuffix(" |") for row in rows if not row.startswith("| claim ")]
    assert len(verdicts) > 40
    kinds = {"✓ holds", "✗ does not hold", "? can't tell at this scale"}
    assert {verdict for verdict in verdicts if verdict in kinds} == kinds
    assert "fedspecial study main --scale cpu --seeds 25,225" in text


def test_a_claim_turns_round_when_the_runs_do(whole: Path, tmp_path: Path) -> None:
    def matrix(best: str):
        return lambda job: [[0.9 - 0.001 * draw_of(job) if job.method == best else 0.5] * 4] * 4

    def draw_of(job) -> float:
        return job.seed % 7

    verdicts, told = {}, {}
    for best in ("special", "fedavg"):
        folder = tmp_path / best
        write_studies(folder, whole, [StudyRequest("main", "tiny", (25, 225))], matrix(best))
        section = write_report(folder, folder / "claims.md")[0]
        verdicts[best] = next(j.verdict for _, c, j in section.judged if "also above" in c.text)
        told[best] = "Looked into: how EMNIST's digits lie" in (folder / "claims.md").read_text(encoding="utf-8")
    assert verdicts == {"special": "holds", "fedavg": "does not hold"}
    assert told == {"special": False, "fedavg": True}


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


def test_the_best_of_a_column_is_darkest_and_what_is_best_depends_on_the_column() -> None:
    assert levels(TABLE) == [[5, LEVELS, LEVELS], [1, 0, 0], [LEVELS, 1, 1]]


def test_the_forms_of_a_table() -> None:
    assert markdown(TABLE).splitlines()[2] == "| A | 50.00 ±\u202f1.00 | **3** | **40.00** |"
    assert markdown(TABLE).splitlines()[3] == "| B_γ_G | −60.12 | – | – |"
    assert r"B\_$\gamma_G$ & \heat{1}$-60.12$ & -- & -- \\" in latex(TABLE)
    assert r"\heat{9}\boldmath$70.00\pm 2.00$" in latex(TABLE)
    assert csv_text(TABLE).splitlines()[2] == "B_γ_G,,-60.123,,,,,"
