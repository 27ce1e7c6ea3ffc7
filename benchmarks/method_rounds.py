"""Time per round of each method relative to FedAvg. Targets: SPECIAL at most 1.01, SPECIAL+ at most 1.02,
FedProx and SPECIAL-C at most 1.10.

ResNet-18 and generators of full size, 32×32 images, two clients with 32 images each, five epochs, second task. The
script also prints the paper's ratios and a lower bound for each method: the cost of its forward and backward passes
alone, from parts that are measured in the same run. Work between tasks is not included, and FedCIL's server does 1
iteration instead of 50, because a round of the paper's length would make both negligible.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from problems import begin_task, images, ready_run
from timing import Quartiles, arguments, interleave, ratio, set_threads, verdict
from torch.nn.functional import cross_entropy

from fedspecial import methods
from fedspecial.core.events import of_kind, read_events
from fedspecial.engine import loop
from fedspecial.engine.round import run_round
from fedspecial.engine.run import Run
from fedspecial.models import build
from fedspecial.models.generators import conditional_generator, critic, data_free_generator

SHARE, BATCH, EPOCHS, SHAPE = 32, 32, 5, (3, 32, 32)
SHORTENED = {"mfcl": {"iterations": 1}, "fedcil": {"server_iterations": 1}, "srfdil": {"cache": SHARE}}
PAPER = {
    "special": 1.05, "flwf2t": 1.30, "srfdil": 1.87, "fedprox": 2.53, "special-c": 2.71, "fedcil": 2.74,
    "pfeddil": 3.66, "mfcl": 5.07,
}  # fmt: skip
TARGETS = {"special": 1.01, "special-plus": 1.02, "fedprox": 1.10, "special-c": 1.10}


def in_second_task(folder: Path, name: str, settings: dict[str, Any]) -> Run:
    """A run that has finished one round of the first task, with all clients, and has begun the second task."""
    run = ready_run(folder / name, images(256, tasks=3), SHARE, method=name, **settings, **SHORTENED.get(name, {}))
    begin_task(run, 1)
    run_round(run, 1, 0)
    loop._call_hook(run, 1, "end_task")
    begin_task(run, 2)
    return run


class Parts:
    """The forward and backward passes that the methods consist of, on inputs of the right shape."""

    def __init__(self, width: int) -> None:
        self.model = build("resnet18", input_shape=SHAPE, num_classes=10, width=width)
        self.free, self.given = data_free_generator(SHAPE), conditional_generator(SHAPE, 10)
        self.critic = critic(SHAPE, 10)

    def step(self, count: int) -> Callable[[], None]:
        x, y = torch.randn(count, *SHAPE), torch.arange(count) % 10
        return lambda: cross_entropy(self.model.train()(x), y).backward()

    def forward(self, count: int) -> Callable[[], None]:
        x = torch.randn(count, *SHAPE)
        return torch.no_grad()(lambda: self.model.eval()(x))

    def generated(self, count: int) -> Callable[[], None]:
        z = torch.randn(count, self.free.latent)
        return torch.no_grad()(lambda: self.free.eval()(z))

    def gan_step(self) -> None:
        """The minimum for FedCIL after the first round of a task: four batches from frozen generators (replayed, and
        three for the consistency term), a step of D on six batches, and a step of G."""
        z, y, x = torch.randn(BATCH, self.given.latent), torch.arange(BATCH) % 10, torch.randn(BATCH, *SHAPE)
        with torch.no_grad():
            frozen = [self.given(z, y) for _ in range(4)]
        generated = self.given(z, y)
        self.critic(torch.cat([x, generated.detach(), *frozen]))[1].sum().backward()
        self.critic(generated)[1].sum().backward()


def lower_bounds(width: int, repeats: int, epochs: int) -> dict[str, float]:
    parts = Parts(width)
    works = {"step": parts.step(BATCH), "double": parts.step(2 * BATCH), "large": parts.step(BATCH + 128)}
    works |= {"forward": parts.forward(BATCH), "old": parts.forward(128), "generated": parts.generated(128)}
    times = {
        name: Quartiles.of(t.cpu).median for name, t in interleave({**works, "gan": parts.gan_step}, repeats).items()
    }
    step, once = times["step"], times["forward"] / epochs
    return {
        "flwf2t": 1 + once / step,
        "mfcl": (times["large"] + times["generated"] + times["old"] + once) / step,
        "fedcil": (times["double"] + times["gan"]) / step,
    }


def replay_share(run: Run) -> float:
    """Samples that a client trains on in the second task, per sample of its own."""
    later = [r for r in of_kind(read_events(run.log.path), "round") if r["task"] == 2]
    return float(later[-1]["samples"]) / (SHARE * later[-1]["num_accepted"])


def _add_options(parser: argparse.ArgumentParser) -> None:
    names = [name for name in methods.names() if name != "fedavg"]
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="local epochs, one step each (default: %(default)s)")
    parser.add_argument("--methods", nargs="+", choices=names, default=names, help="default: all")


def main() -> None:
    args = arguments(__doc__, _add_options)
    set_threads(args.threads)
    width, repeats = (8, 2) if args.quick else (64, 5)
    repeats = args.repeats or repeats
    settings = {
        "model": "resnet18",
        "width": width,
        "local_epochs": args.epochs,
        "batch_size": BATCH,
        "client_lr": 0.001,
    }
    settings |= {"clients": 2, "clients_per_round": 2, "threads": args.threads, "checkpoint_seconds": 1e9}
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: in_second_task(Path(folder), name, settings) for name in ("fedavg", *args.methods)}
        counters = {name: itertools.count() for name in runs}
        works = {name: (lambda n=name: run_round(runs[n], 2, next(counters[n]))) for name in runs}
        times = interleave(works, repeats)
        bounds = lower_bounds(width, max(3, repeats), args.epochs)
        if "srfdil" in runs:
            bounds["srfdil"] = replay_share(runs["srfdil"])
    print("\ntime per round : FedAvg (processor time)        ours [quartiles]          bound   paper, Digit-10")
    for name in runs:
        quartiles = ratio(times[name].cpu, times["fedavg"].cpu)
        print(f"  {name:<38}{quartiles}   {bounds.get(name, 1.0):6.2f}   {PAPER.get(name, 1.0):6.2f}")
    for name, target in ((name, target) for name, target in TARGETS.items() if name in runs):
        verdict(name, ratio(times[name].cpu, times["fedavg"].cpu), target)


if __name__ == "__main__":
    main()
