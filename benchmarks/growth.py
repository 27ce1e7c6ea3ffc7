"""How the cost of a SPECIAL round grows: with the clients of a round, the clients of the federation and the parameters.

One local step of two rows per client, so that what the engine itself does is visible. Cost is processor time per round.
The measured points are printed; `--figure FILE.png` also draws them (needs the extra `plot`).
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from problems import begin_task, features, ready_run, round_with_checkpoint
from timing import Quartiles, arguments, interleave, set_threads

from fedspecial.engine.run import Run

ROWS = 2


@dataclass(frozen=True)
class Point:
    """One measured size: clients of the federation, clients per round, hidden units of the MLP (0: logistic)."""

    clients: int
    per_round: int
    width: int = 0

    def prepare(self, folder: Path) -> Run:
        data = features(1000, 64, tasks=2)
        model = {"model": "mlp", "width": self.width} if self.width else {"model": "logistic"}
        settings = {"method": "special", "local_steps": 1, "batch_size": ROWS, **model}
        run = ready_run(folder, data, ROWS, clients=self.clients, clients_per_round=self.per_round, **settings)
        begin_task(run, 2)
        return run


@dataclass(frozen=True)
class Curve:
    """Points that differ in one size."""

    label: str
    points: Sequence[Point]


def curves(quick: bool) -> list[Curve]:
    tens = [4, 40, 400] if quick else [4, 40, 400, 4000]
    widths = [0, 100, 1000] if quick else [0, 100, 300, 1000, 3000]
    return [
        Curve("clients per round", [Point(max(tens), count) for count in tens]),
        Curve("clients in the federation", [Point(10**e, 8) for e in range(1, 8)]),
        Curve("parameters of the model", [Point(8, 4, width) for width in widths]),
    ]


def measure(curve: Curve, repeats: int) -> list[tuple[float, Quartiles]]:
    with tempfile.TemporaryDirectory() as folder:
        runs = [point.prepare(Path(folder) / str(number)) for number, point in enumerate(curve.points)]
        counter = itertools.count()
        works = {str(n): partial(_next_round, run, counter) for n, run in enumerate(runs)}
        times = interleave(works, repeats, warm_up=2)
        found = []
        for number, (point, run) in enumerate(zip(curve.points, runs, strict=True)):
            size = {"parameters of the model": len(run.vector), "clients per round": point.per_round}.get(
                curve.label, point.clients
            )
            found.append((float(size), Quartiles.of([1000 * seconds for seconds in times[str(number)].cpu])))
            run.log.close()
    return found


def _next_round(run: Run, rounds: itertools.count[int]) -> None:
    round_with_checkpoint(run, 2, next(rounds))


def draw(measured: dict[str, list[tuple[float, Quartiles]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    for axes, (label, points) in zip(figure.subplots(1, 3, sharey=True), measured.items(), strict=True):
        sizes, medians = [size for size, _ in points], [value.median for _, value in points]
        low = [value.median - value.low for _, value in points]
        high = [value.high - value.median for _, value in points]
        axes.errorbar(sizes, medians, yerr=[low, high], marker="o", color="#0072b2", capsize=3)
        # A line of slope 1 through the last point: cost in proportion to the size.
        axes.plot(sizes, [medians[-1] * size / sizes[-1] for size in sizes], ":", color="#777777", label="proportional")
        axes.set(xscale="log", yscale="log", xlabel=label, ylim=(1, 4000))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("processor time of a round (ms)")
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--figure", type=Path, help="draw the measurements into this PNG file")


def main() -> None:
    args = arguments(__doc__, _add_options)
    set_threads(args.threads)
    measured = {}
    for curve in curves(args.quick):
        measured[curve.label] = measure(curve, args.repeats or (3 if args.quick else 15))
        print(f"\nmilliseconds of processor time per round, by {curve.label}")
        for size, quartiles in measured[curve.label]:
            print(f"  {size:>14,.0f}  {quartiles}")
    if args.figure:
        draw(measured, args.figure)


if __name__ == "__main__":
    main()
