"""docs/science/reproducibility.md is generated; its texts must be those of the current generator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedspecial.paper.claims.base import COUNTED, FAILS, HOLDS, KIND_NOTES, RULE, UNTESTED, ClaimKind
from fedspecial.paper.registry import find
from fedspecial.paper.reproducibility import MARKS, reproducibility
from fedspecial.paper.scales import SCALES

TEXT = (Path(__file__).parents[2] / "docs" / "science" / "reproducibility.md").read_text(encoding="utf-8")
SECTIONS = {part.partition(":")[0]: part for part in re.split(r"(?m)^## ", TEXT)[1:]}


def claim_rows(text: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if len(row) == 4 and row[3] in MARKS.values()]


def test_the_introduction_and_the_rule_are_those_of_the_generator() -> None:
    introduction = reproducibility([]).partition("- Claims of the paper:")[0]
    assert TEXT.startswith(introduction)
    assert RULE in TEXT


def kind_of(claim: str) -> ClaimKind:
    notes = {f" *({note})*": kind for kind, note in KIND_NOTES.items() if note}
    return next((kind for note, kind in notes.items() if claim.endswith(note)), ClaimKind.PAPER)


@pytest.mark.parametrize("kind", ClaimKind, ids=lambda kind: kind.name)
def test_the_headline_counts_each_kind_of_claim_apart(kind: ClaimKind) -> None:
    rows = [row for row in claim_rows(TEXT) if kind_of(row[0]) is kind]
    tested = [row for row in rows if row[2] != "–"]
    counts = {text: sum(row[3] == MARKS[verdict] for row in tested) for verdict, text in COUNTED.items()}
    counts[UNTESTED] = len(rows) - len(tested)
    assert f"- {kind.value}: {', '.join(f'{count} {text}' for text, count in counts.items() if count)}.\n" in TEXT


def test_three_seeds_confirm_and_refute_nothing_but_slopes_and_what_holds_by_construction() -> None:
    decided = [row for row in claim_rows(TEXT) if row[3] in (MARKS[HOLDS], MARKS[FAILS])]
    assert "seeds 25, 225, 2025;" in TEXT
    for row in decided:
        assert kind_of(row[0]) is ClaimKind.CONSTRUCTION or row[1].startswith("slope "), row


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_has_the_texts_of_its_study(name: str) -> None:
    study, text = find(name), SECTIONS[name]
    assert text.startswith(f"{name}: {study.title}\n\n{study.source}. Scale ")
    assert study.note in text
    labels = [at_scale.label for benchmarks in SCALES.values() for at_scale in benchmarks.values()]
    claims = {claim.text.format(benchmark=label) for claim in study.claims for label in labels}
    rows = {re.sub(r" \*\(.*\)\*$", "", row[0]) for row in claim_rows(text)}
    assert rows <= claims
    assert bool(rows) == bool(study.claims)
