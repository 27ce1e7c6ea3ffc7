"""The report as one HTML page that needs nothing but itself: style, tables and figures are inside."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

from fedspecial.paper.claims import FAILS, HOLDS, RULE, UNKNOWN, Claim, Judgement, Verdict, tally
from fedspecial.paper.grid import Evidence
from fedspecial.paper.tables import LEVELS, Table, levels, number

CLASSES: Mapping[Verdict, str] = {HOLDS: "holds", FAILS: "fails", UNKNOWN: "open"}
Judged = Sequence[tuple[str, Claim, Judgement]]


@dataclass(frozen=True)
class Picture:
    """A figure as it goes into the page: its SVG, its caption, the stem of its files."""

    stem: str
    caption: str
    svg: bytes


@dataclass(frozen=True)
class Section:
    """All that the page says of a study."""

    evidence: Evidence
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    judged: Judged

    @property
    def anchor(self) -> str:
        return f"{self.evidence.study.name}-{self.evidence.ask.scale}"


def html_page(sections: Sequence[Section], out: Path) -> str:
    """The whole page. `out` is where it will lie: links to runs and files are relative to it."""
    style = (resources.files("fedspecial.paper") / "page.css").read_text(encoding="utf-8")
    body = "\n".join(_section(section, out) for section in sections)
    links = "".join(f'<a href="#{s.anchor}">{escape(s.evidence.study.name)}</a>' for s in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>fedspecial: the paper beside our runs</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{_header(sections)}\n<main>\n<nav>{links}</nav>\n{_overview(sections)}\n{body}\n{_footer()}\n</main>\n"
        "</body>\n</html>\n"
    )


def _header(sections: Sequence[Section]) -> str:
    runs = {run.folder for s in sections for found in s.evidence.runs.values() for run in found.values()}
    counts = "".join(f"<li><b>{count}</b>{escape(kind)}</li>" for kind, count in claims_of(sections).items())
    return (
        "<header><div>\n<h1>The paper beside our runs</h1>\n"
        "<p>SPECIAL, server-proximal aggregation for federated domain-incremental learning: every study that has been "
        "run, its printed numbers beside the measured ones, and what became of the paper's claims.</p>\n"
        f"<p>{escape(versions_line(sections))}</p>\n"
        f'<ul class="counts">{counts}<li><b>{len(runs)}</b>runs read</li></ul>\n</div></header>'
    )


def claims_of(sections: Sequence[Section]) -> dict[str, int]:
    """How many of the claims of these studies hold, and so on."""
    return tally(judgement for section in sections for _, _, judgement in section.judged)


def versions_line(sections: Sequence[Section]) -> str:
    """The versions behind the runs; more than one set is told as such."""
    found = Counter(
        ", ".join(f"{name} {value}" for name, value in run.versions.items())
        for section in sections
        for runs in section.evidence.runs.values()
        for run in runs.values()
    )
    return "; ".join(found) if found else "no finished run yet"


def _overview(sections: Sequence[Section]) -> str:
    rows: dict[bool, list[str]] = {True: [], False: []}
    for section in sections:
        link = f'<a href="#{section.anchor}">{escape(section.evidence.study.name)}</a>'
        for text, claim, judgement in section.judged:
            rows[judgement.looked_at].append(_claim_row(text, claim, judgement, link))
    if not any(rows.values()):
        return ""
    count = len(rows[False])
    rest = f"<details><summary>{count} more claims, of which there are no runs</summary>"
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
    asked = ' <span class="note">(our question)</span>' if claim.ours else ""
    first = "" if study is None else f'<td data-head="Study">{study}</td>'
    return (
        f"<tr>{first}<td>{escape(text)}{asked}</td>"
        f'<td data-head="Published">{escape(judgement.published)}</td>'
        f'<td data-head="Ours">{escape(judgement.ours)}</td>'
        f'<td><span class="verdict {CLASSES[judgement.verdict]}">{escape(judgement.verdict)}</span></td></tr>'
    )


def _section(section: Section, out: Path) -> str:
    evidence, study, ask = section.evidence, section.evidence.study, section.evidence.ask
    seeds = ", ".join(map(str, ask.seeds))
    parts = [
        f'<section id="{section.anchor}">\n<h2>{escape(study.title)} <small>{escape(study.name)} · scale {ask.scale}'
        f"</small></h2>",
        f'<p class="about">{escape(study.source)}. Varies: {escape(study.varies)}. Seeds {seeds}; '
        f"{evidence.finished} of {evidence.wanted} runs finished.</p>",
        f'<code class="command">{escape(ask.command)}</code>',
        *(f'<p class="missing">{escape(line)}</p>' for line in missing_lines(evidence)),
        *(_pair(table) for table in section.tables),
        *(_figure(picture) for picture in section.pictures),
        f'<p class="note">{escape(study.note)}</p>' if study.note else "",
    ]
    rows = [_claim_row(text, claim, found) for text, claim, found in section.judged if found.looked_at]
    if rows:
        parts += ["<h3>Claims</h3>", _claims_table(rows)]
    for text, tried in looked_into(section):
        parts.append(f'<p class="note">Do not hold: <em>{escape(text)}</em>. Looked into: {escape(tried)}.</p>')
    return "\n".join([*filter(None, parts), _runs(evidence, out), "</section>"])


def looked_into(section: Section) -> list[tuple[str, str]]:
    """The claims that do not hold, and where they were looked into; those looked into alike together."""
    found: dict[str, list[str]] = {}
    for text, claim, judgement in section.judged:
        if claim.tried and judgement.verdict == FAILS:
            found.setdefault(claim.tried, []).append(text)
    return [("; ".join(texts), tried) for tried, texts in found.items()]


def missing_lines(evidence: Evidence) -> list[str]:
    """What is not there: benchmarks without a run, and rows or values of which seeds are missing."""
    lines = [f"{reason}." for reason in evidence.absent.values()]
    gaps: dict[str, list[str]] = {}
    sweep = evidence.study.sweep
    for point, found in evidence.runs.items():
        if point.benchmark in evidence.absent or len(found) == len(evidence.ask.seeds):
            continue
        value = "" if sweep is None else f", {sweep.symbol} = {point.x:g}"
        left = ", ".join(str(seed) for seed in evidence.ask.seeds if seed not in found)
        name = f"{point.row.label}{value}" + ("" if not found else f" (seed {left})")
        gaps.setdefault(evidence.label(point.benchmark), []).append(name)
    return lines + [f"{label}: not run yet: {'; '.join(names)}." for label, names in gaps.items()]


def _pair(table: Table) -> str:
    ours, printed = table.part(printed=False), table.part(printed=True)
    halves = [_table(ours, "ours, mean ± standard deviation over seeds")]
    halves += [] if printed.empty else [_table(printed, "published")]
    files = " · ".join(f'<a href="tables/{table.stem}.{end}">{end}</a>' for end in ("md", "tex", "csv"))
    return f'<h3>{escape(table.title)}</h3>\n<div class="pair">{"".join(halves)}</div>\n<p class="files">{files}</p>'


def _table(table: Table, caption: str) -> str:
    heads = "".join(f"<th>{escape(text)}</th>" for text in (table.head, *(c.title for c in table.columns)))
    rows = []
    for line, shades in zip(table.lines, levels(table), strict=True):
        cells = [f"<td>{escape(line.label)}</td>"]
        for cell, column, shade in zip(line.cells, table.columns, shades, strict=True):
            mean, spread = number(cell, column.digits)
            kind = "none" if cell is None else "best" if shade == LEVELS else ""
            colour = f' style="background: rgba(var(--heat), {0.05 * shade:.2f})"' if shade else ""
            small = f"<small>{spread}</small>" if spread else ""
            cells.append(f"<td{f' class={kind!r}' if kind else ''}{colour}>{mean}{small}</td>")
        mine = ' class="ours-method"' if line.label == "SPECIAL" else ""
        rows.append(f"<tr{mine}>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table class="numbers"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.svg).decode()
    files = " · ".join(f'<a href="figures/{picture.stem}.{end}">{end}</a>' for end in ("png", "svg"))
    alt = escape(picture.caption, quote=True)
    return (
        f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{data}">'
        f'<figcaption>{escape(picture.caption)}. <span class="files">{files}</span></figcaption></figure>'
    )


def _runs(evidence: Evidence, out: Path) -> str:
    links = []
    for found in evidence.runs.values():
        for run in found.values():
            where = run.folder.relative_to(out).as_posix()
            links.append(f'<li><a href="{where}/README.md">{escape(run.folder.name)}</a></li>')
    if not links:
        return ""
    return f'<details><summary>{len(links)} runs</summary><ul class="runs">{"".join(links)}</ul></details>'


def _footer() -> str:
    return (
        "<footer><p>Shading: rank within a column, the darkest is best and bold, as in the paper. Accuracies in "
        "per cent, BWT and drops in points. Every number is derived from the events of the runs; a run's folder holds "
        "its words (config.yaml), with which it can be run again.</p></footer>"
    )
