"""Continual-learning metrics, each a pure function of the accuracy matrix.

A[i][j]: accuracy on domain j after task i, fractions, counted from 0 here; K tasks. With another objective than
classification, A contains its main metric, of which higher is better as well.
Where domains return, rows are evaluation points and columns are distinct domains: `visits` says which domain was
learned last before each point, and A[i][i] below is measured at the last point right after domain i was learned.
What is not defined (nothing was learned earlier when K = 1) is None, never 0. A domain on which the metric is not
defined, such as the AUROC of a single class, is None in the matrix and left out of all means.
"""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float | None]]


def average_accuracy(matrix: Matrix) -> float | None:
    """ACC = (1/K) Σ_j A[K][j]."""
    known = [value for value in matrix[-1] if value is not None]
    return sum(known) / len(known) if known else None


def final_drops(matrix: Matrix, visits: Sequence[int] | None = None) -> list[float]:
    """A[K][i] − A[i][i] for every task but the last: negative is forgetting, positive is backward transfer."""
    learned = {domain: point for point, domain in enumerate(visits or range(len(matrix)))}
    pairs = [
        (matrix[-1][domain], matrix[point][domain]) for domain, point in learned.items() if point + 1 < len(matrix)
    ]
    return [last - first for last, first in pairs if last is not None and first is not None]


def backward_transfer(matrix: Matrix, visits: Sequence[int] | None = None) -> float | None:
    """BWT = (1/(K−1)) Σ_{i<K} (A[K][i] − A[i][i])."""
    drops = final_drops(matrix, visits)
    return sum(drops) / len(drops) if drops else None


def worst_drop(matrix: Matrix, visits: Sequence[int] | None = None) -> float | None:
    """min_{i<K} (A[K][i] − A[i][i])."""
    return min(final_drops(matrix, visits), default=None)


def forgetting(matrix: Matrix, visits: Sequence[int] | None = None) -> float | None:
    """(1/(K−1)) Σ_{j<K} (max_{j≤i<K} A[i][j] − A[K][j]): what was lost since a domain was known best. Where domains
    return, j is the first point after domain j was learned."""
    last, losses, order = len(matrix) - 1, [], list(visits or range(len(matrix)))
    for j in dict.fromkeys(order):
        if order[last] == j:
            continue
        first, final = order.index(j), matrix[last][j]
        known = [value for i in range(first, last) if (value := matrix[i][j]) is not None]
        if known and final is not None:
            losses.append(max(known) - final)
    return sum(losses) / len(losses) if losses else None


def check(matrix: Matrix, low: float | None = 0.0, high: float | None = 1.0, columns: int | None = None) -> Matrix:
    """Refuse anything but a K×K matrix (or one with so many columns) of values in the range of the metric."""
    columns = len(matrix) if columns is None else columns
    for row in matrix:
        if len(row) != columns:
            raise ValueError(f"matrix: a row has {len(row)} entries, expected {columns}")
        for value in row:
            if value is not None and not ((low is None or low <= value) and (high is None or value <= high)):
                raise ValueError(f"matrix: accuracy {value} is outside {low}…{high}")
    return matrix
