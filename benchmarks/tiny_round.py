"""Overhead of the engine in a round of four tiny clients. Target: at most 1.25 times a bare PyTorch loop.

Logistic regression 784→10, 60 rows per client, batches of 10, one epoch: 24 steps per round. The arithmetic takes
almost no time, so the overhead of the engine is visible. The bare loop reuses one model in place, indexes its batches,
does plain SGD and averages the deltas. It does not use named random streams, check updates, measure bytes or write
events.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch
from problems import EqualShares, begin_task, features, ready_run, round_with_checkpoint
from timing import Quartiles, arguments, interleave, ratio, set_threads, show, verdict
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedspecial.data.samples import Samples
from fedspecial.engine.run import Run
from fedspecial.models import build

CLIENTS, CHOSEN, ROWS, BATCH, LR = 8, 4, 60, 10, 0.01
TARGET = 1.25


class BareLoop:
    """FedAvg written by hand for speed."""

    def __init__(self, samples: Samples, clients: int = CLIENTS, chosen: int = CHOSEN) -> None:
        self.samples, self.chosen = samples, chosen
        self.model = build("logistic", input_shape=(784,), num_classes=10)
        self.parameters = list(self.model.parameters())
        self.theta = [p.detach().clone() for p in self.parameters]
        shares = EqualShares(ROWS, len(samples))
        self.rows = [torch.from_numpy(shares.rows(client)) for client in range(clients)]

    def round(self) -> None:
        total = [torch.zeros_like(p) for p in self.theta]
        for client in torch.randperm(len(self.rows))[: self.chosen].tolist():
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.theta)
            self.train(self.rows[client])
            with torch.no_grad():
                torch._foreach_add_(total, torch._foreach_sub(self.parameters, self.theta))
        torch._foreach_add_(self.theta, total, alpha=1 / self.chosen)

    def train(self, rows: Tensor) -> None:
        order = rows[torch.randperm(len(rows))]
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            loss = cross_entropy(self.model(self.samples.x[batch]), self.samples.y[batch])
            loss.backward()
            with torch.no_grad():
                for parameter in self.parameters:
                    parameter.add_(parameter.grad, alpha=-LR)
                    parameter.grad = None


def main() -> None:
    args = arguments(__doc__)
    set_threads(args.threads)
    rounds, repeats = (1, 20) if args.quick else (5, 120)
    repeats = args.repeats or repeats
    data = features(CLIENTS * ROWS, tasks=2)
    settings = {"model": "logistic", "local_epochs": 1, "batch_size": BATCH, "client_lr": LR, "client_lr_decay": 1.0}
    settings |= {"clients": CLIENTS, "clients_per_round": CHOSEN, "partition": "iid", "threads": args.threads}
    bare = BareLoop(data.domains[0].train)
    with tempfile.TemporaryDirectory() as folder:
        first = ready_run(Path(folder) / "first", data, method="special", **settings)
        later = ready_run(Path(folder) / "later", data, method="special", **settings)
        begin_task(later, 2)
        counter = itertools.count()

        def repeat_bare() -> None:
            for _ in range(rounds):
                bare.round()

        def repeat(run: Run, task: int) -> None:
            for _ in range(rounds):
                round_with_checkpoint(run, task, next(counter))

        works = {"bare": repeat_bare, "first": lambda: repeat(first, 1), "later": lambda: repeat(later, 2)}
        times = interleave(works, repeats, warm_up=10)
        first.log.close()
        later.log.close()

    show(
        f"milliseconds per round of {CHOSEN} clients, {CHOSEN * ROWS // BATCH} steps",
        [(name, Quartiles.of([1000 * t / rounds for t in times[name].wall])) for name in times],
    )
    rows = []
    for name, label in (("first", "SPECIAL, first task (no anchor)"), ("later", "SPECIAL, later task (anchor)")):
        rows.append((f"{label}, wall", ratio(times[name].wall, times["bare"].wall)))
        rows.append((f"{label}, processor", ratio(times[name].cpu, times["bare"].cpu)))
    show("engine : bare loop", rows)
    verdict("wall, first task,", rows[0][1], TARGET)
    verdict("wall, later task,", rows[2][1], TARGET)


if __name__ == "__main__":
    main()
