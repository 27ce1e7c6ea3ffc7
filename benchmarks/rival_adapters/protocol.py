"""What `rivals.py` and the adapters share: the problem, its data, and the protocol between the two processes.

An adapter is started with the problem as JSON in its first argument. It writes `{"ready": true}`, then reads one line
`{"rounds": k}` after the other, runs k rounds and replies with the seconds they took and the number of SGD steps. It
ends when its input ends. This module is also imported in the environment of the rivals, so it needs only torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """FedAvg on logistic regression: every client has the same number of rows and trains one epoch per round."""

    clients: int
    per_round: int
    rows: int = 60
    batch: int = 10
    lr: float = 0.01
    features: int = 784
    classes: int = 10
    threads: int = 1

    @property
    def steps(self) -> int:
        """SGD steps of all chosen clients in one round."""
        return self.per_round * self.rows // self.batch

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Problem:
        return Problem(**json.loads(text))


def client_data(problem: Problem) -> list[tuple[Tensor, Tensor]]:
    """Features and labels of each client, equal to those of `problems.features`."""
    generator = torch.Generator().manual_seed(0)
    rows = problem.clients * problem.rows
    x = torch.randn(rows, problem.features, generator=generator)
    y = torch.randint(0, problem.classes, (rows,), generator=generator)
    return list(zip(x.split(problem.rows), y.split(problem.rows), strict=True))


def serve(run_rounds: Callable[[int], int]) -> None:
    """Answer requests until the input ends. run_rounds: number of rounds → SGD steps that were taken."""
    # A library may print to standard output at any time: give it standard error and keep the original for replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        rounds = json.loads(line)["rounds"]
        wall, cpu = time.perf_counter(), time.process_time()
        steps = run_rounds(rounds)
        reply = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "steps": steps}
        print(json.dumps(reply), file=replies, flush=True)
