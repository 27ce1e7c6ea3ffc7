"""Notes of a result: which metrics are not defined on which domains, and which classes a domain lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedspecial.report.scale import title_of


def undefined_notes(
    matrices: Mapping[str, Sequence[Sequence[Any]]], tasks: Sequence[str], measured: Sequence[int]
) -> list[str]:
    """For each metric the domains on which it is not defined, after one task or another.

    measured: how many domains each row has; the run was extended by the others later
    """
    notes = []
    for name, rows in matrices.items():
        missing = [
            task
            for number, task in enumerate(tasks)
            if any(row[number] is None for row, known in zip(rows, measured, strict=True) if number < known)
        ]
        if missing:
            where = "any domain" if len(missing) == len(tasks) else ", ".join(missing)
            notes.append(f"{title_of(name)} is not defined on {where} and left out of means")
    return notes


def absent_class_notes(missing: Mapping[str, Mapping[str, Sequence[int]]]) -> list[str]:
    """Over which classes the metrics of a domain are, where it lacks one."""
    notes = []
    for domain, counts in missing.items():
        untested = [name for name, (_, test) in counts.items() if not test]
        untrained = [name for name, (train, test) in counts.items() if test and not train]
        if untested:
            notes.append(
                f"{domain} has no test samples of {', '.join(untested)}: its metrics are over the other classes"
            )
        if untrained:
            notes.append(f"{domain} has no training samples of {', '.join(untrained)}, but its metrics count them")
    return notes
