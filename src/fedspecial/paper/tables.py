"""A study's numbers as tables: ours and the printed ones, in one shape for HTML, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedspecial.paper.grid import Evidence, Point
from fedspecial.paper.metrics import metric
from fedspecial.paper.published import task_names
from fedspecial.paper.scales import SCALES
from fedspecial.report.comparison import Spread

LEVELS = 9
"""Shades of a column, as in the paper: the best is darkest."""


@dataclass(frozen=True)
class Column:
    title: str
    better: int = 1
    digits: int = 2
    printed: bool = False


@dataclass(frozen=True)
class Line:
    label: str
    cells: tuple[Spread | None, ...]
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """`stem` is the name of its files."""

    stem: str
    title: str
    head: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]

    def part(self, *, printed: bool) -> Table:
        """Our columns alone, or the printed ones alone."""
        kept = [i for i, column in enumerate(self.columns) if column.printed == printed]
        lines = (Line(line.label, tuple(line.cells[i] for i in kept), line.seeds) for line in self.lines)
        return Table(self.stem, self.title, self.head, tuple(self.columns[i] for i in kept), tuple(lines))

    @property
    def empty(self) -> bool:
        return not any(cell for line in self.lines for cell in line.cells)


def tables_of(evidence: Evidence) -> list[Table]:
    """All tables of a study for which something was run."""
    tables = [_runs_table(evidence, title, stem, points) for title, stem, points in _groups(evidence)]
    tables = [table for table in tables if not table.part(printed=False).empty]
    return tables + ([_rates_table(evidence)] if evidence.rates else [])


def _groups(evidence: Evidence) -> Iterator[tuple[str, str, list[Point]]]:
    """The points that share a table: those of a benchmark, and of a value swept or of a row."""
    study, sweep = evidence.study, evidence.study.sweep
    for benchmark in evidence.benchmarks:
        mine = [point for point in evidence.runs if point.benchmark == benchmark]
        label = evidence.label(benchmark)
        if sweep is None:
            yield label, benchmark, mine
        elif study.layout == "sweep":
            for row in dict.fromkeys(point.row for point in mine):
                stem = benchmark if len(study.rows) == 1 else f"{benchmark}-{row.stem}"
                yield f"{row.label} on {label}", stem, [point for point in mine if point.row == row]
        else:
            for x in dict.fromkeys(point.x for point in mine):
                stem = f"{benchmark}-{sweep.word}-{x:g}"
                yield f"{label}, {sweep.symbol} = {x:g}", stem, [point for point in mine if point.x == x]


def _runs_table(evidence: Evidence, title: str, stem: str, points: Sequence[Point]) -> Table:
    study, benchmark = evidence.study, points[0].benchmark
    swept = study.sweep is not None and study.layout == "sweep"
    ours, theirs = _task_titles(evidence, points)
    keys = [key for wish in study.metrics for key in (ours if wish == "task:*" else [wish])]
    mine = [Column(ours.get(key, metric(key).title), metric(key).better, metric(key).digits) for key in keys]
    lines = []
    for point in points:
        coordinates = (benchmark, point.row.key, point.x)
        label = f"{study.sweep.symbol} = {point.x:g}" if swept and study.sweep else point.row.label
        cells = [evidence.spread(*coordinates, key) for key in keys]
        printed = [evidence.printed(*coordinates, key) for key in keys]
        lines.append(Line(label, (*cells, *printed), tuple(evidence.runs[point])))
    used = [i for i in range(len(keys)) if any(line.cells[len(keys) + i] for line in lines)]
    kept = [*range(len(keys)), *(len(keys) + i for i in used)]
    printed_columns = [
        Column(theirs.get(keys[i], metric(keys[i]).title), mine[i].better, mine[i].digits, printed=True) for i in used
    ]
    full = f"{study.name}-{evidence.ask.scale}-{stem}"
    head = study.sweep.symbol if swept and study.sweep else "method"
    cut = tuple(Line(line.label, tuple(line.cells[i] for i in kept), line.seeds) for line in lines)
    return Table(full, title, head, (*mine, *printed_columns), cut)


def _task_titles(evidence: Evidence, points: Sequence[Point]) -> tuple[dict[str, str], dict[str, str]]:
    """Names of the domains by metric key: in our runs, and in the paper."""
    run = next((run for point in points for run in evidence.runs[point].values()), None)
    benchmark = points[0].benchmark
    names = task_names(SCALES[evidence.ask.scale][benchmark].printed_as or benchmark)
    ours = run.result.tasks if run else names
    return (
        {f"task:{number}": name for number, name in enumerate(ours, start=1)},
        {f"task:{number}": name for number, name in enumerate(names, start=1)},
    )


def _rates_table(evidence: Evidence) -> Table:
    lines = [
        Line(f"{sweep}: {curve['name']}", (Spread(curve["slope"], curve["stderr"]), Spread(curve["theory"], None)))
        for sweep, study in evidence.rates.items()
        for curve in study["curves"]
        if curve["slope"] is not None
    ]
    columns = (Column("slope, measured", 0, 3), Column("slope that the theory supports", 0, 3))
    return Table(
        f"{evidence.study.name}-{evidence.ask.scale}-rates",
        "Slopes on a log-log scale",
        "sweep: curve",
        columns,
        tuple(lines),
    )


def levels(table: Table) -> list[list[int]]:
    """The shade of every cell: 1 (worst) to 9 (best) by rank in its column; 0 for an empty one or no ranking."""
    shades = [[0] * len(table.columns) for _ in table.lines]
    for j, column in enumerate(table.columns):
        values = [line.cells[j] for line in table.lines]
        ranked = sorted({column.better * value.mean for value in values if value is not None})
        if not column.better or len(ranked) < 2:
            continue
        for i, value in enumerate(values):
            if value is not None:
                at = ranked.index(column.better * value.mean) / (len(ranked) - 1)
                shades[i][j] = 1 + round((LEVELS - 1) * at)
    return shades


def number(value: Spread | None, digits: int) -> tuple[str, str]:
    """Mean and spread, written; a minus sign is a minus sign."""
    if value is None:
        return "–", ""
    mean = f"{value.mean:.{digits}f}".replace("-", "−")
    return mean, f"±\u202f{value.std:.{digits}f}" if value.std else ""


def titles(table: Table) -> list[str]:
    both = any(column.printed for column in table.columns)
    return [column.title + (", paper" if column.printed else ", ours" if both else "") for column in table.columns]


def markdown(table: Table) -> str:
    lines = [f"| {table.head} | " + " | ".join(titles(table)) + " |", "|---|" + "---:|" * len(table.columns)]
    for line, shades in zip(table.lines, levels(table), strict=True):
        cells = []
        for cell, column, shade in zip(line.cells, table.columns, shades, strict=True):
            text = " ".join(part for part in number(cell, column.digits) if part)
            cells.append(f"**{text}**" if shade == LEVELS else text)
        lines.append(f"| {line.label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """For booktabs, and colortbl with xcolor: \\heat{level} shades a cell as in the paper."""
    lines = [
        r"% \usepackage{booktabs,colortbl,xcolor}",
        r"\providecommand{\heat}[1]{\cellcolor{orange!\the\numexpr #1*6\relax}}",
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
        r"\toprule",
        " & ".join(map(_tex, [table.head, *titles(table)])) + r" \\",
        r"\midrule",
    ]
    for line, shades in zip(table.lines, levels(table), strict=True):
        cells = []
        for cell, column, shade in zip(line.cells, table.columns, shades, strict=True):
            mean, spread = number(cell, column.digits)
            text = "--" if cell is None else "$" + (mean + spread.replace("\u202f", "")).replace("−", "-") + "$"
            text = text.replace("±", r"\pm ")
            text = rf"\boldmath{text}" if shade == LEVELS else text
            cells.append((rf"\heat{{{shade}}}" if shade else "") + text)
        lines.append(" & ".join([_tex(line.label), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


_TEX = {"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "^": r"\^{}", "−": "$-$", "±": r"$\pm$"}
_TEX |= {"λ": r"$\lambda$", "α": r"$\alpha$", "∇": r"$\nabla$", "‖": r"$\Vert$"}


def _tex(text: str) -> str:
    parts = text.split("γ_G")
    return r"$\gamma_G$".join("".join(_TEX.get(character, character) for character in part) for part in parts)


def csv_text(table: Table) -> str:
    """Mean and standard deviation in columns of their own, unrounded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = titles(table)
    writer.writerow([table.head, "seeds", *(name for title in names for name in (title, f"{title}: std"))])
    for line in table.lines:
        pairs = [(None, None) if cell is None else (cell.mean, cell.std) for cell in line.cells]
        seeds = " ".join(map(str, line.seeds))
        writer.writerow([line.label, seeds, *("" if part is None else repr(part) for pair in pairs for part in pair)])
    return text.getvalue()
