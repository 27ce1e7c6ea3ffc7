"""Writes the report of a directory of studies: HTML page, tables, figures, and the list of claims."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fedspecial.core.files import write_atomic
from fedspecial.paper.claims.base import judged
from fedspecial.paper.figures import figures_of
from fedspecial.paper.grid import StudyResults, collect
from fedspecial.paper.metrics import FinishedRun
from fedspecial.paper.page import PageFigure, Section, html_page
from fedspecial.paper.planning import why_absent
from fedspecial.paper.rates import THEORY, read_rates
from fedspecial.paper.registry import NAMES, find
from fedspecial.paper.reproducibility import claims_file
from fedspecial.paper.requests import read_requests
from fedspecial.paper.run_records import read_records
from fedspecial.paper.scales import SCALES
from fedspecial.paper.tables import csv_text, latex, markdown, tables_of
from fedspecial.paper.tuning_records import read_tuning
from fedspecial.runs.jobs import Job

WRITERS = {"md": markdown, "tex": latex, "csv": csv_text}


def read_results(folder: Path, records: Path) -> list[StudyResults]:
    """The results of all requested studies, in the order of the paper. Each run is read once.

    records: the directory with the records of searches, from which the studies took their settings, and of runs
    """
    tuning, recorded = read_tuning(records), read_records(records)
    read_folder, why = cache(FinishedRun.read), cache(why_absent)

    def read(job: Job) -> FinishedRun | None:
        return read_folder(job.folder) or recorded.find(job)

    found = []
    for request in sorted(read_requests(folder), key=lambda request: NAMES.index(find(request.study).name)):

        def reason(benchmark: str, scale: str = request.scale) -> str:
            return why(scale, benchmark) or f"{SCALES[scale][benchmark].label}: not yet run"

        study = find(request.study)
        rates = {**read_rates(study.rates, records / THEORY), **read_rates(study.rates, folder / THEORY)}
        found.append(collect(study, request, folder, read, reason, rates, tuning))
    return found


def write_report(folder: Path, claims_path: Path, records: Path) -> list[Section]:
    """Write index.html, tables/, figures/ and the list of claims; returns the sections of the page."""
    sections = [_section(results, folder) for results in read_results(folder, records)]
    write_atomic(folder / "index.html", html_page(sections, folder).encode())
    write_atomic(claims_path, claims_file(sections).encode())
    return sections


def _section(results: StudyResults, folder: Path) -> Section:
    tables, figures = tables_of(results), []
    for name in ("tables", "figures"):
        (folder / name).mkdir(exist_ok=True)
    for table in tables:
        for ending, write in WRITERS.items():
            write_atomic(folder / "tables" / f"{table.stem}.{ending}", write(table).encode())
    for figure in figures_of(results):
        svg = figure.encoded("svg")
        write_atomic(folder / "figures" / f"{figure.stem}.png", figure.encoded("png"))
        write_atomic(folder / "figures" / f"{figure.stem}.svg", svg)
        figures.append(PageFigure(figure.stem, figure.caption, svg, figure.html))
    return Section(results, tables, [*figures, *_rate_figures(results, folder)], judged(results))


def _rate_figures(results: StudyResults, folder: Path) -> Sequence[PageFigure]:
    """Copies the figures of the theory's sweeps to the other figures; a sweep that was only recorded has none."""
    figures = []
    for sweep, study in results.rates.items():
        if not (folder / THEORY / f"theory-{sweep}.svg").exists():
            continue
        for ending in ("png", "svg"):
            source = folder / THEORY / f"theory-{sweep}.{ending}"
            write_atomic(folder / "figures" / source.name, source.read_bytes())
        svg = (folder / "figures" / f"theory-{sweep}.svg").read_bytes()
        figures.append(PageFigure(f"theory-{sweep}", f"{sweep}: {study['note']}", svg))
    return figures
