"""Continual-learning metrics, each a pure function of the accuracy matrix.

A[i][j]: accuracy on domain j after task i, fractions, counted from 0 here; K tasks.
What is not defined (nothing was learned earlier when K = 1) is None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def average_accuracy(matrix: Matrix) -> float:
    """ACC = (1/K) Σ_j A[K][j]."""
    return sum(matrix[-1]) / len(matrix)


def final_drops(matrix: Matrix) -> list[float]:
    """A[K][i] − A[i][i] for every task but the last: negative is forgetting, positive is backward transfer."""
    return [matrix[-1][i] - matrix[i][i] for i in range(len(matrix) - 1)]


def backward_transfer(matrix: Matrix) -> float | None:
    """BWT = (1/(K−1)) Σ_{i<K} (A[K][i] − A[i][i])."""
    drops = final_drops(matrix)
    return sum(drops) / len(drops) if drops else None


def worst_drop(matrix: Matrix) -> float | None:
    """min_{i<K} (A[K][i] − A[i][i])."""
    return min(final_drops(matrix), default=None)


def forgetting(matrix: Matrix) -> float | None:
    """(1/(K−1)) Σ_{j<K} (max_{j≤i<K} A[i][j] − A[K][j]): what was lost since a domain was known best."""
    last = len(matrix) - 1
    losses = [max(matrix[i][j] for i in range(j, last)) - matrix[last][j] for j in range(last)]
    return sum(losses) / len(losses) if losses else None


def check(matrix: Matrix) -> Matrix:
    """Refuse anything but a K×K matrix of accuracies in [0, 1]."""
    for row in matrix:
        if len(row) != len(matrix):
            raise ValueError(f"matrix: a row has {len(row)} entries, expected {len(matrix)}")
        for value in row:
            if not 0 <= value <= 1:
                raise ValueError(f"matrix: accuracy {value} is outside 0…1")
    return matrix
