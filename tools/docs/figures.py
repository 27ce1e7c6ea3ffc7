"""Draws the explanatory figures of the documentation: python tools/docs/figures.py [FOLDER]"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

DOMAINS = (
    ("domain 1", "scanner A", "#0072b2"),
    ("domain 2", "scanner B", "#d55e00"),
    ("domain 3", "scanner C", "#009e73"),
)
CHOSEN = ({0, 2, 5}, {1, 2, 4}, {0, 3, 5})
CLIENTS = 6
GREY, INK = "#b8b8b8", "#222222"


def box(axes: Axes, x: float, y: float, width: float, height: float, colour: str, fill: str = "white") -> None:
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y), width, height, style, edgecolor=colour, facecolor=fill, linewidth=1.4))


def bar(axes: Axes, x: float, y: float, colour: str, *, filled: bool) -> None:
    style, line = "round,pad=0,rounding_size=0.02", "-" if filled else ":"
    face = colour if filled else "white"
    axes.add_patch(
        FancyBboxPatch((x - 0.13, y), 0.26, 0.1, style, facecolor=face, edgecolor=colour, linewidth=0.9, linestyle=line)
    )


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK, style: str = "-|>"
) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle=style, mutation_scale=11, color=colour, linewidth=1.3, shrinkA=0, shrinkB=0
        )
    )


def federated_domain_incremental() -> Figure:
    """Three tasks from left to right; in each, a server and six clients, of which three take part in the round."""
    figure = Figure(figsize=(10.4, 4.9))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10.4), ylim=(0, 4.9))
    axes.axis("off")
    for task in range(len(DOMAINS)):
        draw_task(axes, task)
    axes.text(
        3.48, 2.95, "models and updates\ntravel, data does not", fontsize=8.5, color=INK, va="center", ha="center"
    )
    captions = (
        (
            1.0,
            "circles: clients; filled ones take part in this round. Bars: data; earlier data is no longer available.",
        ),
        (0.1, "after each task, the model is tested on all domains; grey: not learned yet"),
    )
    for y, text in captions:
        axes.text(0.28, y, text, fontsize=8.5, color=INK)
    return figure


def draw_task(axes: Axes, task: int) -> None:
    """The server, the clients with their data, and the test of one task, counted from 0."""
    domain, example, colour = DOMAINS[task]
    left = 0.25 + 3.45 * task
    middle = left + 1.5
    axes.text(
        middle,
        4.62,
        f"task {task + 1}: {domain} ({example})",
        ha="center",
        fontsize=11,
        weight="bold",
        color=colour,
    )
    box(axes, left + 0.55, 3.55, 1.9, 0.72, INK, "#f3f3f3")
    axes.text(middle, 4.05, "server: model $\\theta$", ha="center", va="center", fontsize=10)
    anchor = "no anchor yet" if task == 0 else f"anchor = $\\theta_{task}$"
    axes.text(
        middle,
        3.76,
        anchor,
        ha="center",
        va="center",
        fontsize=9,
        color=GREY if task == 0 else DOMAINS[task - 1][2],
    )
    for client in range(CLIENTS):
        x = left + 0.25 + 0.5 * client
        chosen = client in CHOSEN[task]
        axes.add_patch(
            Circle((x, 2.05), 0.17, facecolor=colour if chosen else "white", edgecolor=colour, linewidth=1.4)
        )
        if chosen:
            arrow(axes, (middle + 0.45 * (x - middle), 3.5), (x, 2.3), colour, "<|-|>")
        for old in range(task + 1):
            shade = colour if old == task else GREY
            y = 1.58 - 0.17 * (task - old)
            bar(axes, x, y, shade, filled=old == task)
    for seen, (_, name, shade) in enumerate(DOMAINS):
        x = left + 0.03 + 1.0 * seen
        known = seen <= task
        box(axes, x, 0.32, 0.92, 0.36, shade if known else GREY)
        axes.text(
            x + 0.46, 0.5, f"test {name[-1]}", ha="center", va="center", fontsize=9, color=shade if known else GREY
        )
    if task:
        arrow(axes, (left - 0.95, 3.91), (left + 0.5, 3.91), DOMAINS[task - 1][2])
        axes.text(left - 0.22, 4.02, f"$\\theta_{task}$", ha="center", fontsize=11, color=DOMAINS[task - 1][2])


def anchor_path(
    lam: float, start: np.ndarray, optimum: np.ndarray, curvature: np.ndarray, rounds: int = 40
) -> np.ndarray:
    """SPECIAL's rounds on a quadratic with exact gradients: one row per round."""
    theta, path = start.copy(), [start.copy()]
    for _ in range(rounds):
        theta = theta - 0.12 * curvature @ (theta - optimum)
        theta = (theta + lam * start) / (1 + lam)
        path.append(theta.copy())
    return np.array(path)


def lambda_in_two_dimensions() -> Figure:
    """Two tasks with quadratic losses: the path of task 2 from the solution of task 1, for four values of λ."""
    first, second = np.array([0.0, 0.0]), np.array([3.0, 1.6])
    curvature_1, curvature_2 = np.diag([1.0, 2.6]), np.array([[1.0, 0.3], [0.3, 1.4]])
    figure = Figure(figsize=(6.6, 4.0), layout="constrained")
    axes = figure.subplots()
    x, y = np.meshgrid(np.linspace(-1.6, 4.6, 200), np.linspace(-1.4, 3.0, 200))
    points = np.stack([x, y], axis=-1)
    for center, curvature, colour in ((first, curvature_1, "#0072b2"), (second, curvature_2, "#d55e00")):
        offset = points - center
        loss = np.einsum("...i,ij,...j->...", offset, curvature, offset)
        axes.contour(x, y, loss, levels=[0.25, 1, 2.2, 4], colors=colour, alpha=0.35, linewidths=1)
    for lam, colour in ((0.0, "#555555"), (0.05, "#cc79a7"), (0.15, "#009e73"), (0.5, "#000000")):
        path = anchor_path(lam, first, second, curvature_2)
        axes.plot(
            *path.T,
            "-o",
            markersize=2.2,
            linewidth=1.2,
            color=colour,
            label=f"λ = {lam:g}" + (" (FedAvg)" if lam == 0 else ""),
        )
        axes.plot(*path[-1], "o", markersize=7, color=colour)
    axes.plot(*first, "*", markersize=13, color="#0072b2")
    axes.text(-0.15, -0.42, "anchor:\nbest for task 1", color="#0072b2", fontsize=9, ha="right", va="top")
    axes.text(3.15, 1.95, "best for task 2", color="#d55e00", fontsize=9)
    axes.set(xticks=[], yticks=[], xlabel="one weight of the model", ylabel="another weight", aspect="equal")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(folder: Path) -> None:
    for name, figure in (
        ("federated-domain-incremental", federated_domain_incremental()),
        ("lambda", lambda_in_two_dimensions()),
    ):
        figure.savefig(folder / f"{name}.png", dpi=160, metadata={"Software": None})
        print(folder / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "docs" / "figures"))
