"""A round of the tiny problem (8 clients, 4 per round, 24 steps) against a typical PyTorch implementation. No target.

The typical implementation deep-copies the model for every client, uses a DataLoader and torch.optim.SGD, and averages
state dicts. `rivals.py` compares with other frameworks.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from pathlib import Path

import torch
from problems import EqualShares, features, ready_run, round_with_checkpoint
from timing import Quartiles, arguments, interleave, ratio, set_threads, show
from tiny_round import BATCH, CHOSEN, CLIENTS, LR, ROWS, BareLoop
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

from fedspecial.data.samples import Samples
from fedspecial.models import build


class TypicalImplementation:
    """deepcopy, DataLoader, optimiser, mean of state dicts."""

    def __init__(self, samples: Samples) -> None:
        data = TensorDataset(samples.x, samples.y)
        shares = EqualShares(ROWS, len(samples))
        self.clients = [Subset(data, shares.rows(client).tolist()) for client in range(CLIENTS)]
        self.model = build("logistic", input_shape=(784,), num_classes=10)

    def round(self) -> None:
        states = [self.train(client) for client in torch.randperm(CLIENTS)[:CHOSEN].tolist()]
        mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
        self.model.load_state_dict(mean)

    def train(self, client: int) -> dict[str, torch.Tensor]:
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for x, y in DataLoader(self.clients[client], batch_size=BATCH, shuffle=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        return model.state_dict()


def main() -> None:
    args = arguments(__doc__)
    set_threads(args.threads)
    repeats = args.repeats or (10 if args.quick else 200)
    data = features(CLIENTS * ROWS)
    typical, bare = TypicalImplementation(data.domains[0].train), BareLoop(data.domains[0].train)
    settings = {"model": "logistic", "local_epochs": 1, "batch_size": BATCH, "client_lr": LR, "client_lr_decay": 1.0}
    settings |= {"clients": CLIENTS, "clients_per_round": CHOSEN, "partition": "iid", "threads": args.threads}
    with tempfile.TemporaryDirectory() as folder:
        run = ready_run(Path(folder) / "run", data, **settings)
        rounds = itertools.count()
        works = {
            "fedspecial": lambda: round_with_checkpoint(run, 1, next(rounds)),
            "typical implementation": typical.round,
            "bare loop": bare.round,
        }
        times = interleave(works, repeats, warm_up=5)
        run.log.close()
    show("milliseconds per round", [(name, Quartiles.of([1000 * t for t in times[name].wall])) for name in times])
    rows = [(f"{name}, processor", ratio(times["fedspecial"].cpu, times[name].cpu)) for name in times]
    show("fedspecial : other implementation", rows[1:])


if __name__ == "__main__":
    main()
