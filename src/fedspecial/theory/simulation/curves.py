"""Results of a rate study: measured curves and their slopes on a log-log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class CurvePoint:
    """One measured value: the mean over replicates and its standard error (0 for a computed value)."""

    x: float
    value: float
    stderr: float = 0.0


@dataclass(frozen=True)
class Curve:
    """One quantity along the sweep. ``slope`` is fitted to log value against log x, for x >= ``fit_from``.

    ``theory`` is the slope that the theory supports. ``exact`` are the values in closed form, where known.
    """

    name: str
    points: tuple[CurvePoint, ...]
    slope: float | None = None
    stderr: float | None = None
    theory: float | None = None
    exact: tuple[float, ...] | None = None
    fit_from: float = 0.0


@dataclass(frozen=True)
class RateStudy:
    """The result of a sweep. ``points``, ``slope``, ``stderr`` and ``theory`` are those of the first, main curve."""

    sweep: str
    problem: str
    x_name: str
    y_name: str
    curves: tuple[Curve, ...]
    note: str
    settings: dict[str, Any]

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        return self.curves[0].points

    @property
    def slope(self) -> float | None:
        return self.curves[0].slope

    @property
    def stderr(self) -> float | None:
        return self.curves[0].stderr

    @property
    def theory(self) -> float | None:
        return self.curves[0].theory

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    def rows(self) -> list[tuple[str, float, float, float, float | None]]:
        """(curve, x, value, stderr, exact) for a table."""
        return [
            (curve.name, point.x, point.value, point.stderr, curve.exact[index] if curve.exact else None)
            for curve in self.curves
            for index, point in enumerate(curve.points)
        ]


def log_slope(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Least-squares slope of log y against log x, and its standard error."""
    x, y = np.log(np.asarray(xs, dtype=float)), np.log(np.asarray(ys, dtype=float))
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residual = y - y.mean() - slope * centred
    spread = float(residual @ residual) / max(len(x) - 2, 1)
    return slope, math.sqrt(spread / float(centred @ centred))


def make_curve(
    name: str, xs: Sequence[float], values: Sequence[Any], theory: float | None = None, fit_from: float = 0.0
) -> Curve:
    """A curve from one sample (or number) per x; its slope is fitted if the theory supports one."""
    points = []
    for x, value in zip(xs, values, strict=True):
        sample = np.atleast_1d(np.asarray(value, dtype=float))
        error = float(sample.std(ddof=1) / math.sqrt(sample.size)) if sample.size > 1 else 0.0
        points.append(CurvePoint(float(x), float(sample.mean()), error))
    used = [point for point in points if point.x >= fit_from and point.value > 0]
    if theory is None or len(used) < 2:
        return Curve(name, tuple(points), theory=theory, fit_from=fit_from)
    slope, stderr = log_slope([point.x for point in used], [point.value for point in used])
    return Curve(name, tuple(points), slope, stderr, theory, fit_from=fit_from)
