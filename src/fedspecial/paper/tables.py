"""The tables of a study, with our numbers and the published ones, as Markdown, LaTeX and CSV (HTML: page.py)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedspecial.paper.grid import GridPoint, StudyResults
from fedspecial.paper.metrics import metric
from fedspecial.paper.published import task_names
from fedspecial.paper.row_notes import note_of
from fedspecial.paper.scales import SCALES
from fedspecial.report.comparison import MeanStd

LEVELS = 9
"""Number of shades in a column, as in the paper: the best value is darkest."""

UPPER_BOUNDS = ("joint",)
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Column:
    title: str
    better: int = 1
    digits: int = 2
    published: bool = False


@dataclass(frozen=True)
class TableRow:
    label: str
    cells: tuple[MeanStd | None, ...]
    seeds: tuple[int, ...] = ()
    mark: str = ""
    """Refers to a note under the table, which is about our runs."""
    ranked: bool = True
    """Whether the row is one of those that are compared; an upper bound is not."""


@dataclass(frozen=True)
class ReportTable:
    """A table in a form that can be written as Markdown, LaTeX, CSV or HTML. `stem` is the name of its files."""

    stem: str
    title: str
    head: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    """Shown under the table, each with its mark."""

    def part(self, *, published: bool) -> ReportTable:
        """Only our columns, or only the published ones."""
        kept = [i for i, column in enumerate(self.columns) if column.published == published]
        rows = tuple(
            replace(row, cells=tuple(row.cells[i] for i in kept), mark="" if published else row.mark)
            for row in self.rows
        )
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)

    @property
    def empty(self) -> bool:
        return not any(cell for row in self.rows for cell in row.cells)


def tables_of(results: StudyResults) -> list[ReportTable]:
    """All tables of a study that have at least one run."""
    tables = [_runs_table(results, title, stem, points) for title, stem, points in _groups(results)]
    tables = [table for table in tables if not table.part(published=False).empty]
    return tables + ([_rates_table(results)] if results.rates else [])


def _groups(results: StudyResults) -> Iterator[tuple[str, str, list[GridPoint]]]:
    """Title, file name and grid points of each table: a benchmark, with one swept value or one method."""
    study, sweep = results.study, results.study.sweep
    for benchmark in results.benchmarks:
        mine = [point for point in results.runs if point.benchmark == benchmark]
        label = results.label(benchmark)
        if sweep is None:
            yield label, benchmark, mine
        elif study.layout == "sweep":
            for row in dict.fromkeys(point.row for point in mine):
                stem = benchmark if len(study.rows) == 1 else f"{benchmark}-{row.stem}"
                yield f"{row.label} on {label}", stem, [point for point in mine if point.row == row]
        else:
            for x in dict.fromkeys(point.x for point in mine):
                stem = f"{benchmark}-{sweep.setting}-{x:g}"
                yield f"{label}, {sweep.symbol} = {x:g}", stem, [point for point in mine if point.x == x]


def _runs_table(results: StudyResults, title: str, stem: str, points: Sequence[GridPoint]) -> ReportTable:
    study, benchmark = results.study, points[0].benchmark
    swept = study.sweep is not None and study.layout == "sweep"
    ours, theirs = _task_titles(results, points)
    keys = [key for name in study.metrics for key in (ours if name == "task:*" else [name])]
    mine = [Column(ours.get(key, metric(key).title), metric(key).better, metric(key).digits) for key in keys]
    rows, notes = [], Notes()
    for point in points:
        coordinates = (benchmark, point.row.key, point.x)
        label = f"{study.sweep.symbol} = {point.x:g}" if swept and study.sweep else point.row.label
        cells = [results.measured(*coordinates, key) for key in keys]
        published = [results.published(*coordinates, key) for key in keys]
        mark = notes.mark(note_of(results, point))
        seeds, ranked = tuple(results.runs[point]), point.row.method not in UPPER_BOUNDS
        rows.append(TableRow(label, (*cells, *published), seeds, mark, ranked))
    used = [i for i in range(len(keys)) if any(row.cells[len(keys) + i] for row in rows)]
    kept = [*range(len(keys)), *(len(keys) + i for i in used)]
    published_columns = [
        Column(theirs.get(keys[i], metric(keys[i]).title), mine[i].better, mine[i].digits, published=True) for i in used
    ]
    full = f"{study.name}-{results.request.scale}-{stem}"
    head = study.sweep.symbol if swept and study.sweep else "method"
    cut = tuple(replace(row, cells=tuple(row.cells[i] for i in kept)) for row in rows)
    return ReportTable(full, title, head, (*mine, *published_columns), cut, notes.lines)


class Notes:
    """The notes of a table; rows with the same note have the same mark."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def mark(self, note: str) -> str:
        return self._marks.setdefault(note, str(len(self._marks) + 1).translate(SUPERSCRIPTS)) if note else ""

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(f"{mark} {note}" for note, mark in self._marks.items())


def _task_titles(results: StudyResults, points: Sequence[GridPoint]) -> tuple[dict[str, str], dict[str, str]]:
    """The names of the domains by metric key, in our runs and in the paper."""
    run = next((run for point in points for run in results.runs[point].values()), None)
    benchmark = points[0].benchmark
    names = task_names(SCALES[results.request.scale][benchmark].published_as or benchmark)
    ours = run.result.tasks if run else names
    return (
        {f"task:{number}": name for number, name in enumerate(ours, start=1)},
        {f"task:{number}": name for number, name in enumerate(names, start=1)},
    )


def _rates_table(results: StudyResults) -> ReportTable:
    rows = [
        TableRow(
            f"{sweep}: {curve['name']}", (MeanStd(curve["slope"], curve["stderr"]), MeanStd(curve["theory"], None))
        )
        for sweep, study in results.rates.items()
        for curve in study["curves"]
        if curve["slope"] is not None
    ]
    columns = (Column("slope, measured", 0, 3), Column("slope according to the theory", 0, 3))
    return ReportTable(
        f"{results.study.name}-{results.request.scale}-rates",
        "Slopes on a log-log scale",
        "sweep: curve",
        columns,
        tuple(rows),
    )


def levels(table: ReportTable) -> list[list[int]]:
    """The shade of each cell, from 1 (worst) to 9 (best), by rank in its column; 0 for empty or unranked cells."""
    shades = [[0] * len(table.columns) for _ in table.rows]
    for j, column in enumerate(table.columns):
        values = [row.cells[j] if row.ranked else None for row in table.rows]
        ranked = sorted({column.better * value.mean for value in values if value is not None})
        if not column.better or len(ranked) < 2:
            continue
        for i, value in enumerate(values):
            if value is not None:
                at = ranked.index(column.better * value.mean) / (len(ranked) - 1)
                shades[i][j] = 1 + round((LEVELS - 1) * at)
    return shades


def number(value: MeanStd | None, digits: int) -> tuple[str, str]:
    """Mean and standard deviation as text, with the Unicode minus sign."""
    if value is None:
        return "–", ""
    mean = f"{round(value.mean, digits) + 0.0:.{digits}f}".replace("-", "−")  # + 0.0: no "−0.0"
    return mean, f"±\u202f{value.std:.{digits}f}" if value.std else ""


def titles(table: ReportTable) -> list[str]:
    both = any(column.published for column in table.columns)
    return [
        column.title + (", published" if column.published else ", ours" if both else "") for column in table.columns
    ]


def markdown(table: ReportTable) -> str:
    lines = [f"| {table.head} | " + " | ".join(titles(table)) + " |", "|---|" + "---:|" * len(table.columns)]
    for row, shades in zip(table.rows, levels(table), strict=True):
        cells = []
        for cell, column, shade in zip(row.cells, table.columns, shades, strict=True):
            text = " ".join(part for part in number(cell, column.digits) if part)
            cells.append(f"**{text}**" if shade == LEVELS else text)
        lines.append(f"| {row.label}{row.mark} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, *(line for note in table.notes for line in ("", note))]) + "\n"


def latex(table: ReportTable) -> str:
    """LaTeX for booktabs, colortbl and xcolor; \\heat{level} shades a cell as in the paper."""
    lines = [
        r"% \usepackage{booktabs,colortbl,xcolor}",
        r"\providecommand{\heat}[1]{\cellcolor{orange!\the\numexpr #1*6\relax}}",
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
        r"\toprule",
        " & ".join(map(_tex, [table.head, *titles(table)])) + r" \\",
        r"\midrule",
    ]
    for row, shades in zip(table.rows, levels(table), strict=True):
        cells = []
        for cell, column, shade in zip(row.cells, table.columns, shades, strict=True):
            mean, spread = number(cell, column.digits)
            text = "--" if cell is None else "$" + (mean + spread.replace("\u202f", "")).replace("−", "-") + "$"
            text = text.replace("±", r"\pm ")
            text = rf"\boldmath{text}" if shade == LEVELS else text
            cells.append((rf"\heat{{{shade}}}" if shade else "") + text)
        lines.append(" & ".join([_tex(row.label + row.mark), *cells]) + r" \\")
    notes = (rf"\par{{\footnotesize {_tex(note.replace('`', ''))}}}" for note in table.notes)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"


_TEX = {"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "^": r"\^{}", "−": "$-$", "±": r"$\pm$"}
_TEX |= {chr(mark): f"$^{chr(digit)}$" for digit, mark in SUPERSCRIPTS.items()}
_TEX |= {"λ": r"$\lambda$", "α": r"$\alpha$", "∇": r"$\nabla$", "‖": r"$\Vert$"}


def _tex(text: str) -> str:
    parts = text.split("γ_G")
    return r"$\gamma_G$".join("".join(_TEX.get(character, character) for character in part) for part in parts)


def csv_text(table: ReportTable) -> str:
    """CSV with mean and standard deviation in separate columns, not rounded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = titles(table)
    writer.writerow([table.head, "seeds", *(name for title in names for name in (title, f"{title}: std"))])
    for row in table.rows:
        pairs = [(None, None) if cell is None else (cell.mean, cell.std) for cell in row.cells]
        seeds = " ".join(map(str, row.seeds))
        writer.writerow([row.label, seeds, *("" if part is None else repr(part) for pair in pairs for part in pair)])
    return text.getvalue()
