"""Overhead of asynchronous aggregation. Target: at most 1.02 times a synchronous round, in processor time.

The CNN of digits-shift (32 × 32 images), 4 of 8 clients, SPECIAL in its second task. Both runs have no latency, and the
buffer is clients_per_round, so that they compute the same model bit for bit; the asynchronous one also keeps copies of
the versions in flight, a heap of events, and the origin of every update.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from problems import begin_task, images, ready_run
from timing import Quartiles, arguments, interleave, ratio, set_threads, show, verdict

from fedspecial.engine.asynchronous import run_steps
from fedspecial.engine.round import run_round
from fedspecial.engine.run import Run

CLIENTS, CHOSEN, ROWS = 8, 4, 128
TARGET = 1.02


def main() -> None:
    args = arguments(__doc__)
    set_threads(args.threads)
    repeats = args.repeats or (5 if args.quick else 60)
    data = images(CLIENTS * ROWS, tasks=2)
    settings = {"model": "cnn", "width": 16, "local_epochs": 1, "batch_size": 32, "client_lr": 0.01, "eval_every": 0}
    settings |= {"clients": CLIENTS, "clients_per_round": CHOSEN, "partition": "iid", "threads": args.threads}
    settings |= {"client_lr_decay": 1.0, "checkpoint_seconds": 1e9, "rounds": 4}
    with tempfile.TemporaryDirectory() as folder:
        waiting = ready_run(Path(folder) / "sync", data, method="special", **settings)
        stepping = ready_run(Path(folder) / "async", data, method="special", mode="async", **settings)
        for run in (waiting, stepping):
            begin_task(run, 2)

        def rounds(run: Run) -> None:
            for round in range(run.config.rounds):
                run_round(run, 2, round)

        works = {"synchronous": lambda: rounds(waiting), "asynchronous": lambda: run_steps(stepping, 2, 0)}
        times = interleave(works, repeats, warm_up=2)
        waiting.log.close()
        stepping.log.close()

    show(
        f"milliseconds of processor time per round of {CHOSEN} clients",
        [(name, Quartiles.of([250 * t for t in times[name].cpu])) for name in times],
    )
    found = ratio(times["asynchronous"].cpu, times["synchronous"].cpu)
    show("asynchronous : synchronous", [("processor", found)])
    verdict("processor", found, TARGET)


if __name__ == "__main__":
    main()
