"""Plots of rate studies and certificates. Matplotlib is imported only when a plot is drawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspecial.core.files import write_atomic
from fedspecial.theory.certificates.task import TaskCertificate
from fedspecial.theory.simulation.curves import Curve, RateStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#777777"
COLOURS = (BLUE, ORANGE, GREEN, PINK)

# Which curves share a panel: (title, y label, curves, log y).
_PANELS: dict[str, list[tuple[str, str, tuple[str, ...], bool]]] = {
    "lam": [
        ("Drift falls like 1/λ and stays below its bound", "distance to the anchor", ("drift", "drift cap"), True),
        ("Forgetting and loss on the new task", "loss",
         ("forgetting", "new-task loss", "forgetting + new-task loss"), False),
    ],
    "rounds": [
        ("Stationarity of the surrogate, μ fixed", "mean ‖∇Φ‖²",
         ("mean ‖grad Phi‖^2, mu fixed", "Theorem S"), True),
        ("At fixed λ the model stops moving", "distance to the anchor", ("drift, mu fixed", "drift, lam fixed"), True),
    ],
    "clients": [("Stationary variance and its closed form", "total variance",
                 ("noise only", "heterogeneity only"), True)],
    "epochs": [
        ("Drift grows with the local steps", "distance to the anchor", ("drift cap", "drift"), True),
        ("μ falls with the local steps", "μ", ("mu",), True),
    ],
    "rate": [
        ("Corollary 1: the gradient does not decrease", "min ‖∇f₁:K‖²", ("min ‖grad f_1:K‖^2", "at the anchor"), True),
        ("The model can hardly move", "drift radius", ("drift radius",), True),
    ],
}  # fmt: skip


def plot_study(study: RateStudy, path: str | Path) -> Path:
    """The measured curves of a study, with the slope that the theory supports (dashed) or the exact values (line)."""
    panels = _PANELS[study.sweep]
    figure = _figure(len(panels))
    curves = {curve.name: curve for curve in study.curves}
    for index, (title, label, names, log) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), index + 1)
        for colour, name in zip(COLOURS, names, strict=False):
            _draw(axes, curves[name], colour)
        if study.sweep == "rate" and index == 0:
            _claim(axes, curves[names[0]])
        axes.set_xscale("log")
        axes.set_yscale("log" if log else "linear")
        _finish(axes, title, {"lam": "λ"}.get(study.x_name, study.x_name), label)
    return _save(figure, path)


def plot_drift(certificates: Sequence[TaskCertificate], path: str | Path) -> Path:
    """The measured drift and the bounds on it, round by round, with one panel per anchored task."""
    anchored = [task for task in certificates if task.anchored and task.max_drift is not None]
    if not anchored:
        raise ValueError(f"certificates must contain an anchored task with a measured drift, got {len(certificates)}")
    from matplotlib.ticker import MaxNLocator

    figure = _figure(len(anchored), width=3.6)
    for index, task in enumerate(anchored):
        axes = figure.add_subplot(1, len(anchored), index + 1)
        rounds = [entry.round + 1 for entry in task.rounds]
        lines = (
            ("measured drift", [entry.drift for entry in task.rounds], BLUE, "-", 2.0),
            ("bound: recursion", [entry.recursion_bound for entry in task.rounds], ORANGE, "-", 1.4),
            ("bound: max ‖γΔ‖, t rounds", [entry.delta_bound for entry in task.rounds], GREEN, "--", 1.4),
            ("bound: max ‖γΔ‖/λ", [entry.delta_cap for entry in task.rounds], GREY, ":", 1.4),
        )
        for name, values, colour, style, weight in lines:
            axes.plot(rounds, _numbers(values), style, color=colour, linewidth=weight, label=name)
        violated = [entry for entry in task.rounds if entry.violated]
        if violated:
            at = [entry.round + 1 for entry in violated]
            axes.plot(at, _numbers([entry.drift for entry in violated]), "x", color="black", label="violated bound")
        axes.set_ylim(bottom=0)
        mu = task.rounds[-1].mu
        title = f"Task {task.task}: {task.status}" + ("" if mu is None else f", μ = {mu:.3g}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _finish(axes, title, "round", "distance to the anchor (weights)" if index == 0 else "", legend=False)
    # The panels have the same lines: one legend, below them, where it covers no curve.
    named = {text: line for axes in figure.axes for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    columns = len(named) if len(anchored) > 1 else 2
    figure.legend(
        list(named.values()), list(named), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )
    return _save(figure, path)


def _draw(axes: Axes, curve: Curve, colour: str) -> None:
    xs = np.array([point.x for point in curve.points])
    ys = np.array([point.value for point in curve.points])
    errors = [2 * point.stderr for point in curve.points]
    measured = any(errors)
    text = curve.name.replace("grad Phi", "∇Φ").replace("grad f_1:K", "∇f₁:K").replace("^2", "²")
    text = text.replace("mu", "μ").replace("lam", "λ")
    if curve.slope is not None:
        text += f": slope {_signed(curve.slope)}" + (f" ± {curve.stderr:.3f}" if measured else "")
    if measured:
        axes.plot(xs, ys, "o", markersize=4, color=colour, label=text)
        axes.errorbar(xs, ys, yerr=errors, fmt="none", color=colour, capsize=2)
    else:
        axes.plot(xs, ys, "-", color=colour, linewidth=1.4, label=text)
    if curve.exact is not None:
        axes.plot(xs, curve.exact, "-", color=colour, linewidth=1, label=f"{curve.name}, closed form")
    elif curve.theory is None and measured:
        axes.plot(xs, ys, "-", color=colour, linewidth=1, alpha=0.4)
    elif curve.theory is not None and measured:
        used = xs >= curve.fit_from
        line = ys[used][-1] * (xs[used] / xs[used][-1]) ** curve.theory
        axes.plot(xs[used], line, "--", color=colour, linewidth=1, label=f"theory: {_signed(curve.theory)}")


def _claim(axes: Axes, curve: Curve) -> None:
    """The slope that Corollary 1 claims, drawn from the first point."""
    xs = np.array([point.x for point in curve.points])
    line = curve.points[0].value * (xs / xs[0]) ** -0.5
    axes.plot(xs, line, ":", color="black", linewidth=1.2, label="claimed: −0.500")


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−") if abs(value) >= 0.0005 else "0"


def _numbers(values: Sequence[float | None]) -> np.ndarray[Any, np.dtype[np.float64]]:
    array = np.array([np.nan if value is None else value for value in values], dtype=float)
    return np.where(np.isfinite(array), array, np.nan)


def _figure(panels: int, width: float = 4.8) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(max(width * panels, 5.2), 4.2), layout="constrained")


def _finish(axes: Axes, title: str, x: str, y: str, *, legend: bool = True) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, which="major", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.16))


def _save(figure: Figure, path: str | Path) -> Path:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=target.suffix.removeprefix("."), dpi=150)
    write_atomic(target, buffer.getvalue())
    return target
