"""Metrics over time: each is a list with one value for every evaluation point, a row of the accuracy matrix.

They need no tasks: they are over all domains, learned or not, and forgetting is relative to the best value so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedspecial.metrics.matrix import Matrix, average_accuracy


def average_over_time(matrix: Matrix) -> list[float | None]:
    """The mean over all domains at every point; the last value is ACC."""
    return [average_accuracy([row]) for row in matrix]


def worst_over_time(matrix: Matrix) -> list[float | None]:
    """The value of the worst domain at every point."""
    return [min((value for value in row if value is not None), default=None) for row in matrix]


def forgetting_over_time(matrix: Matrix, visits: Sequence[int] | None = None) -> list[float | None]:
    """At point p the mean over the domains learned before it, except the one just learned, of
    max_{first(j) ≤ i < p} A[i][j] − A[p][j]: what was lost since the best value so far."""
    order = list(visits or range(len(matrix)))
    found: list[float | None] = []
    for point, now in enumerate(matrix):
        losses = []
        for domain in dict.fromkeys(order[:point]):
            earlier = [v for row in matrix[order.index(domain) : point] if (v := row[domain]) is not None]
            if domain != order[point] and earlier and (value := now[domain]) is not None:
                losses.append(max(earlier) - value)
        found.append(sum(losses) / len(losses) if losses else None)
    return found
