"""REPRODUCIBILITY.md: each claim of the paper, published value, ours, seeds, command, verdict."""

from __future__ import annotations

from collections.abc import Sequence

from fedspecial.paper.claims import FAILS, HOLDS, RULE, UNKNOWN
from fedspecial.paper.page import Judged, Section, claims_of, looked_into, missing_lines, versions_line
from fedspecial.paper.tables import markdown

MARKS = {HOLDS: "✓ holds", FAILS: "✗ does not hold", UNKNOWN: "? can't tell at this scale"}


def reproducibility(sections: Sequence[Section]) -> str:
    """The whole page in Markdown."""
    counted = ", ".join(f"{count} {kind}" for kind, count in claims_of(sections).items())
    lines = [
        "# Reproducibility",
        "",
        "Written by `fedspecial report` from the events of the runs. What each study is, and how to run it, is said in",
        "[Studies](studies.md); what was made of the crosses, in [Findings](findings.md).",
        "",
        f"Claims: {counted}. Versions: {versions_line(sections)}.",
        "",
        RULE,
        "",
    ]
    for section in sections:
        lines += _section(section)
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section) -> list[str]:
    evidence, study, ask = section.evidence, section.evidence.study, section.evidence.ask
    seeds = ", ".join(map(str, ask.seeds))
    lines = [
        f"## {study.name}: {study.title}",
        "",
        f"{study.source}. Scale {ask.scale}, seeds {seeds}; {evidence.finished} of {evidence.wanted} runs.",
        "",
        f"    {ask.command}",
        "",
    ]
    for line in missing_lines(evidence):
        lines += [line, ""]
    for table in section.tables:
        lines += [f"**{table.title}**", "", markdown(table)]
    if study.note:
        lines += [study.note, ""]
    seen = [entry for entry in section.judged if entry[2].looked_at]
    if seen:
        lines += [*_claims(seen), ""]
    if unseen := [entry for entry in section.judged if not entry[2].looked_at]:
        summary = f"<summary>{len(unseen)} more claims, of which there are no runs</summary>"
        lines += ["<details>", summary, "", *_claims(unseen), "", "</details>", ""]
    for text, tried in looked_into(section):
        lines += [f"Do not hold: *{text}*. Looked into: {tried}.", ""]
    return lines


def _claims(judged: Judged) -> list[str]:
    lines = ["| claim | published | ours | verdict |", "|---|---|---|---|"]
    for text, claim, judgement in judged:
        asked = " *(our question)*" if claim.ours else ""
        cells = (text + asked, judgement.published, judgement.ours, MARKS[judgement.verdict])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines
