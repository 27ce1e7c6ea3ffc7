"""A round of each method against FedAvg's, with the paper's networks, beside the paper's ratios and a floor.

ResNet-18 and full generators, 32×32 images, two clients of 32 images, five epochs, the second task. A method's floor is
what its own arithmetic costs if nothing else does, from the pieces timed in the same run: the images it pushes through
networks beside FedAvg's. Work between tasks is not in a round, and FedCIL's server makes one iteration, not fifty: in a
round of the paper's length neither would be seen.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from problems import images, ready_run
from timing import Spread, arguments, pin, ratio, take_turns
from torch.nn.functional import cross_entropy

from fedspecial import methods
from fedspecial.core.events import of_kind, read_events
from fedspecial.engine import loop
from fedspecial.engine.loop import Run
from fedspecial.models import build
from fedspecial.models.generators import conditional_generator, critic, data_free_generator

SHARE, BATCH, EPOCHS, SHAPE = 32, 32, 5, (3, 32, 32)
SHORT = {"mfcl": {"iterations": 1}, "fedcil": {"server_iterations": 1}, "srfdil": {"cache": SHARE}}
PAPER = {
    "special": 1.05, "flwf2t": 1.30, "srfdil": 1.87, "fedprox": 2.53, "special-c": 2.71, "fedcil": 2.74,
    "pfeddil": 3.66, "mfcl": 5.07,
}  # fmt: skip
TARGETS = {"special": 1.01, "fedprox": 1.10, "special-c": 1.10}


def in_second_task(folder: Path, name: str, settings: dict[str, Any]) -> Run:
    """A run that has played a round of the first task, in which everybody took part, and has begun the second."""
    run = ready_run(folder / name, images(256, tasks=3), SHARE, method=name, **settings, **SHORT.get(name, {}))
    loop._begin_task(run, 1)
    loop.run_round(run, 1, 0)
    loop._call_hook(run, 1, "end_task")
    loop._begin_task(run, 2)
    return run


class Pieces:
    """The parts of which the methods' steps are made, on inputs of the right shape."""

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
        """The least of FedCIL: replayed images, a step on D over new, old and made ones, a step on G."""
        z, y, x = torch.randn(BATCH, self.given.latent), torch.arange(BATCH) % 10, torch.randn(BATCH, *SHAPE)
        with torch.no_grad():
            replayed, made = (self.given(z, y) for _ in range(2))
        self.critic(torch.cat([x, replayed, made]))[1].sum().backward()
        self.critic(self.given(z, y))[1].sum().backward()


def floors(width: int, turns: int) -> dict[str, float]:
    pieces = Pieces(width)
    works = {"step": pieces.step(BATCH), "double": pieces.step(2 * BATCH), "large": pieces.step(BATCH + 128)}
    works |= {"forward": pieces.forward(BATCH), "old": pieces.forward(128), "made": pieces.generated(128)}
    times = {name: Spread.of(t.cpu).median for name, t in take_turns({**works, "gan": pieces.gan_step}, turns).items()}
    step, once = times["step"], times["forward"] / EPOCHS
    return {
        "flwf2t": 1 + once / step,
        "mfcl": (times["large"] + times["made"] + times["old"] + once) / step,
        "fedcil": (times["double"] + times["gan"]) / step,
    }


def replay_share(run: Run) -> float:
    """How many samples a client of the second task trains on for each one of its own."""
    later = [r for r in of_kind(read_events(run.log.path), "round") if r["task"] == 2]
    return float(later[-1]["samples"]) / (SHARE * later[-1]["num_accepted"])


def main() -> None:
    args = arguments(__doc__)
    pin(args.threads)
    width, turns = (8, 2) if args.quick else (64, 5)
    turns = args.turns or turns
    settings = {"model": "resnet18", "width": width, "local_epochs": EPOCHS, "batch_size": BATCH, "client_lr": 0.001}
    settings |= {"clients": 2, "clients_per_round": 2, "threads": args.threads, "checkpoint_seconds": 1e9}
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: in_second_task(Path(folder), name, settings) for name in methods.names()}
        counters = {name: itertools.count() for name in runs}
        works = {name: (lambda n=name: loop.run_round(runs[n], 2, next(counters[n]))) for name in runs}
        times = take_turns(works, turns)
        least = {**floors(width, max(3, turns)), "srfdil": replay_share(runs["srfdil"])}
    print("\ntime per round : FedAvg's (processor time)       ours [quartiles]          floor   paper, Digit-10")
    for name in runs:
        spread = ratio(times[name].cpu, times["fedavg"].cpu)
        print(f"  {name:<38}{spread}   {least.get(name, 1.0):6.2f}   {PAPER.get(name, 1.0):6.2f}")
    for name, target in TARGETS.items():
        spread = ratio(times[name].cpu, times["fedavg"].cpu)
        print(
            f"  target {'met' if spread.median <= target else 'NOT met'}: {name} {spread.median:.3f}, at most {target}"
        )


if __name__ == "__main__":
    main()
