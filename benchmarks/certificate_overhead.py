"""What certificates cost a round of ResNet-18. Targets: the default one at most 1 %, all estimates at most 15 %.

32×32 images, batches of 32, 4 clients × 20 steps, SPECIAL in an anchored task. The rivals take turns: the round as it
is, the same round with the norms of the certificate taken out, and the round with `estimate: true`. What comes once a
task (reading the events and issuing the certificate; the gradient and the curvature at its end) is timed by itself and
spread over 20 rounds.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from problems import images, ready_run
from timing import Spread, Times, arguments, pin, ratio, show, take_turns, verdict

from fedspecial.core.events import read_events
from fedspecial.engine import estimate, loop
from fedspecial.engine.loop import Run, run_round

CLIENTS, CHOSEN, STEPS, BATCH, ROUNDS_A_TASK = 8, 4, 20, 32, 20


def without_certificate(play: Callable[[], object]) -> None:
    """The same round without drift, size of the model, norm of the mean and of each client's change."""
    with (
        mock.patch.object(loop, "_distances", return_value={"drift": None}),
        mock.patch.object(loop, "norm", return_value=0.0),
    ):
        play()


def main() -> None:
    args = arguments(__doc__)
    pin(args.threads)
    steps, turns = (4, 2) if args.quick else (STEPS, 3)
    data = images(CLIENTS * 160, tasks=2)
    settings: dict[str, Any] = {"model": "resnet18", "local_steps": steps, "batch_size": BATCH, "client_lr": 0.001}
    settings |= {"clients": CLIENTS, "clients_per_round": CHOSEN, "partition": "iid", "threads": args.threads}
    with tempfile.TemporaryDirectory() as folder:
        plain = ready_run(Path(folder) / "plain", data, method="special", **settings)
        watched = ready_run(Path(folder) / "watched", data, method="special", estimate=True, **settings)
        for run in (plain, watched):
            estimate.at_task_end(run, 1)  # the gradient that a first task would have left
            run.method.begin_task(run.server, run.context(2))
        counter = itertools.count()

        def play(run: Run) -> None:
            run_round(run, 2, next(counter))

        works: dict[str, Callable[[], object]] = {
            "without": lambda: without_certificate(lambda: play(plain)),
            "default": lambda: play(plain),
            "estimate": lambda: play(watched),
        }
        times = take_turns(works, turns, warm_up=0)
        issued, ended, norms = Times(), Times(), Times()
        for _ in range(3):
            norms.take(lambda: certificate_norms(plain))
            issued.take(lambda: plain.certify and plain.certify(read_events(plain.log.path), 2))
            ended.take(lambda: estimate.at_task_end(watched, 2))
        plain.log.close()
        watched.log.close()
    report(times, issued, ended, norms)


def certificate_norms(run: Run) -> None:
    """What the certificate adds to a round, by itself: the norms of each client's change and of the mean, the drift."""
    for _ in range(CHOSEN + 1):
        loop.norm(run.server.theta[: run.model.layout.num_weights])
    loop._distances(run)


def report(times: dict[str, Times], issued: Times, ended: Times, norms: Times) -> None:
    show("seconds per round", [(name, Spread.of(times[name].cpu)) for name in times], "processor")
    once = Spread.of(times["default"].cpu).median * ROUNDS_A_TASK
    shares = {"default": Spread.of(issued.cpu).median / once, "estimate": Spread.of(ended.cpu).median / once}
    print(
        f"\nonce a task, spread over {ROUNDS_A_TASK} rounds: "
        + ", ".join(f"{k} {100 * v:.2f} %" for k, v in shares.items())
    )
    alone = Spread.of(norms.cpu).median / Spread.of(times["default"].cpu).median
    print(f"the certificate's norms timed by themselves: {100 * alone:.2f} % of a round")
    for clock in ("cpu", "wall"):
        base = getattr(times["without"], clock)
        found = {name: ratio(getattr(times[name], clock), base) for name in ("default", "estimate")}
        found = {
            name: Spread(*(value + shares[name] for value in (s.low, s.median, s.high))) for name, s in found.items()
        }
        show(f"with : without, {'processor' if clock == 'cpu' else 'wall'} time", list(found.items()))
        verdict("default certificate", found["default"], 1.01)
        verdict("all estimates", found["estimate"], 1.15)


if __name__ == "__main__":
    main()
