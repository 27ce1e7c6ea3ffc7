"""Cost of certificates in a ResNet-18 round. Targets: at most 1 % by default, at most 15 % with `estimate: true`.

32×32 images, batches of 32, 4 clients × 20 steps, SPECIAL in an anchored task. Three variants are measured alternately:
the round as it is, the same round without the norms that the certificate needs, and the round with `estimate: true`.
Work that is done once per task (reading the events and issuing the certificate; the gradient and the curvature at the
end of the task) is measured separately and divided by 20 rounds.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from problems import begin_task, images, ready_run
from timing import Quartiles, Times, arguments, interleave, ratio, set_threads, show, verdict

from fedspecial.core.events import read_events
from fedspecial.engine import estimate
from fedspecial.engine import round as rounds
from fedspecial.engine.round import run_round
from fedspecial.engine.run import Run

CLIENTS, CHOSEN, STEPS, BATCH, ROUNDS_PER_TASK = 8, 4, 20, 32, 20


def without_certificate(run_one_round: Callable[[], object]) -> None:
    """The same round without the drift, the norm of the model, and the norms of the mean and the client deltas."""
    with (
        mock.patch.object(rounds, "distances", return_value={"drift": None}),
        mock.patch.object(rounds, "norm", return_value=0.0),
    ):
        run_one_round()


def main() -> None:
    args = arguments(__doc__)
    set_threads(args.threads)
    steps, repeats = (4, 2) if args.quick else (STEPS, 3)
    data = images(CLIENTS * 160, tasks=2)
    settings: dict[str, Any] = {"model": "resnet18", "local_steps": steps, "batch_size": BATCH, "client_lr": 0.001}
    settings |= {"clients": CLIENTS, "clients_per_round": CHOSEN, "partition": "iid", "threads": args.threads}
    with tempfile.TemporaryDirectory() as folder:
        plain = ready_run(Path(folder) / "plain", data, method="special", **settings)
        estimating = ready_run(Path(folder) / "estimating", data, method="special", estimate=True, **settings)
        for run in (plain, estimating):
            estimate.at_task_end(run, 1)  # measures the gradient at the end of the first task
            begin_task(run, 2)
        counter = itertools.count()

        def one_round(run: Run) -> None:
            run_round(run, 2, next(counter))

        works: dict[str, Callable[[], object]] = {
            "without": lambda: without_certificate(lambda: one_round(plain)),
            "default": lambda: one_round(plain),
            "estimate": lambda: one_round(estimating),
        }
        times = interleave(works, repeats, warm_up=0)
        issued, ended, norms = Times(), Times(), Times()
        for _ in range(3):
            norms.measure(lambda: certificate_norms(plain))
            issued.measure(lambda: plain.certify and plain.certify(read_events(plain.log.path), 2))
            ended.measure(lambda: estimate.at_task_end(estimating, 2))
        plain.log.close()
        estimating.log.close()
    report(times, issued, ended, norms)


def certificate_norms(run: Run) -> None:
    """What the certificate adds to a round: the norms of the client deltas and of their mean, and the drift."""
    for _ in range(CHOSEN + 1):
        rounds.norm(run.server.theta[: run.model.layout.num_weights])
    rounds.distances(run)


def report(times: dict[str, Times], issued: Times, ended: Times, norms: Times) -> None:
    show("seconds per round", [(name, Quartiles.of(times[name].cpu)) for name in times], "processor")
    once = Quartiles.of(times["default"].cpu).median * ROUNDS_PER_TASK
    shares = {"default": Quartiles.of(issued.cpu).median / once, "estimate": Quartiles.of(ended.cpu).median / once}
    print(
        f"\nwork once per task, divided by {ROUNDS_PER_TASK} rounds: "
        + ", ".join(f"{k} {100 * v:.2f} %" for k, v in shares.items())
    )
    alone = Quartiles.of(norms.cpu).median / Quartiles.of(times["default"].cpu).median
    print(f"the norms for the certificate, measured separately: {100 * alone:.2f} % of a round")
    for clock in ("cpu", "wall"):
        base = getattr(times["without"], clock)
        found = {name: ratio(getattr(times[name], clock), base) for name in ("default", "estimate")}
        found = {
            name: Quartiles(*(value + shares[name] for value in (s.low, s.median, s.high))) for name, s in found.items()
        }
        show(f"with : without, {'processor' if clock == 'cpu' else 'wall'} time", list(found.items()))
        verdict("default certificate", found["default"], 1.01)
        verdict("all estimates", found["estimate"], 1.15)


if __name__ == "__main__":
    main()
