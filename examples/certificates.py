"""Certificates on digits-shift: the distance of the model to its anchor, and the upper bounds on it.

    python examples/certificates.py [FOLDER]

Three runs of SPECIAL that differ only in λ. For each anchored task the script prints the measured drift (the distance
to the anchor), two bounds on it, and μ = λ/(γ_G γ_L E). λ is the strength of the anchor in one round; μ is its strength
in the objective that the rounds minimise. The drift includes weights only, not BatchNorm statistics.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import fedspecial
from fedspecial.core.events import of_kind, read_events

LAMBDAS = (0.05, 0.25, 1.0)
HEAD = "    λ task   drift recursion max|γΔ|/λ  ratio       μ forget cap  status"


def main(folder: Path) -> None:
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subplots(1, len(LAMBDAS), sharey=True)
    print(HEAD)
    for lam, axes in zip(LAMBDAS, panels, strict=True):
        out = folder / f"lam-{lam:g}"
        result = fedspecial.run(
            "digits-shift", method="special", lam=lam, seed=25, estimate=True, eval_every=0, out=out
        )
        for task in result.certificates or []:
            if task["anchored"]:
                print(row(lam, task))
        print(f"      ACC {100 * result.acc:.1f} %, BWT {100 * (result.bwt or 0):+.1f} points")
        draw(axes, lam, of_kind(read_events(out / "events.jsonl"), "certificate"))
    panels[0].set_ylabel("distance to the anchor (weights)")
    panels[-1].legend(loc="upper right", frameon=False, fontsize=8)
    figure.savefig(folder / "certificates.png", dpi=150)
    print(f"figure: {folder / 'certificates.png'}")


def row(lam: float, task: dict[str, Any]) -> str:
    caps = f"{task['recursion_bound']:9.3f} {task['delta_cap']:9.3f}"
    ratio = task["drift"] / task["recursion_bound"]
    cap = task["forgetting_cap"]
    shown = "unknown" if cap is None else f"{cap:.3g}"
    return (
        f"{lam:5g} {task['task']:4d} {task['drift']:7.3f} {caps} {ratio:6.2f} {task['mu']:7.4f} {shown:>10}"
        f"  {task['status']}"
    )


def draw(axes: Any, lam: float, certificates: list[dict[str, Any]]) -> None:
    """Plot the anchored tasks one after another. The drift starts at zero in each of them."""
    lines = (
        ("drift", "measured drift", "#0072b2", "-"),
        ("recursion_bound", "bound: recursion over the deltas", "#d55e00", "-"),
        ("delta_cap", "bound: max ‖γΔ‖/λ", "#777777", ":"),
    )
    start = 0
    for number, certificate in enumerate(c for c in certificates if c["rounds"]):
        rounds = certificate["rounds"]
        x = range(start + 1, start + len(rounds) + 1)
        for name, label, colour, style in lines:
            values = [entry[name] for entry in rounds]
            axes.plot(x, values, style, color=colour, label=label if number == 0 else None, marker=".", markersize=4)
        axes.text(start + 1, 1.02, f"task {certificate['task']}", fontsize=8, transform=axes.get_xaxis_transform())
        start += len(rounds)
    axes.set(yscale="log", xlabel="rounds of the anchored tasks")
    axes.set_title(f"λ = {lam:g}", fontsize=11, pad=16)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/certificates"))
