"""Certificates on digits-shift: how far the model goes from its anchor, and what it could not have exceeded.

    python examples/certificates.py [FOLDER]

Three runs of SPECIAL that differ in λ alone. The measured drift stands beside its caps, and μ beside λ: λ says how hard
a round pulls, μ = λ/(γ_G γ_L E) what the rounds converge to. Drift counts weights only, not BatchNorm statistics.
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
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(folder / "certificates.png", dpi=150)
    print(f"figure: {folder / 'certificates.png'}")


def row(lam: float, task: dict[str, Any]) -> str:
    caps = f"{task['recursion_bound']:9.3f} {task['delta_cap']:9.3f}"
    ratio = task["drift"] / task["recursion_bound"]
    cap = task["forgetting_cap"]
    forgotten = "unknown" if cap is None else f"{cap:.3g}"
    return (
        f"{lam:5g} {task['task']:4d} {task['drift']:7.3f} {caps} {ratio:6.2f} {task['mu']:7.4f} {forgotten:>10}"
        f"  {task['status']}"
    )


def draw(axes: Any, lam: float, certificates: list[dict[str, Any]]) -> None:
    """The anchored tasks one after another: the drift starts at zero in each."""
    lines = (
        ("drift", "measured", "#0072b2", "-"),
        ("recursion_bound", "recursion over the deltas", "#d55e00", "-"),
        ("delta_cap", "max ‖γΔ‖/λ", "#777777", ":"),
    )
    at = 0
    for number, certificate in enumerate(c for c in certificates if c["rounds"]):
        rounds = certificate["rounds"]
        x = range(at + 1, at + len(rounds) + 1)
        for name, label, colour, style in lines:
            values = [entry[name] for entry in rounds]
            axes.plot(x, values, style, color=colour, label=label if number == 0 else None, marker=".", markersize=4)
        axes.text(at + 1, 1.02, f"task {certificate['task']}", fontsize=8, transform=axes.get_xaxis_transform())
        at += len(rounds)
    axes.set(yscale="log", xlabel="rounds of the anchored tasks")
    axes.set_title(f"λ = {lam:g}", fontsize=11, pad=16)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/certificates"))
