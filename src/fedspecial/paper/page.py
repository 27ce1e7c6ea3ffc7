"""The report as a single self-contained HTML page: style, tables and figures are embedded."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

from fedspecial.paper.claims.base import (
    FAILS,
    HOLDS,
    KIND_NOTES,
    RULE,
    TOO_FEW,
    UNDECIDED,
    Claim,
    ClaimKind,
    Judgement,
    Verdict,
    count_verdicts,
)
from fedspecial.paper.grid import StudyResults
from fedspecial.paper.planning import supports
from fedspecial.paper.settings_table import as_html, settings_table
from fedspecial.paper.tables import LEVELS, ReportTable, levels, number
from fedspecial.report.heatmap import style_sheet

CSS_CLASSES: Mapping[Verdict, str] = {HOLDS: "holds", FAILS: "fails", UNDECIDED: "undecided", TOO_FEW: "undecided"}
Judged = Sequence[tuple[str, Claim, Judgement]]


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page: its SVG, its caption, and the stem of its file names."""

    stem: str
    caption: str
    svg: bytes
    html: str = ""
    """Shown instead of the SVG."""


@dataclass(frozen=True)
class Section:
    """The section of the page about one study."""

    results: StudyResults
    tables: Sequence[ReportTable]
    figures: Sequence[PageFigure]
    judged: Judged

    @property
    def anchor(self) -> str:
        return f"{self.results.study.name}-{self.results.request.scale}"


def html_page(sections: Sequence[Section], out: Path) -> str:
    """The page as HTML. Links to runs and files are relative to the directory `out`, in which the page is stored."""
    style = style_sheet() + (resources.files("fedspecial.paper") / "page.css").read_text(encoding="utf-8")
    body = "\n".join(_section(section, out) for section in sections)
    links = "".join(f'<a href="#{s.anchor}">{escape(s.results.study.name)}</a>' for s in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>fedspecial: published results and our runs</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{_header(sections)}\n<main>\n<nav>{links}</nav>\n{_overview(sections)}\n{body}\n{_footer()}\n</main>\n"
        "</body>\n</html>\n"
    )


def _header(sections: Sequence[Section]) -> str:
    runs = {run.folder for s in sections for found in s.results.runs.values() for run in found.values()}
    lists = "\n".join(
        f'<p class="kind">{escape(kind.value)}</p><ul class="counts">'
        + "".join(f"<li><b>{count}</b>{escape(verdict)}</li>" for verdict, count in counts.items() if count)
        + "</ul>"
        for kind, counts in verdict_counts(sections).items()
    )
    return (
        "<header><div>\n<h1>Published results and our runs</h1>\n"
        "<p>SPECIAL is a server-proximal aggregation method for federated domain-incremental learning. This page shows "
        "every study that has been run, with our numbers next to the published ones, and tests the claims.</p>\n"
        f"<p>{escape(versions_line(sections))}</p>\n"
        f'{lists}\n<ul class="counts"><li><b>{len(runs)}</b>runs</li></ul>\n</div></header>'
    )


def verdict_counts(sections: Sequence[Section]) -> dict[ClaimKind, dict[str, int]]:
    """The number of claims per verdict in these studies, apart for each kind of claim."""
    found = [(claim.kind, judgement) for section in sections for _, claim, judgement in section.judged]
    return {kind: count_verdicts(judgement for its, judgement in found if its is kind) for kind in ClaimKind}


def counts_lines(sections: Sequence[Section]) -> list[str]:
    """The counts as text, one line for each kind of claim; verdicts that no claim has are left out."""
    return [
        f"{kind.value}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items() if count) or 'none'}."
        for kind, counts in verdict_counts(sections).items()
    ]


def versions_line(sections: Sequence[Section]) -> str:
    """The software versions of the runs; several sets are separated by semicolons."""
    found = Counter(
        ", ".join(f"{name} {value}" for name, value in run.versions.items())
        for section in sections
        for runs in section.results.runs.values()
        for run in runs.values()
    )
    return "; ".join(found) if found else "no finished run yet"


def _overview(sections: Sequence[Section]) -> str:
    rows: dict[bool, list[str]] = {True: [], False: []}
    for section in sections:
        link = f'<a href="#{section.anchor}">{escape(section.results.study.name)}</a>'
        for text, claim, judgement in section.judged:
            rows[judgement.tested].append(_claim_row(text, claim, judgement, link))
    if not any(rows.values()):
        return ""
    count = len(rows[False])
    rest = f"<details><summary>{count} further claims, not yet tested</summary>"
    rest += f"{_claims_table(rows[False], ('Study',))}</details>"
    return (
        '<section id="claims">\n<h2>Claims</h2>\n'
        f'<p class="rule">{escape(RULE)}</p>\n'
        f"{_claims_table(rows[True], ('Study',)) if rows[True] else ''}\n{rest if count else ''}\n</section>"
    )


def _claims_table(rows: Sequence[str], first: Sequence[str] = ()) -> str:
    heads = "".join(f"<th>{name}</th>" for name in (*first, "Claim", "Published", "Ours", "Verdict"))
    return f'<table class="claims"><thead><tr>{heads}</tr></thead><tbody>\n' + "\n".join(rows) + "\n</tbody></table>"


def _claim_row(text: str, claim: Claim, judgement: Judgement, study: str | None = None) -> str:
    note = KIND_NOTES[claim.kind]
    question = f' <span class="note">({note})</span>' if note else ""
    first = "" if study is None else f'<td data-head="Study">{study}</td>'
    return (
        f"<tr>{first}<td>{escape(text)}{question}</td>"
        f'<td data-head="Published">{escape(judgement.published)}</td>'
        f'<td data-head="Ours">{escape(judgement.ours)}</td>'
        f'<td><span class="verdict {CSS_CLASSES[judgement.verdict]}">{escape(judgement.verdict)}</span></td></tr>'
    )


def _section(section: Section, out: Path) -> str:
    results, study, request = section.results, section.results.study, section.results.request
    seeds = ", ".join(map(str, request.seeds))
    parts = [
        f'<section id="{section.anchor}">\n<h2>{escape(study.title)} '
        f"<small>{escape(study.name)} · scale {request.scale}</small></h2>",
        f'<p class="about">{escape(study.source)}. Varies: {escape(study.varies)}. Seeds {seeds}; '
        f"{results.finished} of {results.wanted} runs finished.</p>",
        f'<code class="command">{escape(request.command)}</code>',
        *(f'<p class="missing">{escape(line)}</p>' for line in missing_lines(results)),
        as_html(settings) if (settings := settings_table(results)) else "",
        *(_pair(table) for table in section.tables),
        *(_figure(figure) for figure in section.figures),
        f'<p class="note">{escape(study.note)}</p>' if study.note else "",
    ]
    rows = [_claim_row(text, claim, found) for text, claim, found in section.judged if found.tested]
    if rows:
        parts += ["<h3>Claims</h3>", _claims_table(rows)]
    for text, examined in examined_claims(section):
        parts.append(f'<p class="note">Not reproduced: <em>{escape(text)}</em>. We examined: {escape(examined)}.</p>')
    return "\n".join([*filter(None, parts), _runs(results, out), "</section>"])


def examined_claims(section: Section) -> list[tuple[str, str]]:
    """The claims that do not hold and what we examined to explain them; claims with the same text are joined."""
    found: dict[str, list[str]] = {}
    for text, claim, judgement in section.judged:
        if claim.examined and judgement.verdict == FAILS:
            found.setdefault(claim.examined, []).append(text)
    return [("; ".join(texts), examined) for examined, texts in found.items()]


def missing_lines(results: StudyResults) -> list[str]:
    """What is missing: benchmarks without any run, methods that do not support one, and rows or swept values that lack
    seeds."""
    lines = [f"{reason}." for reason in results.absent.values()]
    gaps: dict[str, list[str]] = {}
    sweep, scale = results.study.sweep, results.request.scale
    for point, found in results.runs.items():
        if point.benchmark in results.absent or len(found) == len(results.request.seeds):
            continue
        if not found and not supports(scale, point.benchmark, point.row.method):
            lines.append(f"{results.label(point.benchmark)}: {point.row.label} does not support its data.")
            continue
        value = "" if sweep is None else f", {sweep.symbol} = {point.x:g}"
        left = ", ".join(str(seed) for seed in results.request.seeds if seed not in found)
        name = f"{point.row.label}{value}" + ("" if not found else f" (seed {left})")
        gaps.setdefault(results.label(point.benchmark), []).append(name)
    return list(dict.fromkeys(lines)) + [f"{label}: not yet run: {'; '.join(names)}." for label, names in gaps.items()]


def _pair(table: ReportTable) -> str:
    ours, published = table.part(published=False), table.part(published=True)
    halves = [_table(ours, "ours: mean ± standard deviation over seeds")]
    halves += [] if published.empty else [_table(published, "published")]
    files = " · ".join(f'<a href="tables/{table.stem}.{end}">{end}</a>' for end in ("md", "tex", "csv"))
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in table.notes)
    pair = f'<div class="pair">{"".join(halves)}</div>'
    return f'<h3>{escape(table.title)}</h3>\n{pair}\n{notes}<p class="files">{files}</p>'


def _table(table: ReportTable, caption: str) -> str:
    heads = "".join(f"<th>{escape(text)}</th>" for text in (table.head, *(c.title for c in table.columns)))
    rows = []
    for row, shades in zip(table.rows, levels(table), strict=True):
        cells = [f"<td>{escape(row.label + row.mark)}</td>"]
        for cell, column, shade in zip(row.cells, table.columns, shades, strict=True):
            mean, spread = number(cell, column.digits)
            kind = "none" if cell is None else "best" if shade == LEVELS else ""
            colour = f' style="background: rgba(var(--heat), {0.05 * shade:.2f})"' if shade else ""
            small = f"<small>{spread}</small>" if spread else ""
            cells.append(f"<td{f' class={kind!r}' if kind else ''}{colour}>{mean}{small}</td>")
        mine = ' class="ours-method"' if row.label == "SPECIAL" else ""
        rows.append(f"<tr{mine}>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table class="numbers"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _figure(figure: PageFigure) -> str:
    data = base64.b64encode(figure.svg).decode()
    files = " · ".join(f'<a href="figures/{figure.stem}.{end}">{end}</a>' for end in ("png", "svg"))
    image = f'<img alt="{escape(figure.caption, quote=True)}" src="data:image/svg+xml;base64,{data}">'
    content = f'<div class="heatmaps scroll">{figure.html}</div>' if figure.html else image
    return (
        f"<figure>{content}"
        f'<figcaption>{escape(figure.caption)}. <span class="files">{files}</span></figcaption></figure>'
    )


def _runs(results: StudyResults, out: Path) -> str:
    links = []
    for found in results.runs.values():
        for run in found.values():
            name = escape(run.folder.name)
            where = run.folder.relative_to(out).as_posix()
            link = f'<a href="{where}/README.md">{name}</a>' if run.recorded_curve is None else f"{name} (record)"
            links.append(f"<li>{link}</li>")
    if not links:
        return ""
    return f'<details><summary>{len(links)} runs</summary><ul class="runs">{"".join(links)}</ul></details>'


def _footer() -> str:
    return (
        "<footer><p>Shading shows the rank within a column, as in the paper: the best value is darkest and bold. "
        "Accuracies are in per cent, BWT and drops in percentage points. All numbers are computed from the event logs "
        "of the runs. Each run directory contains the settings of the run (config.yaml), with which it can be "
        "repeated.</p></footer>"
    )
