"""From a folder of studies to its report: page, tables, figures, and the list of claims."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fedspecial.engine.blobs import write_whole
from fedspecial.study.asked import read_asked
from fedspecial.study.claims import judged
from fedspecial.study.entries import NAMES, find
from fedspecial.study.figures import figures_of
from fedspecial.study.grid import Evidence, gather
from fedspecial.study.page import Picture, Section, html_page
from fedspecial.study.readings import Run
from fedspecial.study.reproducibility import reproducibility
from fedspecial.study.running import why_absent
from fedspecial.study.scales import SCALES
from fedspecial.study.tables import csv_text, latex, markdown, tables_of
from fedspecial.study.theorems import read_rates

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
    write_whole(folder / "index.html", html_page(sections, folder).encode())
    write_whole(reproducibility_path, reproducibility(sections).encode())
    return sections


def _section(evidence: Evidence, folder: Path) -> Section:
    tables, pictures = tables_of(evidence), []
    for name in ("tables", "figures"):
        (folder / name).mkdir(exist_ok=True)
    for table in tables:
        for ending, write in WRITERS.items():
            write_whole(folder / "tables" / f"{table.stem}.{ending}", write(table).encode())
    for drawing in figures_of(evidence):
        svg = drawing.encoded("svg")
        write_whole(folder / "figures" / f"{drawing.stem}.png", drawing.encoded("png"))
        write_whole(folder / "figures" / f"{drawing.stem}.svg", svg)
        pictures.append(Picture(drawing.stem, drawing.caption, svg))
    return Section(evidence, tables, [*pictures, *_rate_pictures(evidence, folder)], judged(evidence))


def _rate_pictures(evidence: Evidence, folder: Path) -> Sequence[Picture]:
    """The theory's own pictures, copied beside the others."""
    pictures = []
    for sweep, study in evidence.rates.items():
        for ending in ("png", "svg"):
            source = folder / THEORY / f"theory-{sweep}.{ending}"
            write_whole(folder / "figures" / source.name, source.read_bytes())
        svg = (folder / "figures" / f"theory-{sweep}.svg").read_bytes()
        pictures.append(Picture(f"theory-{sweep}", f"{sweep}: {study['note']}", svg))
    return pictures
