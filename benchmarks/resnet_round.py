"""Overhead of the engine in a ResNet-18 round. Target: at most 1.03 times the bare SGD steps, checkpoint included.

Width 64, 32×32 images, batches of 32, four clients with 20 steps each. A bare step is forward, backward and an
in-place SGD update, with the same model class and batches of the same shape. Evaluation is not included. The script
also prints the cost of each part of a round, measured separately.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from problems import EqualShares, begin_task, images, ready_run, round_with_checkpoint
from timing import Quartiles, arguments, interleave, ratio, set_threads, show, verdict
from torch.nn.functional import cross_entropy

from fedspecial.data.benchmark import Benchmark
from fedspecial.engine.aggregation.mean import RunningMean, norm
from fedspecial.engine.checkpoint import Position
from fedspecial.engine.run import Run
from fedspecial.methods.base import RoundInfo
from fedspecial.models import build

CHOSEN, ROWS, BATCH, LR = 4, 160, 32, 0.001
TARGET = 1.03


class BareSteps:
    """The SGD steps alone: no broadcast, no delta, no mean."""

    def __init__(self, data: Benchmark, steps: int, width: int) -> None:
        self.data, self.steps = data, steps
        self.model = build("resnet18", input_shape=data.input_shape, num_classes=10, width=width).train()
        self.parameters = list(self.model.parameters())

    def round(self) -> None:
        samples = self.data.domains[0].train
        for client in range(CHOSEN):
            rows = torch.from_numpy(EqualShares(ROWS, len(samples)).rows(client))
            for step in range(self.steps):
                batch = rows[torch.arange(step * BATCH, (step + 1) * BATCH) % ROWS]
                x, y = self.data.inputs(samples.x[batch]), samples.y[batch]
                cross_entropy(self.model(x), y).backward()
                with torch.no_grad():
                    for parameter in self.parameters:
                        parameter.add_(parameter.grad, alpha=-LR)
                        parameter.grad = None


def parts_of(run: Run, round: int) -> dict[str, tuple[int, Callable[[], object]]]:
    """What a round does besides the SGD steps: how often, and a function that does it once."""
    theta, delta = run.server.theta, run.server.theta.clone()
    message = run.method.broadcast(run.server, 0, 2, round)
    mean = RunningMean()
    mean.add({"theta": delta})
    info = RoundInfo(2, round, 0.0, LR, 20.0)

    def checkpoint() -> None:
        theta.add_(0.0)  # a tensor that has not changed since the last checkpoint is not stored again
        run.checkpoint(Position(2, round))

    return {
        "load model": (CHOSEN, lambda: run.model.load(theta)),
        "delta": (CHOSEN, lambda: run.engine.runner._deltas(message)),
        "norms": (2 * CHOSEN + 2, lambda: norm(delta)),
        "add": (CHOSEN, lambda: mean.add({"theta": delta})),
        "mean": (1, lambda: mean.result(1.0)),
        "server step": (1, lambda: run.method.server_step(run.server, {"theta": delta}, info)),
        "checkpoint": (1, checkpoint),
    }


def main() -> None:
    args = arguments(__doc__)
    set_threads(args.threads)
    steps, width, repeats = (2, 16, 2) if args.quick else (20, 64, 5)
    repeats = args.repeats or repeats
    data = images(1280, tasks=2)
    settings = {"model": "resnet18", "width": width, "local_steps": steps, "batch_size": BATCH, "client_lr": LR}
    settings |= {"clients": 8, "clients_per_round": CHOSEN, "threads": args.threads}
    bare = BareSteps(data, steps, width)
    with tempfile.TemporaryDirectory() as folder:
        run = ready_run(Path(folder) / "run", data, ROWS, method="special", **settings)
        begin_task(run, 2)
        rounds = itertools.count()
        times = interleave(
            {"bare": bare.round, "engine": lambda: round_with_checkpoint(run, 2, next(rounds))}, repeats, warm_up=1
        )
        spent, total = run.checkpointer.seconds_spent, sum(times["engine"].wall)
        parts = parts_of(run, next(rounds))
        alone = interleave({name: work for name, (_, work) in parts.items()}, 3 if args.quick else 7)
        run.log.close()

    show("seconds per round", [(name, Quartiles.of(times[name].wall)) for name in times])
    rows = [("wall", ratio(times["engine"].wall, times["bare"].wall))]
    rows += [("processor", ratio(times["engine"].cpu, times["bare"].cpu))]
    show("engine : bare steps", rows)
    verdict("wall,", rows[0][1], TARGET)
    verdict("processor,", rows[1][1], TARGET)
    print(f"  checkpoints took {100 * spent / total:.2f} % of the engine's time")
    print("\nparts of a round (milliseconds each × count, per cent of the bare round)")
    bare_round = Quartiles.of(times["bare"].wall).median
    for name, (count, _) in parts.items():
        once = Quartiles.of(alone[name].wall)
        print(f"  {name:<14}{1000 * once.median:9.2f} × {count:<3}{100 * count * once.median / bare_round:8.2f} %")


if __name__ == "__main__":
    main()
