"""From a folder of studies to its report: page, tables, figures, and the list of claims."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fedspecial.core.files import write_atomic
from fedspecial.paper.claims import judged
from fedspecial.paper.figures import figures_of
from fedspecial.paper.grid import Evidence, gather
from fedspecial.paper.metrics import Run
from fedspecial.paper.page import Picture, Section, html_page
from fedspecial.paper.registry import NAMES, find
from fedspecial.paper.reproducibility import reproducibility
from fedspecial.paper.requests import read_asked
from fedspecial.paper.running import why_absent
from fedspecial.paper.scales import SCALES
from fedspecial.paper.tables import csv_text, latex, markdown, tables_of
from fedspecial.paper.theorems import read_rates

THEORY = "theory"
WRITERS = {"md": markdown, "tex": latex, "csv": csv_text}


def evidence_in(folder: Path) -> list[Evidence]:
    """Every study that was asked of the folder, in the paper's order, as far as it has been run; a run is read once."""
    read, why = cache(Run.read), cache(why_absent)
    found = []
    for ask in sorted(read_asked(folder), key=lambda ask: NAMES.index(find(ask.study).name)):

        def reason(benchmark: str, scale: str = ask.scale) -> str:
            return why(scale, benchmark) or f"{SCALES[scale][benchmark].label}: not run yet"

        study = find(ask.study)
        found.append(gather(study, ask, folder, read, reason, read_rates(study.rates, folder / THEORY)))
    return found


def write_report(folder: Path, reproducibility_path: Path) -> list[Section]:
    """Write index.html, tables/, figures/ and the list of claims; gives what was written about."""
    sections = [_section(evidence, folder) for evidence in evidence_in(folder)]
    write_atomic(folder / "index.html", html_page(sections, folder).encode())
    write_atomic(reproducibility_path, reproducibility(sections).encode())
    return sections


def _section(evidence: Evidence, folder: Path) -> Section:
    tables, pictures = tables_of(evidence), []
    for name in ("tables", "figures"):
        (folder / name).mkdir(exist_ok=True)
    for table in tables:
        for ending, write in WRITERS.items():
            write_atomic(folder / "tables" / f"{table.stem}.{ending}", write(table).encode())
    for drawing in figures_of(evidence):
        svg = drawing.encoded("svg")
        write_atomic(folder / "figures" / f"{drawing.stem}.png", drawing.encoded("png"))
        write_atomic(folder / "figures" / f"{drawing.stem}.svg", svg)
        pictures.append(Picture(drawing.stem, drawing.caption, svg))
    return Section(evidence, tables, [*pictures, *_rate_pictures(evidence, folder)], judged(evidence))


def _rate_pictures(evidence: Evidence, folder: Path) -> Sequence[Picture]:
    """The theory's own pictures, copied beside the others."""
    pictures = []
    for sweep, study in evidence.rates.items():
        for ending in ("png", "svg"):
            source = folder / THEORY / f"theory-{sweep}.{ending}"
            write_atomic(folder / "figures" / source.name, source.read_bytes())
        svg = (folder / "figures" / f"theory-{sweep}.svg").read_bytes()
        pictures.append(Picture(f"theory-{sweep}", f"{sweep}: {study['note']}", svg))
    return pictures
